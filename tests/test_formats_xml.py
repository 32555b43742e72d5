"""Calls written as tags: reported faults of other parsers, values by their schema, round trips."""

import json

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grammar.formats import FORMATS
from grammar.formats.xml_values import Declared, read
from tests.test_formats_parse import read as read_completion
from tests.test_formats_parse import tool
from tests.test_formats_tag import accepts

QWEN, NEMOTRON, MIMO = (FORMATS[n] for n in ("qwen3_coder", "nemotron_nano", "mimo"))
V32, V4, V41 = (FORMATS[n] for n in ("deepseek_v3_2", "deepseek_v4", "deepseek_v4_1"))
MINIMAX, M3, GLM, COHERE = (FORMATS[n] for n in ("minimax", "minimax_m3", "glm_4_7", "cohere"))
STRING, INTEGER, OBJECT = {"type": "string"}, {"type": "integer"}, {"type": "object"}
WEATHER = tool("get_weather", ["city"], city=STRING)


def qwen(name, **values):
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def invoke(name, *parameters):
    """An invoke of DSML; a parameter is key, value of ``string``, text."""
    inner = "".join(
        f'<｜DSML｜parameter name="{k}" string="{s}">{t}</｜DSML｜parameter>\n'
        for k, s, t in parameters
    )
    return f'<｜DSML｜invoke name="{name}">\n{inner}</｜DSML｜invoke>\n'


def block(kind, *invokes):
    return f"<｜DSML｜{kind}>\n{''.join(invokes)}</｜DSML｜{kind}>"


