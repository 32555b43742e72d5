"""Responses that contradict themselves or their requests."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from eval.calls import called_name, can_check, verdict
from eval.rows import ResultRow
from eval.workloads import tool_choice_of


@dataclass(frozen=True)
class Inconsistency:
    """One contradiction. kind: a key of ``INCONSISTENCIES``; detail: what that means."""

    data_index: int
    kind: str
    detail: str


INCONSISTENCIES = {
    "calls_not_triggered": "calls, but finish_reason is neither tool_calls nor length",
    "triggered_without_calls": "finish_reason tool_calls, but no calls",
    "called_under_none": "tool_choice none, or no tools, but calls",
    "no_call_under_required": "tool_choice required or named, complete, but no calls",
    "other_tool_than_named": "a call to another tool than tool_choice names",
    "parallel_calls": "parallel_tool_calls false, but several calls",
    "no_finish_reason": "a success without finish_reason: the answer broke off",
    "finish_reason_differs": "finish_reason of the row is not that of its response",
    "verdict_differs": "tool_calls_valid is not what the request and the response say",
}


def inconsistencies(rows: Iterable[ResultRow]) -> list[Inconsistency]:
    """Contradictions, by row. None of them changes a metric; each means a number needs a look."""
    return [
        Inconsistency(row.data_index, kind, INCONSISTENCIES[kind])
        for row in rows
        if row.succeeded
        for kind in _contradictions(row)
    ]


def _contradictions(row: ResultRow) -> list[str]:
    if row.finish_reason is None:
        return ["no_finish_reason"]
    if row.response is None:
        return []
    calls = row.message.get("tool_calls")
    calls = calls if isinstance(calls, list) else []
    found = {
        "calls_not_triggered": calls and row.finish_reason not in ("tool_calls", "length"),
        "triggered_without_calls": row.finish_reason == "tool_calls" and not calls,
        "finish_reason_differs": row.answer_finish_reason not in (None, row.finish_reason),
    }
    if can_check(row.request):
        found |= _against_request(row, calls)
    return [kind for kind, holds in found.items() if holds]


def _against_request(row: ResultRow, calls: list[Any]) -> dict[str, bool]:
    request, choice = row.request, tool_choice_of(row.request)
    forced = called_name(request["tool_choice"]) if choice == "named" else None
    judged, _ = verdict(row.finish_reason, row.message, request.get("tools"))
    uncalled = not calls and row.finish_reason != "length"
    return {
        "called_under_none": choice == "none" and bool(calls),
        "no_call_under_required": choice in ("required", "named") and uncalled,
        "other_tool_than_named": choice == "named" and any(called_name(c) != forced for c in calls),
        "parallel_calls": request.get("parallel_tool_calls") is False and len(calls) > 1,
        "verdict_differs": row.tool_calls_valid not in (None, judged),
    }
