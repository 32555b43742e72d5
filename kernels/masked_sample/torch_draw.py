"""The draw among candidates, for the CPU path: which are kept, and which one wins.

What is kept competes by ``exp(z) / v``, v the uniform behind the noise. As
``v <= -log1p(-v) <= 16.7 v``, a token under a seventeenth of the best cannot win. The rest are
scored in float64, and only those within rounding of the best get the noise of the specification.
"""

from typing import NamedTuple

import numpy as np
import torch

from kernels import gumbel
from kernels.masked_sample.call import Parameters
from kernels.masked_sample.torch_blocks import NEG_INF

WEIGHT_SCALE = np.float32(2.0**34)
"""Weights are rounded to 2^-34 of the greatest: 2^18 of them still add exactly in float64."""
MASS_TOLERANCE = 2e-5
"""Bound on the relative difference of the masses here and in the reference, argument rounding
apart: 2^18 tokens rounded by 2^-35 here, 2^-20 a tile and 256 shifts there, exp2; then doubled."""
CONTEST_SHARE = np.float32(1 / 18)
REACH = np.float32(gumbel.GUMBEL_MAX - gumbel.GUMBEL_MIN)
"""A token this far below the greatest loses to it whatever the noise, nats."""
GROUP = 32
"""Values behind each maximum that bounds the k-th greatest."""


class Candidates(NamedTuple):
    """Tokens of R rows, row by row, ids ascending; every row has some."""

    rows: np.ndarray
    """int64 [R]: indices of the rows in the call."""
    starts: np.ndarray
    """int64 [R]: where each row begins."""
    row: np.ndarray
    """int64 [N]: place in ``rows`` of each candidate."""
    token: np.ndarray
    """int64 [N]"""
    z: np.ndarray
    """float32 [N]"""
    bits: np.ndarray | None
    """uint32 [N]: random words; None while they are not drawn."""

    @classmethod
    def of(cls, rows, flat, z, ids, bits=None) -> "Candidates":
        """From ascending flat indices of z [R, N], ids [R, N] or None, bits [R, N] or None."""
        row, starts = _rows_of(flat, *z.shape)
        token = flat - row * z.shape[1] if ids is None else ids.ravel()[flat]
        return cls(
            rows, starts, row, token, z.ravel()[flat], None if bits is None else bits.ravel()[flat]
        )

    @classmethod
    def joined(cls, parts: list["Candidates"]) -> "Candidates":
        """Candidates of different rows as one."""
        if len(parts) == 1:
            return parts[0]
        rows, tokens = np.cumsum([[len(p.rows), len(p.row)] for p in parts], axis=0).T
        starts = [p.starts + at - len(p.row) for p, at in zip(parts, tokens, strict=True)]
        row = [p.row + at - len(p.rows) for p, at in zip(parts, rows, strict=True)]
        columns = zip(*parts, strict=True)
        joined = [None if column[0] is None else np.concatenate(column) for column in columns]
        return cls(*joined)._replace(starts=np.concatenate(starts), row=np.concatenate(row))

    def where(self, chosen: np.ndarray) -> "Candidates":
        """The candidates of a bool [N] that leaves some in every row."""
        row = self.row[chosen]
        starts = row.searchsorted(np.arange(len(self.rows)))
        bits = None if self.bits is None else self.bits[chosen]
        return Candidates(self.rows, starts, row, self.token[chosen], self.z[chosen], bits)


def weights(z: np.ndarray, top: np.ndarray) -> np.ndarray:
    """exp(z - top), float32; torch's exp does not depend on an element's place, its exp2 does."""
    return torch.from_numpy(z - top).exp_().numpy()


def quanta(weight: np.ndarray) -> np.ndarray:
    """Weights in whole units of 2^-34, float32."""
    scaled = weight * WEIGHT_SCALE
    return np.rint(scaled, out=scaled)


def lower_bound(
    z: np.ndarray, top: np.ndarray, mass: np.ndarray, parameters: Parameters
) -> np.ndarray:
    """Float32 [R]; tokens of z [R, N] under it can be forgotten.

    They can neither be kept nor, where another cut comes before top_p, count in the kept mass.
    ``top`` is the greatest z and ``mass`` the sum of the quanta.
    """
    size = z.shape[1]
    by_k = (parameters.top_k > 0) & (parameters.top_k < size)
    by_min_p = parameters.log_min_p > NEG_INF
    by_p = parameters.top_p < 1.0
    cut_low = top + parameters.log_min_p
    if by_k.any():
        cut_low = np.where(by_k, np.maximum(cut_low, _kth_bound(z, parameters.top_k)), cut_low)
    # All n tokens of at most this weight weigh less than top_p drops: it drops them all.
    dropped = np.maximum(1.0 - parameters.top_p - _tolerance(top), 0.0) * mass
    p_low = top + np.log(dropped / (WEIGHT_SCALE * size)) - 1e-3
    low = np.where(by_p & ~by_k & ~by_min_p, p_low, cut_low)
    return np.where(by_p, low, np.maximum(low, top - REACH)).astype(np.float32)


