"""Statistics of what the mask did to a row: a dense read of it, forbidden logits included."""

import triton
import triton.language as tl

from kernels.masked_sample.triton_rows import _EMPTY, _OK
from kernels.masked_sample.triton_tiles import (
    LOG2_E,
    NAN,
    NEG_INF,
    POS_INF,
    TILE,
    group_bits,
    scale,
    tile_ids,
    uses_mask,
)


@triton.jit(do_not_specialize=["temperature"])
def _stats_kernel(
    logits_ptr,
    bitmask_ptr,
    constrained_ptr,
    temperature,
    status_ptr,
    removed_ptr,
    allowed_ptr,
    entropy_ptr,
    logits_stride,
    bitmask_stride,
    vocab_size,
    readable,
    GROUP: tl.constexpr,
):
    """Program i fills `Stats` of row i, whose status is known."""
    row = tl.program_id(0).to(tl.int64)
    inverse = scale(temperature, row)[0]
    masked = uses_mask(bitmask_ptr, constrained_ptr, row)
    logits_ptr += row * logits_stride
    if bitmask_ptr is not None:
        bitmask_ptr += row * bitmask_stride
    allowed = tl.full([], 0, tl.int64)
    top = tl.full([], NEG_INF, tl.float32)
    weight = tl.full([], 0.0, tl.float64)
    energy = tl.full([], 0.0, tl.float64)
    out_top = tl.full([], NEG_INF, tl.float32)
    out_weight = tl.full([], 0.0, tl.float64)
    for tile in range(tl.cdiv(vocab_size, TILE)):
        bits = group_bits(bitmask_ptr, masked, tile, vocab_size, GROUP)
        ids = tile_ids(tile, GROUP)
        inside = ids < vocab_size
        logits = tl.load(logits_ptr + ids, mask=ids < readable, other=0.0).to(tl.float32)
        z = logits * inverse
        chosen = (((bits[:, None] >> tl.arange(0, GROUP)[None, :]) & 1) != 0) & inside
        allowed += tl.sum(tl.sum(chosen.to(tl.int64), 1), 0)
        z_in = tl.where(chosen, z, NEG_INF)
        z_out = tl.where(inside & (chosen == 0), z, NEG_INF)

        peak = tl.maximum(top, tl.max(tl.max(z_in, 1), 0))
        part, part_energy = _sums(z_in, peak)
        kept = _rescale(top, peak)
        moved = tl.where(top > NEG_INF, (top - peak).to(tl.float64), 0.0)
        energy = kept * (energy + moved * weight) + part_energy
        weight = kept * weight + part
        top = peak

        peak = tl.maximum(out_top, tl.max(tl.max(z_out, 1), 0))
        out_weight = _rescale(out_top, peak) * out_weight + _sums(z_out, peak)[0]
        out_top = peak
    status = tl.load(status_ptr + row)
    # log(removed / all) = -log(1 + exp(gap)), gap the log of allowed over forbidden.
    gap = top.to(tl.float64) + tl.log(weight) - _finite(out_top).to(tl.float64) - tl.log(out_weight)
    removed = -(tl.maximum(gap, 0.0) + _log1p(tl.exp(-tl.abs(gap))))
    removed = tl.where(gap != gap, NAN, removed)
    removed = tl.where(allowed == vocab_size, NEG_INF, removed)
    removed = tl.where(status > _EMPTY, NAN, removed)
    entropy = tl.where(status == _OK, tl.log(weight) - energy / weight, NAN)
    tl.store(removed_ptr + row, removed.to(tl.float32))
    tl.store(allowed_ptr + row, allowed)
    tl.store(entropy_ptr + row, entropy.to(tl.float32))


@triton.jit
def _finite(peak):
    """The value to take from z before it is an exponent."""
    return tl.where((peak == NEG_INF) | (peak == POS_INF), 0.0, peak)


@triton.jit
def _rescale(before, after):
    """What a sum relative to `before` is worth relative to `after`, float64."""
    return tl.exp((_finite(before) - _finite(after)).to(tl.float64))


@triton.jit
def _sums(z, peak):
    """Sums of w and of w * (z - peak), w = exp(z - peak), float64."""
    below = z - _finite(peak)
    weight = tl.exp2(below * LOG2_E)
    # exp(-200) is 0 in float32: the bound only keeps 0 * inf away.
    energy = tl.sum(tl.sum(weight * tl.maximum(below, -200.0), 1), 0).to(tl.float64)
    return tl.sum(tl.sum(weight, 1), 0).to(tl.float64), energy


@triton.jit
def _log1p(x):
    """log(1 + x) of x in [0, 1], float64."""
    small = x * (1.0 - x * (0.5 - x * 0.3333333333333333))
    return tl.where(x < 1e-5, small, tl.log(1.0 + x))
