"""Rows to time: peaked and flat logits, free or masked to some random tokens."""

from typing import NamedTuple

import numpy as np
import torch

from kernels import bitmask as masks


class Workload(NamedTuple):
    """One batch."""

    name: str
    logits: torch.Tensor
    """[B, V]"""
    bitmask: torch.Tensor | None
    """int32 [B, words]; None where free."""
    top_p: float
    position: torch.Tensor
    """int32 [B]"""


def workload(
    shape: str, mask: str, rows: int, vocab_size: int, dtype: torch.dtype, device: str
) -> Workload:
    """A batch whose rows are permutations: peaked is z = -2.5 ln rank, flat is normal."""
    rng = np.random.default_rng(rows + vocab_size)
    if shape == "peaked":
        values = np.stack([-2.5 * np.log(rng.permutation(vocab_size) + 1.0) for _ in range(rows)])
    else:
        values = rng.standard_normal((rows, vocab_size))
    logits = torch.from_numpy(values).to(device, dtype)
    bitmask = None
    if mask != "free":
        count = vocab_size // 2 if mask == "half" else int(mask)
        allowed = torch.zeros(rows, vocab_size, dtype=torch.bool)
        for row in allowed:
            row[torch.from_numpy(rng.choice(vocab_size, count, replace=False))] = True
        bitmask = masks.pack(allowed).to(device)
    position = torch.arange(rows, dtype=torch.int32, device=device)
    return Workload(f"{shape} {mask}", logits, bitmask, 0.95, position)
