"""Reading completions back: reported faults of other parsers, cuts, and soups of markers."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar.formats import FORMATS
from grammar.formats.json_text import value_end

HERMES, KIMI = FORMATS["hermes"], FORMATS["kimi_k2"]
SECTION = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


def tool(name, required=(), **properties):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
WEATHER = tool("get_weather", ["city"], city=STRING)


def kimi_call(call_id, arguments):
    return f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def section(*calls):
    return SECTION[0] + "".join(kimi_call(*call) for call in calls) + SECTION[1]


def hermes_call(body):
    return f"<tool_call>\n{body}\n</tool_call>"


def read(fmt, text, tools, **options):
    """``(name, arguments)`` of each call, the content, the kinds of problem, and the rest."""
    parsed = fmt.parse(text, tools, **options)
    assert parsed.message["role"] == "assistant"
    calls = []
    for call in parsed.tool_calls:
        assert call["type"] == "function"
        calls.append((call["function"]["name"], json.loads(call["function"]["arguments"])))
    return calls, parsed.message["content"], [p.kind for p in parsed.problems], parsed


# Reported faults: id, format, tools, text, calls, content, kinds of problem
REPORTED = [
    ("dashed-name", KIMI, [tool("list-files", path=STRING)],
     section(("functions.list-files:0", '{"path": "/srv"}')),
     [("list-files", {"path": "/srv"})], "", []),
    ("dashed-and-dotted-names-in-two-sections", KIMI,
     [tool("list-files"), tool("geo.search"), tool("ping")],
     section(("functions.list-files:0", "{}"), ("functions.geo.search:1", "{}"))
     + "x" + section(("functions.ping:2", "{}")),
     [("list-files", {}), ("geo.search", {}), ("ping", {})], "x", []),
    ("id-without-prefix", KIMI, [WEATHER],
     section(("get_weather:0", '{"city": "Lima"}')),
     [("get_weather", {"city": "Lima"})], "", ["repaired"]),
    ("id-sanitised", KIMI, [tool("read_file", path=STRING)],
     section(("functions_read_file_3", '{"path": "a.txt"}')),
     [("read_file", {"path": "a.txt"})], "", ["repaired"]),
    ("id-sanitised-dotted-name", KIMI, [tool("fs.read_v2", path=STRING)],
     section(("functions_fs_read_v2_3", '{"path": "a.txt"}')),
     [("fs.read_v2", {"path": "a.txt"})], "", ["repaired"]),
    ("id-bare-counter", KIMI, [WEATHER, tool("get_news", ["topic"], topic=STRING)],
     section(("call00003", '{"city": "Oslo"}')),
     [("get_weather", {"city": "Oslo"})], "", ["repaired"]),
    ("id-bare-counter-two-tools-fit", KIMI, [WEATHER, tool("get_time", ["city"], city=STRING)],
     section(("call00003", '{"city": "Oslo"}')),
     [], section(("call00003", '{"city": "Oslo"}')).removeprefix(SECTION[0])
     .removesuffix(SECTION[1]), ["malformed"]),
    ("id-bare-counter-no-tool-fits", KIMI, [WEATHER],
     kimi_call("call00003", '{"city": 5}'),
     [], kimi_call("call00003", '{"city": 5}'), ["malformed"]),
    ("adjacent-calls", KIMI, [tool("get_weather", lat={"type": "number"}),
                              tool("get_news", topic=STRING)],
     section(("functions.get_weather:0", '{"lat":34.1}'),
             ("functions.get_news:1", '{"topic":"tech"}')),
     [("get_weather", {"lat": 34.1}), ("get_news", {"topic": "tech"})], "", []),
    ("truncated-second-call", KIMI, [WEATHER],
     "Checking both cities now." + SECTION[0]
     + kimi_call("functions.get_weather:0", '{"city":"Bergen"}')
     + '<|tool_call_begin|>functions.get_weather:1<|tool_call_argument_begin|>{"city":"New Yo',
     [("get_weather", {"city": "Bergen"})], "Checking both cities now.", ["incomplete"]),
    ("section-not-closed", KIMI, [WEATHER],
     SECTION[0] + kimi_call("functions.get_weather:0", '{"city":"Turin"}'),
     [("get_weather", {"city": "Turin"})], "", ["repaired"]),
    ("singular-section-markers", KIMI, [WEATHER],
     "<|tool_call_section_begin|>" + kimi_call("functions.get_weather:0", '{"city":"Graz"}')
     + "<|tool_call_section_end|>",
     [("get_weather", {"city": "Graz"})], "", []),
    ("whitespace-everywhere", KIMI, [WEATHER],
     "<|tool_calls_section_begin|>\n<|tool_call_begin|>\nfunctions.get_weather:0 "
     '<|tool_call_argument_begin|>\n {"city": "Kyiv"} \n<|tool_call_end|>\n'
     "<|tool_calls_section_end|>",
     [("get_weather", {"city": "Kyiv"})], "", []),
    ("no-arguments-written", KIMI, [tool("order_status")],
     section(("functions.order_status:0", ""), ("functions.order_status:1", "{}")),
     [("order_status", {}), ("order_status", {})], "", ["repaired"]),
    ("no-arguments-written-but-needed", KIMI, [WEATHER],
     kimi_call("functions.get_weather:0", ""),
     [], kimi_call("functions.get_weather:0", ""), ["malformed"]),
    ("text-around-the-section", KIMI, [WEATHER],
     "Before. " + section(("functions.get_weather:0", '{"city":"上海🌧️"}')) + " After.",
     [("get_weather", {"city": "上海🌧️"})], "Before.  After.", []),
    ("call-without-a-section", KIMI, [WEATHER],
     kimi_call("functions.get_weather:0", '{"city":"Bern"}'),
     [("get_weather", {"city": "Bern"})], "", ["repaired"]),
    ("end-marker-inside-a-string", KIMI, [WEATHER],
     section(("functions.get_weather:0", '{"city": "a<|tool_call_end|>b"}')),
     [("get_weather", {"city": "a<|tool_call_end|>b"})], "", []),
    ("index-written-twice", KIMI, [WEATHER],
     section(("functions.get_weather:0", '{"city": "a"}'),
             ("functions.get_weather:0", '{"city": "b"}')),
     [("get_weather", {"city": "a"}), ("get_weather", {"city": "b"})], "", ["repaired"]),
    ("empty-section", KIMI, [WEATHER], "".join(SECTION), [], "".join(SECTION), ["malformed"] * 2),
    ("raw-newline-in-string", HERMES, [tool("edit", ["content"], content=STRING)],
     '<tool_call>{"name":"edit","arguments":{"content":"line1\nline2\tend"}}</tool_call>',
     [("edit", {"content": "line1\nline2\tend"})], "", ["repaired"]),
    ("truncated-fragment-is-not-content", HERMES, [WEATHER],
     "Working.\n" + hermes_call('{"name": "get_weather", "arguments": {"city": "Riga"}}')
     + '\n<tool_call>\n{"name": "get_weather", "arguments": {"ci',
     [("get_weather", {"city": "Riga"})], "Working.", ["incomplete"]),
    ("arguments-as-a-json-string", HERMES, [tool("add", ["a", "b"], a=INTEGER, b=INTEGER)],
     hermes_call('{"name": "add", "arguments": "{\\"a\\": 2, \\"b\\": 3}"}'),
     [("add", {"a": 2, "b": 3})], "", ["repaired"]),
    ("type-mismatch-is-not-coerced", HERMES, [tool("set", ["celsius"], celsius=INTEGER)],
     hermes_call('{"name": "set", "arguments": {"celsius": "20"}}'),
     [("set", {"celsius": "20"})], "", []),
    ("json-in-prose", HERMES, [WEATHER],
     'The log line was {"name": "rm", "arguments": {"path": "/"}} yesterday.',
     [], 'The log line was {"name": "rm", "arguments": {"path": "/"}} yesterday.', []),
    ("bare-json-is-content", HERMES, [tool("search", ["query"], query=STRING)],
     '{"name": "search", "arguments": {"query": "北京今天的天气"}}',
     [], '{"name": "search", "arguments": {"query": "北京今天的天气"}}', []),
    ("escapes-and-cjk", HERMES, [tool("note", t=STRING)],
     hermes_call('{"name": "note", "arguments": {"t": "say \\"hi\\" \\u4e0a\\u6d77 '
                 '\\ud83d\\ude00 北京", "n": null, "f": -1.5e3, "b": [true, false]}}'),
     [("note", {"t": 'say "hi" 上海 😀 北京', "n": None, "f": -1500.0, "b": [True, False]})],
     "", []),
    ("one-line-and-carriage-returns", HERMES, [WEATHER],
     '<tool_call>{"name": "get_weather", "arguments": {"city": "NYC"}}</tool_call>\r\n'
     '<tool_call>\r\n{"name": "get_weather", "arguments": {"city": "LA"}}\r\n</tool_call>',
     [("get_weather", {"city": "NYC"}), ("get_weather", {"city": "LA"})], "", []),
    ("end-marker-inside-a-hermes-string", HERMES, [WEATHER],
     hermes_call('{"name": "get_weather", "arguments": {"city": "a</tool_call>\\nb"}}'),
     [("get_weather", {"city": "a</tool_call>\nb"})], "", []),
    ("arguments-first", HERMES, [WEATHER],
     hermes_call('{"arguments": {"city": "Bonn"}, "name": "get_weather"}'),
     [("get_weather", {"city": "Bonn"})], "", []),
    ("missing-end-marker-between-calls", HERMES, [WEATHER],
     '<tool_call>{"name": "get_weather", "arguments": {"city": "A"}}\n'
     + hermes_call('{"name": "get_weather", "arguments": {"city": "B"}}'),
     [("get_weather", {"city": "A"}), ("get_weather", {"city": "B"})], "", ["repaired"]),
    ("marker-mentioned-in-prose", HERMES, [WEATHER],
     "Write <tool_call> first. "
     + hermes_call('{"name": "get_weather", "arguments": {"city": "B"}}'),
     [("get_weather", {"city": "B"})], "Write <tool_call> first.", ["malformed"]),
    ("no-arguments-for-a-tool-without", HERMES, [tool("now")], hermes_call('{"name": "now"}'),
     [("now", {})], "", ["repaired"]),
    ("no-calls-without-tools", HERMES, [], hermes_call('{"name": "f", "arguments": {}}'),
     [], hermes_call('{"name": "f", "arguments": {}}'), ["malformed"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fmt", "tools", "text", "calls", "content", "kinds"),
    [case[1:] for case in REPORTED],
    ids=[case[0] for case in REPORTED],
)
def test_reported_faults(fmt, tools, text, calls, content, kinds):
    assert read(fmt, text, tools)[:3] == (calls, content, kinds)


# Each of these stays content, whole, and is reported
MALFORMED_HERMES = {
    "brace-missing": '{"name": "f", "arguments": {"a": 1}',
    "brace-too-many": '{"name": "f", "arguments": {"a": 1}}}',
    "not-json": "f(a=1)",
    "list": '[{"name": "f", "arguments": {}}]',
    "empty": "",
    "single-quotes": "{'name': 'f', 'arguments': {}}",
    "trailing-comma": '{"name": "f", "arguments": {"a": 1,}}',
    "no-name": '{"arguments": {}}',
    "name-no-string": '{"name": 5, "arguments": {}}',
    "name-with-quote": '{"name": "f\\"", "arguments": {}}',
    "name-of-two-lines": '{"name": "f\\ng", "arguments": {}}',
    "unknown-tool": '{"name": "g", "arguments": {}}',
    "no-arguments": '{"name": "f"}',
    "null-arguments": '{"name": "f", "arguments": null}',
    "list-arguments": '{"name": "f", "arguments": [1]}',
    "number-arguments": '{"name": "f", "arguments": 5}',
    "prose-arguments": '{"name": "f", "arguments": "a is 1"}',
    "list-in-a-string": '{"name": "f", "arguments": "[1]"}',
    "empty-string-arguments": '{"name": "f", "arguments": ""}',
    "not-a-number": '{"name": "f", "arguments": {"a": NaN}}',
    "infinity": '{"name": "f", "arguments": {"a": -Infinity}}',
    "name-twice": '{"name": "f", "name": "f", "arguments": {"a": 1}}',
    "arguments-twice": '{"name": "f", "arguments": {"a": 1}, "arguments": {"a": 2}}',
    "too-deep": '{"name": "f", "arguments": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}",
    "integer-too-long": '{"name": "f", "arguments": {"a": ' + "1" * 5000 + "}}",
}
F = tool("f", ["a"], a=INTEGER)


@pytest.mark.parametrize("body", MALFORMED_HERMES.values(), ids=MALFORMED_HERMES)
def test_malformed_hermes_calls_stay_content(body):
    good = hermes_call('{"name": "f", "arguments": {"a": 7}}')
    bad = hermes_call(body)
    assert read(HERMES, bad, [F])[:3] == ([], bad, ["malformed"])
    assert read(HERMES, f"{good}\n{bad}\n{good}", [F])[0] == [("f", {"a": 7})] * 2


MALFORMED_KIMI = {
    "brace-missing": ("functions.f:0", '{"a": 1'),
    "brace-too-many": ("functions.f:0", '{"a": 1}}'),
    "not-json": ("functions.f:0", "a=1"),
    "list": ("functions.f:0", "[1]"),
    "unknown-tool": ("functions.g:0", '{"b": 1}'),
    "no-id": ("", "[]"),
    "words-for-an-id": ("call the tool f", '{"b": 1}'),
    "trailing-comma": ("functions.f:0", '{"a": 1,}'),
    "not-a-number": ("functions.f:0", '{"a": NaN}'),
    "nothing": ("functions.f:0", ""),
    "spaces": ("functions.f:0", "  "),
    "null": ("functions.f:0", "null"),
}


@pytest.mark.parametrize("call", MALFORMED_KIMI.values(), ids=MALFORMED_KIMI)
def test_malformed_kimi_calls_stay_content(call):
    good = kimi_call("functions.f:1", '{"a": 7}')
    bad = kimi_call(*call)
    text = SECTION[0] + bad + good + SECTION[1]
    assert read(KIMI, text, [F])[:3] == ([("f", {"a": 7})], bad, ["malformed"])


def test_arguments_are_the_text_that_was_written():
    """Digits, escapes and spacing survive: nothing is decoded and encoded again."""
    arguments = '{"n": 12345678901234567890123, "x": 1.10, "s": "\\ud800 \\u00e9", "e":[ ]}'
    call = hermes_call(f'{{"name": "f", "arguments": {arguments}}}')
    assert HERMES.parse(call).tool_calls[0]["function"]["arguments"] == arguments
    call = kimi_call("functions.f:0", arguments)
    assert KIMI.parse(call).tool_calls[0]["function"]["arguments"] == arguments


def test_mended_arguments_can_be_encoded():
    """A lone surrogate, once unescaped, is no longer text that UTF-8 can carry."""
    inner = json.dumps(json.dumps({"a": "\ud800"}, ensure_ascii=False))
    call = hermes_call(f'{{"name": "f", "arguments": {inner}}}')
    arguments = HERMES.parse(call).tool_calls[0]["function"]["arguments"]
    assert arguments.encode()
    assert json.loads(arguments) == {"a": "\ud800"}


def test_ids():
    call = hermes_call('{"name": "f", "arguments": {}}')
    ids = [c["id"] for c in HERMES.parse(call * 3).tool_calls]
    assert ids == [c["id"] for c in HERMES.parse(call * 3).tool_calls]
    assert len(set(ids)) == 3
    assert all(i.startswith("call_") for i in ids)

    text = section(("functions.f:7", "{}"), ("f:8", "{}"), ("functions.f:7", "{}"))
    ids = [c["id"] for c in KIMI.parse(text).tool_calls]
    assert ids[:2] == ["functions.f:7", "functions.f:8"]
    assert len(set(ids)) == 3


def test_a_message_without_calls_has_no_calls_and_its_text_as_it_was():
    text = " \n  Two < three.\n\n"
    for fmt in (HERMES, KIMI):
        assert fmt.parse(text).message == {"role": "assistant", "content": text}


def test_arguments_cut_by_the_token_limit_are_not_executable():
    """Never ``{}``, never closed by the parser."""
    text = '<tool_call>\n{"name": "w", "arguments": {"content":"#!/usr/bin/env python3\\n'
    assert read(HERMES, text, None)[:3] == ([], "", ["incomplete"])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"a": [1, {"b": "}"}]} tail', (22, "complete")),
        ('"a\\"b" tail', (6, "complete")),
        ("[] tail", (2, "complete")),
        ('{"a": "x', (8, "open")),
        ('{"a": "x\\', (9, "open")),
        ('{"a": [1, 2', (11, "open")),
        ("{", (1, "open")),
        ('{"a": [1}', (8, "broken")),
        ('{"a": 1]', (7, "broken")),
        ('{"a": <b>}', (6, "broken")),
        ("{'a': 1}", (1, "broken")),
        ("12 ", (0, "broken")),
    ],
)
def test_where_a_json_value_ends(text, wanted):
    assert value_end(text, 0) == wanted
    end, state = value_end(f"ab{text}", 2)
    assert (end - 2, state) == wanted


# Thinking

CALL = {
    HERMES: hermes_call('{"name": "get_weather", "arguments": {"city": "Bern"}}'),
    KIMI: section(("functions.get_weather:0", '{"city":"Bern"}')),
}
BERN = [("get_weather", {"city": "Bern"})]


@pytest.mark.parametrize("fmt", CALL)
@pytest.mark.parametrize("opened_by_prompt", [True, False])
def test_a_call_inside_closed_thinking_is_no_call(fmt, opened_by_prompt):
    thought = f"Maybe {CALL[fmt]} or not."
    text = ("" if opened_by_prompt else "<think>\n") + f"{thought}\n</think>\n\nDone."
    calls, content, kinds, parsed = read(fmt, text, [WEATHER], reasoning=opened_by_prompt)
    assert (calls, content, kinds) == ([], "Done.", [])
    assert parsed.message["reasoning_content"] == thought


@pytest.mark.parametrize("fmt", CALL)
@pytest.mark.parametrize("gap", ["", "\n", "\n\n", " \n\n"])
def test_a_call_after_thinking_is_a_call(fmt, gap):
    calls, content, kinds, parsed = read(
        fmt, f"Hm\n\n</think>{gap}{CALL[fmt]}", [WEATHER], reasoning=True
    )
    assert (calls, content, kinds) == (BERN, "", [])
    assert parsed.message["reasoning_content"] == "Hm"


@pytest.mark.parametrize("fmt", CALL)
def test_a_call_ends_thinking_that_is_never_closed(fmt):
    text = f"<think>I should look this up. {CALL[fmt]}"
    calls, content, kinds, parsed = read(fmt, text, [WEATHER])
    assert (calls, content, kinds) == (BERN, "", ["repaired"])
    assert parsed.message["reasoning_content"] == "I should look this up. "


@pytest.mark.parametrize("fmt", CALL)
@pytest.mark.parametrize("thought", ["I should", "Write <tool_call> or <|tool_call_begin|> or "])
def test_thinking_that_is_cut_off_is_no_content(fmt, thought):
    calls, content, kinds, parsed = read(fmt, thought, [WEATHER], reasoning=True)
    assert (calls, content, kinds) == ([], "", ["incomplete"])
    assert parsed.message["reasoning_content"] == thought


@pytest.mark.parametrize("fmt", CALL)
def test_text_that_only_mentions_thinking_is_content(fmt):
    text = "A block ends with </think>, so"
    assert fmt.parse(text).message == {"role": "assistant", "content": text}


# Properties

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
# Formats that write the JSON of the arguments as it is
VERBATIM = [
    *(HERMES, KIMI),
    *map(FORMATS.get, ("exaone", "deepseek_r1", "deepseek_v3_1", "llama", "harmony")),
]
FRAGMENTS = st.sampled_from(
    [m for f in FORMATS.values() for m in (*f.markers, *f.banned)]
    + ['"', "\\", '"}', "{", "}", "\n", "functions.f:0", '{"name": "f", "arguments": ', "é😀"]
)
MARKED_TEXT = st.lists(TEXT | FRAGMENTS, max_size=3).map("".join)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | MARKED_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MARKED_TEXT, inner, max_size=3),
    max_leaves=4,
)
NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)
CALLS = st.lists(
    st.tuples(NAMES, st.dictionaries(MARKED_TEXT, JSON_VALUES, max_size=3)), min_size=1, max_size=3
)
STYLES = st.sampled_from(
    [{}, {"ensure_ascii": False}, {"separators": (",", ":")}, {"indent": 2, "ensure_ascii": False}]
)


def openai_calls(fmt, calls, style):
    return [
        {
            "id": f"functions.{name}:{i}" if fmt is KIMI else f"call_{i}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, **style)},
        }
        for i, (name, arguments) in enumerate(calls)
    ]


@pytest.mark.parametrize("fmt", VERBATIM, ids=lambda f: f.name)
@settings(deadline=None, max_examples=50)
@given(calls=CALLS, style=STYLES)
def test_rendered_calls_are_read_back(fmt, calls, style):
    wanted = openai_calls(fmt, calls, style)
    tools = [tool(name) for name in {name for name, _ in calls}]
    for known in (None, tools):
        parsed = fmt.parse(fmt.render(wanted), known)
        assert parsed.message == {"role": "assistant", "content": "", "tool_calls": wanted}
        assert parsed.problems == ()


@pytest.mark.parametrize("fmt", VERBATIM, ids=lambda f: f.name)
@settings(deadline=None, max_examples=40)
@given(calls=CALLS, before=TEXT, after=TEXT)
def test_text_around_calls_survives(fmt, calls, before, after):
    wanted = openai_calls(fmt, calls, {})
    parsed = fmt.parse(before + fmt.render(wanted) + after)
    assert parsed.tool_calls == wanted
    assert parsed.message["content"].split() == (before * bool(before.strip()) + after).split()


@pytest.mark.parametrize("fmt", [HERMES, KIMI], ids=lambda f: f.name)
@settings(deadline=None, max_examples=15)
@given(calls=CALLS, before=TEXT)
def test_a_cut_never_makes_a_call_that_was_not_written_whole(fmt, calls, before):
    wanted = openai_calls(fmt, calls, {})
    text = before + fmt.render(wanted)
    closer = "</tool_call>" if fmt is HERMES else "<|tool_call_end|>"
    ends = [len(before) + len(fmt.render(wanted[: n + 1])) for n in range(len(wanted))]
    if fmt is KIMI:
        ends = [end - len(SECTION[1]) for end in ends]
    assert all(text[:end].endswith(closer) for end in ends)
    for cut in range(len(text)):
        whole = sum(end <= cut for end in ends)
        assert fmt.parse(text[:cut]).tool_calls == wanted[:whole]


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@settings(deadline=None, max_examples=100)
@given(pieces=st.lists(TEXT | FRAGMENTS | JSON_VALUES.map(json.dumps), max_size=12))
def test_any_text_is_read_without_an_exception(fmt, pieces):
    text = "".join(pieces)
    parsed = fmt.parse(text, [tool("f")])
    for call in parsed.tool_calls:
        assert call["function"]["name"] == "f"
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
    ids = [call["id"] for call in parsed.tool_calls]
    assert len(set(ids)) == len(ids)
    if not parsed.tool_calls and not parsed.problems and not any(m in text for m in fmt.markers):
        assert parsed.message["content"] == text
    for problem in parsed.problems:
        assert problem.text in text
        assert problem.detail
        if problem.kind == "malformed" and "reasoning_content" not in parsed.message:
            assert problem.text.strip() in parsed.message["content"]
