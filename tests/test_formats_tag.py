"""The grammar of each format, token by token: what each ``tool_choice`` lets through.

Every text is tried on two vocabularies, one in which the format's markers are single tokens and one
that spells them from smaller ones.
"""

import functools
import json
import random

import pytest

from grammar.compiler import Compiler
from grammar.formats import FORMATS
from grammar.matcher import MatcherBatch
from grammar.policy import plan
from grammar.tokenizer import token_bytes, tokenizer_info
from tests.test_grammar_vocabularies import allowed_ids, byte_level, width

HERMES, KIMI = FORMATS["hermes"], FORMATS["kimi_k2"]
BOTH = pytest.mark.parametrize("fmt", [HERMES, KIMI], ids=lambda f: f.name)
MARKED = pytest.mark.parametrize("marked", [True, False], ids=["one-token", "spelled"])


@functools.cache
def compiler(fmt, marked):
    tokenizer = byte_level(marked)
    return Compiler(tokenizer_info(tokenizer, vocab_size=width(tokenizer), markers=fmt.markers))


def start(fmt, marked, body, **options):
    options = {"scope": "always", "schema_mode": "strict"} | options
    compiled = compiler(fmt, marked).compile(plan(body, format=fmt, **options))
    return MatcherBatch([compiled], vocab_size=width(byte_level(marked)))


def feed(batch, ids):
    """Whether each id in turn is in the mask and is accepted; the two must agree."""
    for i in ids:
        in_mask = i in allowed_ids(batch.fill()[0], batch.vocab_size)
        assert batch.accept(0, i) is in_mask
        if not in_mask:
            return False
    return True


def accepts(fmt, marked, body, text, **options):
    """Whether ``text``, as the tokenizer writes it, and then the end are allowed."""
    tokenizer = byte_level(marked)
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    return feed(start(fmt, marked, body, **options), ids)


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "units": {"enum": ["metric", "imperial"]},
            },
            "required": ["city"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
NAMED = {"type": "function", "function": {"name": "get_weather"}}

ARGUMENTS = {"city": 'Zürich, 上海 😀 "x" \n', "days": 3, "units": "metric"}


def render(fmt, *calls):
    return fmt.render(
        [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    )


def one(fmt):
    return render(fmt, ("get_weather", ARGUMENTS))


def two(fmt):
    return render(fmt, ("get_weather", {"city": "Oslo"}), ("now", {}))


@BOTH
@MARKED
@pytest.mark.parametrize(
    ("choice", "parallel", "wanted"),
    # text, call, two calls, text+call, call+text, call of the other tool
    [
        ("auto", True, [True, True, True, True, True, True]),
        ("auto", False, [True, True, False, True, False, True]),
        ("required", True, [False, True, True, False, None, True]),
        ("required", False, [False, True, False, False, False, True]),
        (NAMED, True, [False, True, False, False, False, False]),
        (NAMED, False, [False, True, False, False, False, False]),
    ],
    ids=str,
)
def test_what_each_choice_accepts(fmt, marked, choice, parallel, wanted):
    body = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": parallel}
    texts = [
        "It is 3 < 4.",
        one(fmt),
        two(fmt),
        "Let me look: " + one(fmt),
        one(fmt) + " So.",
        render(fmt, ("now", {})),
    ]
    if wanted[4] is None:  # styles differ in what may follow required calls
        wanted = [*wanted[:4], fmt is HERMES, wanted[5]]
    assert [accepts(fmt, marked, body, text) for text in texts] == wanted


@MARKED
@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=str)
@pytest.mark.parametrize("escape", [True, False])
@pytest.mark.parametrize("separators", [None, (",", ":"), (" , ", " : ")])
def test_json_as_json_dumps_writes_it(marked, choice, escape, separators):
    """Default separators, compact ones, and ones with a space on each side."""
    arguments = json.dumps(ARGUMENTS, ensure_ascii=escape, separators=separators)
    text = '<tool_call>\n{"name": "get_weather", "arguments": ' + arguments + "}\n</tool_call>"
    assert accepts(HERMES, marked, {"tools": TOOLS, "tool_choice": choice}, text)


@BOTH
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ('{"city": "a"}', True),
        ('{"city": "a", "days": 14}', True),
        ('{"city": "a", "units": "metric"}', True),
        ('{ "city":"a" }', True),
        ("{}", False),
        ('{"city": 5}', False),
        ('{"city": "a", "days": 15}', False),
        ('{"city": "a", "days": 0}', False),
        ('{"city": "a", "days": 3.5}', False),
        ('{"city": "a", "units": "si"}', False),
        ('{"city": "a", "other": 1}', False),
        ('{"city": "a", "city": "b"}', False),
        ('{"city": "a\nb"}', False),
        ('{"city": "a"', False),
        ("[]", False),
    ],
)
def test_strict_arguments_follow_the_schema(fmt, arguments, wanted):
    text = render(fmt, ("get_weather", arguments))
    assert accepts(fmt, True, {"tools": TOOLS, "tool_choice": "required"}, text) is wanted


