"""Random walks through each grammar: all that it can generate is read back as calls that validate.

A walk draws among the allowed tokens, leaning towards those that close something. What must hold of
its text comes from counting markers and from jsonschema, not from the grammar.
"""

import functools
import json
import random
import re

import jsonschema
import pytest

from grammar.formats import FORMATS
from grammar.matcher import MatcherBatch
from grammar.policy import plan
from grammar.tokenizer import token_bytes
from tests.test_formats_tag import compiler
from tests.test_grammar_vocabularies import allowed_ids, byte_level, width

SCHEMAS = {
    "nested": {
        "type": "object",
        "properties": {
            "to": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
                "required": ["city"],
            },
            "tags": {"type": "array", "items": {"enum": ["a", "b", "é"]}, "maxItems": 3},
        },
        "required": ["to"],
    },
    "bounded": {
        "type": "object",
        "properties": {
            "days": {"type": "integer", "minimum": -3, "maximum": 250},
            "ratio": {"type": "number"},
            "sure": {"type": "boolean"},
        },
        "required": ["days", "sure"],
    },
    "optional": {
        "type": "object",
        "properties": {
            "units": {"enum": ["metric", "imperial"]},
            "note": {"type": ["string", "null"]},
            "limit": {"type": "integer", "minimum": 1},
            "id": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        },
    },
    "list": {
        "type": "object",
        "properties": {
            "rows": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
                    "required": ["x", "y"],
                },
                "minItems": 1,
            }
        },
        "required": ["rows"],
        "additionalProperties": False,
    },
    "short.text": {
        "type": "object",
        "properties": {
            "code": {"type": "string", "minLength": 2, "maxLength": 4},
            "plate": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"},
        },
        "required": ["code", "plate"],
    },
    "no-parameters": None,
}
TOOLS = [
    {"type": "function", "function": {"name": name} | ({"parameters": s} if s else {})}
    for name, s in SCHEMAS.items()
]
VALIDATORS = {
    name: jsonschema.Draft202012Validator(s or {"type": "object", "maxProperties": 0})
    for name, s in SCHEMAS.items()
}
OPENER = {"hermes": "<tool_call>", "kimi_k2": "<|tool_call_begin|>"}
CLOSER = {"hermes": "</tool_call>", "kimi_k2": "<|tool_call_end|>"}


@functools.cache
def leaning(marked):
    """Ids of the tokens that close something, or open a call."""
    closing = re.compile(r'"|[}\]]|\n|<.+>', re.DOTALL)
    pieces = token_bytes(byte_level(marked))
    return {i for i, p in enumerate(pieces) if closing.fullmatch(p.decode(errors="replace"))}


def walk(fmt, marked, body, seed, steps=400, **options):
    """Text of one walk, and whether it came to its end."""
    tokenizer, rng = byte_level(marked), random.Random(seed)
    compiled = compiler(fmt, marked).compile(plan(body, format=fmt, scope="always", **options))
    batch = MatcherBatch([compiled], vocab_size=width(tokenizer))
    opener = tokenizer.encode(fmt.banned[0], add_special_tokens=False)
    ids, script = [], []
    for _ in range(steps):
        allowed = allowed_ids(batch.fill()[0], batch.vocab_size)
        assert allowed, f"no way on from {tokenizer.decode(ids)!r}"
        may_end = tokenizer.eos_token_id in allowed
        allowed.discard(tokenizer.eos_token_id)
        if may_end and (not allowed or rng.random() < 0.15):
            assert batch.accept(0, tokenizer.eos_token_id)
            break
        if not script and rng.random() < 0.05:
            script = list(opener)
        if script and script[0] in allowed:
            token = script.pop(0)
        else:
            script = []
            lean = sorted(allowed & leaning(marked))
            token = rng.choice(lean if lean and rng.random() < 0.4 else sorted(allowed))
        assert batch.accept(0, token)
        ids.append(token)
    pieces = token_bytes(tokenizer)
    text = b"".join(pieces[i] for i in ids).decode(errors="replace")
    return text, batch.is_terminated(0)


def check_calls(parsed, validators=VALIDATORS):
    for call in parsed.tool_calls:
        function = call["function"]
        validators[function["name"]].validate(json.loads(function["arguments"]))


def expected(problem):
    """What a walk may have mended: Kimi's index is free, and xgrammar (0.2.9) lets raw control
    characters into strings whose length is bounded."""
    if problem.kind != "repaired":
        return False
    if "raw control characters" in problem.detail:
        return '"code"' in problem.text
    return "used twice" in problem.detail


