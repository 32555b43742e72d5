"""Free and constrained runs of the same requests, side by side: one dict, tables, figures, a page.

``compare`` computes everything and knows nothing of how it looks; ``print_tables``, ``draw`` and
``write_report`` read its dict alone, so a comparison.json can be shown again without the rows
behind it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.coupling import coupling, interventions
from eval.pairing import pair
from eval.partings import partings
from eval.report_markdown import write_report
from eval.request_lines import RequestLine
from eval.rows import ResultRow
from eval.scoring import (
    SchemaAccuracy,
    failure_counts,
    inconsistencies,
    is_truncated,
    paired_outcomes,
    paired_table,
    trigger,
)
from eval.token_counts import token_counts
from eval.workloads import asked_freely, groups, tool_choice_of

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["MODES", "compare", "draw", "print_tables", "write_report"]

MODES = ("free", "constrained")
_LISTED = 20


def compare(
    requests: Sequence[RequestLine],
    free: Iterable[ResultRow] | None = None,
    constrained: Iterable[ResultRow] | None = None,
    reference: Iterable[ResultRow] | None = None,
    *,
    model: str | None = None,
    settings: Mapping[str, Any] | None = None,
    seconds: Mapping[str, float] | None = None,
    notes: Sequence[str] = (),
    answers: Mapping[int, Any] | None = None,
) -> dict[str, Any]:
    """Everything there is to say about one or two runs of the same requests, ready for JSON.

    Rows of other requests than these are left out. A run that did not happen is None, and what
    needs it is then None in the result; so is the trigger confusion without a reference, or without
    any request of tool_choice auto: only those leave the decision to the model.

    settings: what to state with the numbers, in the order to state it in (temperature, top_p,
        seed, scope, schema mode).
    seconds: wall-clock seconds by mode.
    notes: sentences to show under the tables.
    answers: ground truth by data_index, as `eval.answers.argument_accuracy` takes it; without it
        ``answers`` and ``answers_paired`` are None in the result.

    Raises:
        ValueError: neither run is there.
    """
    given = {"free": free, "constrained": constrained}
    known = {request.data_index for request in requests}
    runs = {
        mode: sorted((row for row in rows if row.data_index in known), key=lambda r: r.data_index)
        for mode, rows in given.items()
        if rows is not None
    }
    if not runs:
        raise ValueError(
            "compare needs the rows of at least one run; free and constrained are None"
        )
    reference = None if reference is None else list(reference)
    group = groups(requests)
    right = _answers(runs, known, answers)
    return {
        "model": model,
        "settings": dict(settings or {}),
        "requests": {
            "total": len(requests),
            "by_group": dict(Counter(group.values())),
            "by_tool_choice": dict(Counter(tool_choice_of(r.body) for r in requests)),
        },
        "modes": {
            mode: _describe(requests, rows, reference, group, (seconds or {}).get(mode))
            for mode, rows in runs.items()
        },
        "interventions": interventions(runs["constrained"], group)
        if "constrained" in runs
        else None,
        "answers": right,
        **_side_by_side(runs, group, right, answers),
        "notes": list(notes),
    }


def print_tables(comparison: Mapping[str, Any], console: "Console") -> None:
    """Print a comparison on a rich console, 80 columns wide or more."""
    from eval import tables

    tables.print_all(comparison, console)


def draw(comparison: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Write the figures of a comparison into a folder, as PNG; returns their paths.

    ``schema_accuracy``, ``failure_causes``, ``trigger``, ``interventions``, ``tokens`` and
    ``arguments``, each unless there was nothing of its kind; one of an earlier comparison is then
    removed.
    """
    from eval import figures

    return figures.draw_all(comparison, Path(folder))


def _side_by_side(
    runs: Mapping[str, list[ResultRow]],
    group: Mapping[int, str],
    right: Mapping[str, Any] | None,
    answers: Mapping[int, Any] | None,
) -> dict[str, Any]:
    """What takes two runs to say."""
    if len(runs) < 2:
        return dict.fromkeys(("paired", "coupling", "responses", "tokens", "answers_paired"))
    free, constrained = (runs[mode] for mode in MODES)
    return {
        "paired": _paired(free, constrained, group),
        "coupling": coupling(free, constrained),
        "responses": partings(pair(free, constrained).pairs),
        "tokens": token_counts(free, constrained),
        "answers_paired": _answers_paired(runs, right, answers),
    }


