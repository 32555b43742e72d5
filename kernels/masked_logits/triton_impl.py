"""The GPU path: one launch of one kernel, for constrained and free rows alike.

Nothing waits for the device, and nothing is allocated when ``out`` is given, so a call can be
captured in a CUDA graph whose tensors are then changed in place. There is no list of tokens to
build, hence no workspace: a program of a tile without an allowed token reads its mask and ends.
Only the grid depends on the batch size, and which of two row blocks is used.
"""

from typing import NamedTuple

import torch
import triton
from triton import knobs

from kernels.bitmask import WORD_BITS
from kernels.masked_logits.call import Call
from kernels.masked_logits.triton_kernel import _head_kernel

ROW_BLOCKS = (16, 64)
"""Rows of a program: the least that holds the batch, else the greatest."""


class LaunchConfig(NamedTuple):
    """Compile-time values and options of a launch."""

    words: int
    """Mask words of a program."""
    rows: int
    depth: int
    """Columns of the weight a turn."""
    stages: int
    """Turns in flight."""
    options: dict


def fill(call: Call) -> torch.Tensor:
    """Launch on the current stream; writes and returns ``out`` of a checked call."""
    if call.hidden.shape[0]:
        config = _launch_config(call.hidden.element_size(), call.hidden.shape[0], _warp_size())
        _launch_masked_logits(call, config)
    return call.out


def _warp_size() -> int:
    return 64 if torch.version.hip else 32


def _launch_config(element_size: int, batch: int, warp_size: int) -> LaunchConfig:
    # 128 rows a program spill registers on NVIDIA, with four warps and with eight.
    rows = next((size for size in ROW_BLOCKS if batch <= size), ROW_BLOCKS[-1])
    return LaunchConfig(
        words=2,
        rows=rows,
        depth=256 // element_size if rows == 16 else 128 // element_size,
        # 20 KiB a turn (12 on AMD's 64 KiB): two or three programs a multiprocessor.
        stages=3 if warp_size == 32 else 2,
        options={"num_warps": 4},
    )


def _launch_masked_logits(call: Call, config: LaunchConfig) -> None:
    bitmask, constrained = call.bitmask, call.constrained
    if constrained is not None:
        constrained = constrained.contiguous().view(torch.int8)
    grid = (
        triton.cdiv(call.hidden.shape[0], config.rows),
        triton.cdiv(call.vocab_size, config.words * WORD_BITS),
    )
    _head_kernel[grid](
        call.hidden, call.weight, bitmask, constrained, call.bias, call.out,
        call.scale, call.softcap, call.hidden.shape[0], call.vocab_size, call.hidden.shape[1],
        call.hidden.stride(0), call.weight.stride(0), 0 if bitmask is None else bitmask.stride(0),
        call.out.stride(0),
        **_constants(config), **config.options,
    )  # fmt: skip


def _constants(config: LaunchConfig) -> dict:
    return {
        "WORDS": config.words,
        "ROWS": config.rows,
        "DEPTH": config.depth,
        "STAGES": config.stages,
        "WIDEN": knobs.runtime.interpret,
    }
