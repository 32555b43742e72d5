"""Random walks through each grammar: all that it can generate is read back as calls that validate.

Many walks run at once over one bitmask. A walk draws among the allowed tokens, leaning towards
those that close something, and now and then follows a piece of a real call as far as it is allowed.
What must hold of its text comes from counting markers and from jsonschema, not from the grammar.
"""

import functools
import json
import random
import re
from itertools import cycle

import jsonschema
import numpy as np
import pytest

from grammar.compiler import Compiler
from grammar.formats import FORMATS
from grammar.matcher import MatcherBatch
from grammar.policy import plan
from grammar.registry_tokenizers import installed, load
from grammar.tokenizer import control_token_ids, info_from_bytes, token_bytes
from tests.test_formats_tag import compiler
from tests.test_grammar_vocabularies import byte_level, width

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
# One call of each, for pieces that a walk may follow
CALLS = {
    "nested": {"to": {"city": "Bern", "zip": 3}, "tags": ["a", "é"]},
    "bounded": {"days": 3, "ratio": 0.5, "sure": True},
    "optional": {"units": "metric", "note": "so", "limit": 7, "id": "x1"},
    "list": {"rows": [{"x": 1.5, "y": -2}]},
    "short.text": {"code": "abc", "plate": "ZH-12"},
    "no-parameters": {},
}
# xgrammar (0.2.9) refuses strings with bounds or a pattern in MiniMax M3's style.
INEXPRESSIBLE = {"minimax_m3": {"short.text"}}
# The end of a call, where no value can hold that text
CLOSER = {
    "hermes": "</tool_call>",
    "qwen_3": "</tool_call>",
    "kimi_k2": "<|tool_call_end|>",
    "qwen_3_coder": "</tool_call>",
    "qwen_3_5": "</tool_call>",
    "mimo": "</tool_call>",
    "glm_4_7": "</tool_call>",
    "deepseek_v3_2": "</｜DSML｜invoke>",
    "deepseek_v4": "</｜DSML｜invoke>",
    "deepseek_v4_1": "</｜DSML｜ invoke>",
    "minimax_m3": "]<]minimax[>[</invoke>",
}
VALIDATORS = {
    name: jsonschema.Draft202012Validator(s or {"type": "object", "maxProperties": 0})
    for name, s in SCHEMAS.items()
}
FREE = dict.fromkeys(SCHEMAS, jsonschema.Draft202012Validator({"type": "object"}))


def tools_for(fmt):
    return [
        {"type": "function", "function": {"name": name} | ({"parameters": s} if s else {})}
        for name, s in SCHEMAS.items()
        if name not in INEXPRESSIBLE.get(fmt.style, ())
    ]


def rendered(fmt, *names):
    return fmt.render([{"function": {"name": n, "arguments": CALLS[n]}} for n in names])


class Vocabulary:
    """What a walk needs to know of a tokenizer.

    Args:
        stops: every id that ends a text; a walk takes the first.
    """

    def __init__(self, tokenizer, vocab_size, stops):
        self.pieces = token_bytes(tokenizer)
        self.vocab_size, self.stops = vocab_size, stops
        closing = re.compile(r'"|[}\]]|\n|<.+>', re.DOTALL)
        texts = [piece.decode(errors="replace") for piece in self.pieces]
        self.leaning = np.array([i for i, text in enumerate(texts) if closing.fullmatch(text)])
        # Bytes that are no character by themselves: xgrammar counts them as characters otherwise
        # than Python does (encoded surrogates, for one), and models write them in their place.
        self.whole = np.zeros(vocab_size, dtype=bool)
        self.whole[[i for i, text in enumerate(texts) if "\ufffd" not in text]] = True
        self.encode = functools.cache(
            lambda text: tuple(tokenizer.encode(text, add_special_tokens=False))
        )

    def draw(self, mask, rng):
        """An allowed id; two times in five one that closes something, if there is any."""
        leaning = self.leaning[mask[self.leaning] != 0]
        if len(leaning) and rng.random() < 0.4:
            return int(rng.choice(leaning))
        for _ in range(16):  # most masks allow nearly all or nearly nothing
            token = rng.randrange(self.vocab_size)
            if mask[token] and self.whole[token]:
                return token
        allowed = np.flatnonzero(mask[: self.vocab_size])
        characters = allowed[self.whole[allowed]]
        return int(rng.choice(characters if len(characters) else allowed))

    def text(self, ids):
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace")


@functools.cache
def small(marked):
    tokenizer = byte_level(marked)
    return Vocabulary(tokenizer, width(tokenizer), (tokenizer.eos_token_id,))


