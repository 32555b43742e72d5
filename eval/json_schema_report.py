"""Rows of schemas to counts: one summary an engine, and the tables that show it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

VERDICTS = ("exact", "rewritten", "guarded", "refused")
LEVELS = ("mask", "guard")
TIMES = {
    "prepare_ms": "prepare",
    "prepare_cpu_ms": "prepare, processor",
    "first_mask_ms": "to first mask",
    "first_mask_cpu_ms": "to first mask, processor",
}


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts of schemas over the rows of one engine.

    ``valid_rejected`` and ``invalid_accepted`` may count the same schema. ``respelled`` has an
    invalid instance that comes through in another spelling only, ``disputed`` one about which
    jsonschema says otherwise than its file, for instance because formats are asserted there. A
    timeout or a crash has no verdict. Times are milliseconds, over the schemas that have them.
    """
    summary: dict[str, Any] = _counts(rows)
    summary["by_verdict"] = {
        verdict: _counts([row for row in rows if row["verdict"] == verdict])
        for verdict in VERDICTS
        if any(row["verdict"] == verdict for row in rows)
    }
    summary["respelled"] = sum(bool(row.get("respelled")) for row in rows)
    summary["disputed"] = sum(bool(row.get("disputed")) for row in rows)
    summary["walks"] = sum(row.get("walks", 0) for row in rows)
    for name in TIMES:
        times = sorted(row[name] for row in rows if name in row)
        summary[name] = {
            "p50": _quantile(times, 0.5),
            "p99": _quantile(times, 0.99),
            "max": times[-1] if times else None,
        }
    return summary


def unsound(row: dict[str, Any]) -> bool:
    """Whether invalid text came through: past the guard, or past a mask that claims to be one."""
    if "mask" not in row:
        return False
    claimed = row["verdict"] in ("exact", "rewritten")
    through = row["guard"]["invalid_accepted"] or row.get("respelled")
    return bool(through or (claimed and row["mask"]["invalid_accepted"]))


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    counts: dict[str, Any] = {"schemas": len(rows)}
    for name in _BROKEN:
        counts[name] = sum(row["outcome"] == name for row in rows)
    for level in LEVELS:
        judged = [row[level] for row in rows if level in row]
        counts[level] = {
            "passing": sum(not any(found.values()) for found in judged),
            "valid_rejected": sum(bool(found["valid_rejected"]) for found in judged),
            "invalid_accepted": sum(bool(found["invalid_accepted"]) for found in judged),
        }
    return counts


def _quantile(values: Sequence[float], q: float) -> float | None:
    """The smallest value that a share q of the values does not exceed."""
    if not values:
        return None
    return values[max(0, math.ceil(q * len(values)) - 1)]


def print_tables(summaries: dict[str, dict[str, Any]], console: Any) -> None:
    """Counts and times, one column an engine; and the counts of each verdict."""
    from rich.table import Table

    table = Table()
    table.add_column("schemas")
    for engine in summaries:
        table.add_column(engine, justify="right")

    def line(label: str, *path: str, end: bool = False) -> None:
        values = [_shown(_at(summary, path)) for summary in summaries.values()]
        table.add_row(label, *values, end_section=end)

    line("all", "schemas")
    for name, said in _BROKEN.items():
        line(said, name, end=name == "crash")
    for level, where in _WHERE.items():
        for name in _COUNTS:
            line(f"{name.replace('_', ' ')}, {where}", level, name, end=name == _COUNTS[-1])
    line("invalid accepted, respelled", "respelled")
    line("labels disputed", "disputed", end=True)
    for name, said in TIMES.items():
        for which in ("p50", "p99"):
            line(f"{said} {which}, ms", name, which, end=which == "p99")
    console.print(table)

    for engine, summary in summaries.items():
        if summary["by_verdict"]:
            console.print(_verdict_table(engine, summary["by_verdict"]))


def _verdict_table(engine: str, parts: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title=f"{engine}: mask / after guard", title_justify="left")
    table.add_column("verdict")
    for name in ("schemas", *_COUNTS):
        table.add_column(name.replace("_", " "), justify="right")
    for verdict, part in parts.items():
        found = [" / ".join(_shown(part[level][name]) for level in LEVELS) for name in _COUNTS]
        table.add_row(verdict, _shown(part["schemas"]), *found)
    return table


_COUNTS = ("passing", "valid_rejected", "invalid_accepted")
_BROKEN = {"refused": "refused", "error": "errors", "timeout": "timeouts", "crash": "crashes"}
_WHERE = {"mask": "mask", "guard": "after guard"}


def _at(summary: dict[str, Any], path: Sequence[str]) -> Any:
    for key in path:
        summary = summary[key]
    return summary


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
