"""The comparison as a table for a terminal, readable at 80 columns."""

from collections.abc import Callable, Mapping
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from eval.style import percent, said

_DASH = Text("–", style="dim")
_EXPLANATIONS = {
    "schema": "Schema accuracy: responses whose calls are all valid, of those with finish_reason "
    "tool_calls; 95 % Wilson interval.",
    "trigger": "Trigger: finish_reason tool_calls against the reference, over requests with "
    "tool_choice auto; F1, then precision / recall.",
    "failures": "Invalid: responses that show the cause; one may show several.",
}


def print_all(comparison: Mapping[str, Any], console: Console) -> None:
    """Print everything that a comparison has the numbers for."""
    blocks = [_heading(comparison), _main(comparison)]
    if comparison["paired"] is not None:
        blocks.append(Group(_pairs(comparison["paired"]), _test(comparison["paired"])))
    if remarks := _remarks(comparison):
        blocks.append(Group(*map(Text, remarks)))
    blocks.append(Group(*(Text(line, style="dim") for line in _footnotes(comparison))))
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
    add("Schema accuracy", lambda run: _accuracy(run["schema_accuracy"], width), "bold")
    for name in groups:
        add(
            f"  {said(name)}",
            lambda run, n=name: _accuracy(_part(run["schema_accuracy"], n), width),
        )
    table.add_section()

    if all(run["trigger"] is not None for run in modes.values()):
        add("Trigger F1", lambda run: _trigger(run["trigger"]), "bold")
        for name in groups:
            add(f"  {said(name)}", lambda run, n=name: _trigger(_part(run["trigger"], n)))
        add("  TP/FP/FN/TN", lambda run: Text(_confusion(run["trigger"]), style="dim"))
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


def _accuracy(part: Mapping[str, Any] | None, width: int) -> Text:
    if part is None or part["accuracy"] is None:
        return _DASH
    low, high = (100 * end for end in part["interval"])
    fraction = f"{part['successful']}/{part['triggered']}"
    return Text.assemble(
        (percent(part["accuracy"]), "bold"),
        (f"  {f'{low:.1f}–{high:.1f}':<10} ", "dim"),
        fraction.rjust(width),
    )


def _trigger(part: Mapping[str, Any] | None) -> Text:
    if part is None:
        return _DASH

    def shown(name: str) -> str:
        return f"{part[name]:.3f}{'*' if name in part['undefined'] else ''}"

    return Text.assemble(
        (shown("f1"), "bold"), (f"  {shown('precision')} / {shown('recall')}", "dim")
    )


def _confusion(part: Mapping[str, Any]) -> str:
    return " / ".join(str(part[name]) for name in ("TP", "FP", "FN", "TN"))


def _pairs(paired: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(f"{paired['pairs']:,} pairs that both call", no_wrap=True)
    for name in ("free valid", "free invalid"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, counts in (
        ("constrained valid", (paired["both"], paired["only_constrained"])),
        ("constrained invalid", (paired["only_free"], paired["neither"])),
    ):
        table.add_row(name, *(f"{n:,}" for n in counts))
    return table


def _test(paired: Mapping[str, Any]) -> Text:
    p = paired["p_value"]
    lone = ", ".join(
        f"{paired[f'triggered_only_{mode}']} {mode}" for mode in ("free", "constrained")
    )
    return Text(
        f"McNemar's exact test, two-sided: p {'< 1e-6' if p < 1e-6 else f'= {p:.2g}'}. "
        f"Called in one run alone: {lone}."
    )


def _remarks(comparison: Mapping[str, Any]) -> list[str]:
    lines = []
    touched, coupled = comparison["interventions"], comparison["coupling"]
    if touched is not None and touched["requests"]:
        line = (
            f"The grammar intervened in {touched['with_intervention']:,} of "
            f"{touched['requests']:,} requests ({percent(touched['share'])})"
        )
        if touched["mean_removed_at_first"] is not None:
            line += (
                f", first at token {touched['median_position_of_first']:g} (median), where it "
                f"removed {percent(touched['mean_removed_at_first'])} of the probability (mean)"
            )
        lines.append(f"{line}.")
    if coupled is not None and coupled["prefix"]["checked"]:
        lines.append(
            "Both runs are token for token the same up to the first intervention in "
            f"{_agreement(coupled['prefix'])}."
        )
    if coupled is not None and coupled["trigger"]["checked"]:
        lines.append(
            "Where the grammar did not intervene, the trigger decision is the same in "
            f"{_agreement(coupled['trigger'])}."
        )
    ties = {mode: len(run["near_ties"]) for mode, run in comparison["modes"].items()}
    if any(ties.values()):
        counts = ", ".join(f"{n:,} {mode}" for mode, n in ties.items())
        lines.append(f"Draws that another batch may decide otherwise (near ties): {counts}.")
    for mode, run in comparison["modes"].items():
        for kind, n in run["inconsistencies"]["by_kind"].items():
            lines.append(f"Inconsistent, {mode}: {said(kind)} ({n:,}).")
        for key in ("only_in_results", "only_in_reference", "undecided"):
            if run["trigger"] is not None and (left := run["trigger"][key]):
                lines.append(f"Not in the trigger counts, {mode}: {len(left):,} {said(key)}.")
    return lines + list(comparison["notes"])


def _agreement(part: Mapping[str, Any]) -> str:
    text = f"{part['agree']:,} of {part['checked']:,} requests"
    if not (exceptions := part["exceptions"]):
        return text
    explained = sum(one["explained"] for one in exceptions)
    return f"{text} (exceptions: {len(exceptions)}, at a recorded near tie: {explained})"


def _footnotes(comparison: Mapping[str, Any]) -> list[str]:
    runs = comparison["modes"].values()
    lines = [_EXPLANATIONS["schema"]]
    if all(run["trigger"] is not None for run in runs):
        undefined = any(
            part["undefined"]
            for run in runs
            for part in (run["trigger"], *run["trigger"]["by_group"].values())
        )
        lines.append(_EXPLANATIONS["trigger"] + (" * undefined, 0 / 0." if undefined else ""))
    if any(run["failures"]["invalid"] for run in runs):
        lines.append(_EXPLANATIONS["failures"])
    return lines


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
