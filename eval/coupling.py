"""Where the grammar stepped in, and whether it did nothing before that.

Both runs of a request draw with the same noise, so the constrained run is the free run up to the
first token that the grammar takes away, and there the free run holds the very token that the
constrained one records as taken. Both are checked here on the recorded tokens; the one excuse is a
near tie, two scores so close that the model's own rounding, which depends on the batch around a
request, may turn them over.

Read from ``masked_sampling`` of a row, positions counted from 0 at the first generated token:
``token_ids`` (list of int, without the stop token), ``interventions`` (list of objects with
``position``, ``free_token`` and ``log_removed``, nats: log of the probability of everything the
grammar forbade there), and ``near_ties`` (positions, or objects with ``position``).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import Any

from eval.partings import interventions_of, parting, removed_by, token_ids_of
from eval.rows import ResultRow
from eval.scoring import is_triggered


def interventions(rows: Sequence[ResultRow], group: Mapping[int, str]) -> dict[str, Any]:
    """How often the grammar replaced the token that would have been drawn.

    Over the successful requests whose row records interventions, if only that there were none.
    ``first`` lists the first one of each request that had any: its position in tokens, and
    ``removed``, the probability in [0, 1] that the grammar took away there.
    """
    recorded = {row.data_index: interventions_of(row) for row in rows if row.succeeded}
    recorded = {index: found for index, found in recorded.items() if found is not None}
    first = [
        {
            "data_index": index,
            "group": group.get(index),
            "position": found[0]["position"],
            "removed": removed_by(found[0]),
        }
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
    """The three things that coupled noise promises, and every request that breaks one.

    ``prefix``: the tokens of the two runs agree before the first intervention, and wholly where
    there is none. ``trigger``: where there is none, both runs trigger or neither does.
    ``first_difference``: runs that part do so at the first intervention, and the free run has
    there the ``free_token`` recorded with it; ``ended`` of these agree in that the free run ended
    there, whose stop token is not among the recorded ids. A run with an intervention that does not
    part is an exception too.

    An exception is ``explained`` if a near tie was recorded, in either run, at the token where the
    two part; ``position`` is that token, None if they do not part or tokens are not recorded.
    ``unchecked`` requests succeeded in both runs, but lack token_ids or interventions, or had a
    call decoded again that its schema refused: that took noise of its own.
    """
    others = {row.data_index: row for row in constrained if row.succeeded}
    pairs = [
        (row, others[row.data_index]) for row in free if row.succeeded and row.data_index in others
    ]
    checked = untouched = parted = ended = 0
    prefix, decisions, differences = [], [], []
    for pair in pairs:
        found = interventions_of(pair[1])
        if found is None or pair[1].masked_sampling.get("retries"):
            continue
        ids = [token_ids_of(row) for row in pair]
        start = found[0]["position"] if found else None
        place = None if None in ids else parting(*ids)
        exception = {
            "data_index": pair[0].data_index,
            "position": place,
            "first_intervention": start,
            "explained": place is not None and place in _near_ties(pair),
        }
        if None not in ids:
            checked += 1
            if place is not None and (start is None or place < start):
                prefix.append(exception)
            # Older files do not record which token it was.
            known = not found or "free_token" in found[0]
            if known and not (place is None and start is None):
                parted += 1
                free_ended = place == start == len(ids[0]) and pair[0].finish_reason != "length"
                ended += free_ended
                if not (free_ended or (place == start and _drew(ids[0], found[0]))):
                    differences.append(exception)
        if start is None:
            untouched += 1
            if is_triggered(pair[0]) != is_triggered(pair[1]):
                decisions.append(exception)
    return {
        "pairs": len(pairs),
        "unchecked": len(pairs) - checked,
        "prefix": _part(checked, prefix),
        "trigger": _part(untouched, decisions),
        "first_difference": _part(parted, differences) | {"ended": ended},
    }


def _part(checked: int, exceptions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"checked": checked, "agree": checked - len(exceptions), "exceptions": exceptions}


def _drew(ids: Sequence[int], intervention: Mapping[str, Any]) -> bool:
    """Whether a free run holds the token that was taken from the constrained one."""
    position = intervention["position"]
    return position < len(ids) and ids[position] == intervention["free_token"]


def _near_ties(pair: Sequence[ResultRow]) -> set[Any]:
    ties = [tie for row in pair for tie in row.masked_sampling.get("near_ties") or []]
    return {tie.get("position") if isinstance(tie, dict) else tie for tie in ties}
