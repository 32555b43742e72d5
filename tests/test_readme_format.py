"""The README's new format, which xgrammar has no style for, does all that a format does."""

import json

import pytest

from grammar.formats import StreamParser
from grammar.formats.marked_json import MarkedJson
from grammar.policy import plan
from tests.test_formats_tag import accepts
from tests.test_grammar_vocabularies import byte_level


class InternLM2(MarkedJson):
    """InternLM 2.5 (chat format: `<|action_start|><|plugin|>`, a JSON object, `<|action_end|>`)."""

    name = "internlm2"
    style = None
    opener, closer = "<|action_start|><|plugin|>", "<|action_end|>"
    layout = opener + '\n{"name": "$name", "parameters": $arguments}' + closer
    arguments_key = "parameters"
    markers = ("<|action_start|>", "<|plugin|>", closer)
    banned = (opener,)
    start_of_thinking = end_of_thinking = None


FORMAT = InternLM2()
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
MARKED = pytest.mark.parametrize("marked", [True, False], ids=["one-token", "spelled"])


def calls(*arguments):
    return [
        {
            "id": f"call_{i}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": json.dumps(a)},
        }
        for i, a in enumerate(arguments)
    ]


def test_it_writes_and_reads_calls():
    written = calls({"city": 'a<|action_end|>"b'}, {"city": "上海", "days": 3})
    text = FORMAT.render(written)
    assert text.startswith('<|action_start|><|plugin|>\n{"name": "get_weather", "parameters": {')
    parsed = FORMAT.parse(f"So: {text} ok", TOOLS)
    assert parsed.tool_calls == written
    assert parsed.message["content"] == "So:  ok"
    assert parsed.problems == ()


def test_it_streams():
    text = "So: " + FORMAT.render(calls({"city": "Bern"}))
    stream = StreamParser(FORMAT, TOOLS)
    deltas = [stream.feed(character) for character in text]
    assert "".join(d.content for d in deltas) == "So:"
    assert [c["function"]["name"] for d in deltas for c in d.tool_calls] == ["get_weather"]
    stream.finish()
    assert stream.parsed == FORMAT.parse(text, TOOLS)


def test_what_breaks_off_is_no_call():
    text = FORMAT.render(calls({"city": "Bern"}))
    for cut in range(len(text)):
        assert FORMAT.parse(text[:cut], TOOLS).tool_calls == []


@MARKED
@pytest.mark.parametrize(
    ("choice", "wanted"),
    # text, call, two calls, text and a call, a call against the schema
    [
        ("auto", [True, True, True, True, False]),
        ("required", [False, True, True, False, False]),
        ({"type": "function", "function": {"name": "get_weather"}}, [False, True] + [False] * 3),
    ],
    ids=str,
)
def test_it_has_a_grammar(marked, choice, wanted):
    body = {"tools": TOOLS, "tool_choice": choice}
    call = FORMAT.render(calls({"city": "Bern"}))
    bad = FORMAT.render(calls({"city": 5}))
    texts = ["3 < 4", call, f"{call}\n{call}", f"So: {call}", bad]
    assert [accepts(FORMAT, marked, body, text) for text in texts] == wanted


@MARKED
def test_it_has_a_ban(marked):
    body = {"tools": TOOLS, "tool_choice": "none"}
    assert accepts(FORMAT, marked, body, "3 < 4, <|so|>")
    assert not accepts(FORMAT, marked, body, FORMAT.render(calls({"city": "Bern"})))
    assert len(byte_level(marked).encode(FORMAT.opener, add_special_tokens=False)) > 1


def test_without_thinking_a_prompt_that_opens_it_changes_nothing():
    body = {"tools": TOOLS, "tool_choice": "required"}
    text = FORMAT.render(calls({"city": "Bern"}))
    assert accepts(FORMAT, True, body, text, reasoning=True)
    assert FORMAT.parse(text, TOOLS, reasoning=True) == FORMAT.parse(text, TOOLS)
    ban = plan(body | {"tool_choice": "none"}, format=FORMAT, reasoning=True).ban
    assert ban == FORMAT.ban()


def test_plan_takes_it_as_it_is():
    planned = plan({"tools": TOOLS, "tool_choice": "required"}, format=FORMAT)
    assert planned.structural_tag is not None
    assert planned.warnings == ()
