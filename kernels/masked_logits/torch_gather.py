"""Gathered heads on the CPU: the weight rows of some tokens, multiplied alone.

Exact tokens, not words of 32: with tokens spread over the vocabulary a word holds one of them, and
whole words took 10 to 30 times as long. Rows are gathered together while that costs little, since a
handful of calls with cold caches takes as long as a few hundred tokens.
"""

from collections.abc import Iterator

import numpy as np
import torch

from kernels import bitmask as masks
from kernels.masked_logits.call import Call
from kernels.masked_logits.torch_dense import finish

PIECE = 1 << 18
"""Elements of weight gathered at once: 1 MiB of float32; larger ones are new pages every time."""
PRODUCTS = 1 << 13
"""Rows times tokens of a group that may be wasted on each other: a third of a millisecond."""


def allowed_words(call: Call) -> np.ndarray:
    """uint32 [B, words]: the mask of every row without its spare bits; a copy if there are some."""
    count = masks.words_for(call.vocab_size)
    words = call.bitmask[:, :count].numpy().view(np.uint32)
    spare = count * masks.WORD_BITS - call.vocab_size
    if spare:
        words = words.copy()
        words[:, -1] &= np.uint32(0xFFFFFFFF >> spare)
    return words


def groups(words: np.ndarray, rows: np.ndarray) -> Iterator[tuple[np.ndarray, torch.Tensor]]:
    """Rows to gather together, int64, and the tokens that one of them allows, int64, ascending.

    A row joins the group before it where the tokens of both are few, or no more than its own.
    Rows that allow nothing are left out.
    """
    counts = np.bitwise_count(words[rows]).sum(1, dtype=np.int64)
    order = np.argsort(counts, kind="stable")
    members, union, size = [], None, 0
    for row, count in zip(rows[order].tolist(), counts[order].tolist(), strict=True):
        if not count:
            continue
        both = words[row] if union is None else union | words[row]
        grown = count if union is None else int(np.bitwise_count(both).sum(dtype=np.int64))
        if members and grown > max(PRODUCTS // (len(members) + 1), count):
            yield _group(members, union)
            members, both, grown = [], words[row], count
        members, union, size = [*members, row], both, grown
    if size:
        yield _group(members, union)


def gather(call: Call, rows: np.ndarray, ids: torch.Tensor) -> None:
    """Write the logits of tokens ``ids`` of some rows into ``out``."""
    index = torch.from_numpy(rows)
    hidden = call.hidden[index].float().t()
    for piece in ids.split(max(PIECE // call.hidden.shape[1], 1)):
        weight = call.weight.index_select(0, piece).float()
        bias = None if call.bias is None else call.bias[piece].float()
        logits = finish(call, (weight @ hidden).t(), bias)
        call.out.index_put_((index[:, None], piece), logits.to(call.out.dtype))


def _group(members: list[int], union: np.ndarray) -> tuple[np.ndarray, torch.Tensor]:
    ids = masks.allowed_ids(torch.from_numpy(union.view(np.int32)), len(union) * masks.WORD_BITS)
    return np.sort(np.array(members)), ids
