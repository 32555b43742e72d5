"""Tokens that a grammar saves, and tokens that it costs."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from eval.pairing import pair
from eval.rows import ResultRow


def token_counts(free: Iterable[ResultRow], constrained: Iterable[ResultRow]) -> dict[str, Any]:
    """Completion tokens of the same requests in two runs, as the responses' ``usage`` gives them.

    Over the requests that succeeded in both runs with a count in both: ``pairs``, and the others
    under ``uncounted``. ``free`` and ``constrained`` are totals. Where the constrained response is
    shorter the difference is ``saved``, where it is longer it is ``spent``, each with ``requests``
    and ``tokens``; ``by_difference`` lists [constrained minus free, requests], in order.
    ``forced`` of the constrained tokens had no alternative and were not sampled
    (``masked_sampling.forced``), None where no row records it.
    """
    totals, differences, forced, uncounted = [0, 0], Counter(), [], 0
    for both in pair(free, constrained).pairs:
        counts = [row.usage.get("completion_tokens") for row in both]
        if None in counts or not all(row.succeeded for row in both):
            uncounted += 1
            continue
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        differences[counts[1] - counts[0]] += 1
        if isinstance(known := both[1].masked_sampling.get("forced"), int):
            forced.append(known)
    return {
        "pairs": differences.total(),
        "uncounted": uncounted,
        "free": totals[0],
        "constrained": totals[1],
        "saved": _side({-d: n for d, n in differences.items() if d < 0}),
        "spent": _side({d: n for d, n in differences.items() if d > 0}),
        "same": differences[0],
        "forced": sum(forced) if forced else None,
        "by_difference": [list(item) for item in sorted(differences.items())],
    }


def _side(differences: dict[int, int]) -> dict[str, int]:
    return {
        "requests": sum(differences.values()),
        "tokens": sum(size * n for size, n in differences.items()),
    }
