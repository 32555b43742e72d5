"""Where the grammar stepped in, and whether it did nothing before that.

Both runs of a request draw with the same noise, so without a cut the constrained run is the free
run up to the first token that the grammar forbids. That is checked here on the recorded tokens;
the one excuse is a near tie, two scores so close that the model's own rounding, which depends on
the batch around a request, may turn them over.

Read from ``masked_sampling`` of a row, positions counted from 0 at the first generated token:
``token_ids`` (list of int), ``interventions`` (list of objects with ``position`` and
``log_removed``, nats: log of the probability of everything the grammar forbade there), and
``near_ties`` (positions, or objects with ``position``).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from statistics import mean, median
from typing import Any

from eval.rows import ResultRow
from eval.scoring import is_triggered


def interventions(rows: Sequence[ResultRow], group: Mapping[int, str]) -> dict[str, Any]:
    """How often the grammar replaced the token that would have been drawn.

    Over the successful requests whose row records interventions, if only that there were none.
    ``first`` lists the first one of each request that had any: its position in tokens, and
    ``removed``, the probability in [0, 1] that the grammar took away there.
    """
    recorded = {row.data_index: _recorded(row) for row in rows if row.succeeded}
    recorded = {index: found for index, found in recorded.items() if found is not None}
    first = [
        {"data_index": index, "group": group.get(index), **_place(min(found, key=_position))}
        for index, found in recorded.items()
        if found
    ]
    removed = [one["removed"] for one in first if one["removed"] is not None]
    asked = Counter(group.get(index) for index in recorded)
    touched = Counter(one["group"] for one in first)
    return {
        "requests": len(recorded),
        "with_intervention": len(first),
        "share": len(first) / len(recorded) if recorded else None,
        "share_by_group": {name: touched[name] / n for name, n in asked.items()},
        "total": sum(map(len, recorded.values())),
        "mean_removed_at_first": mean(removed) if removed else None,
        "median_removed_at_first": median(removed) if removed else None,
        "median_position_of_first": median(one["position"] for one in first) if first else None,
        "first": first,
    }


def coupling(free: Sequence[ResultRow], constrained: Sequence[ResultRow]) -> dict[str, Any]:
    """The two things that coupled noise promises, and every request that breaks one.

    ``prefix``: the tokens of the two runs agree before the first intervention, and wholly where
    there is none. ``trigger``: where there is none, both runs trigger or neither does. An
    exception is ``explained`` if a near tie was recorded, in either run, at the token where the
    two part; ``position`` is that token, None if they do not part or tokens are not recorded.
    ``unchecked`` requests succeeded in both runs, but lack token_ids or interventions, or had a
    call decoded again that its schema refused: that took noise of its own.
    """
    others = {row.data_index: row for row in constrained if row.succeeded}
    pairs = [
        (row, others[row.data_index]) for row in free if row.succeeded and row.data_index in others
    ]
    checked = untouched = 0
    prefix, decisions = [], []
    for pair in pairs:
        found = _recorded(pair[1])
        ids = [row.masked_sampling.get("token_ids") for row in pair]
        if found is None or pair[1].masked_sampling.get("retries"):
            continue
        start = min(map(_position, found), default=None)
        parting = None if None in ids else _parting(*ids)
        exception = {
            "data_index": pair[0].data_index,
            "position": parting,
            "first_intervention": start,
            "explained": parting is not None and parting in _near_ties(pair),
        }
        if None not in ids:
            checked += 1
            if parting is not None and (start is None or parting < start):
                prefix.append(exception)
        if start is None:
            untouched += 1
            if is_triggered(pair[0]) != is_triggered(pair[1]):
                decisions.append(exception)
    return {
        "pairs": len(pairs),
        "unchecked": len(pairs) - checked,
        "prefix": {"checked": checked, "agree": checked - len(prefix), "exceptions": prefix},
        "trigger": {
            "checked": untouched,
            "agree": untouched - len(decisions),
            "exceptions": decisions,
        },
    }


def _recorded(row: ResultRow) -> list[Mapping[str, Any]] | None:
    """Interventions of a row; None where nobody looked, as at a remote endpoint."""
    return row.masked_sampling.get("interventions")


def _position(intervention: Mapping[str, Any]) -> int:
    return intervention["position"]


def _place(intervention: Mapping[str, Any]) -> dict[str, Any]:
    log_removed = intervention.get("log_removed")
    # Rounding may leave a log a hair above 0.
    removed = None if log_removed is None else min(1.0, math.exp(log_removed))
    return {"position": intervention["position"], "removed": removed}


def _parting(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token in which two sequences differ, one that ended included."""
    pairs = enumerate(zip_longest(one, other))
    return next((i for i, (a, b) in pairs if a != b), None)


def _near_ties(pair: Sequence[ResultRow]) -> set[int]:
    ties = [tie for row in pair for tie in row.masked_sampling.get("near_ties") or []]
    return {tie["position"] if isinstance(tie, dict) else tie for tie in ties}