def kept_range(
    candidates: Candidates, size: int, top: np.ndarray, mass: np.ndarray, parameters: Parameters
) -> tuple[np.ndarray, np.ndarray]:
    """The kept set of each row of candidates, as bounds on z.

    Args:
        candidates: of R rows, from their `lower_bound` on.
        size: tokens in the vocabulary.
        top, mass, parameters: of the R rows, as for `lower_bound`.

    Returns:
        floor: float32 [R]; no token under it is kept.
        sure: float32 [R], at least floor; every token from it on is kept. Between the two lies a
            top-p boundary within rounding of the mass.
    """
    by_k = (parameters.top_k > 0) & (parameters.top_k < size)
    by_min_p = parameters.log_min_p > NEG_INF
    by_p = parameters.top_p < 1.0
    values, counts = _descending(candidates)
    floor = top + parameters.log_min_p
    if by_k.any():
        # Where k exceeds the candidates, k exceeds what min_p leaves: no cut.
        k = np.where(by_k & (parameters.top_k <= counts), parameters.top_k, 0)
        floor = np.where(k > 0, np.maximum(floor, _at(values, k - 1)), floor)
    if not by_p.any():
        return floor, floor
    quantum = quanta(weights(values, top[:, None])).astype(np.float64)
    present = (values >= floor[:, None]) & (np.arange(values.shape[1]) < counts[:, None])
    quantum *= present
    inclusive = quantum.cumsum(1)
    above = inclusive - quantum
    kept_mass = np.where(by_k | by_min_p, inclusive[:, -1], mass)

    def last_under(share):
        under = present & (above < (share * kept_mass)[:, None])
        return _at(values, np.maximum(under.sum(1), 1) - 1)

    tolerance = _tolerance(top)
    sure = np.where(by_p, last_under(parameters.top_p - tolerance), floor)
    return np.where(by_p, last_under(parameters.top_p + tolerance), floor), sure


def finalists(candidates: Candidates, top: np.ndarray, parameters: Parameters) -> Candidates:
    """The candidates that may win, with their random words; top and parameters of the R rows."""
    row, starts = candidates.row, candidates.starts
    bits = gumbel.random_bits(
        parameters.seed[row], parameters.position[row], parameters.stream[row], candidates.token
    )
    share = weights(candidates.z, top[row]) / _chance(bits)
    best = np.maximum.reduceat(share, starts)
    # Every candidate of a greedy row equals its top: all go on.
    best[parameters.greedy] = 0.0
    return candidates._replace(bits=bits).where(share > (best * CONTEST_SHARE)[row])


def dense_finalists(
    rows: np.ndarray,
    z: np.ndarray,
    weight: np.ndarray,
    enters: np.ndarray,
    parameters: Parameters,
) -> Candidates:
    """`finalists` of z [R, V], whose columns are tokens, among those that enter (bool [R, V])."""
    bits = gumbel.random_bits_range(
        parameters.seed, parameters.position, parameters.stream, z.shape[1]
    )
    share = _chance(bits)
    np.divide(weight, share, out=share)
    share *= enters
    best = share.max(1)
    best[parameters.greedy] = 0.0
    flat = np.flatnonzero(share > (best * CONTEST_SHARE)[:, None])
    return Candidates.of(rows, flat, z, None, bits)


def winners(final: Candidates, greedy: np.ndarray) -> np.ndarray:
    """Index [R] of the greatest z + noise of each row's finalists, the lowest token of equals."""
    rows = len(final.rows)
    score = final.z - np.log(-np.log1p(-gumbel.uniform(final.bits), dtype=np.float64))
    score = np.where(greedy[final.row], final.z, score)
    best = np.maximum.reduceat(score, final.starts)
    # The noise in float32 is within 1e-7 max(1, g) of this, and the sum rounds by 2^-24 of itself.
    close = np.flatnonzero(score >= (best - (np.abs(best) + 64.0) * 2.0**-21)[final.row])
    if len(close) == rows:
        return close
    row, z = final.row[close], final.z[close]
    noise = gumbel.gumbel_from_bits(final.bits[close])
    score = np.where(greedy[row], z, z + noise)
    best = np.maximum.reduceat(score, row.searchsorted(np.arange(rows)))
    equal = np.flatnonzero(score == best[row])
    return close[equal[row[equal].searchsorted(np.arange(rows))]]


def _chance(bits: np.ndarray) -> np.ndarray:
    # v but for its scale and its last step: a contest needs no more.
    chance = bits.astype(np.float32)
    chance += np.float32(0.5)
    return chance


def _tolerance(top: np.ndarray) -> np.ndarray:
    # z * log2(e) is rounded in the reference, by 2^-24 of up to |top| + 25 where it matters.
    return MASS_TOLERANCE + (np.abs(top) + 30.0) * 2.0**-23


def _kth_bound(z: np.ndarray, k: np.ndarray) -> np.ndarray:
    """A lower bound of each row's k-th greatest value: the k-th greatest maximum of its groups."""
    rows, size = z.shape
    groups = size // GROUP
    usable = (k > 0) & (k <= groups)
    if not usable.any():
        return np.full(rows, NEG_INF)
    maxima = z[:, : groups * GROUP].reshape(rows, GROUP, groups).max(1)
    maxima.sort(1)
    return np.where(usable, _at(maxima, np.where(usable, groups - k, 0)), NEG_INF)


def _descending(candidates: Candidates) -> tuple[np.ndarray, np.ndarray]:
    """Float32 [R, K] values, greatest first, padded with -inf; and how many each row has."""
    starts, row = candidates.starts, candidates.row
    counts = np.diff(starts, append=len(row))
    negated = np.full((len(starts), int(counts.max())), np.inf, np.float32)
    negated[row, np.arange(len(row)) - starts[row]] = -candidates.z
    negated.sort(1)
    return np.negative(negated, out=negated), counts


def _at(values: np.ndarray, column: np.ndarray) -> np.ndarray:
    return values[np.arange(len(values)), column]


def _rows_of(flat: np.ndarray, rows: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Row of each of the ascending flat indices of [rows, size], and where each row starts."""
    if rows == 1:
        return np.zeros(len(flat), np.int64), np.zeros(1, np.int64)
    edges = flat.searchsorted(np.arange(rows + 1) * size)
    return np.arange(rows).repeat(edges[1:] - edges[:-1]), edges[:-1]
