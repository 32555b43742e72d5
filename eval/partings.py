"""How many responses of two runs are identical, and where the others part.

Positions count from 0: generated tokens where both rows recorded their ids
(``masked_sampling.token_ids``), else characters of text. A response that ended where the other went
on, or that ended for another reason, parts there.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import median
from typing import Any

from eval.intervals import wilson
from eval.rows import ResultRow


def partings(pairs: Iterable[tuple[ResultRow, ResultRow]]) -> dict[str, Any]:
    """Compare the responses of paired rows.

    ``compared`` leaves out pairs in which one failed or carries no response: ``unseen``. ``first``
    lists the first difference of each pair that has one: ``data_index``, ``unit`` (token or
    character), ``position``, and ``removed``, the probability in [0, 1] that a mask took away
    there, None where no intervention is recorded at that token. ``median_position`` is by unit;
    ``at_intervention`` counts the differences in tokens that lie at a recorded intervention, and
    ``recorded`` all those in rows of which one records interventions.
    """
    pairs = list(pairs)
    seen = [pair for pair in pairs if all(map(_is_seen, pair))]
    first, recorded = [], 0
    for one, other in seen:
        unit, position = first_difference(one, other)
        if position is None:
            continue
        found = [part for row in (one, other) for part in interventions_of(row) or ()]
        here = [part for part in found if part["position"] == position] if unit == "token" else []
        recorded += unit == "token" and any(interventions_of(r) is not None for r in (one, other))
        first.append(
            {
                "data_index": one.data_index,
                "unit": unit,
                "position": position,
                "removed": removed_by(here[0]) if here else None,
                "intervened": bool(here),
            }
        )
    identical = len(seen) - len(first)
    return {
        "compared": len(seen),
        "unseen": len(pairs) - len(seen),
        "identical": identical,
        "share": identical / len(seen) if seen else None,
        "interval": list(wilson(identical, len(seen))) if seen else None,
        "by_unit": dict(Counter(one["unit"] for one in first)),
        "median_position": {
            unit: median(one["position"] for one in first if one["unit"] == unit)
            for unit in dict.fromkeys(one["unit"] for one in first)
        },
        "recorded": recorded,
        "at_intervention": sum(one["intervened"] for one in first),
        "median_removed": _median(one["removed"] for one in first),
        "first": [{k: v for k, v in one.items() if k != "intervened"} for one in first],
    }


def first_difference(one: ResultRow, other: ResultRow) -> tuple[str, int | None]:
    """Unit, and the position at which two responses part; None for identical ones."""
    ids = [token_ids_of(row) for row in (one, other)]
    if None not in ids:
        unit, sides = "token", ids
    else:
        unit, sides = "character", _texts(one, other)
    if (position := parting(*sides)) is None and one.finish_reason != other.finish_reason:
        position = len(sides[0])
    return unit, position


def parting(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """Index of the first element in which two sequences differ, one that ended included."""
    pairs = enumerate(zip_longest(one, other))
    return next((i for i, (a, b) in pairs if a != b), None)


def token_ids_of(row: ResultRow) -> list[int] | None:
    """The ids that a row generated, without the stop token; None where they are not recorded."""
    ids = row.masked_sampling.get("token_ids")
    return ids if isinstance(ids, list) else None


def interventions_of(row: ResultRow) -> list[Mapping[str, Any]] | None:
    """Interventions of a row, in order; None where nobody looked, as at a remote endpoint."""
    found = row.masked_sampling.get("interventions")
    if not isinstance(found, list):
        return None
    placed = [one for one in found if isinstance(one, dict) and _is_index(one.get("position"))]
    return sorted(placed, key=lambda one: one["position"])


def removed_by(intervention: Mapping[str, Any]) -> float | None:
    """The probability in [0, 1] that the mask took away there."""
    log_removed = intervention.get("log_removed")
    if not isinstance(log_removed, int | float):
        return None
    # Rounding may leave a log a hair above 0.
    return min(1.0, math.exp(min(0.0, log_removed)))


def message_text(message: Mapping[str, Any]) -> str:
    """An assistant message as one text: thinking, content, then a line a call; no ids."""
    parts = [message.get("reasoning_content"), message.get("content")]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        function = function if isinstance(function, dict) else {"arguments": call}
        parts.append(f"{function.get('name')} {_as_text(function.get('arguments'))}")
    return "\n".join(_as_text(part) for part in parts if part)


def _is_seen(row: ResultRow) -> bool:
    return row.succeeded and (bool(row.message) or token_ids_of(row) is not None)


def _texts(one: ResultRow, other: ResultRow) -> list[str]:
    """What the models wrote where both rows hold it, else what a parser made of it."""
    raw = [row.masked_sampling.get("text") for row in (one, other)]
    if all(isinstance(text, str) for text in raw):
        return raw
    return [message_text(row.message) for row in (one, other)]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
