"""EXAONE, DeepSeek up to V3.1, Llama, Gemma 4, Kimi K3 and Harmony: what their models write."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar.formats import FORMATS, get_format
from grammar.policy import plan
from tests.test_formats_parse import CALLS, STRING, WEATHER, read, tool
from tests.test_formats_tag import accepts, feed, spellings, start
from tests.test_formats_tag import token_bytes as pieces_of
from tests.test_grammar_vocabularies import byte_level

EXAONE, V31, R1 = FORMATS["exaone"], FORMATS["deepseek_v3_1"], FORMATS["deepseek_r1"]
LLAMA, GEMMA = FORMATS["llama"], FORMATS["gemma_4"]
K3, HARMONY = FORMATS["kimi_k3"], FORMATS["harmony"]
OURS = [EXAONE, V31, R1, LLAMA, GEMMA, K3, HARMONY]

NEWS, NOW = tool("get_news", ["topic"], topic=STRING), tool("now")
TOOLS = [WEATHER, NEWS, NOW]
OSLO = ("get_weather", {"city": "Oslo"})


def check(fmt, text, calls, content="", kinds=(), tools=TOOLS):
    assert read(fmt, text, tools)[:3] == (list(calls), content, list(kinds))


# EXAONE 4.0: the chat template of LGAI-EXAONE/EXAONE-4.0-32B


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>',
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    ],
)
def test_exaone_on_one_line_or_three(text):
    check(EXAONE, text, [OSLO])


# DeepSeek: the chat templates of DeepSeek-R1-0528 and V3.1, and "ToolCall" of V3.1's model card

SECTION = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
PLAIN = '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>'
FENCED = (
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
    '```json\n{"city": "Oslo"}\n```<｜tool▁call▁end｜>'
)
DEEPSEEK = {
    "v3.1": (SECTION[0] + PLAIN + SECTION[1], [OSLO]),
    "r1": (SECTION[0] + FENCED + SECTION[1], [OSLO]),
    "adjacent": (SECTION[0] + PLAIN * 2 + SECTION[1], [OSLO] * 2),
    "lines-between": (SECTION[0] + FENCED + "\n" + FENCED + SECTION[1], [OSLO] * 2),
    "both-kinds": (SECTION[0] + PLAIN + "\n" + FENCED + SECTION[1], [OSLO] * 2),
    "no-fence": (SECTION[0] + FENCED.replace("```json\n", "").replace("\n```", "") + SECTION[1],
                 [OSLO]),
    "fence-without-language": (SECTION[0] + FENCED.replace("json", "") + SECTION[1], [OSLO]),
    "fence-on-one-line": (SECTION[0] + FENCED.replace("\n", "") + SECTION[1], [OSLO]),
    "text-around": ("Let me see.\n\n" + SECTION[0] + PLAIN + SECTION[1] + "\nDone.", [OSLO],
                    "Let me see.\n\n\nDone."),
    "no-section": (PLAIN, [OSLO], "", ["repaired"]),
    "section-not-closed": (SECTION[0] + PLAIN, [OSLO], "", ["repaired"]),
    "call-not-closed": (SECTION[0] + PLAIN.removesuffix("<｜tool▁call▁end｜>") + SECTION[1], [OSLO],
                        "", ["repaired"]),
    "closer-in-a-string": (SECTION[0] + PLAIN.replace("Oslo", "a<｜tool▁call▁end｜>b") + SECTION[1],
                           [("get_weather", {"city": "a<｜tool▁call▁end｜>b"})]),
    "fence-in-a-string": (SECTION[0] + FENCED.replace("Oslo", "```json {} ```") + SECTION[1],
                          [("get_weather", {"city": "```json {} ```"})]),
    "json-in-a-string": (SECTION[0] + PLAIN.replace('{"city": "Oslo"}', r'"{\"city\": \"Oslo\"}"')
                         + SECTION[1], [OSLO], "", ["repaired"]),
    "second-cut": (SECTION[0] + PLAIN + PLAIN[:-30], [OSLO], "", ["incomplete"]),
    "cut-in-the-name": (SECTION[0] + PLAIN[:30], [], "", ["incomplete"]),
    "cut-in-the-fence": (SECTION[0] + FENCED[:FENCED.index("json") + 2], [], "", ["incomplete"]),
    "cut-in-the-last-fence": (SECTION[0] + FENCED[:FENCED.rindex("```") + 2], [], "",
                              ["incomplete"]),
    "no-arguments-for-a-tool-without": (
        SECTION[0] + "<｜tool▁call▁begin｜>now<｜tool▁sep｜><｜tool▁call▁end｜>" + SECTION[1],
        [("now", {})], "", ["repaired"]),
    "unknown-tool": (SECTION[0] + PLAIN.replace("weather", "storm") + SECTION[1], [],
                     PLAIN.replace("weather", "storm"), ["malformed"]),
    "no-name": (SECTION[0] + PLAIN.replace("get_weather", "") + SECTION[1], [],
                PLAIN.replace("get_weather", ""), ["malformed"]),
    "not-json": (SECTION[0] + PLAIN.replace('"city"', "city") + PLAIN + SECTION[1], [OSLO],
                 PLAIN.replace('"city"', "city"), ["malformed"]),
}  # fmt: skip


@pytest.mark.parametrize("fmt", [V31, R1], ids=lambda f: f.name)
@pytest.mark.parametrize("case", DEEPSEEK.values(), ids=DEEPSEEK)
def test_deepseek(fmt, case):
    check(fmt, *case)


def test_a_deepseek_tool_may_be_called_function():
    tools = [tool("function", a=STRING)]
    text = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>{"a": "b"}<｜tool▁call▁end｜>'
    assert read(V31, SECTION[0] + text + SECTION[1], tools)[0] == [("function", {"a": "b"})]


# Llama 3: llama.com, prompt format of Llama 3.1 (JSON based tool calling); vLLM's llama3_json

CALL = '{"name": "get_weather", "parameters": {"city": "Oslo"}}'
TYPED = '{"type": "function", "name": "get_weather", "parameters": {"city": "Oslo"}}'
LLAMA_CASES = {
    "as-documented": (CALL, [OSLO]),
    "with-type": (TYPED, [OSLO]),
    "python-tag": ("<|python_tag|>" + TYPED, [OSLO]),
    "python-tag-and-newline": ("Sure.\n<|python_tag|>\n" + CALL, [OSLO], "Sure."),
    "arguments-for-parameters": (CALL.replace("parameters", "arguments"), [OSLO]),
    "two": (f"{CALL}; {CALL}", [OSLO] * 2),
    "three-ways-apart": (f"{CALL}\n{CALL};{CALL}{CALL}", [OSLO] * 4),
    "two-python-tags": (f"<|python_tag|>{CALL}; <|python_tag|>{CALL}", [OSLO] * 2),
    "text-around": (f"I will look: {CALL} ok?", [OSLO], "I will look:  ok?"),
    "semicolon-that-is-text": (f"{CALL}; then {CALL};", [OSLO] * 2, "; then ;"),
    "indented": (json.dumps(json.loads(CALL), indent=4), [OSLO]),
    "compact": (json.dumps(json.loads(CALL), separators=(",", ":")), [OSLO]),
    "parameters-first": ('{"parameters": {"city": "Oslo"}, "name": "get_weather"}', [OSLO]),
    "type-mismatch-is-not-coerced": (CALL.replace('"Oslo"', "5"), [("get_weather", {"city": 5})]),
    "call-in-a-string": (CALL.replace("Oslo", r"{\"name\": \"now\", \"parameters\": {}}"),
                         [("get_weather", {"city": '{"name": "now", "parameters": {}}'})]),
    "raw-newline-in-a-string": (CALL.replace("Oslo", "a\nb"), [("get_weather", {"city": "a\nb"})],
                                "", ["repaired"]),
    "json-in-a-string": (CALL.replace('{"city": "Oslo"}', r'"{\"city\": \"Oslo\"}"'), [OSLO], "",
                         ["repaired"]),
    "json-answer": ('{"name": "Ann", "age": 5}', [], '{"name": "Ann", "age": 5}'),
    "json-answer-cut": ('{"name": "Ann", "ag', [], '{"name": "Ann", "ag'),
    "type-that-is-no-function": ('{"type": "function"}', [], '{"type": "function"}'),
    "other-type": (TYPED.replace('"function"', '"tool"'), [], TYPED.replace("function", "tool")),
    "braces-in-prose": ("f(x) = { x } and {\"a\": {}}", [], "f(x) = { x } and {\"a\": {}}"),
    "python-code": ("<|python_tag|>print(1)", [], "<|python_tag|>print(1)", ["malformed"]),
    "cut": (CALL[:-8], [], "", ["incomplete"]),
    "cut-in-the-name": (CALL[:15], [], "", ["incomplete"]),
    "second-cut": (f"{CALL}; {CALL[:-1]}", [OSLO], "", ["incomplete"]),
    **{
        name: (text, [], text, ["malformed"])
        for name, text in {
            "unknown-tool": CALL.replace("weather", "storm"),
            "no-parameters-although-none-are-needed": '{"name": "now"}',
            "parameters-twice": CALL[:-1] + ', "parameters": {}}',
            "both-keys": CALL[:-1] + ', "arguments": {}}',
            "other-keys": CALL[:-1] + ', "id": 5}',
            "list": CALL.replace('{"city": "Oslo"}', "[1]"),
            "null": CALL.replace('{"city": "Oslo"}', "null"),
            "not-json": CALL.replace(": {", ": {,"),
            "escaped-key": CALL.replace("parameters", r"\u0070arameters"),
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("case", LLAMA_CASES.values(), ids=LLAMA_CASES)
def test_llama(case):
    check(LLAMA, *case)


# Gemma 4: ai.google.dev, prompt formatting of Gemma 4; the chat template; vLLM's parser

GEMMA_TOOL = tool("f", a={}, b={}, c={}, s=STRING)
GEMMA_VALUES = {
    "scalars": ('a:true,b:3,c:2.5,s:<|"|>hi<|"|>', {"a": True, "b": 3, "c": 2.5, "s": "hi"}),
    "null": ("a:null,b:false", {"a": None, "b": False}),
    "exponent": ("a:-1.5e3", {"a": -1500.0}),
    "nested": ('a:{x:1,y:<|"|>q<|"|>},b:[1,2,[]],c:[<|"|>a<|"|>,{}]',
               {"a": {"x": 1, "y": "q"}, "b": [1, 2, []], "c": ["a", {}]}),
    "empty": ("", {}),
    "spaces": (' a : 1 ,\n\ts: <|"|> x <|"|> ', {"a": 1, "s": " x "}),
    "brackets-in-a-string": ('s:<|"|>a{b},c[d]:"e"<|"|>', {"s": 'a{b},c[d]:"e"'}),
    "markers-in-a-string": ('s:<|"|><tool_call|><|tool_call>call:g{}<tool_call|><|"|>',
                            {"s": "<tool_call|><|tool_call>call:g{}<tool_call|>"}),
    "no-escapes": (r's:<|"|>C:\new "x"<|"|>', {"s": r'C:\new "x"'}),
    "newlines": ('s:<|"|>a\n\n b\n<|"|>', {"s": "a\n\n b\n"}),
    "unicode": ('s:<|"|>上海 😀<|"|>', {"s": "上海 😀"}),
    "quoted-key": ('<|"|>a b<|"|>:1', {"a b": 1}),
    "dashed-and-dotted-keys": ("a-b:1,$c.d:2", {"a-b": 1, "$c.d": 2}),
    "key-with-a-space": ("a b:1", {"a b": 1}),
}  # fmt: skip
GEMMA_REPAIRED = {
    "json-quotes": (r'a:"x\n"', {"a": "x\n"}),
    "no-quotes": ("a:New York,b:1", {"a": "New York", "b": 1}),
    "python-constants": ("a:None,b:True,c:[False]", {"a": None, "b": True, "c": [False]}),
    "twice": ("a:1,a:2", {"a": 2}),
}
GEMMA_BROKEN = {
    "trailing-comma": "a:1,",
    "no-value": "a:,b:1",
    "no-colon": "a",
    "colon-for-comma": "a:1:2",
    "bracket-open": "a:[1,2",
    "bracket-wrong": "a:[1}",
    "no-key": ":1",
}


def gemma(body, name="f"):
    return f"<|tool_call>call:{name}{{{body}}}<tool_call|>"


@pytest.mark.parametrize("body, wanted", GEMMA_VALUES.values(), ids=GEMMA_VALUES)
def test_gemma_values(body, wanted):
    text = f"So: {gemma(body)} ok"
    assert read(GEMMA, text, [GEMMA_TOOL])[:3] == ([("f", wanted)], "So:  ok", [])
    assert read(GEMMA, gemma(body), None)[0] == [("f", wanted)]


@pytest.mark.parametrize("body, wanted", GEMMA_REPAIRED.values(), ids=GEMMA_REPAIRED)
def test_gemma_values_that_are_mended(body, wanted):
    assert read(GEMMA, gemma(body), [GEMMA_TOOL])[:3] == ([("f", wanted)], "", ["repaired"])


@pytest.mark.parametrize("body", GEMMA_BROKEN.values(), ids=GEMMA_BROKEN)
def test_a_broken_gemma_call_leaves_its_siblings_alone(body):
    bad, good = gemma(body), gemma("a:1")
    calls, content, kinds, _ = read(GEMMA, good + bad + good, [GEMMA_TOOL])
    assert (calls, content, kinds) == ([("f", {"a": 1})] * 2, bad, ["malformed"])


@pytest.mark.parametrize(
    ("text", "calls", "content", "kinds"),
    [
        (gemma("", "list-files.v2"), [], gemma("", "list-files.v2"), ["malformed"]),
        ("<|tool_call>not-a-call{x:2}<tool_call|>", [], "<|tool_call>not-a-call{x:2}<tool_call|>",
         ["malformed"]),
        ("Write <|tool_call> first.", [], "Write <|tool_call> first.", ["malformed"]),
        ('a <|tool_call>call:f{a:1,s:<|"|>x', [], "a", ["incomplete"]),
        ("<|tool_call>call:f{a:1}", [], "", ["incomplete"]),
        ("<|tool_call>ca", [], "", ["incomplete"]),
        ("<|tool_call>call:f{a:1<|tool_call>call:f{a:2}<tool_call|>", [("f", {"a": 2})],
         "<|tool_call>call:f{a:1", ["malformed"]),
        ("<|tool_call>call:f{a:1}<|tool_call>call:f{a:2}<tool_call|>",
         [("f", {"a": 1}), ("f", {"a": 2})], "", ["repaired"]),
        ("<|tool_call>call:f{a:" + "[" * 100_000 + "]" * 100_000 + "}<tool_call|>", [], None,
         ["malformed"]),
    ],
    ids=["unknown", "no-call", "mention", "cut", "cut-before-the-end", "cut-in-the-name", "resync",
         "end-missing", "too-deep"],
)  # fmt: skip
def test_gemma_calls(text, calls, content, kinds):
    wanted = (calls, text if content is None else content, kinds)
    assert read(GEMMA, text, [GEMMA_TOOL])[:3] == wanted


def test_gemma_keys_that_the_tool_declares_may_hold_anything():
    tools = [tool("f", **{"xml:lang": STRING, "a,b": {}, "xml": {}})]
    text = gemma('xml:lang:<|"|>de<|"|>,a,b:1,xml:2')
    assert read(GEMMA, text, tools)[0] == [("f", {"xml:lang": "de", "a,b": 1, "xml": 2})]


def test_gemma_numbers_keep_their_digits():
    text = gemma("a:12345678901234567890123,b:1.10")
    arguments = GEMMA.parse(text).tool_calls[0]["function"]["arguments"]
    assert arguments == '{"a": 12345678901234567890123, "b": 1.10}'


def test_gemma_thinking():
    text = f"<|channel>thought\nHm {gemma('a:1')}\n<channel|>{gemma('a:2')}"
    calls, content, kinds, parsed = read(GEMMA, text, [GEMMA_TOOL])
    assert (calls, content, kinds) == ([("f", {"a": 2})], "", [])
    assert parsed.message["reasoning_content"] == f"Hm {gemma('a:1')}"


# Kimi K3: as TensorRT-LLM's and vLLM's parsers read what the checkpoint's encoding_k3.py writes

K3_TOOL = tool(
    "plan_trip",
    city=STRING,
    days={"type": "number"},
    sure={"type": "boolean"},
    seat={"type": "object"},
    stops={"type": "array"},
    note={"type": ["string", "null"]},
)
RESPONSE_END, MESSAGE_END = "<|close|>response<|sep|>", "<|close|>message<|sep|>"


def argument(key, kind, value):
    return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'


def k3_call(*arguments, name="plan_trip", index=1):
    header = f'<|open|>call tool="{name}" index="{index}"<|sep|>'
    return header + "".join(arguments) + "<|close|>call<|sep|>"


def k3_tools(*calls):
    return f"<|open|>tools<|sep|>{''.join(calls)}<|close|>tools<|sep|>{MESSAGE_END}"


CITY = argument("city", "string", "Oslo")
OSLO_TRIP = ("plan_trip", {"city": "Oslo"})
K3_CASES = {
    "every-type": (
        RESPONSE_END + k3_tools(k3_call(
            argument("city", "string", "北京 & <b>\n"), argument("days", "number", "3"),
            argument("sure", "boolean", "false"), argument("seat", "object", '{"a":"window"}'),
            argument("stops", "array", '["上海",[1]]'), argument("note", "null", "null"))),
        [("plan_trip", {"city": "北京 & <b>\n", "days": 3, "sure": False, "seat": {"a": "window"},
                        "stops": ["上海", [1]], "note": None})]),
    "text-before": ("I will check. " + RESPONSE_END + k3_tools(k3_call(CITY)), [OSLO_TRIP],
                    "I will check."),
    "text-only": ("No need." + RESPONSE_END + MESSAGE_END + "<|end_of_msg|>", [], "No need."),
    "response-opened": ("<|open|>response<|sep|>Ok." + RESPONSE_END + k3_tools(k3_call(CITY)),
                        [OSLO_TRIP], "Ok."),
    "two-and-none": (RESPONSE_END + k3_tools(k3_call(CITY), k3_call(name="now", index=2)),
                     [OSLO_TRIP, ("now", {})]),
    "json-block": (k3_tools(k3_call('<|open|>json type="object"<|sep|>{"city": "Oslo"}'
                                    "<|close|>json<|sep|>")), [OSLO_TRIP]),
    "no-index": (k3_tools(k3_call(CITY).replace(' index="1"', "")), [OSLO_TRIP]),
    "spaces-in-tags": (k3_tools(k3_call(CITY)).replace("<|open|>", "<|open|> ")
                       .replace("<|close|>", "<|close|> ").replace("<|sep|>", " <|sep|>")
                       .replace("<|sep|>Oslo <|close|>", "<|sep|>Oslo<|close|>"), [OSLO_TRIP]),
    "lines-between-tags": (k3_tools("\n", k3_call("\n", CITY, "\n"), "\n"), [OSLO_TRIP]),
    "closer-inside-json": (
        k3_tools(k3_call(argument("seat", "object", '{"a": "<|close|>argument<|sep|>"}'))),
        [("plan_trip", {"seat": {"a": "<|close|>argument<|sep|>"}})]),
    "other-closers-inside-a-string": (
        k3_tools(k3_call(argument("city", "string", "a<|close|>call<|sep|><|open|>x"))),
        [("plan_trip", {"city": "a<|close|>call<|sep|><|open|>x"})]),
    "escaped-key": (k3_tools(k3_call(argument("a&quot;b&amp;quot;", "number", "1"))),
                    [("plan_trip", {'a"b&quot;': 1})]),
    "schema-decides-between-types": (
        k3_tools(k3_call(argument("note", "number", "5"), argument("city", "number", "7"))),
        [("plan_trip", {"note": "5", "city": "7"})]),
    "string-type-on-a-number": (k3_tools(k3_call(argument("days", "string", " 3"))),
                                [("plan_trip", {"days": 3})]),
    "text-of-type-number": (k3_tools(k3_call(argument("days", "number", "few"))),
                            [("plan_trip", {"days": "few"})], "", ["repaired"]),
    "call-without-tools": (k3_call(CITY), [OSLO_TRIP], "", ["repaired"]),
    "second-cut": (k3_tools(k3_call(CITY)).split("<|close|>tools")[0] + k3_call(CITY)[:-20],
                   [OSLO_TRIP], "", ["incomplete"]),
    "cut-in-a-tag": ("Hm" + RESPONSE_END + "<|open|>too", [], "Hm", ["incomplete"]),
    "cut-in-a-value": ("<|open|>tools<|sep|>" + k3_call(CITY)[:-50], [], "", ["incomplete"]),
    **{
        name: (RESPONSE_END + k3_tools(bad, k3_call(CITY)), [OSLO_TRIP], bad, ["malformed"])
        for name, bad in {
            "unknown-tool": k3_call(CITY, name="plan_trips"),
            "no-tool": k3_call(CITY).replace(' tool="plan_trip"', ""),
            "attribute-twice": k3_call(CITY).replace('index="1"', 'index="1" index="2"'),
            "argument-twice": k3_call(CITY, CITY),
            "json-and-arguments": k3_call(
                '<|open|>json type="object"<|sep|>{}<|close|>json<|sep|>', CITY),
            "json-that-is-none": k3_call(
                '<|open|>json type="object"<|sep|>{a}<|close|>json<|sep|>'),
            "json-list": k3_call('<|open|>json type="object"<|sep|>[1]<|close|>json<|sep|>'),
            "text-in-the-call": k3_call("so", CITY),
            "other-tag-in-the-call": k3_call("<|open|>response<|sep|>"),
            "no-key": k3_call(CITY.replace(' key="city"', "")),
        }.items()
    },
    "text-between-calls": (k3_tools("so", k3_call(CITY)), [OSLO_TRIP], "so", ["malformed"]),
    "marker-mentioned": ("Use <|open|>, so", [], "Use <|open|>, so", ["malformed"]),
}  # fmt: skip


@pytest.mark.parametrize("case", K3_CASES.values(), ids=K3_CASES)
def test_kimi_k3(case):
    check(K3, *case, tools=[K3_TOOL, NOW])


def test_kimi_k3_thinking():
    call = k3_tools(k3_call(CITY))
    text = f"Hm {call}<|close|>think<|sep|><|open|>response<|sep|>{RESPONSE_END}{call}"
    calls, content, kinds, parsed = read(K3, text, [K3_TOOL], reasoning=True)
    assert (calls, content, kinds) == ([OSLO_TRIP], "", [])
    assert parsed.message["reasoning_content"] == f"Hm {call}"


def test_kimi_k3_writes_what_no_tag_can_hold_as_one_json_block():
    plain = {"city": "a<b", "n": 1, "l": [None], "o": {"k": "<|close|>argument<|sep|>"}}
    assert "<|open|>json" not in K3.render([{"function": {"name": "f", "arguments": plain}}])
    for value in ("x<|close|>argument<|sep|>y", "\ud800"):
        text = K3.render([{"function": {"name": "f", "arguments": {"s": value}}}])
        assert "<|open|>json" in text
        assert json.loads(K3.parse(text).tool_calls[0]["function"]["arguments"]) == {"s": value}


@pytest.mark.parametrize("fmt", [GEMMA, K3], ids=lambda f: f.name)
@pytest.mark.parametrize("arguments", ["[1]", "5", "", "{", '{"a": }'])
def test_arguments_that_are_no_object_cannot_be_rendered(fmt, arguments):
    with pytest.raises(ValueError):
        fmt.render([{"function": {"name": "f", "arguments": arguments}}])


def test_gemma_cannot_render_its_own_quote():
    for arguments in ({"s": 'a<|"|>b'}, {'k<|"|>': 1}, {"o": [{"k": '<|"|>'}]}):
        with pytest.raises(ValueError, match="cannot write a text that holds"):
            GEMMA.render([{"function": {"name": "f", "arguments": arguments}}])


# Harmony: the cookbook's "harmony response format"; the chat template of openai/gpt-oss-120b

BODY = '{"city": "Oslo"}'
DOCUMENTED = f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{BODY}"
TEMPLATED = f" to=functions.get_weather<|channel|>commentary json<|message|>{BODY}"
ANALYSIS = "<|channel|>analysis<|message|>Need the weather.<|end|>"
NEXT = "<|start|>assistant"
HARMONY_CASES = {
    "documented": (DOCUMENTED + "<|call|>", [OSLO]),
    "templated": (TEMPLATED + "<|call|>", [OSLO]),
    "call-is-the-stop-token": (DOCUMENTED, [OSLO]),
    "templated-after-start": (ANALYSIS + NEXT + TEMPLATED, [OSLO]),
    "no-constraint": (DOCUMENTED.replace(" <|constrain|>json", "") + "<|call|>", [OSLO]),
    "no-space": (DOCUMENTED.replace(" <|constrain|>", "<|constrain|>") + "<|call|>", [OSLO]),
    "two": (DOCUMENTED + "<|call|>" + NEXT + DOCUMENTED + "<|call|>", [OSLO] * 2),
    "final": (ANALYSIS + NEXT + "<|channel|>final<|message|>4 < 5.\n<|return|>", [], "4 < 5."),
    "final-cut": ("<|channel|>final<|message|>It is", [], "It is"),
    "preamble": (ANALYSIS + NEXT + "<|channel|>commentary<|message|>I will look.<|end|>" + NEXT
                 + DOCUMENTED, [OSLO], "I will look."),
    "markers-in-a-string": (DOCUMENTED.replace("Oslo", "<|call|><|end|>") + "<|call|>",
                            [("get_weather", {"city": "<|call|><|end|>"})]),
    "plain-text": ("Just text <b> to=functions.x", [], "Just text <b> to=functions.x"),
    "no-arguments": ("<|channel|>commentary to=functions.now json<|message|><|call|>",
                     [("now", {})], "", ["repaired"]),
    "ended-otherwise": (DOCUMENTED + "<|end|>" + NEXT + DOCUMENTED + "<|call|>", [OSLO] * 2, "",
                        ["repaired"]),
    "next-at-once": (DOCUMENTED + NEXT + DOCUMENTED, [OSLO] * 2, "", ["repaired"]),
    "on-the-analysis-channel": (DOCUMENTED.replace("commentary", "analysis"), [OSLO], "",
                                ["repaired"]),
    "cut": (ANALYSIS + NEXT + DOCUMENTED[:-3], [], "", ["incomplete"]),
    "cut-in-the-header": (ANALYSIS + NEXT + DOCUMENTED[:30], [], "", ["incomplete"]),
    "cut-in-the-first-header": (" to=functions.get_we", [], "", ["incomplete"]),
    **{
        name: (ANALYSIS + NEXT + text + NEXT + DOCUMENTED, [OSLO], NEXT + text, ["malformed"])
        for name, text in {
            "unknown-tool": DOCUMENTED.replace("weather", "storm") + "<|call|>",
            "builtin-tool": DOCUMENTED.replace("functions.get_weather", "browser.search")
                            + "<|call|>",
            "not-json": DOCUMENTED.replace('"city"', "city") + "<|call|>",
            "text-after-the-object": DOCUMENTED + " so<|call|>",
        }.items()
    },
    "marker-mentioned": ("Use <|message|> so", [], "Use <|message|> so", ["malformed"]),
}  # fmt: skip


@pytest.mark.parametrize("case", HARMONY_CASES.values(), ids=HARMONY_CASES)
def test_harmony(case):
    check(HARMONY, *case)


def test_harmony_analysis_is_reasoning():
    text = ANALYSIS + NEXT + ANALYSIS + NEXT + DOCUMENTED
    assert HARMONY.parse(text).message["reasoning_content"] == (
        "Need the weather.\nNeed the weather."
    )
    cut = "<|channel|>analysis<|message|>Need " + DOCUMENTED[:12]
    calls, content, kinds, parsed = read(HARMONY, cut, TOOLS)
    assert (calls, content) == ([], "")
    assert "incomplete" in kinds
    assert parsed.message["reasoning_content"] == "Need "


# The grammar. In Kimi K3 and Harmony text stands in an envelope.

ENVELOPE = {
    "kimi_k3": "{}<|close|>response<|sep|><|close|>message<|sep|>",
    "harmony": "<|channel|>final<|message|>{}<|end|>",
}
EACH = pytest.mark.parametrize("fmt", OURS, ids=lambda f: f.name)
MARKED = pytest.mark.parametrize("marked", [True, False], ids=["one-token", "spelled"])
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def rendered(fmt, *calls):
    return fmt.render([{"function": {"name": n, "arguments": a}} for n, a in calls])


def with_text(fmt, text, call):
    if fmt is HARMONY:
        return f"<|channel|>commentary<|message|>{text}<|end|>{NEXT}{call}"
    return text + call


@EACH
@MARKED
@pytest.mark.parametrize(
    ("choice", "parallel", "wanted"),
    # text, call, two calls, text before a call, call of the other tool, unknown tool
    [
        ("auto", True, [True, True, True, True, True, False]),
        ("auto", False, [True, True, False, True, True, False]),
        ("required", True, [False, True, True, False, True, False]),
        ("required", False, [False, True, False, False, True, False]),
        (NAMED, True, [False, True, False, False, False, False]),
    ],
    ids=str,
)
def test_what_each_choice_accepts(fmt, marked, choice, parallel, wanted):
    body = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": parallel}
    one = rendered(fmt, ("get_weather", {"city": 'Zürich, 上海 😀 "x" \\n'}))
    texts = [
        ENVELOPE.get(fmt.name, "{}").format("It is 3 < 4."),
        one,
        rendered(fmt, OSLO, ("now", {})),
        with_text(fmt, "Let me look: ", one),
        rendered(fmt, ("now", {})),
        rendered(fmt, ("get_wether", {"city": "Oslo"})),
    ]
    assert [accepts(fmt, marked, body, text) for text in texts] == wanted


@EACH
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"city": "a"}, True),
        ({"city": 5}, False),
        ({}, False),
        ({"city": "a", "other": 1}, False),
    ],
    ids=str,
)
def test_strict_arguments_follow_the_schema(fmt, arguments, wanted):
    body = {"tools": TOOLS, "tool_choice": "required"}
    text = rendered(fmt, ("get_weather", arguments))
    assert accepts(fmt, True, body, text) is wanted
    assert accepts(fmt, True, body, text, schema_mode="auto")


@EACH
@MARKED
def test_strings_hold_no_marker_of_the_format(fmt, marked):
    body = {"tools": TOOLS, "tool_choice": "required"}
    for marker in fmt.markers:
        if "think" in marker or marker == '<|"|>':
            continue
        text = rendered(fmt, ("get_weather", {"city": "a@b"})).replace("a@b", f"a{marker}b")
        assert not accepts(fmt, marked, body, text), marker
    fine = rendered(fmt, ("get_weather", {"city": "a < b |> c || <x> <_"}))
    assert accepts(fmt, marked, body, fine)


@EACH
@MARKED
@pytest.mark.parametrize("before", ["", "So: ", "a < b <", '{"name": "now", '])
def test_the_ban_holds_for_every_spelling(fmt, marked, before):
    tokenizer = byte_level(marked)
    body = {"tools": TOOLS, "tool_choice": "none"}
    prefix = tokenizer.encode(before, add_special_tokens=False)
    for opener in fmt.banned:
        for way in spellings(opener.encode(), pieces_of(tokenizer)):
            batch = start(fmt, marked, body)
            assert feed(batch, prefix)
            assert not feed(batch, way)


@EACH
@MARKED
def test_no_call_is_possible_under_the_ban(fmt, marked):
    body = {"tools": TOOLS, "tool_choice": "none"}
    for text in (rendered(fmt, OSLO), with_text(fmt, "So: ", rendered(fmt, OSLO))):
        assert not accepts(fmt, marked, body, text)
        if fmt.end_of_thinking:
            closed = f"Hm{fmt.end_of_thinking}"
            assert not accepts(fmt, marked, body, closed + text, reasoning=True)
            assert not accepts(fmt, marked, body, text + closed, reasoning=True)


@EACH
@MARKED
def test_the_ban_lets_prose_and_json_through(fmt, marked):
    body = {"tools": TOOLS, "tool_choice": "none"}
    for text in (
        "",
        "If a < b, write <b>so</b>; x <<= 2. {x} [y]",
        '{"name": "Ann", "type": "person", "parameter": [1, {"a": "b"}]}',
        'get_weather takes "parameters", and so on; to=me',
        "上海 😀\n\n\tend",
    ):
        assert accepts(fmt, marked, body, text)
        assert fmt.parse(text, TOOLS).message["content"] == text
        if fmt.end_of_thinking:
            assert accepts(fmt, marked, body, f"Hm{fmt.end_of_thinking}{text}", reasoning=True)


@EACH
@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=str)
def test_thinking_comes_first(fmt, choice):
    body = {"tools": TOOLS, "tool_choice": choice}
    call = rendered(fmt, OSLO)
    if fmt is HARMONY:
        text, reasoning = ANALYSIS + NEXT + call, False
    else:
        text, reasoning = f"Need the weather.{fmt.end_of_thinking}{call}", True
    assert accepts(fmt, True, body, text, reasoning=reasoning)
    parsed = fmt.parse(text, TOOLS, reasoning=reasoning)
    assert len(parsed.tool_calls) == 1
    assert parsed.message["reasoning_content"] == "Need the weather."
    assert parsed.problems == ()


def test_kimi_k3_opens_the_response_after_thinking():
    body = {"tools": TOOLS, "tool_choice": "required"}
    text = f"Hm<|close|>think<|sep|><|open|>response<|sep|>{rendered(K3, OSLO)}"
    assert accepts(K3, True, body, text, reasoning=True)


def test_harmony_s_last_message_may_end_with_the_text():
    """Where ``<|call|>`` and ``<|return|>`` are stop tokens, they are not part of it."""
    body = {"tools": TOOLS}
    assert accepts(HARMONY, True, body, DOCUMENTED)
    assert accepts(HARMONY, True, body, TEMPLATED)
    assert accepts(HARMONY, True, body, "<|channel|>final<|message|>It is.")
    assert not accepts(HARMONY, True, body, ANALYSIS.removesuffix("<|end|>"))
    assert not accepts(HARMONY, True, body, DOCUMENTED + NEXT + DOCUMENTED)


@pytest.mark.parametrize(("value", "wanted"), [("abc", True), ("a", False), ("abcd", False)])
def test_gemma_keeps_length_bounds(value, wanted):
    bounded = {"type": "string", "minLength": 2, "maxLength": 3}
    tools = [tool("f", s=bounded, l={"type": "array", "items": bounded})]
    for arguments in ({"s": value}, {"l": [value]}):
        text = rendered(GEMMA, ("f", arguments))
        assert accepts(GEMMA, True, {"tools": tools, "tool_choice": "required"}, text) is wanted


def test_gemma_leaves_data_in_a_schema_alone():
    data = {"type": "string", "minLength": 2}
    tools = [tool("f", type={"const": data}, minLength=STRING)]
    text = rendered(GEMMA, ("f", {"type": data, "minLength": "x"}))
    assert accepts(GEMMA, True, {"tools": tools, "tool_choice": "required"}, text)


# Round trips of the two formats that write arguments in their own way; the others are in
# test_formats_parse.py


@pytest.mark.parametrize("fmt", [GEMMA, K3], ids=lambda f: f.name)
@settings(deadline=None, max_examples=80)
@given(calls=CALLS)
def test_rendered_calls_are_read_back(fmt, calls):
    function_calls = [{"function": {"name": n, "arguments": a}} for n, a in calls]
    if fmt is GEMMA and '<|"|>' in json.dumps(calls).replace('\\"', '"'):
        with pytest.raises(ValueError, match="cannot write a text that holds"):
            fmt.render(function_calls)
        return
    for tools in (None, [tool(name) for name in {name for name, _ in calls}]):
        assert read(fmt, fmt.render(function_calls), tools)[:3] == (calls, "", [])


# Cuts


@EACH
@settings(deadline=None, max_examples=15)
@given(
    cities=st.lists(st.sampled_from(["Bern", "a}b", '"', "<", "{", "é"]), min_size=1, max_size=3),
    before=st.sampled_from(["", "So: ", "1 < 2 "]),
)
def test_a_cut_never_makes_a_call_that_was_not_written_whole(fmt, cities, before):
    calls = [("get_weather", {"city": city}) for city in cities]
    text = before + rendered(fmt, *calls)
    ends = [stop for _, stop in fmt.parse(text, TOOLS).spans]
    # Harmony's object is whole before the marker that ends its message.
    ends = [end - len("<|call|>") if fmt is HARMONY else end for end in ends]
    for cut in range(len(text)):
        whole = sum(end <= cut for end in ends)
        assert read(fmt, text[:cut], TOOLS)[0] == calls[:whole]


# Names


def test_every_name_reports_itself():
    for name, fmt in FORMATS.items():
        assert fmt.name == name
        assert get_format(name) is fmt
    assert {type(FORMATS[n]) for n in ("hermes", "qwen25", "qwen_3")} == {type(FORMATS["hermes"])}
    assert type(FORMATS["kimi"]) is type(FORMATS["kimi_k2"])


@pytest.mark.parametrize("name", ["qwen25", "qwen_3", "kimi"])
def test_other_names_have_the_same_grammar(name):
    twin = "kimi_k2" if name == "kimi" else "hermes"
    body = {"tools": TOOLS, "tool_choice": "required"}
    own, other = (plan(body, format=n).structural_tag for n in (name, twin))
    assert own.model_dump() == other.model_dump()
