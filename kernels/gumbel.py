"""Gumbel noise that depends on nothing but (seed, position, stream, token id).

Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns
key = seed (low, high word) and counter = (id >> 2, position, stream, 0) into four words, of which
token ``id`` takes number ``id & 3``. A word ``r`` becomes

    v = min((r + 0.5) * 2**-32, 1 - 2**-24)        float32, full relative precision for small v
    g = -log(-log1p(-v))                           from -2.82 to 22.88 nats

The two logarithms are one polynomial of our own, evaluated in IEEE float32 multiplications and
additions alone, so that ``kernels.gumbel_triton`` gives the same bits under the interpreter and on
a GPU (compiled with ``enable_fp_fusion=False``); library logarithms differ in the last bit between
torch, numpy and a GPU. Against float64, ``|g - g64| <= 1e-7 * max(1, |g64|)`` for every v.

The arrays here are numpy's: it has the unsigned integers, rounds every operation by itself, and a
call on a few hundred tokens costs a fraction of torch's. This module never imports triton.
"""

import sys

import numpy as np

PHILOX_M0, PHILOX_M1 = 0xD2511F53, 0xCD9E8D57
PHILOX_W0, PHILOX_W1 = 0x9E3779B9, 0xBB67AE85
PHILOX_ROUNDS = 10

V_MAX = 1.0 - 2.0**-24
GUMBEL_MAX = 22.875
"""Bound above every noise value: g at r = 0 is 33 ln 2 = 22.8738."""
GUMBEL_MIN = -2.875
"""Bound below every noise value: g at v = 1 - 2**-24 is -ln(24 ln 2) = -2.8115."""

# ln 2 = hi + lo; hi has 11 bits, so k * hi is exact for the |k| < 2**13 that float32 can need.
LN2_HI = 0.693359375
LN2_LO = -0.00021219444170128554

# log1p(f) = f - f^2 / 2 + f^3 * P(f) on [sqrt(1/2) - 1, sqrt(2) - 1]: minimax fit of degree 8,
# weighted for relative error, coefficients rounded to float32; error 3.2e-9 relative.
LOG1P_COEFFICIENTS = (
    0.3333331346511841,
    -0.25000008940696716,
    0.2000211924314499,
    -0.1666799634695053,
    0.14219552278518677,
    -0.1240558922290802,
    0.11888162791728973,
    -0.11675651371479034,
    0.0674663856625557,
)

# Bits of float32 sqrt(1/2): subtracting them puts the split between binades at sqrt(1/2).
SQRT_HALF_BITS = 0x3F3504F3

_F32 = np.float32
# Place of the upper half of a uint64 seen as two uint32.
_TOP = int(sys.byteorder == "little")
# Arrays, not scalars: numpy converts a scalar anew in every call.
_32 = np.array([32], np.uint64)
_LOW = np.array([0xFFFFFFFF], np.uint64)
_LANE_SHIFT = np.array([32, 0], np.uint64)
_MULTIPLIER = np.array([PHILOX_M0, PHILOX_M1], np.uint64)
_WEYL = np.array([PHILOX_W0 << 32, PHILOX_W1 << 32], np.uint64)