# Reported faults: id, format, tools, text, calls, content, kinds of problem
REPORTED = [
    ("none-for-null", QWEN,
     [tool("f", ["id"], id=INTEGER, label=STRING,
           metadata={"anyOf": [OBJECT, {"type": "null"}]})],
     qwen("f", id=42, label="first", metadata="None"),
     [("f", {"id": 42, "label": "first", "metadata": None})], "", ["repaired"]),
    ("none-is-a-member-of-the-enum", QWEN,
     [tool("set_border", ["style"], style={"type": "string", "enum": ["none", "solid"]})],
     qwen("set_border", style="none"), [("set_border", {"style": "none"})], "", []),
    ("closing-tags-of-a-call-in-a-value", QWEN, [tool("write_file", ["content"], content=STRING)],
     qwen("write_file", content="Ends with </tool_call> here.\nAnd </function> too."),
     [("write_file", {"content": "Ends with </tool_call> here.\nAnd </function> too."})], "", []),
    ("angle-brackets-in-code", QWEN, [tool("save", ["src"], src=STRING)],
     qwen("save", src="10 IF C<1w=P-SQR(1-C)\n20 IF A<B AND D>E THEN PRINT \"x\""),
     [("save", {"src": "10 IF C<1w=P-SQR(1-C)\n20 IF A<B AND D>E THEN PRINT \"x\""})], "", []),
    ("any-of-objects", QWEN,
     [tool("f", ["at"], at={"anyOf": [
         {"type": "object", "properties": {"city": STRING}, "required": ["city"]},
         {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}]})],
     qwen("f", at='{"city": "Pau"}'), [("f", {"at": {"city": "Pau"}})], "", []),
    ("empty-values", QWEN,
     [tool("book", ["room"], room=INTEGER, guests=INTEGER,
           tags={"type": "array", "items": STRING}, note=STRING)],
     "<tool_call>\n<function=book>\n<parameter=room>\n12\n</parameter>\n<parameter=guests>"
     "</parameter>\n<parameter=tags>\n\n</parameter>\n<parameter=note></parameter>\n</function>\n"
     "</tool_call>", [("book", {"room": 12, "note": ""})], "", ["repaired"]),
    ("strings-that-look-like-numbers", QWEN,
     [tool("lookup", zip=STRING, code=STRING, free={}, filter={})],
     qwen("lookup", zip="00715", code="1e3", free="x1", filter='{"a": 1}'),
     [("lookup", {"zip": "00715", "code": "1e3", "free": "x1", "filter": {"a": 1}})], "", []),
    ("no-parameters", QWEN, [tool("now")],
     "<tool_call>\n<function=now>\n</function>\n</tool_call>", [("now", {})], "", []),
    ("no-parameters-and-a-blank-line", QWEN, [tool("now")],
     "<tool_call>\n<function=now>\n\n</function>\n</tool_call>", [("now", {})], "", []),
    ("text-around-two-calls", QWEN, [WEATHER],
     f"Both:\n{qwen('get_weather', city='Rome')}\nand\n{qwen('get_weather', city='東京')}\nDone.",
     [("get_weather", {"city": "Rome"}), ("get_weather", {"city": "東京"})],
     "Both:\n\nand\n\nDone.", []),
    ("raw-newline-inside-json", QWEN,
     [tool("todo", ["items"], items={"type": "array", "items": OBJECT})],
     qwen("todo", items='[{"text": "first\nsecond", "done": false}]'),
     [("todo", {"items": [{"text": "first\nsecond", "done": False}]})], "", ["repaired"]),
    ("cut-off-inside-a-value", QWEN, [tool("write", ["path", "text"], path=STRING, text=STRING)],
     qwen("write", path="a.py", text="print('he").partition("'he")[0], [], "", ["incomplete"]),
    ("call-without-a-block", QWEN, [WEATHER],
     "Sure.\n<function=get_weather>\n<parameter=city>\nFaro\n</parameter>\n</function>",
     [("get_weather", {"city": "Faro"})], "Sure.", ["repaired"]),
    ("typed-parameters", NEMOTRON,
     [tool("book", to=STRING, passengers=INTEGER, first={"type": "boolean"})],
     qwen("book", to="Tōkyō central", passengers=2, first="true"),
     [("book", {"to": "Tōkyō central", "passengers": 2, "first": True})], "", []),
    ("tags-of-another-family", NEMOTRON, [WEATHER],
     "<tool_call>get_weather<arg_key>city</arg_key><arg_value>NYC</arg_value></tool_call>",
     [], "<tool_call>get_weather<arg_key>city</arg_key><arg_value>NYC</arg_value></tool_call>",
     ["malformed"]),
    ("a-list-as-another-model-writes-it", NEMOTRON, [WEATHER],
     'Ok.\n\n<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Nice"}}]</TOOLCALL>', [],
     'Ok.\n\n<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Nice"}}]</TOOLCALL>',
     ["malformed"]),
    ("the-attribute-says-what-is-a-string", V4,
     [tool("make", zip=STRING, flag=STRING, n=INTEGER, ok={"type": "boolean"}, meta=OBJECT)],
     block("tool_calls", invoke(
         "make", ("zip", "true", "00715"), ("flag", "true", "true"), ("n", "false", "5"),
         ("ok", "false", "true"), ("meta", "false", '{"a": [1, {"b": null}]}'))),
     [("make", {"zip": "00715", "flag": "true", "n": 5, "ok": True,
                "meta": {"a": [1, {"b": None}]}})], "", []),
    ("invoke-without-a-block", V4, [WEATHER],
     "Sure.\n" + invoke("get_weather", ("city", "true", "Faro")),
     [("get_weather", {"city": "Faro"})], "Sure.", ["repaired"]),
    ("parameter-not-closed", V4, [tool("move", ["src", "dst"], src=STRING, dst=STRING)],
     block("tool_calls", invoke("move", ("src", "true", "a.txt"), ("dst", "true", "b.txt")))
     .replace("a.txt</｜DSML｜parameter>", "a.txt"),
     [("move", {"src": "a.txt", "dst": "b.txt"})], "", ["repaired"]),
    ("all-in-one-parameter", V4,
     [tool("search", ["q"], q=STRING, k=INTEGER), tool("runner", ["arguments"], arguments=STRING)],
     block("tool_calls", invoke("search", ("arguments", "false", '{"q": "cats", "k": 3}')),
           invoke("runner", ("arguments", "true", "-v --fast"))),
     [("search", {"q": "cats", "k": 3}), ("runner", {"arguments": "-v --fast"})], "",
     ["repaired"]),
    ("a-name-of-several-lines", V4, [tool("record_item", category=STRING)],
     '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="record_item {\ncategory: Tools\n\nnot closed',
     [], "", ["incomplete"]),
    ("a-lone-bracket-at-the-end", V4, [WEATHER], "Because 2 <", [], "Because 2 <", []),
    ("no-parameters-and-self-closing", V32, [tool("now")],
     block("function_calls", invoke("now"), '<｜DSML｜invoke name="now"/>\n'),
     [("now", {}), ("now", {})], "", ["repaired"]),
    ("a-json-object-for-a-body", V32, [WEATHER],
     '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n{"city": "Tromsø"}\n'
     "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     [("get_weather", {"city": "Tromsø"})], "", ["repaired"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fmt", "tools", "text", "calls", "content", "kinds"),
    [case[1:] for case in REPORTED],
    ids=[case[0] for case in REPORTED],
)
def test_reported_faults(fmt, tools, text, calls, content, kinds):
    assert read_completion(fmt, text, tools)[:3] == (calls, content, kinds)


