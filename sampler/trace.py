"""What a mask did to a draw: compared with the free draw of the same noise, and with the next best.

Coupling makes the comparison exact: with no cut, the free draw and the masked one differ only where
the mask forbids the free token.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels import gumbel
from kernels.masked_sample import Sample, Status, masked_sample
from sampler.params import Intervention, NearTie

TIE_MARGIN = 1e-3
"""Nats, at temperatures from 1 up; below, scores spread as 1 / temperature, and so does this. About
twenty times what a float32 model's logits move with the batch's shape on a CPU; half-precision
weights move further, and a token on the edge of a cut may be kept in one batch and not in another.
"""

_GREEDY_BELOW = 1e-5


class Trace:
    """The record of one row."""

    def __init__(self) -> None:
        self.position = 0
        self.interventions: list[Intervention] = []
        self.near_ties: list[NearTie] = []
        self.log_removed: list[float] = []

    @staticmethod
    def record(
        traces: list[Trace],
        logits: torch.Tensor,
        mask: torch.Tensor,
        constrained: torch.Tensor,
        sample: Sample,
        arguments: dict[str, torch.Tensor],
        impl: str,
    ) -> None:
        """Add one step of a batch: `arguments` are those the sample was drawn with, [B] each."""
        free = sample.token
        if bool(constrained.any()):
            free = masked_sample(logits, None, impl=impl, **arguments).token
        runner_up, margin = _runner_up(logits, mask, constrained, sample, arguments, impl)
        temperature = arguments["temperature"]
        scale = torch.where(temperature < _GREEDY_BELOW, 1.0, temperature).clamp(max=1.0)
        close = margin < TIE_MARGIN / scale
        for i, trace in enumerate(traces):
            trace._add(
                int(sample.token[i]),
                int(free[i]),
                float(sample.stats.log_removed[i]),
                mask[i] if bool(constrained[i]) else None,
                int(runner_up[i]),
                float(margin[i]) if bool(close[i]) else None,
                int(sample.status[i]) == Status.OK,
            )

    def _add(self, token, free, log_removed, mask, runner_up, margin, good) -> None:
        position = self.position
        self.position += 1
        self.log_removed.append(log_removed)
        if not good:
            return
        if mask is not None and free != token:
            allowed = int(mask[free // 32]) >> (free % 32) & 1
            kind = "cut" if allowed else "forbidden"
            self.interventions.append(Intervention(position, free, token, log_removed, kind))
        if margin is not None:
            self.near_ties.append(NearTie(position, token, runner_up, margin))

    def cut(self, position: int) -> None:
        """Forget the positions from this one on; they are about to be drawn again."""
        self.position = position
        self.interventions = [i for i in self.interventions if i.position < position]
        self.near_ties = [tie for tie in self.near_ties if tie.position < position]
        del self.log_removed[position:]

    def result(self) -> dict[str, Any]:
        """The fields of a `Completion` that this fills."""
        return {
            "interventions": tuple(self.interventions),
            "near_ties": tuple(self.near_ties),
            "log_removed": tuple(self.log_removed),
        }


def _runner_up(logits, mask, constrained, sample, arguments, impl):
    """The token [B] that wins when the drawn one is taken away, and by how much it lost [B].

    With a cut, taking a token away lets others in, so a margin may come out too small.
    """
    rest = mask.clone()
    rest[~constrained] = -1
    rows = torch.arange(len(rest), device=rest.device)
    word = sample.token // 32
    bit = torch.bitwise_left_shift(torch.ones_like(sample.token), sample.token % 32)
    rest[rows, word] &= (~bit).to(torch.int32)
    other = masked_sample(logits, rest, impl=impl, **arguments)
    margin = _score(logits, sample.token, arguments) - _score(logits, other.token, arguments)
    return other.token, torch.where(other.status == Status.OK, margin, torch.inf)


def _score(logits: torch.Tensor, token: torch.Tensor, arguments) -> torch.Tensor:
    """z + noise of one token a row, float32 [B]; z alone where the row is greedy."""
    temperature = arguments["temperature"]
    greedy = temperature < _GREEDY_BELOW
    scale = torch.where(greedy, 1.0, 1.0 / temperature)
    z = logits.gather(1, token[:, None]).squeeze(1).float() * scale
    names = ("seed", "position", "stream")
    seed, position, stream = (arguments[name].cpu().numpy() for name in names)
    bits = gumbel.random_bits(seed, position, stream, token.cpu().numpy())
    noise = torch.from_numpy(gumbel.gumbel_from_bits(bits)).to(z.device)
    return torch.where(greedy, z, z + noise)
