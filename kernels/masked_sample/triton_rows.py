"""The row pass: from the tiles' records, a few tiles and one token.

What is kept is all that lies at or above some value. Values are compared as integer keys of the
same order. The records alone give a key ``low`` under which nothing matters:

* top_k: k peaks of strips reach it, and so do k tokens;
* top_p: tokens that reach it weigh enough, since those of a tile weigh no less than its peaks that
  do, and no less than its mass would be without all its tokens at the weight of ``low``.

Only strips that reach ``low`` are read. Up to CAPACITY tokens that reach it become a list, which
then stays in registers; more are worked tile by tile. The k-th greatest is found by bisection. The
best score of what is left wins if little enough mass lies above it; if not, nothing at or below it
is kept, so the best of what is strictly greater, with the same noise, is next. The end of that
chain is the argmax over the kept set.
"""

import triton
import triton.language as tl

from kernels import gumbel
from kernels.gumbel_triton import gumbel_noise
from kernels.masked_sample.call import TOP_P_LOWEST, Status
from kernels.masked_sample.triton_tiles import (
    COUNT_SHIFT,
    LOG2_E,
    NAN,
    NEG_INF,
    ONE,
    POS_INF,
    STRIPS,
    TILE,
    exponent,
    group_bits,
    quanta,
    scale,
    tile_ids,
    tile_z,
    uses_mask,
    value,
)

_OK, _EMPTY, _NAN, _POSINF, _BAD_PARAM = (tl.constexpr(int(status)) for status in Status)
_REACH = tl.constexpr(gumbel.GUMBEL_MAX - gumbel.GUMBEL_MIN)
_GUMBEL_MAX = tl.constexpr(gumbel.GUMBEL_MAX)
_TOP_P_LOWEST = tl.constexpr(float(TOP_P_LOWEST))
_FLOAT32_MAX = tl.constexpr(3.4028234663852886e38)
_INT32_MIN, _INT32_MAX = tl.constexpr(-(2**31)), tl.constexpr(2**31 - 1)
_NOWHERE = tl.constexpr(2**31 - 1)
# Key of -inf: what is allowed and finite lies above.
_KEY_NEG_INF = tl.constexpr(-2139095041)
# Bits kept below a quantum when tokens of different tiles are added one by one.
_GUARD = tl.constexpr(12)
# Masses are right to about 2e-6; bounds from them keep this much away.
_MARGIN = tl.constexpr(1e-4)
# Keys by which a bound may be lower than it could be, 2^-8 of z, to be found in half the steps.
_SLACK = tl.constexpr(1 << 15)


