"""Packed token masks: int32 words, bit ``i % 32`` of word ``i // 32`` is token ``i``.

This is the layout that xgrammar and llguidance fill. Bit 31 of a word is the sign bit of its
int32, so tokens 31, 63, ... make a word negative. Bits at or above the vocabulary size in the last
word are spare: fillers leave them set or clear, and nothing here reads them.
"""

import sys

import numpy as np
import torch

WORD_BITS = 32


def words_for(vocab_size: int) -> int:
    """Number of int32 words that hold ``vocab_size`` bits."""
    return (vocab_size + WORD_BITS - 1) // WORD_BITS


def pack(allowed: torch.Tensor) -> torch.Tensor:
    """Pack a bool [B, V] mask into int32 [B, ceil(V / 32)], spare bits clear."""
    if allowed.dtype != torch.bool or allowed.ndim != 2:
        raise TypeError(
            f"allowed must be a bool tensor [B, V], got {allowed.dtype} of shape "
            f"{tuple(allowed.shape)}; compare or unsqueeze it first"
        )
    rows, vocab_size = allowed.shape
    words = words_for(vocab_size)
    bits = torch.zeros(rows, words * WORD_BITS, dtype=torch.int64, device=allowed.device)
    bits[:, :vocab_size] = allowed
    shifts = torch.arange(WORD_BITS, device=allowed.device)
    unsigned = (bits.view(rows, words, WORD_BITS) << shifts).sum(-1)
    return torch.where(unsigned >= 1 << 31, unsigned - (1 << 32), unsigned).to(torch.int32)


def unpack(bitmask: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Expand int32 [B, >= ceil(vocab_size / 32)] into bool [B, vocab_size]."""
    words = _covering_words(bitmask, vocab_size)
    if _on_host(words):
        octets = words.contiguous().numpy().view(np.uint8)
        bits = np.unpackbits(octets, axis=1, count=vocab_size, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_))
    shifts = torch.arange(WORD_BITS, dtype=torch.int32, device=bitmask.device)
    bits = (words.unsqueeze(-1) >> shifts) & 1
    return bits.bool().view(words.shape[0], -1)[:, :vocab_size]


def live_words(bitmask: torch.Tensor, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and word index (int64, row-major) of every word with a bit set.

    A last word whose only set bits are spare still counts as live.
    """
    words = _covering_words(bitmask, vocab_size)
    if _on_host(words):
        rows, columns = _live_words(words.numpy())
        return torch.from_numpy(rows), torch.from_numpy(columns)
    return words.nonzero(as_tuple=True)


def count_allowed(bitmask: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Number of allowed tokens in each row, int64 [B]."""
    words = _covering_words(bitmask, vocab_size)
    counts = _popcount(words).sum(-1)
    spare = words.shape[1] * WORD_BITS - vocab_size
    if spare and words.shape[1]:
        counts -= _popcount(words[:, -1] & (-1 << (WORD_BITS - spare)))
    return counts


def density(bitmask: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Share of the vocabulary each row allows, float64 [B] in [0, 1]."""
    return count_allowed(bitmask, vocab_size).double() / max(vocab_size, 1)


def allowed_ids(row: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Allowed token ids of one int32 [W] row, int64, ascending; only live words are expanded."""
    return allowed_pairs(row.unsqueeze(0), vocab_size)[1]


def allowed_pairs(bitmask: torch.Tensor, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and token id (int64) of every allowed token, row by row, ids ascending.

    Work is one pass over the words, then 32 lanes for each live word: a mask with a handful of
    tokens costs nothing per forbidden token.
    """
    words = _covering_words(bitmask, vocab_size)
    if _on_host(words):
        rows, ids = _allowed_pairs(words.numpy(), vocab_size)
        return torch.from_numpy(rows), torch.from_numpy(ids)
    rows, columns = words.nonzero(as_tuple=True)
    live, bit = unpack(words[rows, columns].unsqueeze(-1), WORD_BITS).nonzero(as_tuple=True)
    rows, ids = rows[live], columns[live] * WORD_BITS + bit
    inside = ids < vocab_size
    return rows[inside], ids[inside]


def _on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and sys.byteorder == "little"


def _live_words(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # numpy finds a few true bools among many some ten times as fast as torch.
    live = np.flatnonzero(words != 0)
    rows = live // words.shape[1]
    return rows, live - rows * words.shape[1]


def _allowed_pairs(words: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = _live_words(words)
    octets = words[rows, columns].view(np.uint8)
    lanes = np.flatnonzero(np.unpackbits(octets, bitorder="little").view(np.bool_))
    live = lanes >> 5
    rows, ids = rows[live], (columns[live] << 5) + (lanes & 31)
    if vocab_size % WORD_BITS:
        inside = ids < vocab_size
        rows, ids = rows[inside], ids[inside]
    return rows, ids


def _covering_words(bitmask: torch.Tensor, vocab_size: int) -> torch.Tensor:
    wanted = words_for(vocab_size)
    if bitmask.dtype != torch.int32 or bitmask.ndim != 2:
        raise TypeError(
            f"bitmask must be an int32 tensor [B, {wanted}], got {bitmask.dtype} of shape "
            f"{tuple(bitmask.shape)}; allocate it as xgrammar.allocate_token_bitmask does"
        )
    if bitmask.shape[1] < wanted:
        raise ValueError(
            f"bitmask covers {bitmask.shape[1] * WORD_BITS:,} tokens but {vocab_size:,} are asked "
            "for; allocate it with the model's padded vocabulary size"
        )
    return bitmask[:, :wanted]


def _popcount(words: torch.Tensor) -> torch.Tensor:
    # Hacker's Delight, figure 5-2; the masks undo the sign extension of int32's >>.
    x = words - ((words >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return (x * 0x01010101) >> 24
