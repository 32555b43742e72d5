"""The triton twin of `kernels.gumbel`, bit for bit: device functions for use inside kernels.

Kernels that call these must be launched with ``enable_fp_fusion=False``: a fused multiply-add
rounds once where the twin on the host rounds twice.
"""

import triton
import triton.language as tl

from kernels import gumbel

_V_MAX = tl.constexpr(gumbel.V_MAX)
_LN2_HI = tl.constexpr(gumbel.LN2_HI)
_LN2_LO = tl.constexpr(gumbel.LN2_LO)
_SQRT_HALF_BITS = tl.constexpr(gumbel.SQRT_HALF_BITS)
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8 = map(tl.constexpr, gumbel.LOG1P_COEFFICIENTS)


@triton.jit
def random_bits(seed, position, stream, ids):
    """The random word, uint32 block, of each token of an integer block; int64 seed, the rest int32.

    Every counter word is cast to int32: one of int64 would make `tl.philox` Philox-4x64.
    """
    counter = (ids >> 2).to(tl.int32)
    zero = counter * 0
    r0, r1, r2, r3 = tl.philox(
        seed, counter, zero + position.to(tl.int32), zero + stream.to(tl.int32), zero
    )
    low = tl.where((ids & 1) == 0, r0, r1)
    high = tl.where((ids & 1) == 0, r2, r3)
    return tl.where((ids & 2) == 0, low, high)


@triton.jit
def gumbel_from_bits(bits):
    """Standard Gumbel quantiles, float32, of random words uint32."""
    v = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, _V_MAX)
    k, scale = _binade(1.0 - v)
    f = (scale - 1.0) - scale * v
    head, tail = _log_pair(k, f)
    hi = head + tail
    lo = tail - (hi - head)
    k, scale = _binade(-hi)
    f = scale * -hi - 1.0
    dust = (scale * -lo) * ((1.0 - f) + f * f)
    head, tail = _log_pair(k, f)
    return -(head + (tail + dust))


@triton.jit
def gumbel_noise(seed, position, stream, ids):
    """Gumbel noise, float32 block, of each token: `random_bits` made `gumbel_from_bits`."""
    return gumbel_from_bits(random_bits(seed, position, stream, ids))


@triton.jit
def _binade(x):
    k = (x.to(tl.int32, bitcast=True) - _SQRT_HALF_BITS) >> 23
    return k.to(tl.float32), ((127 - k) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _log_pair(k, f):
    poly = f * _C8
    poly = (poly + _C7) * f
    poly = (poly + _C6) * f
    poly = (poly + _C5) * f
    poly = (poly + _C4) * f
    poly = (poly + _C3) * f
    poly = (poly + _C2) * f
    poly = (poly + _C1) * f
    poly = poly + _C0
    rest = (f * f) * (f * poly - 0.5) + k * _LN2_LO
    base = k * _LN2_HI
    head = base + f
    return head, rest + (f - (head - base))
