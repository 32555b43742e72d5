"""What traffic is counted on: rows of logits and masks, their floors and what is good enough."""

import functools
from pathlib import Path

import numpy as np
import torch

from kernels import bitmask as masks

SECTOR_BYTES = 32
CUTS = {"top_p": {"top_p": 0.95}, "top_k_top_p": {"top_k": 50, "top_p": 0.9}}
RECORDED = Path(__file__).parent / "bench" / "tool_call_masks.npz"
"""Masks along a tool call, written by ``python -m grammar.record_masks``."""


def workload(vocab_size: int, dtype: str, shape: str, mask: str):
    """One row of logits [1, V] and its mask, int32 [1, words], or None.

    Peaked logits are z = -2.5 ln rank, permuted; flat ones are normal. A mask allows "free", a
    number of random tokens or "half" of them, or is one that was recorded: "call-" and a place.
    """
    rng = np.random.default_rng(vocab_size)
    peaked = -2.5 * np.log(rng.permutation(vocab_size) + 1.0)
    values = peaked if shape == "peaked" else rng.standard_normal(vocab_size)
    padded = torch.empty(vocab_size + SECTOR_BYTES, dtype=getattr(torch, dtype))
    logits = aligned(padded, vocab_size)[None]
    logits[0] = torch.from_numpy(values)
    if mask == "free":
        return logits, None
    if mask.startswith("call-"):
        packed = torch.from_numpy(recorded()[f"{vocab_size}/{mask.removeprefix('call-')}"])[None]
    else:
        count = vocab_size // 2 if mask == "half" else int(mask)
        allowed = np.zeros((1, vocab_size), bool)
        # Of its own, so that both shapes are under the same mask.
        rng = np.random.default_rng([vocab_size, count])
        allowed[0, rng.choice(vocab_size, count, replace=False)] = True
        packed = masks.pack(torch.from_numpy(allowed))
    words = packed.shape[1]
    bitmask = aligned(torch.empty(words + SECTOR_BYTES, dtype=torch.int32), words)[None]
    bitmask.copy_(packed)
    return logits, bitmask


@functools.cache
def recorded() -> dict[str, np.ndarray]:
    """The recorded masks, int32 [words], by "vocabulary size/place"."""
    with np.load(RECORDED) as file:
        return dict(file)


def aligned(buffer: torch.Tensor, size: int) -> torch.Tensor:
    """The first elements of a buffer that start a sector, as an allocation on a device does."""
    skip = -buffer.data_ptr() % SECTOR_BYTES // buffer.element_size()
    return buffer[skip : skip + size]


def floor_bytes(logits: torch.Tensor, bitmask: torch.Tensor | None) -> int:
    """Bytes of the mask, and of the sectors of logits that hold an allowed token."""
    vocab_size, size = logits.shape[1], logits.element_size()
    if bitmask is None:
        return -(-vocab_size * size // SECTOR_BYTES) * SECTOR_BYTES
    ids = masks.allowed_ids(bitmask[0], vocab_size)
    sectors = (ids * size // SECTOR_BYTES).unique().numel()
    return masks.words_for(vocab_size) * 4 + sectors * SECTOR_BYTES


def target(vocab_size: int, shape: str, mask: str, cut: str) -> float:
    """The greatest ratio to the floor that is good enough."""
    if shape == "flat":
        return 2.3
    if vocab_size < 128_000:
        return 1.6
    if cut == "top_k_top_p":
        return 1.5
    return 1.15 if mask == "free" else 1.4


def baseline_target(vocab_size: int, bitmask: torch.Tensor | None) -> float:
    """How many times the bytes the baseline should move, at least; 0 is no target."""
    if vocab_size < 128_000 or bitmask is None:
        return 0.0
    allowed = int(masks.count_allowed(bitmask, vocab_size))
    return 20.0 if allowed <= 30 else 5.0 if allowed <= 3000 else 0.0