@BOTH
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("{}", True),
        ('{"city": 5, "x": [null, {"y": -1.5e3}]}', True),
        ("5", False),
        ('"city"', False),
        ("[]", False),
        ("null", False),
        ('{"city": NaN}', False),
    ],
)
def test_free_arguments_are_still_an_object(fmt, arguments, wanted):
    body = {"tools": TOOLS, "tool_choice": "required"}
    text = render(fmt, ("get_weather", arguments))
    assert accepts(fmt, True, body, text, schema_mode="auto") is wanted


@BOTH
def test_only_the_strict_tool_is_held_to_its_schema(fmt):
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    loose = {"type": "function", "function": WEATHER["function"] | {"name": "loose"}}
    body = {"tools": [strict, loose]}
    for name, wanted in (("get_weather", False), ("loose", True)):
        text = render(fmt, (name, '{"city": 5}'))
        assert accepts(fmt, True, body, text, scope="auto", schema_mode="auto") is wanted


@BOTH
def test_a_tool_without_parameters_takes_none(fmt):
    body = {"tools": TOOLS, "tool_choice": "required"}
    assert accepts(fmt, True, body, render(fmt, ("now", "{}")))
    assert not accepts(fmt, True, body, render(fmt, ("now", '{"a": 1}')))


@BOTH
def test_unknown_tools_cannot_be_called(fmt):
    assert not accepts(fmt, True, {"tools": TOOLS}, render(fmt, ("get_wether", "{}")))


@BOTH
def test_dashed_and_dotted_names(fmt):
    tools = [{"type": "function", "function": {"name": n}} for n in ("list-files", "ns.f", "f")]
    for name in ("list-files", "ns.f", "f"):
        assert accepts(fmt, True, {"tools": tools}, render(fmt, (name, "{}")))


# Whitespace


@BOTH
@pytest.mark.parametrize(("limit", "longest"), [(1, 1), (2, 2), (8, 8)])
def test_whitespace_between_json_tokens_is_bounded(fmt, limit, longest):
    body = {"tools": TOOLS, "tool_choice": "required"}
    for n in range(longest + 3):
        text = render(fmt, ("get_weather", '{"city":' + " " * n + '"a"}'))
        assert accepts(fmt, True, body, text, max_whitespace_cnt=limit) is (n <= longest)


def test_indented_json_needs_more_whitespace():
    body = {"tools": TOOLS, "tool_choice": "required"}
    text = render(HERMES, ("get_weather", json.dumps({"city": "a", "days": 1}, indent=4)))
    assert not accepts(HERMES, True, body, text)
    assert accepts(HERMES, True, body, text, max_whitespace_cnt=8)


