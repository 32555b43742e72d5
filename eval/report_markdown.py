"""A comparison as a page: report.md with its figures beside it."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from eval.markdown import code, escape, table
from eval.remarks import EXPLANATIONS, mcnemar, remarks
from eval.style import percent, said

REPORT_FILE = "report.md"
_DASH = "–"
_TOOLS_LISTED = 20


def write_report(comparison: Mapping[str, Any], folder: str | Path) -> Path:
    """Write ``report.md`` and its figures into a folder; returns the page's path.

    Whatever of an earlier report the comparison has no numbers for is removed.
    """
    from eval.figures import draw_all

    folder = Path(folder)
    figures = {path.stem: path.name for path in draw_all(comparison, folder)}
    path = folder / REPORT_FILE
    path.write_text(report_text(comparison, figures), encoding="utf-8")
    return path


def report_text(comparison: Mapping[str, Any], figures: Mapping[str, str]) -> str:
    """The page. figures: file names by the name of the figure, those that there are."""
    blocks = [f"# {_title(comparison)}", *_settings(comparison)]
    for name, (heading, section) in _SECTIONS.items():
        body = list(section(comparison))
        if not body and name not in figures:
            continue
        blocks.append(f"## {heading}")
        if name in figures:
            blocks.append(f"![{_ALT[name]}]({figures[name]})")
        blocks += body
    return "\n\n".join(blocks) + "\n"


def _title(comparison: Mapping[str, Any]) -> str:
    title = f"K2VV, {comparison['requests']['total']:,} requests"
    return f"{title} to {escape(comparison['model'])}" if comparison["model"] else title


def _settings(comparison: Mapping[str, Any]) -> Iterator[str]:
    if settings := comparison["settings"]:
        yield ", ".join(f"{said(name)} {escape(value)}" for name, value in settings.items()) + "."
    choices = comparison["requests"]["by_tool_choice"]
    if len(choices) > 1:
        yield f"tool_choice: {', '.join(f'{n:,} {choice}' for choice, n in choices.items())}."


def _accuracy(comparison: Mapping[str, Any]) -> Iterator[str]:
    yield EXPLANATIONS["schema"]
    modes = comparison["modes"]
    yield table(
        ["", *modes],
        _by_group(comparison, lambda mode: modes[mode]["schema_accuracy"], _share_cell),
    )
    yield table(["", *modes], [[name, *map(cell, modes.values())] for name, cell in _ROWS.items()])


def _arguments(comparison: Mapping[str, Any]) -> Iterator[str]:
    if not (answers := comparison.get("answers")):
        return
    yield EXPLANATIONS["answers"]
    yield table(
        ["", *answers],
        [
            ["with ground truth", *(f"{part['asked']:,}" for part in answers.values())],
            ["answered with a call", *(f"{part['triggered']:,}" for part in answers.values())],
            ["right", *(f"{part['correct']:,}" for part in answers.values())],
            ["of all", *(_share_cell(part) for part in answers.values())],
            [
                "of those with a call",
                *(_percent(part.get("accuracy_of_triggered")) for part in answers.values()),
            ],
        ],
    )
    wrong = {mode: part.get("wrong") or {} for mode, part in answers.items()}
    if causes := dict.fromkeys(cause for counts in wrong.values() for cause in counts):
        yield table(
            ["wrong", *answers],
            [
                [escape(said(cause)), *(_count(wrong[mode].get(cause)) for mode in answers)]
                for cause in causes
            ],
        )
    if (paired := comparison.get("answers_paired")) is not None:
        yield _pairs(paired, "requests with ground truth", ("right", "wrong"))
        yield mcnemar(paired)


def _failures(comparison: Mapping[str, Any]) -> Iterator[str]:
    modes = {mode: run["failures"] for mode, run in comparison["modes"].items()}
    if not any(part["by_cause"] for part in modes.values()):
        return
    yield EXPLANATIONS["failures"]
    causes = dict.fromkeys(cause for part in modes.values() for cause in part["by_cause"])
    yield table(
        ["cause", *modes],
        [
            ["all invalid", *(_count(part["invalid"]) for part in modes.values())],
            *(
                [said(cause), *(_count(part["by_cause"].get(cause)) for part in modes.values())]
                for cause in causes
            ),
        ],
    )
    for mode, part in modes.items():
        lines = [
            [code(tool), ", ".join(f"{said(cause)} {n:,}" for cause, n in counts.items())]
            for tool, counts in part["by_tool"].items()
        ]
        if lines:
            yield f"By the tool called, {mode}:"
            yield table(["tool", "responses by cause"], lines[:_TOOLS_LISTED])
        if len(lines) > _TOOLS_LISTED:
            yield f"And {len(lines) - _TOOLS_LISTED:,} more tools, all in comparison.json."


def _trigger(comparison: Mapping[str, Any]) -> Iterator[str]:
    modes = {mode: run["trigger"] for mode, run in comparison["modes"].items()}
    if any(part is None for part in modes.values()):
        return
    yield EXPLANATIONS["trigger"]
    yield table(["", *modes], _by_group(comparison, modes.get, _trigger_cell))
    names = ("TP", "FP", "FN", "TN")
    yield table(
        ["", *names],
        [[mode, *(f"{part[name]:,}" for name in names)] for mode, part in modes.items()],
    )


def _paired(comparison: Mapping[str, Any]) -> Iterator[str]:
    if (paired := comparison["paired"]) is None:
        return
    yield _pairs(paired, "pairs that both call", ("valid", "invalid"))
    lone = (f"{paired[f'triggered_only_{mode}']:,} {mode}" for mode in ("free", "constrained"))
    yield f"{mcnemar(paired)} Called in one run alone: {', '.join(lone)}."


def _remarks(comparison: Mapping[str, Any]) -> Iterator[str]:
    if lines := remarks(comparison):
        yield "\n".join(f"* {escape(line)}" for line in lines)


def _provenance(comparison: Mapping[str, Any]) -> Iterator[str]:
    if not (made := comparison.get("provenance")):
        return
    versions = made.get("versions") or {}
    plain = {key: value for key, value in made.items() if key != "versions"}
    plain |= {name: version for name, version in versions.items() if version}
    yield table(["", ""], [[said(key), code(value)] for key, value in plain.items()])


_SECTIONS: dict[str, tuple[str, Callable[[Mapping[str, Any]], Iterator[str]]]] = {
    "schema_accuracy": ("Schema accuracy", _accuracy),
    "arguments": ("Arguments", _arguments),
    "failure_causes": ("Why calls fail", _failures),
    "trigger": ("Trigger", _trigger),
    "paired": ("The same requests in both runs", _paired),
    "interventions": ("Where the grammar stepped in", lambda comparison: iter(())),
    "tokens": ("Tokens saved and spent", lambda comparison: iter(())),
    "remarks": ("Remarks", _remarks),
    "provenance": ("Made by", _provenance),
}
_ALT = {
    "schema_accuracy": "Schema accuracy with Wilson intervals, a mark a run",
    "arguments": "Argument accuracy with Wilson intervals, a mark a run",
    "failure_causes": "Responses by cause of failure, a bar a run",
    "trigger": "Decisions to call against the reference, a table a run",
    "interventions": "First intervention of each request: position and probability removed",
    "tokens": "Completion tokens of both runs, and the change of each request",
}

_ROWS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "requests answered": lambda run: f"{run['rows'] - run['failed']:,}",
    "failed": lambda run: _count(run["failed"]),
    "missing": lambda run: _count(len(run["missing"])),
    "truncated": lambda run: _count(run["truncated"]["count"]),
    "unreadable calls": lambda run: _count(run["unreadable_calls"]["responses"]),
    "prompt tokens": lambda run: f"{run['tokens']['prompt']:,}",
    "completion tokens": lambda run: f"{run['tokens']['completion']:,}",
    "seconds": lambda run: _DASH if run["seconds"] is None else f"{run['seconds']:,.1f}",
}


def _by_group(
    comparison: Mapping[str, Any],
    part: Callable[[str], Mapping[str, Any]],
    cell: Callable[[Mapping[str, Any] | None], str],
) -> list[list[str]]:
    """A line for all requests, and one a group where there are several."""
    modes = comparison["modes"]
    groups = list(comparison["requests"]["by_group"])
    lines = [["all", *(cell(part(mode)) for mode in modes)]]
    for group in groups if len(groups) > 1 else []:
        parts = ((part(mode).get("by_group") or {}).get(group) for mode in modes)
        lines.append([escape(said(group)), *map(cell, parts)])
    return lines


def _share_cell(part: Mapping[str, Any] | None) -> str:
    if part is None or part["accuracy"] is None:
        return _DASH
    text = f"**{percent(part['accuracy'])}**"
    if part.get("interval"):
        low, high = (100 * end for end in part["interval"])
        text += f" ({low:.1f}–{high:.1f})"
    if "triggered" in part and "successful" in part:
        text += f", {part['successful']:,} of {part['triggered']:,}"
    return text


def _trigger_cell(part: Mapping[str, Any] | None) -> str:
    if part is None:
        return _DASH
    names = ("f1", "precision", "recall")
    stars = dict.fromkeys(part["undefined"], r"\*")
    shown = (f"{part[name]:.3f}{stars.get(name, '')}" for name in names)
    return "**{}** ({} / {})".format(*shown)


def _pairs(paired: Mapping[str, Any], noun: str, words: tuple[str, str]) -> str:
    return table(
        [f"{paired['pairs']:,} {noun}", *(f"free {word}" for word in words)],
        [
            [f"constrained {words[0]}", f"{paired['both']:,}", f"{paired['only_constrained']:,}"],
            [f"constrained {words[1]}", f"{paired['only_free']:,}", f"{paired['neither']:,}"],
        ],
    )


def _count(n: int | None) -> str:
    return f"{n:,}" if n else _DASH


def _percent(share: float | None) -> str:
    return _DASH if share is None else percent(share)
