"""``grammar.matcher``: masks against a word list worked out by hand, and the life of a row.

The oracle: where the grammar is a finite list of words, a token is allowed if some word starts with
what has been written plus that token, and a stop token if what has been written is a word.
"""

import json
import os

import pytest
import torch
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar.matcher import MatcherBatch, check_bitmask
from grammar.tokenizer import info_from_bytes
from tests.test_grammar_vocabularies import allowed_ids

PIECES = [b"a", b"b", b"ab", b"ba", b"c", b"abc", b"bc", b"", b"<s>", b"</s>"]
STOP = 9
WIDTHS = [33, 1000]


def compiler(width):
    info = info_from_bytes(PIECES, vocab_size=width, stop_token_ids=[STOP], control_token_ids=[8])
    return xgrammar.GrammarCompiler(info, max_threads=1)


COMPILERS = {width: compiler(width) for width in WIDTHS}


def compiled(words, width=33):
    rule = "root ::= " + " | ".join(json.dumps(word) for word in words)
    return COMPILERS[width].compile_grammar(rule)


def legal(words, written):
    ids = {
        i
        for i, piece in enumerate(PIECES)
        if piece and i < 8 and any(word.startswith(written + piece.decode()) for word in words)
    }
    return ids | ({STOP} if written in words else set())


word_lists = st.lists(st.text("abc", max_size=6), min_size=1, max_size=4)


@settings(deadline=None)
@given(word_lists, st.data(), st.sampled_from(WIDTHS))
def test_masks_and_forced_runs_are_those_of_the_word_list(words, data, width):
    batch = MatcherBatch([compiled(words, width)], vocab_size=width)
    written = ""
    while True:
        want = legal(words, written)
        assert allowed_ids(batch.fill()[0], width) == want
        assert batch.is_completed(0) == (written in words)

        run, so_far = [], written
        while len(ids := legal(words, so_far)) == 1:
            run += ids
            if run[-1] == STOP:
                break
            so_far += PIECES[run[-1]].decode()
        assert batch.forced_run(0) == run
        assert batch.forced_run(0, limit=1) == run[:1]

        for wrong in {-1, *range(12), width - 1, width} - want:
            assert not batch.accept(0, wrong)
        assert allowed_ids(batch.fill()[0], width) == want, "an illegal token changed the state"

        token = data.draw(st.sampled_from(sorted(want)))
        assert batch.accept(0, token)
        if token == STOP:
            assert batch.is_terminated(0)
            return
        written += PIECES[token].decode()


@settings(deadline=None)
@given(word_lists, st.data())
def test_rollback_returns_to_the_mask_before(words, data):
    batch = MatcherBatch([compiled(words)], vocab_size=33)
    masks = []
    while not batch.is_terminated(0):
        masks.append(allowed_ids(batch.fill()[0], 33))
        assert batch.accept(0, data.draw(st.sampled_from(sorted(masks[-1]))))
    n = data.draw(st.integers(1, len(masks)))
    batch.rollback(0, n)
    assert batch.constrained[0]
    assert not batch.is_terminated(0)
    assert allowed_ids(batch.fill()[0], 33) == masks[-n]


@settings(deadline=None, max_examples=50)
@given(word_lists, st.data())
def test_jump_string_is_what_all_words_share(words, data):
    batch = MatcherBatch([compiled(words)], vocab_size=33)
    written = ""
    while not batch.is_terminated(0):
        rest = [w[len(written) :] for w in words if w.startswith(written)]
        assert batch.jump_string(0) == os.path.commonprefix(rest)  # noqa: RUF071 (of strings)
        token = data.draw(st.sampled_from(sorted(legal(words, written))))
        assert batch.accept(0, token)
        written += "" if token == STOP else PIECES[token].decode()
    assert batch.jump_string(0) == ""


