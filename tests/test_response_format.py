"""``response_format``: the grammar of an answer, alone and beside tools, and its way back."""

import json

import pytest

from grammar.formats import FORMATS, StreamParser
from grammar.policy import plan
from grammar.schema import SchemaError
from tests.test_formats_tag import accepts

ANSWER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ANSWER}}
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"s": {"type": "string"}},
            "required": ["s"],
        },
    },
}
GOOD = ['{"city": "Lima"}', '{"city": "a", "days": 3}', '{"city":"a < <tool"}']
BAD = ["", "Lima", "{}", '{"city": 5}', '{"city": "a", "days": 0}', '{"city": "a", "x": 1}', "[]"]


def verdicts(name, body, texts, **options):
    """Which texts are whole completions of the request, with the markers as tokens and spelled."""
    fmt, found = FORMATS[name], []
    for text in texts:
        one_token, spelled = (
            accepts(fmt, marked, body, text, **options) for marked in (True, False)
        )
        assert one_token is spelled
        found.append(one_token)
    return found


def all_of(found):
    return bool(found) and all(found)


def call(name):
    function = {"name": "f", "arguments": '{"s": "x"}'}
    return FORMATS[name].render([{"id": "call_0", "type": "function", "function": function}])


@pytest.mark.parametrize("name", ["hermes", "kimi_k2"])
@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL], "tool_choice": "none"}])
def test_an_answer_alone(name, fields):
    body = {"response_format": JSON_SCHEMA} | fields
    assert plan(body, format=name).answer.verdict in ("exact", "rewritten")
    assert all_of(verdicts(name, body, GOOD))
    assert not any(verdicts(name, body, [*BAD, call(name)]))


@pytest.mark.parametrize("name", ["hermes", "kimi_k2"])
def test_an_answer_or_calls(name):
    body = {"response_format": JSON_SCHEMA, "tools": [TOOL]}
    planned = plan(body, format=name, schema_mode="strict")
    assert planned.answer is not None
    assert set(planned.prepared) == {"f"}
    assert all_of(verdicts(name, body, [*GOOD, call(name)]))
    assert not any(verdicts(name, body, [*BAD, "text " + call(name), GOOD[0] + call(name)]))


@pytest.mark.parametrize("name", ["hermes", "kimi_k2"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_calls_that_must_come_leave_no_room_for_an_answer(name, choice):
    body = {"response_format": JSON_SCHEMA, "tools": [TOOL], "tool_choice": choice}
    assert plan(body, format=name).answer is None
    assert verdicts(name, body, [call(name), GOOD[0]]) == [True, False]


def test_json_object_is_any_object():
    body = {"response_format": {"type": "json_object"}}
    assert all_of(verdicts("hermes", body, ["{}", '{"a": [1, null, {"b": "é"}]}']))
    assert not any(verdicts("hermes", body, ["[]", "5", "x", ""]))


def test_text_asks_for_nothing():
    assert plan({"response_format": {"type": "text"}}, format="hermes").constraint is None


def test_undeclared_keys_are_json_schemas_business_in_an_answer():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    texts = ['{"a": 1, "b": "x"}', '{"a": "x"}']
    assert verdicts("hermes", {"response_format": wanted}, texts) == [True, False]


def test_thinking_comes_first():
    texts = ["so {} it is</think>\n\n" + GOOD[0], GOOD[0]]
    body = {"response_format": JSON_SCHEMA}
    assert verdicts("hermes", body, texts, reasoning=True) == [True, False]


@pytest.mark.parametrize(
    ("response_format", "message"),
    [
        ("json", "response_format must be an object with type text, json_object or json_schema"),
        ({"type": "xml"}, "response_format must be .*; got {'type': 'xml'}"),
        ({"type": "json_schema"}, "json_schema must be an object with name and schema; got None"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "with name and schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"enum": {1}}}}, "must be JSON"),
    ],
)
def test_what_cannot_be_meant(response_format, message):
    with pytest.raises(ValueError, match=message):
        plan({"response_format": response_format}, format="hermes")


def test_a_schema_without_a_value_is_refused():
    body = {"type": "json_schema", "json_schema": {"name": "n", "schema": False}}
    with pytest.raises(SchemaError, match="the schema of response_format is refused at #"):
        plan({"response_format": body}, format="hermes")


def streamed(fmt, text):
    stream = StreamParser(fmt, [TOOL], answer=True)
    content = "".join(stream.feed(c).content for c in text) + stream.finish().content
    assert content == stream.parsed.message["content"]
    return stream.parsed


@pytest.mark.parametrize("name", ["hermes", "kimi_k2"])
@pytest.mark.parametrize("cut", [None, -5])
def test_a_call_inside_the_answer_is_text(name, cut):
    fmt = FORMATS[name]
    text = json.dumps({"city": call(name)})[:cut]
    parsed = fmt.parse(text, [TOOL], answer=True)
    assert parsed.message == {"role": "assistant", "content": text}
    assert streamed(fmt, text) == parsed


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_calls_in_place_of_an_answer_are_calls(name):
    fmt = FORMATS[name]
    parsed = fmt.parse(call(name), [TOOL], answer=True)
    assert parsed == fmt.parse(call(name), [TOOL])
    assert len(parsed.tool_calls) == 1
    assert streamed(fmt, call(name)) == parsed


FEW = {"type": "array", "items": {"enum": ["x", "y", "z"]}, "uniqueItems": True}
COUNTED = {"type": "object", "properties": {"a": FEW}, "required": ["a"]}
ONCE, TWICE = '{"a": ["z", "x"]}', '{"a": ["z", "z"]}'


@pytest.mark.parametrize(
    "name", ["hermes", "kimi_k2", "llama", "deepseek_v3_1", "exaone", "harmony"]
)
def test_what_a_schema_cannot_say_a_grammar_may(name):
    """xgrammar ignores uniqueItems; over a few values there is a grammar of it."""
    tool = {"type": "function", "function": {"name": "f", "parameters": COUNTED}}
    body = {"tools": [tool], "tool_choice": "required"}
    planned = plan(body, format=name, schema_mode="strict")
    assert planned.guarded == ()

    def call(arguments):
        return FORMATS[name].render([{"function": {"name": "f", "arguments": arguments}}])

    assert verdicts(name, body, [call(ONCE), call(TWICE)]) == [True, False]


@pytest.mark.parametrize("name", ["hermes", "kimi_k3", "harmony"])
def test_so_in_an_answer(name):
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": COUNTED}}
    wrap = {
        "hermes": "{}",
        "kimi_k3": "{}<|close|>response<|sep|><|close|>message<|sep|>",
        "harmony": "<|channel|>final<|message|>{}",
    }[name]
    texts = [wrap.replace("{}", text) for text in (ONCE, TWICE)]
    assert verdicts(name, {"response_format": wanted}, texts) == [True, False]
    parsed = FORMATS[name].parse(texts[0], answer=True)
    assert parsed.message == {"role": "assistant", "content": ONCE}
