"""Two small-sample statistics, exact where exactness is cheap."""

import math
from statistics import NormalDist


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a proportion: (low, high), both in [0, 1].

    E. B. Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", Journal
    of the American Statistical Association 22 (1927), 209-212; no continuity correction. The
    proportions p that a z-test would not reject: |p - k/n| <= z sqrt(p (1 - p) / n). Unlike the
    textbook interval it stays inside [0, 1] and has a width at k = 0 and k = n. No trials: (0, 1).

    Raises:
        ValueError: not 0 <= successes <= trials, or a confidence outside (0, 1).
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must be in 0..{trials} (the trials), got {successes}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be inside (0, 1), got {confidence}; 0.95 is usual")
    if not trials:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / trials
    centre = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    # The ends are exact, and rounding would put them a hair away.
    low = 0.0 if successes == 0 else (centre - half) / scale
    high = 1.0 if successes == trials else (centre + half) / scale
    return low, high


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value of McNemar's test, from the two discordant counts.

    Under the hypothesis that neither of two paired treatments succeeds more often, each
    discordant pair falls to either side with probability 1/2:
    ``p = min(1, 2 P(X <= min(b, c)))`` with X binomial(b + c, 1/2). No discordant pair: 1.
    Q. McNemar, "Note on the sampling error of the difference between correlated proportions or
    percentages", Psychometrika 12 (1947), 153-157, whose chi-square this replaces.

    Raises:
        ValueError: a negative count.
    """
    if min(only_first, only_second) < 0:
        raise ValueError(f"counts must be >= 0, got {only_first} and {only_second}")
    pairs = only_first + only_second
    term = tail = 1
    for i in range(min(only_first, only_second)):
        term = term * (pairs - i) // (i + 1)
        tail += term
    return min(1.0, 2 * tail / 2**pairs)
