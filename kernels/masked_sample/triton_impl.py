"""The GPU path: the launches of one call. See `triton_tiles` and `triton_rows` for the algorithm.

Bytes moved, of B rows: the mask once where it is used, every 32-byte sector of logits that holds an
allowed token once, some 24 bytes a tile of 1,024 tokens for records and 32 more where something of
it is allowed, and once more the strips of 128 tokens that the draw needs: a handful when the row is
peaked, all of them when it is flat and has no top_k.

Nothing here waits for the device, and nothing is allocated when ``out`` and ``workspace`` are
given, so a call can be captured in a CUDA graph whose tensors are then changed in place. The grid
alone depends on the batch size: no size compiles anew.
"""

from typing import NamedTuple

import torch
import triton

from kernels.masked_sample import reference
from kernels.masked_sample.call import TOP_P_LOWEST, Call, Sample, Stats
from kernels.masked_sample.triton_rows import _row_kernel
from kernels.masked_sample.triton_stats import _stats_kernel
from kernels.masked_sample.triton_tiles import _tile_kernel
from kernels.masked_sample.workspace import STRIPS, list_capacity, record_words, workspace_words

SECTOR_BYTES = 32
_PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "seed", "position", "stream")


class LaunchConfig(NamedTuple):
    """Compile-time values and warps of both passes."""

    group: int
    """Logits a sector, read or skipped together."""
    program_tiles: int
    """Tiles of one program of the tile pass; eight fill a sector with their peaks."""
    row_tiles: int
    """Tiles of a row, up to a power of two."""
    capacity: int
    """Candidates that the row pass holds in registers."""
    options: dict
    """num_warps: 128 threads, each of which has one 16-byte load of 2-byte logits a tile, or two of
    4 bytes. enable_fp_fusion: off, as the noise rounds every product, and z is rounded before a
    peak is taken from it."""
    row_options: dict
    """Of the row pass: maxnreg too, on NVIDIA, where ptxas stops at 128 registers and spills."""


def sample_rows(call: Call, out: Sample | None, workspace: torch.Tensor | None) -> Sample:
    """Launch both passes, and the statistics if asked for, on the current stream.

    ``out`` and ``workspace`` are checked, or None to be allocated here.
    """
    logits, batch = call.logits, call.logits.shape[0]
    warp_size = 64 if torch.version.hip else 32
    config = _launch_config(logits.element_size(), call.vocab_size, warp_size)
    if out is None:
        out = Sample(
            torch.empty(batch, dtype=torch.int64, device=logits.device),
            torch.empty(batch, dtype=torch.float32, device=logits.device),
            torch.empty(batch, dtype=torch.int8, device=logits.device),
        )
    stats = _empty_stats(logits) if call.return_stats else None
    if batch:
        if workspace is None:
            words = workspace_words(batch, call.vocab_size)
            workspace = torch.empty(words, dtype=torch.int64, device=logits.device)
        _launch_masked_sample(call, out, workspace, stats, config)
    return out._replace(stats=stats)


def _launch_config(element_size: int, vocab_size: int, warp_size: int) -> LaunchConfig:
    tiles = triton.cdiv(vocab_size, reference.TILE)
    options = {"num_warps": 128 // warp_size, "enable_fp_fusion": False}
    return LaunchConfig(
        group=SECTOR_BYTES // element_size,
        program_tiles=min(triton.next_power_of_2(tiles), 8),
        row_tiles=triton.next_power_of_2(tiles),
        capacity=list_capacity(vocab_size),
        options=options,
        row_options=options | ({"maxnreg": 168} if warp_size == 32 else {}),
    )


def _launch_masked_sample(
    call: Call,
    out: Sample,
    workspace: torch.Tensor,
    stats: Stats | None,
    config: LaunchConfig,
) -> None:
    logits, batch, tiles = call.logits, *call.logits.shape[:1], record_words(call.vocab_size)
    parameters = {name: _beside(getattr(call, name), logits) for name in _PARAMETERS}
    if not isinstance(call.top_p, torch.Tensor):
        # The launch makes it a float32, which a smaller one would leave as 0.
        parameters["top_p"] = max(call.top_p, float(TOP_P_LOWEST))
    constrained = call.constrained
    if constrained is not None:
        constrained = constrained.contiguous().view(torch.int8)
    bitmask = call.bitmask
    if bitmask is not None:
        # One element of the mask for each sector of logits; a single word may have any stride.
        bitmask = bitmask.as_strided(bitmask.shape, (bitmask.stride(0), 1))
        bitmask = bitmask.view(torch.int16 if config.group == 16 else torch.int8)
    inputs = (logits, bitmask, constrained)
    strides = (logits.stride(0), 0 if bitmask is None else bitmask.stride(0))
    # Whole sectors may be read up to the width of the row: what vocab_size cuts off is ignored.
    readable = min(logits.shape[1], -(-call.vocab_size // 16) * 16)
    sizes = (call.vocab_size, readable)
    space = workspace[: workspace_words(batch, call.vocab_size)].view(batch, -1)
    masses, floats = space[:, :tiles], space[:, tiles:].view(torch.float32)
    peaks, list_z = floats[:, :tiles], floats[:, tiles : tiles + config.capacity]
    list_ids = floats[:, tiles + config.capacity :][:, : config.capacity].view(torch.int32)
    strips = floats[:, -tiles * STRIPS :]
    records = (peaks.stride(0), masses.stride(0))

    programs = triton.cdiv(triton.cdiv(call.vocab_size, reference.TILE), config.program_tiles)
    _tile_kernel[(batch, programs)](
        *inputs, parameters["temperature"], peaks, strips, masses, *strides, *records, *sizes,
        GROUP=config.group, PROGRAM_TILES=config.program_tiles, **config.options,
    )  # fmt: skip
    _row_kernel[(batch,)](
        *inputs, *parameters.values(), peaks, strips, masses, list_z, list_ids, *out[:3],
        *strides, *records, *sizes,
        GROUP=config.group, TILES=config.row_tiles, CAPACITY=config.capacity, **config.row_options,
    )  # fmt: skip
    if stats is not None:
        _stats_kernel[(batch,)](
            *inputs, parameters["temperature"], out.status, *stats, *strides, *sizes,
            GROUP=config.group, **config.options,
        )  # fmt: skip


def _beside(parameter, logits: torch.Tensor):
    """A parameter where a kernel can read it: numbers go with the launch."""
    if isinstance(parameter, torch.Tensor):
        return parameter.to(logits.device, non_blocking=True).contiguous()
    return parameter


def _empty_stats(logits: torch.Tensor) -> Stats:
    batch, device = logits.shape[0], logits.device
    return Stats(
        torch.empty(batch, dtype=torch.float32, device=device),
        torch.empty(batch, dtype=torch.int64, device=device),
        torch.empty(batch, dtype=torch.float32, device=device),
    )