@functools.cache
def scripts(fmt, vocabulary):
    """Whole calls, and their parts: each tag, and what stands between two."""
    names = [t["function"]["name"] for t in tools_for(fmt)]
    calls = [rendered(fmt, name) for name in names] + [rendered(fmt, *names[:2])]
    parts = {part for call in calls for part in re.split(r"(?<=>)|(?=<)|(?<=\n)", call) if part}
    return [vocabulary.encode(t) for t in calls], [vocabulary.encode(t) for t in sorted(parts)]


def walks(fmt, vocabulary, compiled, count, seed=0, steps=250, scripted=0.12):
    """Text of each walk, and whether it came to its end."""
    rng = random.Random(seed)
    batch = MatcherBatch([compiled] * count, vocab_size=vocabulary.vocab_size)
    whole, parts = scripts(fmt, vocabulary)
    # Most walks set out to make a call.
    ids, script = [[] for _ in range(count)], [rng.choice([*whole, ()]) for _ in range(count)]
    live = set(range(count))
    for _ in range(steps):
        masks = np.unpackbits(batch.fill().numpy().view(np.uint8), axis=1, bitorder="little")
        for row in list(live):
            mask = masks[row]
            may_end = mask[vocabulary.stops[0]]
            mask[list(vocabulary.stops)] = 0
            if not script[row] and rng.random() < scripted:
                script[row] = rng.choice(whole if rng.random() < 0.25 else parts)
            if script[row] and mask[script[row][0]]:
                token, script[row] = script[row][0], script[row][1:]
            else:
                script[row] = ()
                stuck = not mask[: vocabulary.vocab_size].any()
                assert may_end or not stuck, f"no way on from {vocabulary.text(ids[row])!r}"
                if may_end and (stuck or rng.random() < 0.3):
                    assert batch.accept(row, vocabulary.stops[0])
                    live.discard(row)
                    continue
                token = vocabulary.draw(mask, rng)
            assert batch.accept(row, token)
            ids[row].append(token)
        if not live:
            break
    return [(vocabulary.text(ids[row]), batch.is_terminated(row)) for row in range(count)]


def small_walks(fmt, marked, body, count, *, steps=250, **options):
    compiled = compiler(fmt, marked).compile(plan(body, format=fmt, scope="always", **options))
    return walks(fmt, small(marked), compiled, count, steps=steps)


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


# Names that share a grammar and a parser share their walks.
DISTINCT = {f.style: f for f in reversed(FORMATS.values())}.values()
EVERY = pytest.mark.parametrize("fmt", DISTINCT, ids=lambda f: f.name)
MARKED = pytest.mark.parametrize("marked", [True, False], ids=["one-token", "spelled"])


@EVERY
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("parallel", [True, False], ids=["many", "one"])
def test_walks_are_read_back_as_calls_that_validate(fmt, choice, parallel):
    tools = tools_for(fmt)
    body = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}
    ended = calls = 0
    for marked in (True, False):
        for text, end in small_walks(fmt, marked, body, 16, schema_mode="strict"):
            parsed = fmt.parse(text, tools)
            check_calls(parsed)
            count = len(parsed.tool_calls)
            if fmt.style in CLOSER:
                # A call may be over before its last closing tag.
                assert 0 <= count - text.count(CLOSER[fmt.style]) <= (not end), text
            if end:
                ended += 1
                assert all(expected(p) for p in parsed.problems), (text, parsed.problems)
                if choice == "required":
                    assert count >= 1
            if not parallel:
                assert count <= 1
                if count and end:
                    # Harmony's last marker is a stop token, which may not reach the text.
                    last = rendered(fmt, "no-parameters")[-2:].rstrip()
                    assert text.rstrip().endswith((last, "}") if fmt.name == "harmony" else last)
            calls += count
    assert ended > 8
    assert calls > 4


@EVERY
@pytest.mark.parametrize("name", SCHEMAS)
def test_named_walks_are_one_call_of_that_tool(fmt, name):
    if name in INEXPRESSIBLE.get(fmt.style, ()):
        pytest.skip("xgrammar refuses the schema in this style")
    tools = tools_for(fmt)
    choice = {"type": "function", "function": {"name": name}}
    body = {"tools": tools, "tool_choice": choice}
    ended = 0
    for marked in (True, False):
        for text, end in small_walks(fmt, marked, body, 6, schema_mode="strict"):
            parsed = fmt.parse(text, tools)
            check_calls(parsed)
            if end:
                ended += 1
                assert [c["function"]["name"] for c in parsed.tool_calls] == [name], text
                assert parsed.message["content"] == ""
                assert all(expected(p) for p in parsed.problems), (text, parsed.problems)
            else:
                assert len(parsed.tool_calls) <= 1
                assert all(p.kind != "malformed" for p in parsed.problems), (text, parsed.problems)
    assert ended