# What models write beyond the grammar: id, format, text, calls of f(a: string, n: integer)
F = tool("f", ["a"], a=STRING, n=INTEGER)
GOOD = [("f", {"a": "x", "n": 5})]
VARIANTS = {
    "qwen-on-one-line": (QWEN, "<tool_call><function=f><parameter=a>x</parameter><parameter=n>5"
                               "</parameter></function></tool_call>"),
    "qwen-any-order": (QWEN, qwen("f", n=5, a="x")),
    "qwen-no-end-of-function": (QWEN, qwen("f", a="x", n=5).replace("</function>\n", "")),
    "qwen-no-end-of-block": (QWEN, qwen("f", a="x", n=5).removesuffix("\n</tool_call>")),
    "qwen-spaces": (QWEN, qwen("f", a="x", n=" 5 ").replace("=f>", "= f >")),
    "qwen-required-one-swallowed": (
        QWEN, qwen("f", n="5\n<parameter=a>\nx")),
    "mimo-with-newlines": (MIMO, "<tool_call>\n<function=f>\n<parameter=a>x</parameter>\n"
                                 "<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>"),
    "dsml-no-newlines": (V4, block("tool_calls", invoke("f", ("a", "true", "x"),
                                                        ("n", "false", "5"))).replace("\n", "")),
    "dsml-no-attribute": (V4, block("tool_calls", invoke("f", ("a", "true", "x"),
                                                         ("n", "false", "5")))
                          .replace(' string="true"', "").replace(' string="false"', "")),
    "dsml-block-not-closed": (V4, "<｜DSML｜tool_calls>\n" + invoke("f", ("a", "true", "x"),
                                                                ("n", "false", "5"))),
    "minimax-on-one-line": (MINIMAX, '<minimax:tool_call><invoke name="f"><parameter name="a">x'
                                     '</parameter><parameter name="n">5</parameter></invoke>'
                                     "</minimax:tool_call>"),
    "minimax-no-block": (MINIMAX, '<invoke name="f">\n<parameter name="a">x</parameter>\n'
                                  '<parameter name="n"> 5\n</parameter>\n</invoke>'),
    "glm-4.5": (GLM, "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n"
                     "<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>"),
    "cohere-spread-out": (COHERE, '<cofl:tool_calls>\n<cofl:tool_call id="7" name="f">\n'
                                  '<cofl:value name="a" type="raw">x</cofl:value>\n'
                                  '<cofl:value type="json" name="n"> 5 </cofl:value>\n'
                                  "</cofl:tool_call>\n</cofl:tool_calls>"),
    "cohere-no-block": (COHERE, '<cofl:tool_call name="f"><cofl:value name="a">x</cofl:value>'
                                '<cofl:value name="n" type="json">5</cofl:value>'
                                "</cofl:tool_call>"),
    "m3-spread-out": (M3, "NS<tool_call>\nNS<invoke name=\"f\">\nNS<a>xNS</a>\nNS<n>5NS</n>\n"
                          "NS</invoke>\nNS</tool_call>"),
    "m3-wrong-closing-name": (M3, "NS<tool_call>NS<invoke name=\"f\">NS<a>xNS</b>NS<n>5NS</n>"
                                  "NS</invoke>NS</tool_call>"),
}  # fmt: skip