def test_rollback_beyond_the_start_is_refused():
    batch = MatcherBatch([compiled(["ab"]), None], vocab_size=33)
    assert batch.accept(0, 0)
    with pytest.raises(ValueError, match=r"n must lie in \[0, 1\].*row 0.*got 2"):
        batch.rollback(0, 2)
    with pytest.raises(ValueError, match="got -1"):
        batch.rollback(0, -1)
    batch.rollback(0, 0)
    batch.rollback(1, 3)
    batch.rollback(0, 1)
    with pytest.raises(ValueError, match=r"n must lie in \[0, 0\]"):
        batch.rollback(0, 1)
    assert batch.accept(0, 0)
    assert allowed_ids(batch.fill()[0], 33) == {1}


@settings(deadline=None)
@given(word_lists, st.data())
def test_reset_returns_to_the_first_tokens(words, data):
    """From wherever the row is, finished included; 0 is the state of a new request."""
    batch = MatcherBatch([compiled(words)], vocab_size=33)
    masks = []
    while not batch.is_terminated(0):
        masks.append(allowed_ids(batch.fill()[0], 33))
        assert batch.accept(0, data.draw(st.sampled_from(sorted(masks[-1]))))
    for n in sorted(data.draw(st.lists(st.integers(0, len(masks) - 1), min_size=1)), reverse=True):
        batch.reset(0, n)
        assert batch.constrained[0]
        assert allowed_ids(batch.fill()[0], 33) == masks[n]
    batch.reset(0)
    assert allowed_ids(batch.fill()[0], 33) == legal(words, "")


def test_reset_beyond_what_was_accepted_is_refused():
    batch = MatcherBatch([compiled(["ab"]), None], vocab_size=33)
    assert batch.accept(0, 0)
    for n in (2, -1):
        with pytest.raises(ValueError, match=rf"n must lie in \[0, 1\].*row 0.*got {n}"):
            batch.reset(0, n)
    batch.reset(1)
    batch.reset(0, 1)
    assert allowed_ids(batch.fill()[0], 33) == {1}


def test_a_rebuilt_row_has_the_mask_it_had():
    """After a cache is recomputed, the state comes back from the committed ids."""
    grammar = compiled(["abcab", "abcbb", "abac"])
    batch = MatcherBatch([grammar], vocab_size=33)
    committed = [0, 6]
    assert all(batch.accept(0, i) for i in committed)
    again = MatcherBatch([grammar], vocab_size=33)
    assert all(again.accept(0, i) for i in committed)
    assert torch.equal(batch.fill(), again.fill())


# Rows


def test_after_a_stop_token_a_row_is_neither_filled_nor_advanced():
    batch = MatcherBatch([compiled(["a"]), compiled(["abcab"])], vocab_size=33)
    batch.fill()
    assert batch.accept(0, 0)
    batch.fill()
    assert allowed_ids(batch.bitmask[0], 33) == {STOP}
    assert batch.accept(0, STOP)
    assert batch.constrained.tolist() == [False, True]
    assert batch.bitmask[0].tolist() == [-1, -1]
    assert not batch.accept(0, 0)
    assert not batch.accept(0, STOP)
    assert batch.forced_run(0) == []
    # The other row goes on, padding of the first or not.
    for token in (5, 2, STOP):
        batch.fill()
        assert batch.bitmask[0].tolist() == [-1, -1]
        assert batch.accept(1, token)
    assert batch.is_terminated(0)
    assert batch.is_terminated(1)
    batch.fill()


def test_free_rows_take_anything_in_the_vocabulary():
    batch = MatcherBatch([None, compiled(["a"])], vocab_size=33)
    batch.fill()
    assert batch.constrained.tolist() == [False, True]
    assert batch.bitmask[0].tolist() == [-1, -1]
    assert batch.accept(0, 32)
    assert batch.accept(0, STOP)
    assert not batch.accept(0, 33)
    assert not batch.accept(0, -1)
    assert not batch.is_terminated(0)
    assert batch.is_completed(0)
    assert batch.forced_run(0) == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("size", [1, 3, 17])