def philox(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Philox-4x32-10.

    Args:
        counter: uint32 [4, ...].
        key: uint32 [2, ...] of as many dimensions, broadcasting against ``counter[0]``.

    Returns:
        uint32 [4, ...].
    """
    counter, key = counter.astype(np.uint64), key.astype(np.uint64)
    state = _philox_rounds(counter[0::2] << _32 | counter[1::2], key << _32)
    words = np.empty((4, *state.shape[1:]), np.uint32)
    words[0::2] = state >> _32
    words[1::2] = state & _LOW
    return words


def _philox_rounds(state: np.ndarray, key: np.ndarray) -> np.ndarray:
    # state holds (c0, c1) and (c2, c3), key holds (k0, 0) and (k1, 0), each pair a uint64 with its
    # first word on top. A product is then a pair as it stands, for the other half of the state:
    # (hi, lo)(M1 * c2) makes the new (c0, c1) once c1 and k0 are xored into its top.
    shape = np.broadcast_shapes(state.shape, key.shape)
    if state.shape != shape:
        state = np.array(np.broadcast_to(state, shape))
    multiplier = _MULTIPLIER.reshape(2, *[1] * (len(shape) - 1))
    weyl = _WEYL.reshape(2, *[1] * (len(shape) - 1))
    product = np.empty_like(state)
    crossed = product[::-1]
    for _ in range(PHILOX_ROUNDS):
        np.right_shift(state, _32, out=product)
        np.multiply(product, multiplier, out=product)
        np.left_shift(state, _32, out=state)
        np.bitwise_xor(state, key, out=state)
        np.bitwise_xor(state, crossed, out=state)
        np.add(key, weyl, out=key)
    return state


def random_bits(seed, position, stream, ids: np.ndarray) -> np.ndarray:
    """The random word, uint32, of each token.

    Args:
        seed: int64; position, stream: taken modulo 2**32. Numbers, or arrays [N].
        ids: int64 token ids [N].
    """
    state = _philox_rounds(_state(ids.shape, ids >> 2, position, stream), _key(seed))
    half = np.where(ids & 2, state[1], state[0])
    return (half >> _LANE_SHIFT[ids & 1]).astype(np.uint32)


def random_bits_range(
    seed: np.ndarray, position: np.ndarray, stream: np.ndarray, size: int
) -> np.ndarray:
    """Random words, uint32 [B, size], of tokens 0 ... size - 1, for int64 [B] parameters.

    Four tokens share a counter, so a token costs a quarter of what it costs in `random_bits`.
    """
    rows, blocks = len(seed), (size + 3) // 4
    state = _state((rows, blocks), np.arange(blocks), position[:, None], stream[:, None])
    halves = _philox_rounds(state, _key(seed[:, None])).view(np.uint32)
    words = np.empty((rows, blocks, 4), np.uint32)
    for lane in range(4):
        words[..., lane] = halves[lane >> 1, :, lane & 1 ^ _TOP :: 2]
    return words.reshape(rows, blocks * 4)[:, :size]


def uniform(bits: np.ndarray) -> np.ndarray:
    """v of the module docstring, float32 in [2**-33, 1 - 2**-24], of random words uint32."""
    v = bits.astype(np.float32)
    v += np.float32(0.5)
    v *= np.float32(2.0**-32)
    return np.minimum(v, np.float32(V_MAX), out=v)


def gumbel_from_bits(bits: np.ndarray) -> np.ndarray:
    """Standard Gumbel quantiles, float32, of random words uint32."""
    v = uniform(bits)
    # -log1p(-v) = -(k ln 2 + log1p(f)), 1 - v = 2^k (1 + f); v itself, not 1 - v, enters f, so
    # that a small v keeps all its bits.
    k, scale = _binade(1 - v)
    f = (scale - 1) - scale * v
    head, tail = _log_pair(k, f)
    hi = head + tail
    lo = tail - (hi - head)
    # log(-(hi + lo)) = log(-hi) + lo / hi; lo is rounding dust, so 1 / (1 + f) may be 1 - f + f^2.
    k, scale = _binade(-hi)
    f = scale * -hi - 1
    dust = (scale * -lo) * ((1 - f) + f * f)
    head, tail = _log_pair(k, f)
    return -(head + (tail + dust))


def gumbel_noise(
    seed: np.ndarray, position: np.ndarray, stream: np.ndarray, size: int
) -> np.ndarray:
    """Gumbel noise, float32 [B, size], nats, of tokens 0 ... size - 1: see `random_bits_range`."""
    return gumbel_from_bits(random_bits_range(seed, position, stream, size))


def _binade(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # x = 2^k m with m in [sqrt(1/2), sqrt(2)): k as float32, and 2^-k.
    k = (x.view(np.int32) - np.int32(SQRT_HALF_BITS)) >> 23
    return k.astype(np.float32), ((127 - k) << 23).view(np.float32)


def _log_pair(k: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # k ln 2 + log1p(f) as an unevaluated sum: head is k ln 2 + f rounded, tail all the rest.
    poly = f * _F32(LOG1P_COEFFICIENTS[-1])
    for coefficient in LOG1P_COEFFICIENTS[-2:0:-1]:
        poly = (poly + _F32(coefficient)) * f
    poly = poly + _F32(LOG1P_COEFFICIENTS[0])
    rest = (f * f) * (f * poly - _F32(0.5)) + k * _F32(LN2_LO)
    # k * LN2_HI is 0 or greater than f, so Dekker's fast two-sum is exact.
    base = k * _F32(LN2_HI)
    head = base + f
    return head, rest + (f - (head - base))


def _key(seed) -> np.ndarray:
    """The key as `_philox_rounds` wants it, of an int64 number or array."""
    seed = np.atleast_1d(np.asarray(seed, np.int64))
    key = np.empty((2, *seed.shape), np.int64)
    np.left_shift(seed, 32, out=key[0])
    np.bitwise_and(seed, -1 << 32, out=key[1])
    return key.view(np.uint64)


def _state(shape, block, position, stream) -> np.ndarray:
    """The counter (block, position, stream, 0) as `_philox_rounds` wants it, [2, *shape]."""
    state = np.empty((2, *shape), np.int64)
    state[0] = block
    state[0] <<= 32
    state[0] |= np.bitwise_and(position, 0xFFFFFFFF, dtype=np.int64)
    state[1] = stream
    state[1] <<= 32
    return state.view(np.uint64)