@BOTH
@MARKED
@pytest.mark.parametrize("schema_mode", ["strict", "auto"])
def test_a_model_that_loves_whitespace_still_finishes(fmt, marked, schema_mode):
    """It writes blanks wherever they are legal outside a string, and all the digits of an index."""
    tokenizer = byte_level(marked)
    vocabulary = token_bytes(tokenizer)
    body = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    batch = start(fmt, marked, body, schema_mode=schema_mode)
    text = b""

    def taste(i):
        piece = vocabulary[i]
        in_string = text.replace(b'\\"', b"").count(b'"') % 2 == 1
        blank = not piece.strip() and not in_string
        return blank, piece.isdigit() and b"{" not in text, piece in (b'"', b"}", b"]"), -len(piece)

    while len(text) < 200:
        ids = allowed_ids(batch.fill()[0], batch.vocab_size)
        if tokenizer.eos_token_id in ids:
            break
        best = max(ids, key=taste)
        assert batch.accept(0, best)
        text += vocabulary[best]
    assert batch.accept(0, tokenizer.eos_token_id), text
    assert len(fmt.parse(text.decode(), [WEATHER]).tool_calls) == 1


def test_an_array_that_may_hold_no_more_closes():
    """A model that wants a second element, then whitespace, runs into the bound."""
    items = {"type": "array", "items": {"type": "integer"}, "maxItems": 1}
    parameters = {"type": "object", "properties": {"a": items}, "required": ["a"]}
    body = {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
        "tool_choice": "required",
    }
    batch = start(HERMES, True, body)
    tokenizer = byte_level(True)
    head = '<tool_call>\n{"name": "f", "arguments": {"a": [1'
    assert feed(batch, tokenizer.encode(head, add_special_tokens=False))
    comma, blank = (tokenizer.encode(c, add_special_tokens=False)[0] for c in ", ")
    assert not batch.accept(0, comma)
    assert sum(batch.accept(0, blank) for _ in range(50)) == 2


# Markers inside strings and free text


@BOTH
@MARKED
def test_strings_hold_no_marker_of_the_format(fmt, marked):
    body = {"tools": TOOLS, "tool_choice": "required"}
    for marker in fmt.markers:
        if "think" not in marker:
            text = render(fmt, ("get_weather", {"city": f"a{marker}b"}))
            assert not accepts(fmt, marked, body, text), marker
            assert not accepts(fmt, marked, body, text, schema_mode="auto"), marker
    fine = render(fmt, ("get_weather", {"city": "a < b <tool_ <| x</tool"}))
    assert accepts(fmt, marked, body, fine)


