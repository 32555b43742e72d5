"""The specification of `masked_sample`, in plain torch, one row at a time.

Every other path returns these tokens. The one difference that is allowed: a token whose mass above
lies within rounding of the top-p boundary.
"""

import torch

from kernels import bitmask as masks
from kernels.gumbel import gumbel_noise
from kernels.masked_sample.call import Call, Parameters, Sample, Stats, Status, prepare

TILE = 1024
MASS_BITS = 30
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
    rows = call.logits.shape[0]
    parameters = Parameters.of(call)
    token = torch.zeros(rows, dtype=torch.int64)
    logprob = torch.full((rows,), torch.nan)
    status = torch.zeros(rows, dtype=torch.int8)
    stats = Stats(
        torch.full((rows,), torch.nan),
        torch.zeros(rows, dtype=torch.int64),
        torch.full((rows,), torch.nan),
    )
    for row in range(rows):
        z, allowed = scaled_logits(call, parameters, row), allowed_tokens(call, row)
        status[row] = row_status(z, allowed)
        if status[row] == Status.OK:
            token[row] = draw(parameters, row, z, allowed)
            logprob[row] = z[token[row]].double() - log_mass(z, allowed)
        else:
            token[row] = allowed.int().argmax()  # the lowest allowed, else 0
        stats.allowed[row] = allowed.sum()
        if call.return_stats and status[row] <= Status.EMPTY:
            stats.log_removed[row] = log_removed(z, allowed)
            stats.entropy[row] = entropy(z, allowed)
    return Sample(token, logprob, status, stats if call.return_stats else None)


def scaled_logits(call: Call, parameters: Parameters, row: int) -> torch.Tensor:
    """z = logit * float32(1 / temperature), float32 [vocab_size]."""
    return call.logits[row, : call.vocab_size].float() * float(parameters.inverse_temperature[row])


def allowed_tokens(call: Call, row: int) -> torch.Tensor:
    """bool [vocab_size]: the row's mask, or everything when the row is free."""
    free = call.bitmask is None or (call.constrained is not None and not call.constrained[row])
    if free:
        return torch.ones(call.vocab_size, dtype=torch.bool)
    return masks.unpack(call.bitmask[row : row + 1], call.vocab_size)[0]


def row_status(z: torch.Tensor, allowed: torch.Tensor) -> Status:
    """The highest of NAN, POSINF and EMPTY that holds, else OK; forbidden logits do not count."""
    z = z[allowed]
    if z.isnan().any():
        return Status.NAN
    if (z == torch.inf).any():
        return Status.POSINF
    if (z == -torch.inf).all():
        return Status.EMPTY
    return Status.OK


def draw(parameters: Parameters, row: int, z: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """The token: argmax of z + Gumbel noise over the kept set; of z alone when greedy."""
    greedy, _, top_k, top_p, log_min_p, *key = (column[row].item() for column in parameters)
    kept = kept_tokens(z, allowed, log_min_p, top_k, top_p)
    score = z if greedy else z + gumbel_noise(*key, torch.arange(len(z)))
    return torch.where(kept, score, -torch.inf).argmax()  # the first of equals


def kept_tokens(
    z: torch.Tensor, allowed: torch.Tensor, log_min_p: float, top_k: int, top_p: float
) -> torch.Tensor:
    """bool [vocab_size]: what min_p, then top_k, then top_p leave of the allowed tokens."""
    kept = allowed & (z >= z[allowed].max() + log_min_p)

    descending = z[kept].sort(descending=True).values
    if 0 < top_k <= len(descending):
        # Fewer than k are strictly greater than the k-th: it stays, and so do its equals.
        kept = kept & (z >= descending[top_k - 1])

    if top_p < 1.0:
        mass = Mass(z, allowed)
        limit = top_p * float(mass.of(kept))
        values = z[kept].unique().flip(0)
        # The mass above a value grows down the list: bisect for the last value that is kept.
        last, beyond = 0, len(values)
        while beyond - last > 1:
            middle = (last + beyond) // 2
            if float(mass.of(kept & (z > values[middle]))) < limit:
                last = middle
            else:
                beyond = middle
        kept = kept & (z >= values[last])
    return kept


class Mass:
    """Probability mass of sets of tokens in integers, so that no order of adding matters.

    A token of tile t weighs ``floor(2^30 * exp2(z2 - e_t) + 0.5)`` with ``z2 = z * log2 e`` and
    ``e_t`` the greatest z2 allowed in the tile, rounded up. A tile's sum is shifted right by
    ``min(E - e_t, 63)``, E the greatest e_t of the row.
    """

    def __init__(self, z: torch.Tensor, allowed: torch.Tensor):
        z2 = _tiles(torch.where(allowed, z, -torch.inf) * LOG2_E, -torch.inf)
        exponent = z2.amax(1, keepdim=True).ceil()
        alive = exponent > -torch.inf
        weight = torch.exp2(z2 - exponent.masked_fill(~alive, 0.0))
        self.quanta = (weight * 2.0**MASS_BITS + 0.5).floor().long()
        self.shift = (exponent.max() - exponent).clamp_max(63.0).long().squeeze(1)

    def of(self, chosen: torch.Tensor) -> int:
        """Mass of a bool [vocab_size] subset of the allowed tokens."""
        sums = (self.quanta * _tiles(chosen, False)).sum(1)
        return int((sums >> self.shift).sum())


def log_mass(z: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """float64 log of the sum of exp(z) over a bool [vocab_size] set; -inf when it is empty."""
    return z[chosen].double().logsumexp(0)


def log_removed(z: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Log of the forbidden share of the free distribution: -log(1 + allowed / forbidden)."""
    if allowed.all():
        return torch.tensor(-torch.inf)
    gap = log_mass(z, allowed) - log_mass(z, ~allowed)
    return -torch.nn.functional.softplus(gap, threshold=700.0)


def entropy(z: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Entropy of the masked distribution, nats; NaN when it is empty."""
    logp = z[allowed].double() - log_mass(z, allowed)
    return (
        torch.special.entr(logp.exp()).sum() if logp.isfinite().any() else torch.tensor(torch.nan)
    )


def _tiles(values: torch.Tensor, fill) -> torch.Tensor:
    padding = -len(values) % TILE
    return torch.nn.functional.pad(values, (0, padding), value=fill).view(-1, TILE)