@triton.jit(
    do_not_specialize=[
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "position",
        "stream",
        "vocab_size",
    ]
)
def _row_kernel(
    logits_ptr,
    bitmask_ptr,
    constrained_ptr,
    temperature,
    top_k,
    top_p,
    min_p,
    seed,
    position,
    stream,
    peaks_ptr,
    strips_ptr,
    masses_ptr,
    list_z_ptr,
    list_ids_ptr,
    token_ptr,
    logprob_ptr,
    status_ptr,
    logits_stride,
    bitmask_stride,
    peaks_stride,
    masses_stride,
    vocab_size,
    readable,
    GROUP: tl.constexpr,
    TILES: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Program i draws for row i. TILES is the number of tiles rounded up to a power of two."""
    row = tl.program_id(0).to(tl.int64)
    inverse, greedy = scale(temperature, row)
    bad = _out_of_range(temperature, top_k, top_p, min_p, position, stream, row)
    masked = uses_mask(bitmask_ptr, constrained_ptr, row)
    logits_ptr += row * logits_stride
    if bitmask_ptr is not None:
        bitmask_ptr += row * bitmask_stride
    peaks_ptr += row * peaks_stride
    strips_ptr += row * peaks_stride
    list_z_ptr += row * peaks_stride
    list_ids_ptr += row * peaks_stride
    index = tl.arange(0, TILES)
    peak = tl.load(peaks_ptr + index, mask=index * TILE < vocab_size, other=NEG_INF)
    nan = tl.max((peak != peak).to(tl.int32), 0) != 0
    top = tl.max(tl.where(peak != peak, NEG_INF, peak), 0)
    status = tl.where(top == NEG_INF, _EMPTY, tl.where(top == POS_INF, _POSINF, _OK))
    status = tl.where(bad, _BAD_PARAM, tl.where(nan, _NAN, status))
    logprob = tl.full([], NAN, tl.float32)
    if status != _OK:
        token = _lowest_allowed(bitmask_ptr, masked, vocab_size, GROUP)
    else:
        word = tl.load(masses_ptr + row * masses_stride + index, mask=peak > NEG_INF, other=0)
        number = word >> COUNT_SHIFT
        mass = word - (number << COUNT_SHIFT)
        whole, argument = exponent(peak)
        mass_exponent = exponent(top)[0]
        shift = tl.minimum(mass_exponent - whole, 63.0).to(tl.int64)
        total = tl.sum(mass >> shift, 0)
        # Sum of exp(z - top): a division of equal numbers makes a lone token's exactly 1.
        weight = tl.where(peak > NEG_INF, tl.exp2((peak - top) * LOG2_E), 0.0)
        tile_sum = tl.div_rn(mass.to(tl.float32), tl.exp2(argument) * ONE)
        tile_weight = weight * tile_sum
        total_weight = tl.sum(tile_weight, 0)

        k = tl.where(greedy, 0, value(top_k, row).to(tl.int64))
        k = tl.where(k < tl.sum(number, 0), k, 0)
        p = tl.maximum(value(top_p, row).to(tl.float32), _TOP_P_LOWEST).to(tl.float64)
        log_min_p = tl.log(value(min_p, row).to(tl.float32).to(tl.float64)).to(tl.float32)
        by_k, by_p = k > 0, (p < 1.0) & (greedy == 0)
        by_min_p = (log_min_p > NEG_INF) & (greedy == 0)
        keys = _key(peak)
        low = tl.full([], _KEY_NEG_INF + 1, tl.int64)
        high = _key(top).to(tl.int64) + 1
        if by_min_p:
            low = tl.maximum(low, _key(top + log_min_p).to(tl.int64))
        if greedy:
            low = high - 1
        if (by_p & (by_k | by_min_p)) == 0:
            # No noise lifts a token from below this; the slack is for the rounding of large z.
            reach = top - (_REACH + 1e-3) - tl.abs(top) * 2.384185791015625e-07
            low = tl.maximum(low, _key(reach).to(tl.int64))
        if by_k | (by_p & (by_min_p == 0)):
            target = p.to(tl.float32) * total_weight * (1.0 + _MARGIN)
            tokens = number.to(tl.float32)
            if by_k:
                target = k.to(tl.float32)
                tile_weight, tokens = tl.zeros_like(tile_weight), tl.zeros_like(tokens)
            if TILES > 1:
                # The peaks of tiles tell which tiles' strips to look at.
                weight = tl.where(by_k & (peak > NEG_INF), 1.0, weight)
                low = _reaching(
                    keys[:, None], weight[:, None], tile_weight, tokens, top, target, low, high
                )
            at = index[:, None] * STRIPS + tl.arange(0, STRIPS)[None, :]
            reaches = keys >= low.to(tl.int32)
            strip = tl.load(strips_ptr + at, mask=reaches[:, None], other=NEG_INF)
            weights = tl.where(by_k, 1.0, tl.exp2((strip - top) * LOG2_E))
            weights = tl.where(strip > NEG_INF, weights, 0.0)
            low = _reaching(_key(strip), weights, tile_weight, tokens, top, target, low, high)

        count = tl.full([], CAPACITY + 1, tl.int32)
        attempt = tl.where(by_k | by_p, 0, 2)
        while attempt < 2:
            if attempt == 1:
                # Narrow to a list, or, among many equals, all the way to the k-th greatest.
                while (high - low > 1) & (count > CAPACITY):
                    middle = low + ((high - low) >> 1)
                    reached = tl.full([], 0, tl.int32)
                    tile = _next_tile(keys, index, -1, middle)
                    while tile < _NOWHERE:
                        z = _strips_z(logits_ptr, bitmask_ptr, strips_ptr, tile, middle, masked,
                                      inverse, vocab_size, readable, GROUP)  # fmt: skip
                        reached += _count(_key(z) >= middle.to(tl.int32))
                        tile = _next_tile(keys, index, tile, middle)
                    enough = reached >= k
                    count = tl.where(enough, reached, count)
                    low = tl.where(enough, middle, low)
                    high = tl.where(enough, high, middle)
            if (attempt == 0) | (count <= CAPACITY):
                count = tl.full([], 0, tl.int32)
                tile = _next_tile(keys, index, -1, low)
                while tile < _NOWHERE:
                    z = _strips_z(logits_ptr, bitmask_ptr, strips_ptr, tile, low, masked,
                                  inverse, vocab_size, readable, GROUP)  # fmt: skip
                    z = tl.reshape(z, [TILE])
                    enters = _key(z) >= low.to(tl.int32)
                    at = count + tl.cumsum(enters.to(tl.int32), 0) - 1
                    enters = enters & (at < CAPACITY)
                    ids = tl.reshape(tile_ids(tile, GROUP), [TILE])
                    tl.store(list_z_ptr + at, z, mask=enters)
                    tl.store(list_ids_ptr + at, ids, mask=enters)
                    count = tl.max(at, 0) + 1
                    tile = _next_tile(keys, index, tile, low)
                    tile = tl.where(count > CAPACITY, _NOWHERE, tile)
            attempt = tl.where((count <= CAPACITY) | (by_k == 0), 2, attempt + 1)

        noise_key = value(seed, row).to(tl.int64)
        place = value(position, row).to(tl.int32)
        stream_ = value(stream, row).to(tl.int32)
        kept_mass = total
        token = tl.full([], 0, tl.int32)
        z_token = top
        if count <= CAPACITY:
            tl.debug_barrier()
            slot = tl.arange(0, CAPACITY)
            z = tl.load(list_z_ptr + slot, mask=slot < count, other=NEG_INF)
            ids = tl.load(list_ids_ptr + slot, mask=slot < count, other=0)
            key = _key(z)
            if by_k:
                while high - low > 1:
                    middle = low + ((high - low) >> 1)
                    enough = tl.sum((key >= middle.to(tl.int32)).to(tl.int32), 0) >= k
                    low = tl.where(enough, middle, low)
                    high = tl.where(enough, high, middle)
            peaks = tl.load(peaks_ptr + ids // TILE, mask=slot < count, other=0.0)
            shifts = tl.minimum(mass_exponent - exponent(peaks)[0], 63.0).to(tl.int64)
            quantum = (quanta(z, peaks).to(tl.int64) << _GUARD) >> shifts
            if by_k | by_min_p:
                kept_mass = tl.sum(tl.where(key >= low.to(tl.int32), quantum, 0), 0) >> _GUARD
            limit = p * kept_mass.to(tl.float64)
            score = z + gumbel_noise(noise_key, place, stream_, ids)
            searching = tl.full([], 1, tl.int32)
            while searching != 0:
                entered = tl.where(key >= low.to(tl.int32), score, NEG_INF)
                best = tl.max(entered, 0)
                token = tl.min(tl.where((entered == best) & (slot < count), ids, _NOWHERE), 0)
                z_token = tl.max(tl.where((ids == token) & (slot < count), z, NEG_INF), 0)
                low = _key(z_token).to(tl.int64) + 1
                above = tl.sum(tl.where(key >= low.to(tl.int32), quantum, 0), 0) >> _GUARD
                searching = (by_p & (above.to(tl.float64) >= limit)).to(tl.int32)
        else:
            if by_p & (by_k | by_min_p):
                kept_mass = tl.full([], 0, tl.int64)
                tile = _next_tile(keys, index, -1, low)
                while tile < _NOWHERE:
                    z = _strips_z(logits_ptr, bitmask_ptr, strips_ptr, tile, low, masked,
                                  inverse, vocab_size, readable, GROUP)  # fmt: skip
                    kept_mass += _tile_mass(z, peaks_ptr, tile, low, mass_exponent)
                    tile = _next_tile(keys, index, tile, low)
            limit = p * kept_mass.to(tl.float64)
            searching = tl.full([], 1, tl.int32)
            while searching != 0:
                best = tl.full([], NEG_INF, tl.float32)
                tile = _next_tile(keys, index, -1, low)
                while tile < _NOWHERE:
                    z = _strips_z(logits_ptr, bitmask_ptr, strips_ptr, tile, low, masked,
                                  inverse, vocab_size, readable, GROUP)  # fmt: skip
                    ids = tile_ids(tile, GROUP)
                    score = z
                    if greedy == 0:
                        score = z + gumbel_noise(noise_key, place, stream_, ids)
                    score = tl.where(_key(z) >= low.to(tl.int32), score, NEG_INF)
                    tile_best = tl.max(tl.max(score, 1), 0)
                    # Tiles come in order of id, so an equal score later loses.
                    if tile_best > best:
                        best = tile_best
                        token = tl.min(tl.min(tl.where(score == best, ids, _NOWHERE), 1), 0)
                        z_token = tl.max(tl.max(tl.where(ids == token, z, NEG_INF), 1), 0)
                    hopeful = tl.where(peak + _GUMBEL_MAX >= best, keys, _KEY_NEG_INF)
                    tile = _next_tile(hopeful, index, tile, low)
                searching = tl.full([], 0, tl.int32)
                if by_p:
                    low = _key(z_token).to(tl.int64) + 1
                    above = tl.full([], 0, tl.int64)
                    tile = _next_tile(keys, index, -1, low)
                    while tile < _NOWHERE:
                        z = _strips_z(logits_ptr, bitmask_ptr, strips_ptr, tile, low, masked,
                                      inverse, vocab_size, readable, GROUP)  # fmt: skip
                        above += _tile_mass(z, peaks_ptr, tile, low, mass_exponent)
                        tile = _next_tile(keys, index, tile, low)
                    searching = (above.to(tl.float64) >= limit).to(tl.int32)
        logprob = (z_token - top) - tl.log(total_weight)
    tl.store(token_ptr + row, token.to(tl.int64))
    tl.store(logprob_ptr + row, logprob)
    tl.store(status_ptr + row, status.to(tl.int8))


@triton.jit
def _out_of_range(temperature, top_k, top_p, min_p, position, stream, row):
    """Whether a parameter of the row is outside `kernels.checks.RANGES`; NaN is outside."""
    heat = value(temperature, row).to(tl.float64)
    good = (heat >= 0.0) & (heat <= _FLOAT32_MAX) & (value(top_k, row).to(tl.int64) >= 0)
    share = value(top_p, row).to(tl.float64)
    good = good & (share > 0.0) & (share <= 1.0)
    least = value(min_p, row).to(tl.float64)
    good = good & (least >= 0.0) & (least <= 1.0)
    place = value(position, row).to(tl.int64)
    good = good & (place >= _INT32_MIN) & (place <= _INT32_MAX)
    use = value(stream, row).to(tl.int64)
    good = good & (use >= _INT32_MIN) & (use <= _INT32_MAX)
    return good == 0


@triton.jit
def _lowest_allowed(bitmask_ptr, masked, vocab_size, GROUP: tl.constexpr):
    """The first allowed id, int32, or 0."""
    lowest = tl.full([], _NOWHERE, tl.int32)
    tile = tl.full([], 0, tl.int32)
    while (tile * TILE < vocab_size) & (lowest == _NOWHERE):
        bits = group_bits(bitmask_ptr, masked, tile, vocab_size, GROUP)
        ids = tile_ids(tile, GROUP)
        allowed = ((bits[:, None] >> tl.arange(0, GROUP)[None, :]) & 1) != 0
        ids = tl.where(allowed & (ids < vocab_size), ids, _NOWHERE)
        lowest = tl.min(tl.min(ids, 1), 0)
        tile += 1
    return tl.where(lowest == _NOWHERE, 0, lowest)


@triton.jit
def _key(z):
    """int32 of the order of z; both zeros are one."""
    bits = z.to(tl.int32, bitcast=True)
    return tl.where(z == 0.0, 0, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def _z(key):
    """The z of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _reaching(keys, weights, tile_weight, tokens, top, target, low, high):
    """A key, from low on, that tokens of weight target reach; low if none is known.

    Keys and weights [tiles, parts] are those of peaks; tile_weight and tokens [tiles] those of all
    that is allowed in each tile.
    """
    while high - low > _SLACK:
        middle = low + ((high - low) >> 1)
        below = tl.exp2((_z(middle.to(tl.int32)) - top) * LOG2_E)
        reached = tl.sum(tl.where(keys >= middle.to(tl.int32), weights, 0.0), 1)
        reached = tl.maximum(reached, tile_weight - tokens * below)
        enough = tl.sum(reached, 0) >= target
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit
def _strips_z(logits_ptr, bitmask_ptr, strips_ptr, tile, low, masked,
              inverse, vocab_size, readable, GROUP: tl.constexpr):  # fmt: skip
    """`tile_z` of the strips that reach low; elsewhere -inf, and nothing is read."""
    strip = tl.arange(0, TILE // GROUP) // (TILE // GROUP // STRIPS)
    reaches = _key(tl.load(strips_ptr + tile * STRIPS + strip)) >= low.to(tl.int32)
    bits = group_bits(bitmask_ptr, masked, tile, vocab_size, GROUP, reaches)
    return tile_z(logits_ptr, bits, inverse, tile, vocab_size, readable, GROUP)


@triton.jit
def _next_tile(keys, index, tile, low):
    """The first tile after this one that reaches low, int32."""
    return tl.min(tl.where((keys >= low.to(tl.int32)) & (index > tile), index, _NOWHERE), 0)


@triton.jit
def _count(chosen):
    return tl.sum(tl.sum(chosen.to(tl.int32), 1), 0)


@triton.jit
def _tile_mass(z, peaks_ptr, tile, low, mass_exponent):
    """Mass of a tile's tokens from low on, in quanta of the row."""
    peak = tl.load(peaks_ptr + tile)
    quantum = tl.where(_key(z) >= low.to(tl.int32), quanta(z, peak), 0).to(tl.int64)
    shift = tl.minimum(mass_exponent - exponent(peak)[0], 63.0).to(tl.int64)
    return tl.sum(tl.sum(quantum, 1), 0) >> shift
