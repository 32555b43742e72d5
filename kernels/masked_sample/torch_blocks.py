"""Rows of a call as blocks of scaled logits that fit the cache, for the CPU path."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from kernels import bitmask as masks
from kernels.masked_sample.call import Call, Parameters

BLOCK = 1 << 16
"""Elements in a block of several rows: 256 KiB of float32."""
SPARSE_SHARE = 8
"""A row is sparse when at most one word of its mask in this many is live."""
SMALL = 1 << 15
"""Logits that cost about as much as one more block: with fewer, sparse rows join dense ones."""
NEG_INF = np.float32(-np.inf)
NEG_INF_BITS = np.int32(-0x800000)


class Block(NamedTuple):
    """Some rows of a call."""

    rows: np.ndarray
    """int64 [R]: their indices in the call."""
    z: np.ndarray
    """float32 [R, N]: scaled logits, -inf where nothing is allowed. Good until the next block."""
    ids: np.ndarray | None
    """int64 [R, N]: the token of each column, ascending; None when column j is token j."""
    parameters: Parameters

    def take(self, rows: np.ndarray) -> "Block":
        """The rows of a bool [R]."""
        ids = None if self.ids is None else self.ids[rows]
        return Block(self.rows[rows], self.z[rows], ids, self.parameters.take(rows))


def blocks(call: Call, parameters: Parameters) -> Iterator[Block]:
    """All rows of a call, each once: sparse ones as lists of their allowed tokens."""
    rows = np.arange(call.logits.shape[0])
    masked = masked_rows(call)
    if masked is not None:
        words = call.bitmask[:, : masks.words_for(call.vocab_size)].numpy()
        live = np.count_nonzero(words != 0, axis=1)
        sparse = masked & (live * SPARSE_SHARE <= words.shape[1])
        if np.count_nonzero(sparse) * call.vocab_size > SMALL or sparse.all():
            yield from _sparse_blocks(call, parameters, rows[sparse], live[sparse])
            rows = rows[~sparse]
    for chosen, z in dense_rows(call, parameters, rows):
        if masked is not None and masked[chosen].any():
            forbidden = ~masks.unpack(take_rows(call.bitmask, chosen), call.vocab_size).numpy()
            if not masked[chosen].all():
                forbidden &= masked[chosen, None]
            forbid(z, forbidden)
        yield Block(chosen, z, None, _take_parameters(parameters, chosen))


def masked_rows(call: Call) -> np.ndarray | None:
    """bool [B]: the rows that use their mask; None when the call has no mask."""
    if call.bitmask is None:
        return None
    if call.constrained is None:
        return np.ones(call.logits.shape[0], np.bool_)
    return call.constrained.numpy()


def dense_rows(
    call: Call, parameters: Parameters, rows: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Runs of ``rows`` and their scaled logits, float32 [R, vocab_size] in one reused buffer."""
    step = min(max(BLOCK // call.vocab_size, 1), len(rows))
    buffer = np.empty((step, call.vocab_size), np.float32)
    for start in range(0, len(rows), step or 1):
        chosen = rows[start : start + step]
        logits = take_rows(call.logits, chosen)[:, : call.vocab_size].float().numpy()
        scale = parameters.inverse_temperature[chosen, None]
        yield chosen, np.multiply(logits, scale, out=buffer[: len(chosen)])


def take_rows(tensor: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """Rows, ascending and not empty, of a tensor; a view when they are neighbours."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return tensor[first : last + 1]
    return tensor[torch.from_numpy(rows)]


def forbid(z: np.ndarray, forbidden: np.ndarray) -> None:
    """Set z to -inf where forbidden; bitwise, as a select on a mixed mask takes thrice the time."""
    ones = forbidden.view(np.int8).astype(np.int32)
    np.negative(ones, out=ones)
    bits = z.view(np.int32)
    bits |= ones
    # Forbidden bits are all ones now: clear the mantissa, which leaves -inf.
    ones &= ~NEG_INF_BITS
    bits &= np.invert(ones, out=ones)


def _sparse_blocks(
    call: Call, parameters: Parameters, rows: np.ndarray, live: np.ndarray
) -> Iterator[Block]:
    # Rows of like size share a block, so that padding stays small.
    order = np.argsort(live, kind="stable")
    rows, lanes = rows[order], live[order] * masks.WORD_BITS
    start = 0
    while start < len(rows):
        end = start + 1
        while end < len(rows) and (end + 1 - start) * lanes[end] <= 4 * BLOCK:
            end += 1
        yield _sparse_block(call, parameters, np.sort(rows[start:end]))
        start = end


def _sparse_block(call: Call, parameters: Parameters, rows: np.ndarray) -> Block:
    pairs = masks.allowed_pairs(take_rows(call.bitmask, rows), call.vocab_size)
    local, token = (part.numpy() for part in pairs)
    values = _gather(call.logits, rows[local], token)
    counts = np.bincount(local, minlength=len(rows))
    column = np.arange(len(local)) - (np.cumsum(counts) - counts)[local]
    shape = (len(rows), max(int(counts.max()), 1))
    ids = np.zeros(shape, np.int64)
    ids[local, column] = token
    z = np.full(shape, NEG_INF)
    parameters = _take_parameters(parameters, rows)
    z[local, column] = values * parameters.inverse_temperature[local]
    return Block(rows, z, ids, parameters)


def _gather(logits: torch.Tensor, rows: np.ndarray, token: np.ndarray) -> np.ndarray:
    """Some logits, float32; by numpy, as bits, which bfloat16 needs."""
    bits = logits.view(torch.int32 if logits.element_size() == 4 else torch.int16).numpy()
    return torch.from_numpy(bits[rows, token]).view(logits.dtype).float().numpy()


def _take_parameters(parameters: Parameters, rows: np.ndarray) -> Parameters:
    # Ascending rows that are all the rows are the rows.
    return parameters if len(rows) == len(parameters.seed) else parameters.take(rows)