BOTH = pytest.mark.parametrize("fmt", [FORMATS["hermes"], FORMATS["kimi_k2"]], ids=lambda f: f.name)
MARKED = pytest.mark.parametrize("marked", [True, False], ids=["one-token", "spelled"])
WALKS = range(12)


@BOTH
@MARKED
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("parallel", [True, False])
def test_walks_are_read_back_as_calls_that_validate(fmt, marked, choice, parallel):
    body = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": parallel}
    ended = calls = 0
    for seed in WALKS:
        text, end = walk(fmt, marked, body, seed, schema_mode="strict")
        parsed = fmt.parse(text, TOOLS)
        check_calls(parsed)
        count = len(parsed.tool_calls)
        # Only strings with bounds on their length may hold a marker, and these are too short.
        assert count == text.count(CLOSER[fmt.name])
        if end:
            ended += 1
            assert count == text.count(OPENER[fmt.name])
            assert all(expected(p) for p in parsed.problems)
            if choice == "required":
                assert count >= 1
                assert text.startswith(fmt.banned[0])
        if not parallel:
            assert count <= 1
            if count:
                assert text.rstrip().endswith(fmt.markers[1])
        calls += count
    assert ended > len(WALKS) // 3
    assert calls


@BOTH
@MARKED
@pytest.mark.parametrize("name", SCHEMAS)
def test_named_walks_are_one_call_of_that_tool(fmt, marked, name):
    choice = {"type": "function", "function": {"name": name}}
    body = {"tools": TOOLS, "tool_choice": choice}
    ended = 0
    for seed in range(4):
        text, end = walk(fmt, marked, body, seed, schema_mode="strict")
        parsed = fmt.parse(text, TOOLS)
        check_calls(parsed)
        if end:
            ended += 1
            assert [c["function"]["name"] for c in parsed.tool_calls] == [name]
            assert parsed.message["content"] == ""
            assert all(expected(p) for p in parsed.problems)
        else:
            assert parsed.tool_calls == []
            assert [p.kind for p in parsed.problems] == ["incomplete"]
    assert ended


@BOTH
@MARKED
def test_walks_with_free_arguments_are_calls_of_known_tools(fmt, marked):
    body = {"tools": TOOLS, "tool_choice": "required"}
    free = dict.fromkeys(SCHEMAS, jsonschema.Draft202012Validator({"type": "object"}))
    calls = 0
    for seed in WALKS:
        text, end = walk(fmt, marked, body, seed, schema_mode="auto")
        parsed = fmt.parse(text, TOOLS)
        check_calls(parsed, free)
        calls += len(parsed.tool_calls)
        assert len(parsed.tool_calls) == text.count(CLOSER[fmt.name])
        assert end or len(parsed.tool_calls) <= text.count(OPENER[fmt.name])
    assert calls


@BOTH
@MARKED
@pytest.mark.parametrize("reasoning", [False, True])
def test_walks_with_choice_none_never_hold_a_call(fmt, marked, reasoning):
    body = {"tools": TOOLS, "tool_choice": "none"}
    for seed in WALKS:
        text, _ = walk(fmt, marked, body, seed, steps=150, reasoning=reasoning)
        assert not any(opener in text for opener in fmt.banned)
        assert fmt.parse(text, TOOLS, reasoning=reasoning).tool_calls == []


@BOTH
@MARKED
def test_walks_with_thinking_call_only_after_it(fmt, marked):
    body = {"tools": TOOLS, "tool_choice": "required"}
    for seed in range(6):
        text, end = walk(fmt, marked, body, seed, reasoning=True, schema_mode="strict")
        parsed = fmt.parse(text, TOOLS, reasoning=True)
        thought, closed, rest = text.partition("</think>")
        if closed:
            thought = re.sub(r"^\s*<think>", "", thought)
            assert parsed.message["reasoning_content"] == thought.strip("\n")
            assert len(parsed.tool_calls) == rest.count(CLOSER[fmt.name])
        if end:
            check_calls(parsed)
            assert parsed.tool_calls


@BOTH
def test_every_cut_of_a_walk_holds_only_calls_that_validate(fmt):
    body = {"tools": TOOLS, "tool_choice": "required"}
    for seed in range(3):
        text, _ = walk(fmt, True, body, seed, steps=200, schema_mode="strict")
        whole = fmt.parse(text, TOOLS).tool_calls
        for cut in range(len(text)):
            calls = fmt.parse(text[:cut], TOOLS).tool_calls
            assert calls == whole[: len(calls)]