@BOTH
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "maxLength": 3}, "abc", "abcd"),
        ({"type": "string", "minLength": 3}, "abc", "ab"),
        ({"enum": ["</tool_call>", "<|tool_call_end|>"]}, "</tool_call>", "a"),
        ({"enum": ["</tool_call>", "<|tool_call_end|>"]}, "<|tool_call_end|>", "b"),
        ({"const": "<tool_call><|tool_call_begin|>"}, "<tool_call><|tool_call_begin|>", "c"),
        ({"type": "string", "pattern": "^<.*>$"}, "<tool_call>", "tool_call"),
    ],
)
def test_the_schema_comes_before_the_exclusion_of_markers(fmt, schema, good, bad):
    parameters = {"type": "object", "properties": {"s": schema}, "required": ["s"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    body = {"tools": tools, "tool_choice": "required"}
    text = render(fmt, ("f", {"s": good}))
    assert accepts(fmt, False, body, text)
    assert json.loads(fmt.parse(text, tools).tool_calls[0]["function"]["arguments"]) == {"s": good}
    assert not accepts(fmt, False, body, render(fmt, ("f", {"s": bad})))


@BOTH
@MARKED
def test_free_text_holds_no_marker_but_the_start_of_a_call(fmt, marked):
    for marker in fmt.markers:
        assert not accepts(fmt, marked, {"tools": TOOLS}, f"a{marker}b"), marker
        assert not accepts(fmt, marked, {"tools": TOOLS}, one(fmt) + marker), marker
    prose = "if a < b: x <<= 1; <b>bold</b> <tool> <|x|> think>"
    assert accepts(fmt, marked, {"tools": TOOLS}, prose)


# Tool choice none


def spellings(text, vocabulary, count=25):
    """Ways to write ``text`` as tokens: of the longest pieces, byte by byte, and at random."""
    ids = {
        piece: i for i, piece in reversed(list(enumerate(vocabulary))) if piece and piece in text
    }
    rng = random.Random(0)

    def write(choose):
        rest, way = text, []
        while rest:
            head = choose([rest[:n] for n in range(1, len(rest) + 1) if rest[:n] in ids])
            way.append(ids[head])
            rest = rest[len(head) :]
        return tuple(way)

    longest, shortest = write(max), write(min)
    return {longest, shortest, *(write(rng.choice) for _ in range(count))}


@BOTH
@MARKED
@pytest.mark.parametrize("before", ["", "So: ", "a < b <", "<tool_call", "<|tool_call"])
def test_the_ban_holds_for_every_spelling(fmt, marked, before):
    tokenizer = byte_level(marked)
    vocabulary = token_bytes(tokenizer)
    body = {"tools": TOOLS, "tool_choice": "none"}
    prefix = tokenizer.encode(before, add_special_tokens=False)
    for opener in fmt.banned:
        ways = spellings(opener.encode(), vocabulary)
        assert len(ways) > 5
        for way in ways:
            batch = start(fmt, marked, body)
            assert feed(batch, prefix)
            assert not feed(batch, way)
        assert not accepts(fmt, marked, body, before + opener)


@BOTH
@MARKED
def test_the_ban_lets_prose_through(fmt, marked):
    body = {"tools": TOOLS, "tool_choice": "none"}
    for text in (
        "",
        "If a < b, write <b>so</b>; x <<= 2.",
        "<tool_cal> <tool call> < tool_call > <TOOL_CALL>",
        "<|tool_calls|> <|tool|>",
        '{"name": "get_weather", "arguments": {"city": "Bern"}}',
        "上海 😀\n\n\tend",
    ):
        assert accepts(fmt, marked, body, text)
        assert fmt.parse(text, TOOLS).message["content"] == text


@BOTH
@MARKED
def test_the_ban_covers_thinking_too(fmt, marked):
    """Where thinking is never closed, a call in it would be taken for one."""
    body = {"tools": TOOLS, "tool_choice": "none"}
    assert accepts(fmt, marked, body, "Hm <x>.\n</think>\n\nNo.", reasoning=True)
    assert not accepts(fmt, marked, body, f"{one(fmt)}</think>No.", reasoning=True)
    assert not accepts(fmt, marked, body, f"Hm</think>{one(fmt)}", reasoning=True)


# Thinking


@BOTH
@MARKED
@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=str)
def test_thinking_is_free_text_up_to_its_end(fmt, marked, choice):
    body = {"tools": TOOLS, "tool_choice": choice}
    for gap in ("", "\n", "\n\n", " \n\n"):
        for thought in ("", "Hm\n\n", f"<think>A call is {one(fmt)}, so", "a</thin"):
            text = f"{thought}</think>{gap}{one(fmt)}"
            assert accepts(fmt, marked, body, text, reasoning=True)
            parsed = fmt.parse(text, TOOLS, reasoning=True)
            assert len(parsed.tool_calls) == 1
            assert parsed.problems == ()
    assert not accepts(fmt, marked, body, one(fmt), reasoning=True)
    assert not accepts(fmt, marked, body, f"a</think>b</think>{one(fmt)}", reasoning=True)


@BOTH
def test_the_end_of_thinking_as_one_token_or_several(fmt):
    """Grammar and parser go by the text, so they agree on both."""
    tokenizer = byte_level(True)
    letters = [tokenizer.convert_tokens_to_ids(c) for c in "</think>"]
    call = tokenizer.encode(one(fmt), add_special_tokens=False)
    body = {"tools": TOOLS, "tool_choice": "required"}
    for end in ([tokenizer.convert_tokens_to_ids("</think>")], letters):
        batch = start(fmt, True, body, reasoning=True)
        assert feed(batch, [*end, *call, tokenizer.eos_token_id])
        text = tokenizer.decode([*end, *call])
        assert len(fmt.parse(text, TOOLS, reasoning=True).tool_calls) == 1


@BOTH
@MARKED
def test_without_thinking_its_markers_are_not_text(fmt, marked):
    assert not accepts(fmt, marked, {"tools": TOOLS}, "<think>")
    assert not accepts(fmt, marked, {"tools": TOOLS}, "</think>")
