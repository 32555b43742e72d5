"""The comparison as a table for a terminal, readable at 80 columns."""

from collections.abc import Callable, Mapping
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from eval.remarks import footnotes, mcnemar, remarks
from eval.style import percent, said

_DASH = Text("–", style="dim")
_PAIRED = {
    "paired": ("pairs that both call", ("valid", "invalid")),
    "answers_paired": ("requests with ground truth", ("right", "wrong")),
}


def print_all(comparison: Mapping[str, Any], console: Console) -> None:
    """Print everything that a comparison has the numbers for."""
    blocks = [_heading(comparison), _main(comparison)]
    for key, (noun, words) in _PAIRED.items():
        if (paired := comparison.get(key)) is not None:
            blocks.append(Group(pairs(paired, noun, words), _test(paired)))
    if said_of_it := remarks(comparison):
        blocks.append(Group(*map(Text, said_of_it)))
    blocks.append(Group(*(Text(line, style="dim") for line in footnotes(comparison))))
    for block in blocks:
        console.print()
        console.print(block)


def _heading(comparison: Mapping[str, Any]) -> Text:
    title = f"K2VV, {comparison['requests']['total']:,} requests"
    if comparison["model"]:
        title += f" to {comparison['model']}"
    lines = [Text(title, style="bold")]
    if comparison["settings"]:
        settings = (f"{said(name)} {value}" for name, value in comparison["settings"].items())
        lines.append(Text(", ".join(settings), style="dim"))
    return Text("\n").join(lines)


def _main(comparison: Mapping[str, Any]) -> Table:
    modes = comparison["modes"]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("", no_wrap=True)
    for mode in modes:
        table.add_column(mode, justify="right", no_wrap=True)

    def add(name: str, cell: Callable[[Mapping[str, Any]], Text | str], style: str = "") -> None:
        table.add_row(Text(name, style=style), *(cell(run) for run in modes.values()))

    groups = _groups(comparison)
    width = max(2 * len(str(run["schema_accuracy"]["triggered"])) + 1 for run in modes.values())
    add("Schema accuracy", lambda run: accuracy_cell(run["schema_accuracy"], width), "bold")
    for name in groups:
        add(
            f"  {said(name)}",
            lambda run, n=name: accuracy_cell(_part(run["schema_accuracy"], n), width),
        )
    table.add_section()

    if all(run["trigger"] is not None for run in modes.values()):
        add("Trigger F1", lambda run: trigger_cell(run["trigger"]), "bold")
        for name in groups:
            add(f"  {said(name)}", lambda run, n=name: trigger_cell(_part(run["trigger"], n)))
        add("  TP/FP/FN/TN", lambda run: Text(confusion(run["trigger"]), style="dim"))
        table.add_section()

    if answers := comparison.get("answers"):
        wide = max(2 * len(str(part["asked"])) + 1 for part in answers.values())
        table.add_row(
            Text("Arguments right", style="bold"),
            *(accuracy_cell(_answered(answers[mode]), wide) for mode in modes),
        )
        table.add_section()

    causes = dict.fromkeys(c for run in modes.values() for c in run["failures"]["by_cause"])
    causes.pop("truncated", None)
    if causes:
        add("Invalid", lambda run: _count(run["failures"]["invalid"]), "bold")
        for name in causes:
            add(f"  {said(name)}", lambda run, n=name: _count(run["failures"]["by_cause"].get(n)))
        table.add_section()

    add("Truncated", lambda run: _with_share(run["truncated"]))
    for name, number in _TROUBLE.items():
        if any(number(run) for run in modes.values()):
            add(name, lambda run, number=number: _count(number(run)))
    add("Tokens", lambda run: _count(run["tokens"]["completion"]))
    add("Seconds", lambda run: _DASH if run["seconds"] is None else f"{run['seconds']:,.1f}")
    return table


# Rows worth their space only when there is something to see.
_TROUBLE: dict[str, Callable[[Mapping[str, Any]], int]] = {
    "Failed requests": lambda run: run["failed"],
    "Missing requests": lambda run: len(run["missing"]),
    "Unreadable calls": lambda run: run["unreadable_calls"]["responses"],
}


def accuracy_cell(part: Mapping[str, Any] | None, width: int) -> Text:
    """Share, Wilson interval and counts; a dash for 0 / 0. width: of the counts, in characters."""
    if part is None or part["accuracy"] is None:
        return _DASH
    low, high = (100 * end for end in part["interval"])
    fraction = f"{part['successful']}/{part['triggered']}"
    return Text.assemble(
        (percent(part["accuracy"]), "bold"),
        (f"  {f'{low:.1f}–{high:.1f}':<10} ", "dim"),
        fraction.rjust(width),
    )


def _answered(part: Mapping[str, Any]) -> dict[str, Any]:
    """`eval.answers.argument_accuracy` under the names of a schema accuracy."""
    return {**part, "successful": part["correct"], "triggered": part["asked"]}


def trigger_cell(part: Mapping[str, Any] | None) -> Text:
    """F1, then precision and recall; those that are 0 / 0 with a star."""
    if part is None:
        return _DASH

    def shown(name: str) -> str:
        return f"{part[name]:.3f}{'*' if name in part['undefined'] else ''}"

    return Text.assemble(
        (shown("f1"), "bold"), (f"  {shown('precision')} / {shown('recall')}", "dim")
    )


def confusion(part: Mapping[str, Any]) -> str:
    """TP, FP, FN and TN of a trigger table."""
    return " / ".join(str(part[name]) for name in ("TP", "FP", "FN", "TN"))


def pairs(
    paired: Mapping[str, Any],
    noun: str,
    words: tuple[str, str],
    names: tuple[str, str] = ("free", "constrained"),
    keys: tuple[str, str] = ("free", "constrained"),
) -> Table:
    """A 2 x 2 table of `eval.scoring.paired_outcomes`: the first run across, the second down.

    words: for a success and a failure. names: of the runs, as they are shown; keys: as they are
        counted.
    """
    first, second = names
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(f"{paired['pairs']:,} {noun}", no_wrap=True)
    for name in (f"{first} {word}" for word in words):
        table.add_column(name, justify="right", no_wrap=True)
    for name, counts in (
        (f"{second} {words[0]}", (paired["both"], paired[f"only_{keys[1]}"])),
        (f"{second} {words[1]}", (paired[f"only_{keys[0]}"], paired["neither"])),
    ):
        table.add_row(name, *(f"{n:,}" for n in counts))
    return table


def _test(paired: Mapping[str, Any]) -> Text:
    text = mcnemar(paired)
    if "triggered_only_free" in paired:
        lone = (f"{paired[f'triggered_only_{mode}']} {mode}" for mode in ("free", "constrained"))
        text += f" Called in one run alone: {', '.join(lone)}."
    return Text(text)


def _groups(comparison: Mapping[str, Any]) -> list[str]:
    """The groups worth a row: none when there is only one."""
    groups = list(comparison["requests"]["by_group"])
    return groups if len(groups) > 1 else []


def _part(whole: Mapping[str, Any], group: str) -> Mapping[str, Any] | None:
    return whole.get("by_group", {}).get(group)


def _count(n: int | None) -> Text | str:
    return f"{n:,}" if n else _DASH


def _with_share(part: Mapping[str, Any]) -> Text | str:
    return f"{part['count']:,} ({percent(part['share'])})" if part["count"] else _DASH
