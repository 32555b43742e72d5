import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import bitmask as masks

SIZES = (1, 31, 32, 33, 64, 65, 1000, 32003, 151936, 262144)


def spelled_out(words, vocab_size):
    """Allowed ids of a row of Python ints, by the layout's definition."""
    return [i for i in range(vocab_size) if (words[i // 32] % 2**32) >> (i % 32) & 1]


@pytest.mark.parametrize("vocab_size", SIZES)
def test_words_for_covers_the_vocabulary_and_no_more(vocab_size):
    assert (masks.words_for(vocab_size) - 1) * 32 < vocab_size <= masks.words_for(vocab_size) * 32


def test_ids_31_and_63_are_the_sign_bits_of_their_words():
    allowed = torch.zeros(1, 65, dtype=torch.bool)
    allowed[0, [31, 63]] = True
    packed = masks.pack(allowed)
    assert packed.tolist() == [[-(2**31), -(2**31), 0]]
    assert masks.allowed_ids(packed[0], 65).tolist() == [31, 63]
    assert torch.equal(masks.unpack(packed, 65), allowed)


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=6),
    missing=st.integers(0, 31),
)
def test_unpack_count_and_ids_follow_the_layout(words, missing):
    vocab_size = len(words) * 32 - missing
    expected = spelled_out(words, vocab_size)
    bitmask = torch.tensor([words], dtype=torch.int32)
    assert masks.unpack(bitmask, vocab_size)[0].nonzero().flatten().tolist() == expected
    assert masks.allowed_ids(bitmask[0], vocab_size).tolist() == expected
    assert masks.count_allowed(bitmask, vocab_size).item() == len(expected)
    assert masks.density(bitmask, vocab_size).item() == len(expected) / vocab_size


@pytest.mark.parametrize("vocab_size", SIZES)
@pytest.mark.parametrize("share", (0.0, 0.003, 0.5, 1.0))
def test_pack_and_unpack_are_inverse(vocab_size, share):
    rng = np.random.default_rng(vocab_size)
    allowed = torch.from_numpy(rng.random((3, vocab_size)) < share)
    packed = masks.pack(allowed)
    assert packed.dtype == torch.int32
    assert packed.shape == (3, masks.words_for(vocab_size))
    assert torch.equal(masks.unpack(packed, vocab_size), allowed)
    rows, ids = masks.allowed_pairs(packed, vocab_size)
    assert torch.equal(torch.stack((rows, ids), 1), allowed.nonzero())
    assert torch.equal(masks.count_allowed(packed, vocab_size), allowed.sum(1))


def test_spare_bits_are_never_read_and_never_set():
    full = torch.full((2, 3), -1, dtype=torch.int32)
    assert masks.count_allowed(full, 70).tolist() == [70, 70]
    assert masks.allowed_ids(full[0], 70).tolist() == list(range(70))
    assert masks.unpack(full, 70).shape == (2, 70)
    assert masks.pack(torch.ones(1, 70, dtype=torch.bool)).tolist() == [[-1, -1, 2**6 - 1]]


def test_wide_and_strided_rows_read_their_own_words():
    wide = torch.full((8, 4), -1, dtype=torch.int32)
    view = wide[::2, :2]
    view[1] = 0
    view[1, 0] = 1
    assert masks.count_allowed(view, 41).tolist() == [41, 1, 41, 41]
    assert masks.unpack(view, 41).sum(1).tolist() == [41, 1, 41, 41]
    rows, ids = masks.allowed_pairs(view, 41)
    assert ids[rows == 1].tolist() == [0]


def test_live_words_are_the_words_with_a_bit():
    bitmask = torch.tensor([[0, 5, 0], [-(2**31), 0, 1]], dtype=torch.int32)
    rows, words = masks.live_words(bitmask, 96)
    assert list(zip(rows.tolist(), words.tolist(), strict=True)) == [(0, 1), (1, 0), (1, 2)]


@pytest.mark.parametrize("call", (masks.unpack, masks.count_allowed, masks.allowed_pairs))
def test_a_mask_too_narrow_is_an_error_that_says_so(call):
    with pytest.raises(ValueError, match=r"covers 64 tokens but 65 are asked"):
        call(torch.zeros(1, 2, dtype=torch.int32), 65)


def test_wrong_dtypes_are_errors():
    with pytest.raises(TypeError, match="int32"):
        masks.unpack(torch.zeros(1, 2, dtype=torch.int64), 64)
    with pytest.raises(TypeError, match="bool"):
        masks.pack(torch.zeros(1, 2, dtype=torch.int64))
