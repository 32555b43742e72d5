"""The head on a GPU: one program a tile of tokens and a block of rows.

A program looks at its tile's mask words first and stops if none is live. Otherwise it streams the
weight of the tokens that any of its rows allows through the tensor cores, tokens as the long side
of the product and rows of hidden as the short one: a batch of 8 fills 16 columns instead of an
eighth of 64 or 128 rows. A predicate on tokens costs nothing, since a token's weight is a row of
1 KiB and more: its 16-byte loads stay whole. Tokens that no row allows are neither read nor
written.
"""

import triton
import triton.language as tl

from kernels import bitmask

WORD = tl.constexpr(bitmask.WORD_BITS)
# Taylor series of tanh; the next term is 1e-8 of the sum at 0.25.
_C3, _C5 = tl.constexpr(-1 / 3), tl.constexpr(2 / 15)
_C7, _C9 = tl.constexpr(-17 / 315), tl.constexpr(62 / 2835)
_MINUS_2_LOG2_E = tl.constexpr(-2.8853900817779268)


@triton.jit(do_not_specialize=["batch", "vocab_size", "scale", "softcap"])
def _head_kernel(
    hidden_ptr,
    weight_ptr,
    bitmask_ptr,
    constrained_ptr,
    bias_ptr,
    out_ptr,
    scale,
    softcap,
    batch,
    vocab_size,
    width,
    hidden_stride,
    weight_stride,
    bitmask_stride,
    out_stride,
    WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Program (i, j) works rows ``i * ROWS`` and on, words ``j * WORDS`` and on.

    ``softcap`` is None, or a number; ``width`` is D. Programs of one tile are neighbours, so that
    its weight is in the L2 cache for all but the first.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    words = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    bits = _union(bitmask_ptr, constrained_ptr, rows, words, batch, vocab_size, bitmask_stride)
    if tl.max((bits != 0).to(tl.int32), 0) == 0:
        return
    token = tl.program_id(1) * (WORDS * WORD) + tl.arange(0, WORDS * WORD)
    bits = (bits[:, None] >> tl.arange(0, WORD)[None, :]) & 1
    wanted = (tl.reshape(bits, (WORDS * WORD,)) != 0) & (token < vocab_size)
    column = tl.arange(0, DEPTH)
    weight_at = weight_ptr + token.to(tl.int64)[:, None] * weight_stride + column[None, :]
    hidden_at = hidden_ptr + rows.to(tl.int64)[None, :] * hidden_stride + column[:, None]
    total = tl.zeros((WORDS * WORD, ROWS), tl.float32)
    for start in tl.range(0, width, DEPTH, num_stages=STAGES):
        inside = start + column < width
        weight = tl.load(weight_at + start, mask=wanted[:, None] & inside[None, :], other=0.0)
        hidden = tl.load(
            hidden_at + start, mask=(rows < batch)[None, :] & inside[:, None], other=0.0
        )
        if WIDEN:
            # Triton's interpreter would multiply the bits of bfloat16 as integers.
            weight, hidden = weight.to(tl.float32), hidden.to(tl.float32)
        total = tl.dot(weight, hidden, total, input_precision="ieee")
    if bias_ptr is not None:
        total += tl.load(bias_ptr + token, mask=wanted, other=0.0).to(tl.float32)[:, None]
    total *= scale
    if softcap is not None:
        total = softcap * _tanh(tl.div_rn(total, tl.zeros_like(total) + softcap))
    out_at = out_ptr + rows.to(tl.int64)[None, :] * out_stride + token[:, None]
    tl.store(
        out_at,
        total.to(out_ptr.dtype.element_ty),
        mask=wanted[:, None] & (rows < batch)[None, :],
    )


@triton.jit
def _union(bitmask_ptr, constrained_ptr, rows, words, batch, vocab_size, bitmask_stride):
    """Mask words of the tokens that a row of the block allows, int32 [WORDS]."""
    inside = words * WORD < vocab_size
    if bitmask_ptr is None:
        return tl.where(inside, -1, 0)
    else:
        masked = rows < batch
        if constrained_ptr is not None:
            masked = tl.load(constrained_ptr + rows, mask=rows < batch, other=1) != 0
        at = bitmask_ptr + rows.to(tl.int64)[None, :] * bitmask_stride + words[:, None]
        here = (rows < batch)[None, :] & inside[:, None]
        bits = tl.load(at, mask=here & masked[None, :], other=-1)
        return tl.reduce(tl.where(here, bits, 0), 1, _or)


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _tanh(x):
    """Within 4 units in the last place; the series keeps the digits that 1 - e would lose."""
    y = x * x
    series = x + x * y * (_C3 + y * (_C5 + y * (_C7 + y * _C9)))
    e = tl.exp2(tl.abs(x) * _MINUS_2_LOG2_E)
    far = tl.div_rn(1.0 - e, 1.0 + e)
    return tl.where(tl.abs(x) < 0.25, series, tl.where(x < 0.0, -far, far))
