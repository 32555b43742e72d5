"""K2VV's summary.json, and a check that its totals add up."""

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

from eval.rows import ResultRow


def summarise(
    rows: Iterable[ResultRow],
    *,
    model: str,
    started_at: str | datetime | None,
    finished_at: str | datetime | None,
    expected: int | Collection[int] | None = None,
) -> dict[str, Any]:
    """K2VV's summary.json to the letter, then our own checks of it in one key.

    started_at, finished_at: ISO 8601 or datetimes; without both the duration is None.
    expected: how many requests there were, or their data_index each. With it, requests that left
        no row are counted: K2VV's own totals once came to 3,997 of 4,000 and nothing said so.

    In K2VV's fields ``usage`` adds up what the responses give, and a triggered response whose
    verdict is not true counts as a schema error, one without any calls included. ``adds_up`` says
    that no request is missing, and that each success has one finish reason.
    """
    rows = list(rows)
    reasons = Counter(row.finish_reason for row in rows if row.succeeded)
    no_reason = reasons.pop(None, 0)
    others = {r: n for r, n in sorted(reasons.items()) if r not in ("stop", "tool_calls")}
    triggered = [row for row in rows if row.succeeded and row.finish_reason == "tool_calls"]
    valid = sum(row.tool_calls_valid is True for row in triggered)
    usage = ("prompt_tokens", "completion_tokens", "total_tokens")
    started, finished = _iso(started_at), _iso(finished_at)
    successes = sum(row.succeeded for row in rows)
    missing = _missing(rows, expected)
    return {
        "model": model,
        "success_count": successes,
        "failure_count": len(rows) - successes,
        "finish_stop": reasons["stop"],
        "finish_tool_calls": len(triggered),
        "finish_others": sum(others.values()),
        "finish_others_detail": others,
        "schema_validation_error_count": len(triggered) - valid,
        "successful_tool_call_count": valid,
        "usage": {key: sum(row.usage.get(key, 0) for row in rows) for key in usage},
        "eval_started_at": started,
        "eval_finished_at": finished,
        "eval_duration_ms": _milliseconds(started, finished),
        "masked_sampling": {
            "schema_accuracy": valid / len(triggered) if triggered else None,
            "rows": len(rows),
            **missing,
            "no_finish_reason": no_reason,
            "adds_up": not missing["missing_rows"] and not no_reason,
        },
    }


def _missing(rows: list[ResultRow], expected: int | Collection[int] | None) -> dict[str, Any]:
    present = {row.data_index for row in rows}
    if expected is None:
        return {"expected_rows": None, "missing_rows": None}
    if isinstance(expected, int):
        return {"expected_rows": expected, "missing_rows": expected - len(present)}
    lost = sorted(set(expected) - present)
    return {"expected_rows": len(expected), "missing_rows": len(lost), "missing": lost}


def _milliseconds(started: str | None, finished: str | None) -> int | None:
    if started is None or finished is None:
        return None
    span = datetime.fromisoformat(finished) - datetime.fromisoformat(started)
    return max(0, round(span.total_seconds() * 1000))


def _iso(time: str | datetime | None) -> str | None:
    return time.isoformat() if isinstance(time, datetime) else time