@pytest.mark.parametrize(("fmt", "text"), VARIANTS.values(), ids=VARIANTS)
def test_what_models_write_beyond_the_grammar(fmt, text):
    text = text.replace("NS", "]<]minimax[>[")
    calls, content, kinds, _ = read_completion(fmt, text, [F])
    assert (sorted(calls[0][1].items()), calls[0][0]) == (sorted(GOOD[0][1].items()), "f")
    assert (content, len(calls)) == ("", 1)
    assert set(kinds) <= {"repaired"}


MALFORMED = {
    "qwen-unknown-tool": (QWEN, qwen("g", a="x")),
    "qwen-written-twice": (QWEN, qwen("f", a="x").replace("<parameter=a>", "<parameter=a>\nw\n"
                                                          "</parameter>\n<parameter=a>")),
    "qwen-text-between": (QWEN, qwen("f", a="x").replace("</function>", "so\n</function>")),
    "qwen-json": (QWEN, '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'),
    "qwen-no-name": (QWEN, qwen("", a="x")),
    "qwen-name-with-a-space": (QWEN, qwen("f g", a="x")),
    "qwen-empty": (QWEN, "<tool_call>\n</tool_call>"),
    "dsml-written-twice": (V4, invoke("f", ("a", "true", "x"), ("a", "true", "y")).strip()),
    "dsml-text": (V4, invoke("f").replace("\n<", "\nplease<").strip()),
    "dsml-list": (V4, invoke("f").replace('">\n', '">\n[1]\n').strip()),
    "dsml-last-one-not-closed": (V4, invoke("f", ("a", "true", "x")).strip()
                                 .replace("</｜DSML｜parameter>", "")),
    "minimax-unknown-tool": (MINIMAX, '<invoke name="g">\n</invoke>'),
    "minimax-text": (MINIMAX, '<invoke name="f">\na = x\n</invoke>'),
    "glm-no-value": (GLM, "<tool_call>f<arg_key>a</arg_key></tool_call>"),
    "glm-json": (GLM, '<tool_call>{"name": "f"}</tool_call>'),
    "glm-written-twice": (GLM, "<tool_call>f" + "<arg_key>a</arg_key><arg_value>x</arg_value>" * 2
                          + "</tool_call>"),
    "cohere-no-key": (COHERE, '<cofl:tool_call id="0" name="f"><cofl:value type="raw">x'
                              "</cofl:value></cofl:tool_call>"),
    "cohere-key-in-a-list": (COHERE, '<cofl:tool_call id="0" name="f"><cofl:value name="a" '
                                     'type="list"><cofl:value name="b">x</cofl:value></cofl:value>'
                                     "</cofl:tool_call>"),
    "m3-not-closed": (M3, 'NS<invoke name="f">NS<a>xNS</invoke>'),
    "m3-text-beside-elements": (M3, 'NS<invoke name="f">NS<a>NS<b>xNS</b>yNS</a>NS</invoke>'),
    "m3-text": (M3, 'NS<invoke name="f">xNS</invoke>'),
}  # fmt: skip