@pytest.mark.parametrize("threads", [1, 2])
def test_only_active_rows_are_filled(size, width, threads):
    words = [["abc"], ["b", "c"], ["abab"]]
    rows = [compiled(words[i % 3], width) for i in range(size)]
    batch = MatcherBatch(rows, vocab_size=width, max_threads=threads)
    assert batch.bitmask.shape == (size, -(-width // 32))
    assert (batch.bitmask == -1).all()
    batch.fill(range(0, size, 2))
    for row in range(size):
        want = legal(words[row % 3], "") if row % 2 == 0 else set(range(width))
        assert allowed_ids(batch.bitmask[row], width) == want
    active = torch.zeros(size, dtype=torch.bool)
    active[1::2] = True
    batch.fill(active)
    for row in range(size):
        assert allowed_ids(batch.bitmask[row], width) == legal(words[row % 3], "")
    batch.fill(torch.tensor([0]))


def test_keep_drops_and_reorders():
    batch = MatcherBatch(
        [compiled(["abc"]), None, compiled(["ba"]), compiled(["c"])], vocab_size=33
    )
    assert batch.accept(2, 1)
    assert batch.accept(3, 4)
    assert batch.accept(3, STOP)
    batch.fill()
    batch.keep([2, 1, 0])
    assert len(batch) == 3
    assert batch.constrained.tolist() == [True, False, True]
    assert allowed_ids(batch.bitmask[0], 33) == {0}
    batch.fill()
    assert allowed_ids(batch.bitmask[2], 33) == legal(["abc"], "")
    batch.rollback(0, 1)
    batch.fill()
    assert allowed_ids(batch.bitmask[0], 33) == legal(["ba"], "")
    batch.keep([])
    assert len(batch) == 0
    batch.fill()


def test_a_row_kept_twice_is_two_states():
    """Three beams: the second dies, the first has two children."""
    batch = MatcherBatch([compiled(["abcab", "abac"]), None, compiled(["c"])], vocab_size=33)
    assert batch.accept(0, 2)
    batch.keep([0, 0, 1, 1])
    assert batch.accept(0, 4)
    assert batch.accept(1, 0)
    batch.fill()
    assert batch.constrained.tolist() == [True, True, False, False]
    assert allowed_ids(batch.bitmask[0], 33) == legal(["abcab", "abac"], "abc")
    assert allowed_ids(batch.bitmask[1], 33) == legal(["abcab", "abac"], "aba")
    batch.rollback(1, 2)
    assert allowed_ids(batch.fill()[1], 33) == legal(["abcab", "abac"], "")
    assert allowed_ids(batch.bitmask[0], 33) == legal(["abcab", "abac"], "abc")


# What the kernels ask


@pytest.mark.parametrize("width", WIDTHS)
def test_density_and_live_words_are_those_of_the_word_list(width):
    words = [["abc", "c"], ["ba"], None, ["a"]]
    batch = MatcherBatch([w and compiled(w, width) for w in words], vocab_size=width)
    assert batch.accept(3, 0)
    assert batch.accept(3, STOP)
    batch.fill()
    want = [len(legal(w, "")) / width for w in words[:2]] + [1, 1]
    assert batch.density().tolist() == pytest.approx(want, rel=1e-12)
    rows, numbers = batch.live_words()
    # Spare bits of the last word are set by xgrammar, and count.
    spare = {(row, width // 32) for row in (0, 1) if width % 32}
    assert set(zip(rows.tolist(), numbers.tolist(), strict=True)) - spare == {(0, 0), (1, 0)}


def test_free_rows_cost_nothing(monkeypatch):
    """No matcher is asked, no word of theirs is read or written."""
    batch = MatcherBatch([None] * 3, vocab_size=33)
    monkeypatch.setattr(batch, "_filler", None)
    batch.bitmask[:] = 7
    batch.fill()
    assert (batch.bitmask == 7).all()
    assert batch.density().tolist() == [1, 1, 1]
    assert [index.tolist() for index in batch.live_words()] == [[], []]
    assert batch.jump_string(0) == ""


def test_masks_are_in_pinned_memory_where_cuda_is_there(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    batch = MatcherBatch([compiled(["a"])], vocab_size=33)
    assert batch.bitmask is pinned[-1]
    batch.append(compiled(["b"]))
    assert batch.bitmask is pinned[-1]
    batch.keep([1])
    assert batch.bitmask is pinned[-1]
    assert allowed_ids(batch.fill()[0], 33) == {1}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pinned_masks_are_filled():
    batch = MatcherBatch([compiled(["a"]), compiled(["b"])], vocab_size=33)
    assert batch.bitmask.is_pinned()
    assert [allowed_ids(row, 33) for row in batch.fill().cuda().cpu()] == [{0}, {1}]
    batch.keep([1])
    assert batch.bitmask.is_pinned()
    assert allowed_ids(batch.fill([0])[0], 33) == {1}


def test_swap_in_and_append_start_new_requests():
    batch = MatcherBatch([compiled(["a"])], vocab_size=33)
    assert batch.accept(0, 0)
    assert batch.accept(0, STOP)
    batch.swap_in(0, compiled(["bc"]))
    assert not batch.is_terminated(0)
    assert batch.append(compiled(["c"])) == 1
    assert batch.append(None) == 2
    batch.fill()
    assert allowed_ids(batch.bitmask[0], 33) == legal(["bc"], "")
    assert allowed_ids(batch.bitmask[1], 33) == {4}
    batch.swap_in(1, None)
    assert batch.constrained.tolist() == [True, False, False]
    assert batch.bitmask[1].tolist() == [-1, -1]
    with pytest.raises(ValueError, match="row 0 has accepted; got 1"):
        batch.rollback(0, 1)


def test_the_same_grammar_in_two_rows_is_two_states():
    grammar = compiled(["abc"])
    batch = MatcherBatch([grammar, grammar], vocab_size=33)
    assert batch.accept(0, 0)
    batch.fill()
    assert allowed_ids(batch.bitmask[0], 33) == {1, 6}
    assert allowed_ids(batch.bitmask[1], 33) == {0, 2, 5}


def test_a_batch_of_none_is_free():
    batch = MatcherBatch([], vocab_size=33)
    assert batch.append(None) == 0
    assert not batch.constrained.any()


# What is refused


def test_another_vocabulary_size_is_refused():
    with pytest.raises(ValueError, match="row 0 covers 33 tokens but vocab_size is 1,000"):
        MatcherBatch([compiled(["a"])], vocab_size=1000)


@pytest.mark.parametrize(
    ("bitmask", "message"),
    [
        (torch.full((3, 4), -1, dtype=torch.int32)[:, ::2], "must be contiguous"),
        (torch.full((3, 4), -1, dtype=torch.int32)[:, :2], "must be contiguous"),
        (torch.full((3, 2), -1, dtype=torch.int64), "must be int32 on the CPU"),
        (torch.full((2, 2), -1, dtype=torch.int32), r"must be \[3, 2\]"),
        (torch.full((3, 3), -1, dtype=torch.int32), r"got \[3, 3\]"),
    ],
)
def test_bitmasks_that_would_be_filled_wrongly_are_refused(bitmask, message):
    with pytest.raises(ValueError, match=message):
        check_bitmask(bitmask, 3, 33)
    batch = MatcherBatch([compiled(["a"])] * 3, vocab_size=33)
    with pytest.raises(ValueError, match=message):
        batch.bitmask = bitmask
    assert allowed_ids(batch.fill()[2], 33) == {0}


def test_a_buffer_of_the_callers_own_is_filled_in_place():
    buffer = torch.full((2, 2), 7, dtype=torch.int32)
    batch = MatcherBatch([compiled(["a"]), compiled(["b"])], vocab_size=33)
    batch.bitmask = buffer
    assert batch.fill() is buffer
    assert [allowed_ids(row, 33) for row in buffer] == [{0}, {1}]


def test_what_xgrammar_does_with_a_strided_view():
    """The reason for refusing one: the mask goes to memory that the view does not show."""
    buffer = torch.full((1, 4), -1, dtype=torch.int32)
    view = buffer[:, ::2]
    xgrammar.GrammarMatcher(compiled(["a"])).fill_next_token_bitmask(view)
    assert allowed_ids(view[0], 33) != {0}
