"""Scratch memory of the Triton path: its size, and the check of what a caller hands in."""

import torch

from kernels.masked_sample.reference import TILE

CAPACITY = 512
"""Candidates of a row that the row pass holds in registers."""
STRIPS = 8
"""Strips of a tile, 128 tokens each: their peaks fill one 32-byte sector."""


def record_words(vocab_size: int) -> int:
    """Tiles of a row, up to a multiple of 8, so that every array starts a 32-byte sector."""
    tiles = -(-vocab_size // TILE)
    return -(-tiles // 8) * 8


def list_capacity(vocab_size: int) -> int:
    """Candidates that fit the list: a power of two, at least 32."""
    return min(CAPACITY, max(32, 1 << (vocab_size - 1).bit_length()))


def workspace_words(batch: int, vocab_size: int) -> int:
    """Elements of the int64 workspace that `masked_sample` needs for a batch.

    A row has one int64 and one float32 a tile, a float32 a strip, and a float32 and an int32 a
    candidate: 15 kB at 262,144 tokens. What it holds before a call does not matter.
    """
    records = record_words(vocab_size)
    strips = records * STRIPS // 2
    return batch * (records + records // 2 + list_capacity(vocab_size) + strips)


def check_workspace(workspace: torch.Tensor, logits: torch.Tensor, vocab_size: int) -> None:
    """Check a workspace handed in.

    Raises:
        TypeError: it is not an int64 tensor.
        ValueError: it is too small, not contiguous, not one-dimensional, or elsewhere.
    """
    wanted = workspace_words(logits.shape[0], vocab_size)
    if not isinstance(workspace, torch.Tensor) or workspace.dtype != torch.int64:
        got = getattr(workspace, "dtype", type(workspace).__name__)
        raise TypeError(
            f"workspace must be an int64 tensor [{wanted:,}], got {got}; allocate "
            "torch.empty(workspace_words(batch, vocab_size), dtype=torch.int64)"
        )
    if workspace.ndim != 1 or workspace.numel() < wanted or not workspace.is_contiguous():
        raise ValueError(
            f"workspace must be contiguous with at least {wanted:,} elements, got shape "
            f"{tuple(workspace.shape)}; allocate workspace_words(batch, vocab_size) of them"
        )
    if workspace.device != logits.device:
        raise ValueError(
            f"workspace must be on {logits.device}, where logits are, got {workspace.device}; "
            "allocate it there"
        )