def _answers(
    runs: Mapping[str, list[ResultRow]], known: set[int], answers: Mapping[int, Any] | None
) -> dict[str, Any] | None:
    if answers is None:
        return None
    from eval.answers import argument_accuracy

    asked = {index: answer for index, answer in answers.items() if index in known}
    return {mode: argument_accuracy(rows, asked) for mode, rows in runs.items()}


def _answers_paired(
    runs: Mapping[str, list[ResultRow]],
    right: Mapping[str, Any] | None,
    answers: Mapping[int, Any] | None,
) -> dict[str, Any] | None:
    """Which of the two runs answers a request rightly, over those that both answer."""
    if answers is None or right is None:
        return None
    correct = [set(right[mode]["correct_indices"]) for mode in MODES]
    indices = [
        both[0].data_index
        for both in pair(*(runs[mode] for mode in MODES)).pairs
        if both[0].data_index in answers and all(row.succeeded for row in both)
    ]
    return {
        "over": "requests with ground truth that both runs answer",
        **paired_outcomes(tuple(i in found for found in correct) for i in indices),
    }


def _describe(
    requests: Sequence[RequestLine],
    rows: list[ResultRow],
    reference: list[ResultRow] | None,
    group: Mapping[int, str],
    seconds: float | None,
) -> dict[str, Any]:
    succeeded = [row for row in rows if row.succeeded]
    answered = {row.data_index for row in rows}
    truncated = sum(map(is_truncated, rows))
    found = inconsistencies(rows)
    unreadable = [kinds for row in rows if (kinds := _unreadable(row))]
    return {
        "rows": len(rows),
        "failed": len(rows) - len(succeeded),
        "missing": [r.data_index for r in requests if r.data_index not in answered],
        "finish_reasons": dict(Counter(str(row.finish_reason) for row in succeeded)),
        "schema_accuracy": SchemaAccuracy.from_rows(rows, group).as_dict(),
        "trigger": _trigger(requests, rows, reference, group),
        "failures": failure_counts(rows, group),
        "truncated": {
            "count": truncated,
            "share": truncated / len(succeeded) if succeeded else None,
        },
        "unreadable_calls": {
            "responses": len(unreadable),
            "by_kind": dict(Counter(kind for kinds in unreadable for kind in kinds)),
        },
        "inconsistencies": {
            "by_kind": dict(Counter(one.kind for one in found)),
            "first": [{"data_index": one.data_index, "kind": one.kind} for one in found[:_LISTED]],
        },
        "near_ties": [
            {"data_index": row.data_index} | (tie if isinstance(tie, dict) else {"position": tie})
            for row in rows
            for tie in row.masked_sampling.get("near_ties") or []
        ],
        "tokens": {
            key: sum(row.usage.get(f"{key}_tokens", 0) for row in rows)
            for key in ("prompt", "completion")
        },
        "seconds": seconds,
    }


def _unreadable(row: ResultRow) -> list[str]:
    """Kinds of the calls that a parser could not read, from ``masked_sampling["problems"]``."""
    problems = row.masked_sampling.get("problems") or []
    return [p["kind"] for p in problems if p["kind"] in ("malformed", "incomplete")]


def _trigger(
    requests: Sequence[RequestLine],
    rows: list[ResultRow],
    reference: list[ResultRow] | None,
    group: Mapping[int, str],
) -> dict[str, Any] | None:
    free_choice = asked_freely(requests)
    if reference is None or not free_choice:
        return None
    overall = trigger(rows, reference, free_choice).as_dict()
    parts = {
        name: trigger(rows, reference, {i for i in free_choice if group[i] == name}).as_dict()
        for name in dict.fromkeys(group.values())
    }
    return overall | {"over": "requests with tool_choice auto", "by_group": parts}


def _paired(
    free: list[ResultRow], constrained: list[ResultRow], group: Mapping[int, str]
) -> dict[str, Any]:
    parts = {
        name: paired_table(
            *([row for row in run if group[row.data_index] == name] for run in (free, constrained))
        )
        for name in dict.fromkeys(group.values())
    }
    return paired_table(free, constrained) | {"by_group": parts}
