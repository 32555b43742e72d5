"""The CPU path: the tokens of the reference, without touching what cannot matter.

Rows are worked in blocks that fit the cache. A sparse row becomes the list of its allowed tokens;
its forbidden logits are never read. A cheap bound drops most tokens of a row that has cuts. What is
left of many rows, the candidates, is then sorted, cut and drawn from together; a dense row with
many candidates is drawn from at once, since neighbours share their random numbers.

Sums of weights are integers held in float64, exact below 2^53, so they depend on no order and a
row's result does not depend on its block. They and the reference's masses differ by rounding; where
that could change the draw, the reference draws.

Arrays are numpy views of the tensors: on these sizes its calls cost a fraction of torch's.
"""

import numpy as np
import torch

from kernels import bitmask as masks
from kernels.masked_sample import reference
from kernels.masked_sample.call import Call, Parameters, Sample, Stats, Status
from kernels.masked_sample.torch_blocks import (
    BLOCK,
    Block,
    blocks,
    dense_rows,
    forbid,
    masked_rows,
    take_rows,
)
from kernels.masked_sample.torch_draw import (
    REACH,
    WEIGHT_SCALE,
    Candidates,
    dense_finalists,
    finalists,
    kept_range,
    lower_bound,
    quanta,
    weights,
    winners,
)


def sample_rows(call: Call) -> Sample:
    """The fast path, for a call whose arguments are checked."""
    with np.errstate(all="ignore"):
        rows = _Rows(call)
        for block in blocks(call, rows.parameters):
            rows.add(block)
        rows.draw_pending()
        logprob = rows.logprob()
        stats = _stats(call, rows) if call.return_stats else None
    return Sample(*map(torch.from_numpy, (rows.token, logprob, rows.status)), stats)