@EVERY
def test_walks_with_free_arguments_are_calls_of_known_tools(fmt):
    """Free arguments may name a member twice: JSON keeps the last, tags make it no call."""
    tools = tools_for(fmt)
    body = {"tools": tools, "tool_choice": "required"}
    calls = 0
    for marked in (True, False):
        for text, end in small_walks(fmt, marked, body, 16, schema_mode="auto"):
            parsed = fmt.parse(text, tools)
            check_calls(parsed, FREE)
            calls += len(parsed.tool_calls)
            twice = sum("twice" in p.detail for p in parsed.problems if p.kind == "malformed")
            if fmt.style in CLOSER:
                read = len(parsed.tool_calls) + twice
                assert 0 <= read - text.count(CLOSER[fmt.style]) <= (not end), text
            if end:
                assert len(parsed.tool_calls) + twice >= 1, text
    assert calls


@EVERY
@pytest.mark.parametrize("reasoning", [False, True], ids=["answer", "thinking"])
def test_a_thousand_walks_with_choice_none_hold_no_call(fmt, reasoning):
    tools = tools_for(fmt)
    body = {"tools": tools, "tool_choice": "none"}
    for marked in (True, False):
        texts = small_walks(fmt, marked, body, 250, steps=24, reasoning=reasoning)
        for text, _ in texts:
            assert not any(opener in text for opener in fmt.banned)
            assert fmt.parse(text, tools, reasoning=reasoning).tool_calls == []
        assert any("<" in text for text, _ in texts)


@EVERY
def test_walks_with_thinking_call_only_after_it(fmt):
    tools = tools_for(fmt)
    body = {"tools": tools, "tool_choice": "required"}
    options = {"reasoning": True, "schema_mode": "strict"}
    for marked in (True, False):
        for text, end in small_walks(fmt, marked, body, 8, steps=350, **options):
            parsed = fmt.parse(text, tools, reasoning=True)
            if fmt.end_of_thinking is not None:
                thought, closed, _ = text.partition(fmt.end_of_thinking)
                if closed:
                    thought = re.sub(rf"^\s*{re.escape(fmt.start_of_thinking)}", "", thought)
                    assert parsed.message["reasoning_content"] == thought.strip("\n")
                    start = len(text) - len(text.partition(fmt.end_of_thinking)[2])
                    assert all(span[0] >= start for span in parsed.spans)
            if end:
                check_calls(parsed)
                assert parsed.tool_calls


@EVERY
def test_every_cut_of_a_walk_holds_only_calls_that_validate(fmt):
    tools = tools_for(fmt)
    body = {"tools": tools, "tool_choice": "required"}
    for text, _ in small_walks(fmt, True, body, 3, steps=80, schema_mode="strict"):
        whole = fmt.parse(text, tools).tool_calls
        for cut in range(0, len(text), 2):
            calls = fmt.parse(text[:cut], tools).tool_calls
            assert calls == whole[: len(calls)]


# Real vocabularies

REAL = ["qwen3.6", "deepseek-v4"]


@functools.cache
def real(name):
    loaded = load(name)
    return Vocabulary(loaded.tokenizer, loaded.vocab_size, loaded.stop_token_ids), loaded


# New masks over 250,000 tokens take seconds a format: those whose models have these vocabularies.
@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "deepseek_v4"])
def test_walks_on_real_vocabularies(name):
    """Control tokens of the model never show up in a text."""
    fmt = FORMATS[name]
    name = REAL["DSML" in "".join(fmt.markers)]
    if not installed(name):
        pytest.skip(f"the package of {name!r} is not installed")
    vocabulary, loaded = real(name)
    info = info_from_bytes(
        vocabulary.pieces,
        vocab_size=loaded.vocab_size,
        stop_token_ids=loaded.stop_token_ids,
        control_token_ids=control_token_ids(loaded.tokenizer, fmt.markers),
    )
    tools = tools_for(fmt)
    compiler, choices = Compiler(info), cycle(["auto", "required"])
    calls = 0
    for choice, mode in zip(choices, ["strict", "auto"], strict=False):
        body = {"tools": tools, "tool_choice": choice}
        made = plan(body, format=fmt, scope="always", schema_mode=mode)
        for text, end in walks(fmt, vocabulary, compiler.compile(made), 4, steps=70, scripted=0.3):
            parsed = fmt.parse(text, tools)
            check_calls(parsed, FREE if mode == "auto" else VALIDATORS)
            calls += len(parsed.tool_calls)
            if end and mode == "strict":
                assert all(expected(p) for p in parsed.problems), (text, parsed.problems)
            for token in loaded.tokenizer.all_special_tokens:
                assert token in fmt.markers or token not in text
    assert calls
