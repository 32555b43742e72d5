"""A plain tiled top-p sampler, to compare traffic with: what a pipeline of separate steps moves.

A softmax writes float32 probabilities; a second kernel bisects for the greatest threshold whose
tokens hold p of them, and draws among those with Gumbel noise.
"""

import torch
import triton
import triton.language as tl

BLOCK = 8192
ROUNDS = 24


@triton.jit
def _softmax_kernel(logits_ptr, probabilities_ptr, logits_stride, vocab_size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top = tl.full([], float("-inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        z = tl.load(
            logits_ptr + row * logits_stride + at, mask=at < vocab_size, other=float("-inf")
        )
        top = tl.maximum(top, tl.max(z.to(tl.float32), 0))
    total = tl.full([], 0.0, tl.float32)
    for start in range(0, vocab_size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        z = tl.load(
            logits_ptr + row * logits_stride + at, mask=at < vocab_size, other=float("-inf")
        )
        total += tl.sum(tl.exp(z.to(tl.float32) - top), 0)
    for start in range(0, vocab_size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        z = tl.load(
            logits_ptr + row * logits_stride + at, mask=at < vocab_size, other=float("-inf")
        )
        share = tl.exp(z.to(tl.float32) - top) / total
        tl.store(probabilities_ptr + row * vocab_size + at, share, mask=at < vocab_size)


@triton.jit
def _top_p_kernel(
    probabilities_ptr, token_ptr, p, seed, vocab_size, BLOCK: tl.constexpr, ROUNDS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    probabilities_ptr += row * vocab_size
    low, high = tl.full([], 0.0, tl.float32), tl.full([], 1.0, tl.float32)
    for _ in range(ROUNDS):
        middle = (low + high) * 0.5
        held = tl.full([], 0.0, tl.float32)
        for start in range(0, vocab_size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            share = tl.load(probabilities_ptr + at, mask=at < vocab_size, other=0.0)
            held += tl.sum(tl.where(share >= middle, share, 0.0), 0)
        low = tl.where(held >= p, middle, low)
        high = tl.where(held >= p, high, middle)
    best = tl.full([], float("-inf"), tl.float32)
    token = tl.full([], 0, tl.int32)
    for start in range(0, vocab_size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        share = tl.load(probabilities_ptr + at, mask=at < vocab_size, other=0.0)
        noise = -tl.log(-tl.log(tl.rand(seed, at)))
        score = tl.where((share >= low) & (share > 0.0), tl.log(share) + noise, float("-inf"))
        block_best = tl.max(score, 0)
        if block_best > best:
            best = block_best
            token = start + tl.argmax(score, 0)
    tl.store(token_ptr + row, token)


def sample(
    logits: torch.Tensor, bitmask: torch.Tensor | None, top_p: float, rounds: int = ROUNDS
) -> torch.Tensor:
    """xgrammar's bitmask kernel, in place on logits [B, V], then the two kernels; int32 [B]."""
    from xgrammar.kernels.apply_token_bitmask_inplace_triton import (
        apply_token_bitmask_inplace_kernel,
    )

    rows, vocab_size = logits.shape
    if bitmask is not None:
        # The launch of xgrammar's wrapper on a device of 132 multiprocessors.
        apply_token_bitmask_inplace_kernel[(132,)](
            logits, bitmask, None, rows, vocab_size, logits.stride(0), bitmask.stride(0), 132, 4096
        )
    probabilities = torch.empty(rows, vocab_size, dtype=torch.float32, device=logits.device)
    token = torch.empty(rows, dtype=torch.int32, device=logits.device)
    _softmax_kernel[(rows,)](logits, probabilities, logits.stride(0), vocab_size, BLOCK)
    _top_p_kernel[(rows,)](probabilities, token, top_p, 7, vocab_size, BLOCK, rounds)
    return token