@pytest.mark.parametrize(("fmt", "text"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_calls_stay_content(fmt, text):
    text = text.replace("NS", "]<]minimax[>[")
    calls, content, kinds, _ = read_completion(fmt, text, [F])
    assert calls == []
    # The tags of a block are gone, as those of a block of good calls are.
    bare = text
    for tag in fmt.block or ():
        if tag not in content:
            bare = bare.replace(tag, "")
    assert content.split() == bare.split()
    assert set(kinds) == {"malformed"}
    good = fmt.render([{"function": {"name": "f", "arguments": {"a": "x", "n": 5}}}])
    assert read_completion(fmt, f"{good}\n{text}\n{good}", [F])[0] == GOOD * 2


# Values

DEFS = {"$defs": {"Id": {"type": ["integer", "null"]}, "Name": {"type": "string"}}}
VALUES = [
    # schema, text, value, whether it was mended
    ({"type": "string"}, "\nx\n", "x", False),
    ({"type": "string"}, "\n  indented\n\n", "  indented\n", False),
    ({"type": "string"}, "x", "x", False),
    ({"type": "string"}, '"quoted"', '"quoted"', False),
    ({"type": "string"}, "\n5\n", "5", False),
    ({"type": "string"}, "null", "null", False),
    ({"type": "string"}, "", "", False),
    ({"type": "integer"}, "\n5\n", 5, False),
    ({"type": "integer"}, " -5 ", -5, False),
    ({"type": "integer"}, "5.0", 5.0, False),
    ({"type": "integer"}, "5.5", 5.5, False),  # the validator's to refuse
    ({"type": "integer"}, "five", "five", True),
    ({"type": "integer"}, "True", "True", True),
    ({"type": "number"}, "1e3", 1000.0, False),
    ({"type": "number"}, "5", 5, False),
    ({"type": "number"}, "NaN", "NaN", True),
    ({"type": "boolean"}, "true", True, False),
    ({"type": "boolean"}, "True", True, True),
    ({"type": "boolean"}, "yes", "yes", True),
    ({"type": "null"}, "null", None, False),
    ({"type": "null"}, "None", None, True),
    ({"type": "object"}, '{"a": [1]}', {"a": [1]}, False),
    ({"type": "object"}, "{'a': True}", {"a": True}, True),
    ({"type": "object"}, '{"a": 1', '{"a": 1', True),
    ({"type": "array"}, '["a",\n "b"]', ["a", "b"], False),
    ({"type": "array"}, "a, b", "a, b", True),
    ({"type": ["string", "null"]}, "null", None, False),
    ({"type": ["string", "null"]}, "None", "None", False),
    ({"type": ["integer", "string"]}, "5", 5, False),
    ({"type": ["integer", "string"]}, "05", "05", False),
    ({"anyOf": [{"type": "integer", "maximum": 3}, {"type": "string"}]}, "7", "7", False),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None, False),
    ({"oneOf": [{"type": "boolean"}, {"type": "array"}]}, "[]", [], False),
    ({"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}]}, "5", 5, False),
    ({"enum": ["1", "2"]}, "\n1\n", "1", False),
    ({"enum": [1, 2]}, "1", 1, False),
    ({"enum": ["auto", 1, None]}, "auto", "auto", False),
    ({"enum": ["auto", 1, None]}, "null", None, False),
    ({"enum": ["a", "b"]}, "\n\n\t a \n", "a", False),
    ({"enum": [" a"]}, "\n a\n", " a", False),
    ({"const": "on"}, " on", "on", False),
    ({"const": 5}, "5", 5, False),
    ({"type": "string", "pattern": "^[A-Z]{2}$"}, "\n\nAB\n\n", "AB", False),
    ({"type": "string", "minLength": 2}, "\n\n", "\n\n", False),
    ({"type": "string", "format": "date"}, " 2026-01-02\n", "2026-01-02", False),
    ({"$ref": "#/$defs/Id"}, "5", 5, False),
    ({"$ref": "#/$defs/Id"}, "null", None, False),
    ({"$ref": "#/$defs/Name"}, "5", "5", False),
    ({"$ref": "#/$defs/Nowhere"}, "x", "x", False),
    ({"$ref": "https://example.org/x"}, "x", "x", False),
    ({}, "5", 5, False),
    ({}, "true", True, False),
    ({}, "00715", "00715", False),
    ({}, '"x"', '"x"', False),
    ({}, '{"a": 1}', {"a": 1}, False),
    ({}, "{x}", "{x}", False),
    ({}, "None", "None", False),
    (True, "x", "x", False),
]


@pytest.mark.parametrize(("schema", "text", "value", "mended"), VALUES, ids=repr)
def test_what_a_text_means(schema, text, value, mended):
    got, note = read(text, Declared(schema, DEFS), layout=True)
    assert json.dumps(json.loads(got)) == json.dumps(value)
    assert (note is not None) is mended


@pytest.mark.parametrize(
    ("schema", "required", "wanted"),
    [
        (INTEGER, False, None),
        (INTEGER, True, '""'),
        ({"type": ["integer", "null"]}, False, "null"),
        (STRING, False, '""'),
        ({}, False, '""'),
    ],
)
def test_an_empty_text(schema, required, wanted):
    assert read("\n\n", Declared(schema), layout=True, required=required)[0] == wanted


def test_numbers_keep_their_digits():
    text = qwen("f", a="x", n="12345678901234567890123")
    arguments = QWEN.parse(text, [F]).tool_calls[0]["function"]["arguments"]
    assert arguments == '{"a": "x", "n": 12345678901234567890123}'


def test_strings_keep_the_newlines_that_are_no_layout():
    tools = [tool("write", ["text"], text=STRING)]
    for fmt in (MINIMAX, GLM, V4, MIMO, COHERE, M3):
        text = fmt.render([{"function": {"name": "write", "arguments": {"text": "\nline\n"}}}])
        assert read_completion(fmt, text, tools)[0] == [("write", {"text": "\nline\n"})]
    assert "<parameter=text>\n\nline\n\n</parameter>" in QWEN.render(
        [{"function": {"name": "write", "arguments": {"text": "\nline\n"}}}]
    )


# Round trips

XML = {f.style: f for f in (QWEN, MIMO, V32, V4, V41, MINIMAX, M3, GLM, COHERE)}
EVERY = pytest.mark.parametrize("fmt", XML.values(), ids=lambda f: f.name)
TAGS = sorted({m for f in XML.values() for m in f.markers})
CLOSING = ["</parameter>", "</｜DSML｜parameter>", "</｜DSML｜ parameter>", "</arg_value>",
           "</cofl:value>", "]<]minimax[>["]  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
PIECES = st.sampled_from([*TAGS, *CLOSING, "\n", " ", "5", "null", "true", "None", '"', "<", "{"])
STRINGS = st.lists(TEXT | PIECES, max_size=3).map("".join)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | STRINGS,
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.from_regex("[a-z_]{1,4}", fullmatch=True), inner, max_size=2),
    max_leaves=3,
)  # fmt: skip
ALL_TYPES = tool(
    "call.it-now",
    s=STRING,
    n=INTEGER,
    x={"type": "number"},
    b={"type": "boolean"},
    o=OBJECT,
    a={"type": "array"},
    u={"type": ["string", "null"]},
    e={"enum": ["none", " a ", 5, None, True, "é"]},
    r={"$ref": "#/properties/n"},
)
FIELDS = {
    "s": STRINGS,
    "n": st.integers(),
    "x": st.floats(allow_nan=False, allow_infinity=False),
    "b": st.booleans(),
    "o": st.dictionaries(st.from_regex("[a-z_]{1,4}", fullmatch=True), JSON_VALUES, max_size=2),
    "a": st.lists(JSON_VALUES, max_size=2),
    "u": STRINGS | st.none(),
    "e": st.sampled_from(["none", " a ", 5, None, True, "é"]),
    "r": st.integers(),
}
ARGUMENTS = st.fixed_dictionaries({}, optional=FIELDS)
CALLS = st.lists(ARGUMENTS, min_size=1, max_size=3)


def strings_in(value, *, deep=True):
    if isinstance(value, str):
        yield value
    elif deep and isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from strings_in(inner)


def impossible(fmt, arguments):
    """Whether the syntax has no way to write it, worked out from the format's description."""
    deep = fmt in (M3, COHERE)
    texts = [t for value in arguments.values() for t in strings_in(value, deep=deep)]
    closing = {
        QWEN: ["</parameter>"], MIMO: ["</parameter>"], MINIMAX: ["</parameter>"],
        GLM: ["</arg_value>"], COHERE: ["</cofl:value>"], M3: ["]<]minimax[>["],
        V32: ["</｜DSML｜parameter>", "</｜DSML｜invoke>"],
        V4: ["</｜DSML｜parameter>", "</｜DSML｜invoke>"],
        V41: ["</｜DSML｜ parameter>", "</｜DSML｜ invoke>"],
    }[fmt]  # fmt: skip
    # A string that says null, where null is allowed too; DSML and Cohere say which it is.
    says = str(arguments.get("u")).strip() == "null" and isinstance(arguments.get("u"), str)
    untyped = fmt is M3 and (arguments.get("o") or arguments.get("a"))
    return any(c in t for c in closing for t in texts) or untyped or (
        says and fmt not in (V32, V4, V41, COHERE)
    )  # fmt: skip


@EVERY
@settings(deadline=None, max_examples=30)
@given(calls=CALLS)
def test_rendered_calls_are_read_back(fmt, calls):
    wanted = [
        {
            "id": f"call_{i}",
            "type": "function",
            "function": {"name": "call.it-now", "arguments": json.dumps(a)},
        }
        for i, a in enumerate(calls)
    ]
    try:
        text = fmt.render(wanted, [ALL_TYPES])
    except ValueError as error:
        assert fmt.name in str(error)
        assert any(impossible(fmt, a) for a in calls), error
        assume(False)
    parsed = fmt.parse(text, [ALL_TYPES])
    got = [json.loads(c["function"]["arguments"]) for c in parsed.tool_calls]
    assert [json.dumps(a) for a in got] == [json.dumps(a) for a in calls]
    assert [c["id"] for c in parsed.tool_calls] == [c["id"] for c in wanted]
    assert parsed.message["content"] == ""
    assert parsed.problems == ()


@EVERY
@settings(deadline=None, max_examples=8)
@given(arguments=ARGUMENTS, before=TEXT)
def test_a_cut_never_makes_a_call_that_was_not_written_whole(fmt, arguments, before):
    call = {"function": {"name": "call.it-now", "arguments": arguments}}
    try:
        text = before + fmt.render([call], [ALL_TYPES])
    except ValueError:
        assume(False)
    whole = fmt.parse(text, [ALL_TYPES])
    for cut in range(len(text)):
        calls = fmt.parse(text[:cut], [ALL_TYPES]).tool_calls
        assert calls == whole.tool_calls[: len(calls)]
        assert len(calls) == sum(stop <= cut for _, stop in whole.spans)


@pytest.mark.parametrize(
    ("fmt", "key"),
    [(QWEN, "a>b"), (QWEN, "a\nb"), (QWEN, ""), (V4, 'a"b'), (MINIMAX, 'a"b'), (GLM, "a<b"),
     (M3, "a>b"), (M3, "/a"), (M3, "invoke"), (COHERE, "a\0b")],
)  # fmt: skip
def test_keys_that_cannot_be_written(fmt, key):
    call = {"function": {"name": "f", "arguments": {key: 1}}}
    with pytest.raises(ValueError, match=f"{fmt.name}.*no way to write"):
        fmt.render([call])
    body = {"tools": [tool("f", **{key: STRING})], "tool_choice": "required"}
    with pytest.raises(ValueError, match="no way to write"):
        accepts(fmt, True, body, "")


@pytest.mark.parametrize("fmt", [QWEN, V4, MINIMAX, GLM, COHERE, M3], ids=lambda f: f.name)
@pytest.mark.parametrize("key", ["user-id", "a.b", "größe", "名前", "$x", "a b"])
def test_unusual_keys(fmt, key):
    tools = [tool("f", [key], **{key: STRING})]
    text = fmt.render([{"function": {"name": "f", "arguments": {key: "v"}}}], tools)
    assert read_completion(fmt, text, tools)[0] == [("f", {key: "v"})]
    for mode in ("auto", "strict"):
        # Without a schema a key is a word.
        wanted = mode == "strict" or " " not in key or fmt is COHERE
        body = {"tools": tools, "tool_choice": "required"}
        assert accepts(fmt, True, body, text, schema_mode=mode) is wanted


# The grammar


@EVERY
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_the_ban_and_the_free_text_leave_no_bare_call(fmt, choice):
    """What the parser takes outside a block cannot be free text."""
    call = fmt.render([{"function": {"name": "f", "arguments": {"a": "x"}}}])
    bare = call[call.index(getattr(fmt, "head", "")) :].removesuffix((fmt.block or ("", ""))[1])
    assert len(fmt.parse(bare, [F]).tool_calls) == 1
    body = {"tools": [F], "tool_choice": choice}
    if fmt.block:
        assert not accepts(fmt, True, body, f"So: {bare}")
        assert not accepts(fmt, False, body, bare)
    for marked in (True, False):
        assert not accepts(fmt, marked, {"tools": [F], "tool_choice": "none"}, f"So: {bare}")


@EVERY
@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "minLength": 1}, "a < b <c> d", ""),
        ({"type": "string", "minLength": 2, "maxLength": 30}, "ab", "a"),
        ({"type": "string", "maxLength": 3}, "abc", "abcd"),
    ],
    ids=["min", "both", "max"],
)
def test_bounded_strings_end_where_they_end(fmt, schema, good, bad):
    """Bounds hold, and the closing tag is no part of such a string."""
    if fmt is M3:
        pytest.skip("xgrammar refuses bounds in this style")
    tools = [tool("f", ["s"], s=schema)]
    body = {"tools": tools, "tool_choice": {"type": "function", "function": {"name": "f"}}}

    def call(s):
        return fmt.render([{"function": {"name": "f", "arguments": {"s": s}}}])

    assert accepts(fmt, True, body, call(good))
    if accepts(fmt, True, body, call(bad)):  # what is layout elsewhere counts as text
        assert fmt is QWEN
        arguments = fmt.parse(call(bad), tools).tool_calls[0]["function"]["arguments"]
        jsonschema.validate(json.loads(arguments)["s"], schema)
    assert not accepts(fmt, True, body, call(good) + " and so on")
    close = {COHERE: "</cofl:value>"}.get(fmt) or fmt.parameter_close
    cut = call(good).index(close)
    assert not accepts(fmt, True, body, call(good)[:cut] + close + "x" + call(good)[cut:])


def test_an_empty_call_of_a_tool_with_optional_parameters():
    tools = [tool("f", a=STRING)]
    body = {"tools": tools, "tool_choice": "required"}
    for text in (
        "<tool_call>\n<function=f>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>",
    ):
        for marked in (True, False):
            assert accepts(QWEN, marked, body, text)


@pytest.mark.parametrize("fmt", [V32, V4, V41, MINIMAX], ids=lambda f: f.name)
@pytest.mark.parametrize("reasoning", [False, True])
def test_the_newlines_before_a_required_block_may_be_there_or_not(fmt, reasoning):
    body = {"tools": [F], "tool_choice": "required"}
    call = fmt.render([{"function": {"name": "f", "arguments": {"a": "x"}}}])
    newlines = "\n" if fmt is MINIMAX else "\n\n"
    for before in ("", newlines):
        text = ("Hm</think>" if reasoning else "") + before + call
        assert accepts(fmt, True, body, text, reasoning=reasoning)
        assert fmt.parse(text, [F], reasoning=reasoning).problems == ()
