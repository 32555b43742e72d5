"""Both K2VV metrics of a results file, and all that is odd about it: one dict."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from eval.calls import can_check
from eval.results_file import Results
from eval.rows import ResultRow
from eval.scoring import (
    SchemaAccuracy,
    failure_counts,
    inconsistencies,
    is_checkable,
    is_triggered,
    rejudged,
    trigger,
)
from eval.summary import summarise
from eval.workloads import tool_choice_of

RERUNS = (
    {
        "model": "kimi-k2-thinking",
        "lowest": 0.7581,
        "average": 0.76,
        "accepted_from": 0.73,
    },
    {
        "model": "kimi-k2-0905-preview",
        "lowest": 0.8271,
        "average": 0.84,
        "accepted_from": 0.80,
    },
)
"""tool_call_f1 of the official API against itself, and from where on K2VV accepts a vendor.

MoonshotAI/K2-Vendor-Verifier, README, test of 2025-11-15.
"""


def score(
    results: Results,
    reference: Results | None = None,
    *,
    answers: Mapping[int, Any] | None = None,
    expected: int | None = None,
) -> dict[str, Any]:
    """Everything there is to say about a results file, ready for JSON.

    Every response is judged by its own request; where a row lacks it, or its response, the file's
    own verdict stands in (``verdicts.taken_over``). ``trigger`` is K2VV's tool_call_f1, over all
    requests that both files have, and in ``auto`` over those of tool_choice auto, where that leaves
    any out. ``incomplete`` lists, in sentences, what kept a request out of the score.

    answers: ground truth by data_index (`answers_for`).
    expected: how many requests there were.
    """
    rows = results.rows
    judged = [rejudged(row) for row in rows]
    started, finished = _span(rows)
    contradictions: dict[str, list[int]] = {}
    for one in inconsistencies(rows):
        contradictions.setdefault(one.kind, []).append(one.data_index)
    hashes = Counter(row.hash for row in rows if row.hash)
    summary = summarise(
        judged,
        model=results.model or results.path.name,
        started_at=started,
        finished_at=finished,
        expected=expected,
    )
    found = {
        "file": _file(results),
        "reference": _file(reference) if reference else None,
        "model": results.model,
        "summary": summary,
        "schema_accuracy": SchemaAccuracy.from_rows(rows).as_dict(),
        "trigger": _trigger(rows, reference.rows) if reference else None,
        "answers": _accuracy(rows, answers),
        "failures": failure_counts(rows),
        "verdicts": _verdicts(rows, judged),
        "inconsistencies": contradictions,
        "same_request": {
            "requests": sum(n > 1 for n in hashes.values()),
            "rows": sum(n for n in hashes.values() if n > 1),
        },
    }
    return found | {"incomplete": _incomplete(found)}


def _file(results: Results) -> dict[str, Any]:
    return {
        "path": str(results.path),
        "rows": len(results.rows),
        "repeated": {str(index): n for index, n in results.repeated.items()},
        "gaps": [list(gap) for gap in results.gaps],
        "left_out": list(results.left_out),
    }


def _trigger(rows: list[ResultRow], reference: list[ResultRow]) -> dict[str, Any]:
    whole = trigger(rows, reference)
    found = whole.as_dict() | {
        "over": "requests in both files",
        "auto": None,
        "accepted": [rerun | {"accepted": whole.f1 >= rerun["accepted_from"]} for rerun in RERUNS],
    }
    # A row that does not say is taken for one of auto, as K2VV takes all.
    free = {
        row.data_index
        for row in rows
        if not can_check(row.request) or tool_choice_of(row.request) == "auto"
    }
    if len(free) < len(rows):
        found["auto"] = trigger(rows, reference, free).as_dict()
    return found


def _accuracy(rows: list[ResultRow], answers: Mapping[int, Any] | None) -> dict[str, Any] | None:
    if answers is None:
        return None
    from eval.answers import argument_accuracy

    return argument_accuracy(rows, answers)


def _verdicts(rows: list[ResultRow], judged: list[ResultRow]) -> dict[str, Any]:
    """How the file's ``tool_calls_valid`` compares with ours, over the triggered responses."""
    differ = {"file_says_valid": [], "file_says_invalid": []}
    agree = taken_over = absent = 0
    for row, ours in zip(rows, judged, strict=True):
        if not is_triggered(row):
            continue
        if not is_checkable(row):
            taken_over += 1
        elif row.tool_calls_valid is None and ours.tool_calls_valid is not None:
            absent += 1
        elif bool(row.tool_calls_valid) == bool(ours.tool_calls_valid):
            agree += 1
        else:
            side = "file_says_valid" if row.tool_calls_valid else "file_says_invalid"
            differ[side].append(row.data_index)
    return {"agree": agree, "absent": absent, "taken_over": taken_over, **differ}


def _incomplete(found: Mapping[str, Any]) -> list[str]:
    summary = found["summary"]
    ours = summary["masked_sampling"]
    counted = {
        "{:,} requests failed": summary["failure_count"],
        "{:,} answers have no finish_reason: they broke off": ours["no_finish_reason"],
        "{:,} of the expected requests have no row": ours["missing_rows"],
    }
    lines = [text.format(n) for text, n in counted.items() if n]
    if (ours["missing_rows"] or 0) < 0:
        lines[-1] = f"{-ours['missing_rows']:,} more rows than requests were expected"
    for name in ("file", "reference"):
        for text in (found[name] or {}).get("left_out", ()):
            lines.append(f"{text}; left out" if name == "file" else f"reference: {text}; left out")
    return lines


def _span(rows: Iterable[ResultRow]) -> tuple[datetime | None, datetime | None]:
    """When the first request was sent and the last one answered; None where rows do not say."""
    starts, ends = [], []
    for row in rows:
        try:
            end = datetime.fromisoformat(row.last_run_at or "")
            starts.append(end - timedelta(milliseconds=row.duration_ms or 0))
            ends.append(end)
        except (ValueError, OverflowError):
            continue
    try:
        return (min(starts), max(ends)) if ends else (None, None)
    except TypeError:
        # Some with a time zone and some without do not compare.
        return None, None
