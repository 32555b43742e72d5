"""The tile pass: one read of what is allowed, and a few numbers a tile of 1,024 tokens.

A tile leaves its greatest z, float32: NaN or +inf when an allowed logit is, -inf when nothing is
allowed. Where it is finite, these follow: an int64 whose low 44 bits are the tile's mass in quanta
of ``2^(e - 30)`` with ``e = ceil(greatest z * log2 e)``, the bits above them the number of tokens
that are allowed and not -inf; and the greatest z of each strip of 128 tokens. A tile without an
allowed token costs its mask words and four bytes; elsewhere logits are read by groups of one
32-byte sector that hold an allowed token, since a predicate on groups keeps 16-byte loads whole and
one on tokens does not.
"""

import triton
import triton.language as tl

from kernels import checks
from kernels.masked_sample import reference, workspace

TILE = tl.constexpr(reference.TILE)
STRIPS = tl.constexpr(workspace.STRIPS)
# A tile's mass is at most 2^40: its count of tokens has room above.
COUNT_SHIFT = tl.constexpr(44)
LOG2_E = tl.constexpr(reference.LOG2_E)
ONE = tl.constexpr(float(1 << reference.MASS_BITS))
FINITE = tl.constexpr(3.0e38)
NEG_INF = tl.constexpr(float("-inf"))
POS_INF = tl.constexpr(float("inf"))
NAN = tl.constexpr(float("nan"))
_GREEDY_BELOW = tl.constexpr(checks.GREEDY_BELOW)


@triton.jit(do_not_specialize=["temperature"])
def _tile_kernel(
    logits_ptr,
    bitmask_ptr,
    constrained_ptr,
    temperature,
    peaks_ptr,
    strips_ptr,
    masses_ptr,
    logits_stride,
    bitmask_stride,
    peaks_stride,
    masses_stride,
    vocab_size,
    readable,
    GROUP: tl.constexpr,
    PROGRAM_TILES: tl.constexpr,
):
    """Program (row, i) works tiles ``i * PROGRAM_TILES`` and on of the row.

    ``bitmask_ptr`` has one element a group (int16 for 16 tokens, int8 for 8), strides count
    elements, and ``readable`` is the columns that may be read, from ``vocab_size`` up. Peaks of
    tiles and of strips share a stride.
    """
    row = tl.program_id(0).to(tl.int64)
    inverse = scale(temperature, row)[0]
    masked = uses_mask(bitmask_ptr, constrained_ptr, row)
    logits_ptr += row * logits_stride
    if bitmask_ptr is not None:
        bitmask_ptr += row * bitmask_stride
    first = tl.program_id(1) * PROGRAM_TILES
    for tile in range(first, tl.minimum(first + PROGRAM_TILES, tl.cdiv(vocab_size, TILE))):
        bits = group_bits(bitmask_ptr, masked, tile, vocab_size, GROUP)
        peak = tl.full([], NEG_INF, tl.float32)
        if tl.max((bits != 0).to(tl.int32), 0) != 0:
            z = tile_z(logits_ptr, bits, inverse, tile, vocab_size, readable, GROUP)
            strips = tl.max(tl.reshape(tl.max(z, 1), [STRIPS, TILE // GROUP // STRIPS]), 1)
            peak = tl.max(strips, 0)
            nan = tl.max(tl.max((z != z).to(tl.int32), 1), 0) != 0
            if nan | (peak == POS_INF):
                peak = tl.where(nan, NAN, peak)
            elif peak > NEG_INF:
                one = tl.full([], 1, tl.int64) << COUNT_SHIFT
                word = quanta(z, peak).to(tl.int64) + tl.where(z > NEG_INF, one, 0)
                tl.store(masses_ptr + row * masses_stride + tile, tl.sum(tl.sum(word, 1), 0))
                at = tile * STRIPS + tl.arange(0, STRIPS)
                tl.store(strips_ptr + row * peaks_stride + at, strips)
        tl.store(peaks_ptr + row * peaks_stride + tile, peak)


@triton.jit
def value(parameter, row):
    """A row's element of a tensor, or the number itself."""
    # The interpreter hands over a plain float as it is.
    parameter = tl.to_tensor(parameter)
    if parameter.dtype.is_ptr():
        return tl.load(parameter + row)
    else:
        return parameter


@triton.jit
def scale(temperature, row):
    """float32(1 / temperature), 1 when greedy; and whether the row is greedy."""
    temperature = value(temperature, row).to(tl.float32)
    greedy = temperature < _GREEDY_BELOW
    return tl.div_rn(1.0, tl.where(greedy, 1.0, temperature)), greedy


@triton.jit
def uses_mask(bitmask_ptr, constrained_ptr, row):
    """Whether the row uses its mask."""
    if bitmask_ptr is None:
        return row < 0
    elif constrained_ptr is None:
        return row >= 0
    else:
        return tl.load(constrained_ptr + row) != 0


@triton.jit
def group_bits(bitmask_ptr, masked, tile, vocab_size, GROUP: tl.constexpr, wanted=None):
    """Mask of each group of a tile, an integer block [TILE / GROUP]; all set where free.

    Groups that are not ``wanted``, a bool block, are not read and have nothing set.
    """
    group = tile * (TILE // GROUP) + tl.arange(0, TILE // GROUP)
    inside = group * GROUP < vocab_size
    if wanted is not None:
        inside = inside & wanted
    if bitmask_ptr is None:
        return tl.where(inside, -1, 0)
    else:
        bits = tl.load(bitmask_ptr + group, mask=inside & masked, other=-1).to(tl.int32)
        return tl.where(inside, bits, 0)


@triton.jit
def tile_ids(tile, GROUP: tl.constexpr):
    """Token ids of a tile, int32 [TILE / GROUP, GROUP]."""
    group = tl.arange(0, TILE // GROUP)[:, None] * GROUP
    return tile * TILE + group + tl.arange(0, GROUP)[None, :]


@triton.jit
def tile_z(logits_ptr, bits, inverse, tile, vocab_size, readable, GROUP: tl.constexpr):
    """Scaled logits of a tile, float32 [TILE / GROUP, GROUP]; -inf where forbidden."""
    ids = tile_ids(tile, GROUP)
    # `readable` is a multiple of 16 wherever rows are, which keeps the predicate one for a group.
    wanted = (bits != 0)[:, None] & (ids < readable)
    logits = tl.load(logits_ptr + ids, mask=wanted, other=0.0).to(tl.float32)
    allowed = ((bits[:, None] >> tl.arange(0, GROUP)[None, :]) & 1) != 0
    return tl.where(allowed & (ids < vocab_size), logits * inverse, NEG_INF)


@triton.jit
def exponent(peak):
    """Exponent e of a tile's quanta, float32, and its greatest argument, in (-1, 0]."""
    # Clamped, as z * log2 e can overflow where z does not.
    greatest = tl.minimum(tl.maximum(peak * LOG2_E, -FINITE), FINITE)
    whole = tl.ceil(greatest)
    return whole, greatest - whole


@triton.jit
def quanta(z, peak):
    """Weight of each z in quanta of its tile, int32, at most 2^30; the tile's greatest is peak."""
    # The difference first: it keeps the digits that a product of a large z would lose.
    argument = (z - peak) * LOG2_E + exponent(peak)[1]
    return tl.floor(tl.exp2(argument) * ONE + 0.5).to(tl.int32)