class _Rows:
    """The rows of a call and their results so far, [B] arrays."""

    def __init__(self, call: Call):
        batch = call.logits.shape[0]
        self.call = call
        self.parameters = Parameters.of(call)
        self.cut = _some(call.top_p, lambda p: p < 1) or _some(call.min_p, lambda p: p > 0)
        self.cut |= _some(call.top_k, lambda k: (k > 0) & (k < call.vocab_size))
        self.greedy = bool(self.parameters.greedy.any())
        self.top = np.zeros(batch, np.float32)
        self.mass = np.zeros(batch)
        self.token = np.zeros(batch, np.int64)
        self.z_token = np.zeros(batch)
        self.status = np.zeros(batch, np.int8)
        self.entropy = np.full(batch, np.nan, np.float32) if call.return_stats else None
        self.pending: list[Candidates] = []

    def logprob(self) -> np.ndarray:
        return (self.z_token - self.top - self._log_mass()).astype(np.float32)

    def log_mass(self) -> np.ndarray:
        """Log of the sum of exp(z) over the allowed tokens, float64; NaN in bad rows."""
        return self.top + self._log_mass()

    def _log_mass(self) -> np.ndarray:
        return np.log(self.mass / WEIGHT_SCALE)

    def add(self, block: Block) -> None:
        """Draw for the rows of a block, or leave their candidates pending."""
        top = block.z.max(1)
        good = np.isfinite(top)
        if not good.all():
            self._set_aside(block.rows[~good], top[~good])
            if not good.any():
                return
            block, top = block.take(good), top[good]
        rows, z, ids, parameters = block
        weight = weights(z, top[:, None])
        mass = quanta(weight).sum(1, dtype=np.float64)
        self.top[rows], self.mass[rows] = top, mass
        if self.call.return_stats:
            # exp(-200) is 0 in float32: the clip only keeps 0 * inf away.
            below = np.maximum(z - top[:, None], np.float32(-200.0))
            expected = (below * weight).sum(1, dtype=np.float64) * WEIGHT_SCALE / mass
            self.entropy[rows] = np.log(mass / WEIGHT_SCALE) - expected

        low = lower_bound(z, top, mass, parameters) if self.cut else top - REACH
        if self.greedy:
            low = np.where(parameters.greedy, top, low)
        enters = z >= low[:, None]
        if ids is not None or 4 * np.count_nonzero(enters) <= z.size:
            self.pending.append(Candidates.of(rows, np.flatnonzero(enters), z, ids))
            if sum(len(candidates.row) for candidates in self.pending) >= BLOCK:
                self.draw_pending()
            return
        sure = None
        if self.cut:
            candidates = Candidates.of(rows, np.flatnonzero(enters), z, None)
            floor, sure = self._kept_range(candidates)
            enters = z >= np.where(parameters.greedy, top, floor)[:, None]
        self._finish(dense_finalists(rows, z, weight, enters, parameters), sure)

    def draw_pending(self) -> None:
        """Draw for all rows whose candidates are pending."""
        if not self.pending:
            return
        candidates, sure = Candidates.joined(self.pending), None
        self.pending = []
        if self.cut:
            floor, sure = self._kept_range(candidates)
            candidates = candidates.where(candidates.z >= floor[candidates.row])
        rows = candidates.rows
        if not self.parameters.greedy[rows].all():
            candidates = finalists(candidates, self.top[rows], self.parameters.take(rows))
            self._finish(candidates, sure)
        else:
            self._settle(candidates, candidates.starts)

    def _kept_range(self, candidates: Candidates) -> tuple[np.ndarray, np.ndarray]:
        rows = candidates.rows
        top, mass, parameters = self.top[rows], self.mass[rows], self.parameters.take(rows)
        floor, sure = kept_range(candidates, self.call.vocab_size, top, mass, parameters)
        greedy = parameters.greedy
        return np.where(greedy, top, floor), np.where(greedy, top, sure)

    def _finish(self, final: Candidates, sure: np.ndarray | None) -> None:
        chosen = winners(final, self.parameters.greedy[final.rows])
        self._settle(final, chosen)
        if sure is None:
            return
        rows = final.rows[final.z[chosen] < sure]
        if len(rows):
            z = reference.scaled_logits(self.call, self.parameters, rows)
            z.masked_fill_(~reference.allowed_tokens(self.call, rows), -torch.inf)
            token = reference.draw(z, self.parameters.take(rows)).numpy()
            self.token[rows] = token
            self.z_token[rows] = z.numpy()[np.arange(len(rows)), token]

    def _settle(self, candidates: Candidates, chosen: np.ndarray) -> None:
        self.token[candidates.rows] = candidates.token[chosen]
        self.z_token[candidates.rows] = candidates.z[chosen]

    def _set_aside(self, rows: np.ndarray, top: np.ndarray) -> None:
        self.top[rows] = np.nan
        allowed = reference.allowed_tokens(self.call, rows)
        self.token[rows] = reference.lowest_allowed(allowed).numpy()
        infinite = np.where(top > 0, Status.POSINF, Status.EMPTY)
        self.status[rows] = np.where(np.isnan(top), Status.NAN, infinite)


def _some(value, test) -> bool:
    """Whether a number, or an element of a tensor, passes a test."""
    return bool(test(value).any() if isinstance(value, torch.Tensor) else test(value))


def _stats(call: Call, rows: _Rows) -> Stats:
    batch = call.logits.shape[0]
    allowed = np.full(batch, call.vocab_size, np.int64)
    log_removed = np.full(batch, -np.inf, np.float32)
    masked = masked_rows(call)
    if masked is not None:
        allowed[masked] = masks.count_allowed(call.bitmask, call.vocab_size).numpy()[masked]
        log_mass = np.where(rows.status == Status.EMPTY, -np.inf, rows.log_mass())
        cut = np.flatnonzero(masked & (allowed < call.vocab_size))
        for chosen, z in dense_rows(call, rows.parameters, cut):
            forbid(z, masks.unpack(take_rows(call.bitmask, chosen), call.vocab_size).numpy())
            top = z.max(1)
            top[~np.isfinite(top)] = 0.0
            forbidden = top + np.log(weights(z, top[:, None]).sum(1, dtype=np.float64))
            log_removed[chosen] = -np.logaddexp(0.0, log_mass[chosen] - forbidden)
    log_removed[rows.status > Status.EMPTY] = np.nan
    return Stats(*map(torch.from_numpy, (log_removed, allowed, rows.entropy)))
