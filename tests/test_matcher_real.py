"""Compiler, matcher and jump-forward on a vocabulary of 129,280 or more, along a real call."""

import functools
import json

import pytest
import torch
import xgrammar

from grammar.compiler import Compiler
from grammar.formats import FORMATS
from grammar.jump_forward import jump_forward
from grammar.matcher import MatcherBatch
from grammar.policy import plan
from grammar.registry_tokenizers import load
from grammar.tokenizer import token_bytes
from kernels.bitmask import unpack
from tests.test_tokenizer_real import REAL, encode, info

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["metric", "imperial"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "unit", "days"],
}
BODY = {
    "tools": [
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
        for name in ("get_forecast", "get_climate")
    ],
    "tool_choice": "required",
}
ARGUMENTS = {"city": "Zürich \u4e0a\u6d77", "unit": "metric", "days": 10}


@functools.cache
def bytes_of(name):
    return token_bytes(load(name).tokenizer)


@functools.cache
def start(name):
    """Grammar and tokens of a call that it allows."""
    fmt = FORMATS["hermes"]
    vocabulary = info(name, fmt.markers)
    compiled = Compiler(vocabulary).compile(plan(BODY, format=fmt, schema_mode="strict"))
    call = {"name": "get_climate", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)}
    text = fmt.render([{"type": "function", "function": call}])
    return compiled, encode(name, text), text


@REAL
def test_every_step_of_a_call(name):
    """Masks as xgrammar fills them alone; density and live words as counted bit by bit; forced
    tokens the only ones allowed; the forced text the text of the call."""
    compiled, ids, text = start(name)
    width, pieces = load(name).vocab_size, bytes_of(name)
    batch = MatcherBatch([None, compiled], vocab_size=width)
    alone = xgrammar.GrammarMatcher(compiled)
    mask = xgrammar.allocate_token_bitmask(1, width)
    written, forced_tokens, forced_text = b"", 0, 0
    for token in ids:
        batch.fill()
        alone.fill_next_token_bitmask(mask)
        assert batch.bitmask[1].equal(mask[0])
        allowed = unpack(mask, width)[0]
        assert batch.density().tolist() == [1, int(allowed.sum()) / width]
        rows, words = batch.live_words()
        assert (rows == 1).all()
        assert set(words.tolist()) == set((allowed.nonzero().flatten() // 32).tolist())
        run = batch.forced_run(1)
        assert (int(allowed.sum()) == 1) == bool(run)
        assert not run or allowed[run[0]]
        forced_tokens += bool(run)
        jump = batch.jump_string(1)
        assert text.encode().startswith(written + jump.encode())
        forced_text += bool(jump)
        assert batch.accept(1, token)
        assert alone.accept_token(token)
        written += pieces[token]
    assert batch.is_completed(1)
    assert forced_tokens < forced_text


@REAL
def test_reset_and_rollback_on_the_way(name):
    compiled, ids, _ = start(name)
    batch = MatcherBatch([compiled], vocab_size=load(name).vocab_size)
    masks = []
    for token in [*ids, load(name).stop_token_ids[0]]:
        masks.append(batch.fill()[0].clone())
        assert batch.accept(0, token)
    assert batch.is_terminated(0)
    batch.rollback(0, 5)
    assert batch.fill()[0].equal(masks[-5])
    for n in (len(ids) // 2, 3, 0):
        batch.reset(0, n)
        assert batch.fill()[0].equal(masks[n])
    assert all(batch.accept(0, token) for token in ids)


@REAL
def test_jumps_write_the_call_with_the_tokens_of_the_tokenizer(name):
    """A model that wants this call is asked for fewer tokens; the call comes out the same."""
    compiled, ids, text = start(name)
    tokenizer, pieces = load(name).tokenizer, bytes_of(name)
    batch = MatcherBatch([compiled], vocab_size=load(name).vocab_size)
    taken, sampled = [], 0
    while not batch.is_completed(0):
        jump = jump_forward(batch, 0, taken, tokenizer, pieces)
        taken = taken[: len(taken) - jump.removed] + list(jump.added)
        written = b"".join(pieces[i] for i in taken)
        assert text.encode().startswith(written)
        rest = text.encode()[len(written) :]
        allowed = unpack(batch.fill(), batch.vocab_size)[0].nonzero().flatten().tolist()
        longest = max(
            (i for i in allowed if rest.startswith(pieces[i])), key=lambda i: len(pieces[i])
        )
        assert batch.accept(0, longest)
        taken.append(longest)
        sampled += 1
    assert b"".join(pieces[i] for i in taken).decode() == text
    assert sampled < len(ids)


def test_masks_stay_apart_between_vocabularies():
    """The width is part of the grammar: a batch takes no grammar of another vocabulary."""
    names = [name.values[0] for name in REAL.args[1] if not name.marks[0].args[0]][:2]
    if len(names) < 2:
        pytest.skip("two packages with tokenizers are needed")
    one, two = names
    with pytest.raises(ValueError, match="the grammar of row 0 covers"):
        MatcherBatch([start(one)[0]], vocab_size=load(two).vocab_size)
    assert torch.equal(
        *(MatcherBatch([start(one)[0]], vocab_size=load(one).vocab_size).fill() for _ in range(2))
    )
