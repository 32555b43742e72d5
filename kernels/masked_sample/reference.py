"""The specification of `masked_sample`, in plain torch.

Every other path returns these tokens. The one difference that is allowed: a token whose mass above
lies within rounding of the top-p boundary.
"""

import numpy as np
import torch

from kernels import bitmask as masks
from kernels.gumbel import gumbel_noise
from kernels.masked_sample.call import Call, Parameters, Sample, Stats, Status, prepare

TILE = 1024
MASS_BITS = 30
CHUNK = 1 << 20
"""Elements worked at once, so that a large batch needs little memory."""
LOG2_E = 1.4426950216293335
"""float32(log2 e)"""


@torch.no_grad()
def masked_sample_reference(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None = None,
    *,
    constrained: torch.Tensor | None = None,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    seed,
    position,
    stream=0,
    vocab_size: int | None = None,
    return_stats: bool = False,
) -> Sample:
    """`kernels.masked_sample.masked_sample` as it is specified; CPU tensors, same arguments."""
    return sample_rows(
        prepare(
            logits,
            bitmask,
            constrained=constrained,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seed=seed,
            position=position,
            stream=stream,
            vocab_size=vocab_size,
            return_stats=return_stats,
        )
    )


def sample_rows(call: Call) -> Sample:
    """The specification, for a call whose arguments are checked."""
    batch, step = call.logits.shape[0], max(CHUNK // call.vocab_size, 1)
    parameters = Parameters.of(call)
    starts = range(0, max(batch, 1), step)
    parts = [_sample(call, parameters, np.arange(batch)[at : at + step]) for at in starts]
    token, logprob, status, *stats = map(torch.cat, zip(*parts, strict=True))
    return Sample(token, logprob, status, Stats(*stats) if call.return_stats else None)


def _sample(call: Call, parameters: Parameters, rows: np.ndarray) -> tuple[torch.Tensor, ...]:
    free, allowed = scaled_logits(call, parameters, rows), allowed_tokens(call, rows)
    status = row_status(free, allowed)
    bad = status != Status.OK
    z = free.masked_fill(~allowed | bad[:, None], -torch.inf)
    token = torch.where(bad, lowest_allowed(allowed), draw(z, parameters.take(rows)))
    logprob = (z.gather(1, token[:, None])[:, 0].double() - log_mass(z)).float()
    if not call.return_stats:
        return token, logprob, status
    removed = log_removed(z, free.masked_fill(allowed, -torch.inf))
    removed = removed.masked_fill(allowed.all(1), -torch.inf)
    removed = removed.masked_fill(status > Status.EMPTY, torch.nan)
    return token, logprob, status, removed.float(), allowed.sum(1), entropy(z).float()


def scaled_logits(call: Call, parameters: Parameters, rows: np.ndarray) -> torch.Tensor:
    """z = logit * float32(1 / temperature), float32 [R, vocab_size]."""
    logits = call.logits[torch.from_numpy(rows), : call.vocab_size]
    return logits.float() * torch.from_numpy(parameters.inverse_temperature[rows, None])


def allowed_tokens(call: Call, rows: np.ndarray) -> torch.Tensor:
    """bool [R, vocab_size]: a row's mask, or everything when the row is free."""
    rows = torch.from_numpy(rows)
    if call.bitmask is None:
        return torch.ones(len(rows), call.vocab_size, dtype=torch.bool)
    allowed = masks.unpack(call.bitmask[rows], call.vocab_size)
    return allowed if call.constrained is None else allowed | ~call.constrained[rows, None]


def row_status(z: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """int8 [R]: NAN, else POSINF, else EMPTY, else OK; forbidden logits do not count."""
    nan = (allowed & z.isnan()).any(1)
    posinf = (allowed & (z == torch.inf)).any(1)
    empty = ~(allowed & (z > -torch.inf)).any(1)
    status = torch.where(empty, Status.EMPTY, Status.OK)
    status = torch.where(posinf, Status.POSINF, status)
    return torch.where(nan, Status.NAN, status).to(torch.int8)


def lowest_allowed(allowed: torch.Tensor) -> torch.Tensor:
    """int64 [R]: the first allowed id, or 0."""
    return allowed.int().argmax(1)


def draw(z: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """The token of each row, int64 [R]: the first argmax, over the kept set, of z + Gumbel noise.

    Forbidden tokens have z = -inf. Greedy rows have no noise.
    """
    noise = torch.from_numpy(
        gumbel_noise(parameters.seed, parameters.position, parameters.stream, z.shape[1])
    )
    score = torch.where(torch.from_numpy(parameters.greedy)[:, None], z, z + noise)
    return score.masked_fill(~kept_tokens(z, parameters), -torch.inf).argmax(1)


def kept_tokens(z: torch.Tensor, parameters: Parameters) -> torch.Tensor:
    """bool [R, vocab_size]: what min_p, then top_k, then top_p leave."""
    log_min_p = torch.from_numpy(parameters.log_min_p)[:, None]
    top_k = torch.from_numpy(parameters.top_k)[:, None]
    top_p = torch.from_numpy(parameters.top_p)[:, None]

    kept = z >= z.amax(1, keepdim=True) + log_min_p

    # Fewer than k are strictly greater than the k-th greatest: it stays, and so do its equals.
    descending = z.masked_fill(~kept, -torch.inf).sort(1, descending=True).values
    kth = descending.gather(1, top_k.clamp(1, z.shape[1]) - 1)
    kept &= (top_k == 0) | (z >= kth)

    # The mass above a value grows down the row: bisect for the last that stays.
    mass = Mass(z)
    limit = top_p * mass.of(kept).double()
    last, beyond = torch.zeros_like(top_k), kept.sum(1, keepdim=True)
    for _ in range(z.shape[1].bit_length()):
        middle = (last + beyond) // 2
        stays = mass.of(kept & (z > descending.gather(1, middle))).double() < limit
        last = torch.where(stays, middle, last)
        beyond = torch.where(stays, beyond, middle)
    return kept & ((top_p == 1) | (z >= descending.gather(1, last)))


class Mass:
    """Probability mass of sets of tokens in integers, so that no order of adding matters.

    A token of tile t weighs ``floor(2^30 * exp2(z2 - e_t) + 0.5)`` with ``z2 = z * log2 e`` and
    ``e_t`` the greatest z2 in the tile, rounded up. A tile's sum is shifted right by
    ``min(E - e_t, 63)``, E the greatest e_t of the row.
    """

    def __init__(self, z: torch.Tensor):
        z2 = _tiles(z * LOG2_E, -torch.inf)
        exponent = z2.amax(2, keepdim=True).ceil()
        # A tile of -inf weighs nothing: any finite exponent will do.
        weight = torch.exp2(z2 - exponent.clamp_min(torch.finfo(torch.float32).min))
        self.quanta = (weight * 2.0**MASS_BITS + 0.5).floor().long()
        self.shift = (exponent.amax(1, keepdim=True) - exponent).clamp_max(63).long().squeeze(2)

    def of(self, chosen: torch.Tensor) -> torch.Tensor:
        """int64 [R, 1]: mass of a bool [R, vocab_size] set in each row."""
        sums = (self.quanta * _tiles(chosen, False)).sum(2)
        return (sums >> self.shift).sum(1, keepdim=True)


def log_mass(z: torch.Tensor) -> torch.Tensor:
    """float64 [R]: log of the sum of exp(z); -inf when all are -inf."""
    return z.double().logsumexp(1)


def log_removed(z: torch.Tensor, forbidden: torch.Tensor) -> torch.Tensor:
    """Log of the forbidden share of all: -log(1 + allowed / forbidden), exact at both ends."""
    gap = log_mass(z) - log_mass(forbidden)
    # softplus is the identity beyond its threshold; at 700 that is exact in float64.
    return -torch.nn.functional.softplus(gap, threshold=700.0)


def entropy(z: torch.Tensor) -> torch.Tensor:
    """Entropy of exp(z), normalised, nats; NaN when all are -inf."""
    return torch.special.entr(z.double().softmax(1)).sum(1)


def _tiles(values: torch.Tensor, fill) -> torch.Tensor:
    # A row shorter than a tile is one tile: padding weighs nothing.
    rows, size = values.shape
    width = min(TILE, size)
    padding = -size % width
    padded = torch.nn.functional.pad(values, (0, padding), value=fill)
    return padded.view(rows, (size + padding) // width, width)
