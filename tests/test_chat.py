"""Chat bodies to prompts and grammars."""

import json
from types import SimpleNamespace

import pytest

from sampler.chat import Chat
from sampler.model import load

TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Current time",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def loaded():
    return load("nano")


@pytest.fixture(scope="module")
def declared(loaded):
    return Chat(loaded, scope="always", schema_mode="declared")


def with_template(loaded, template):
    tokenizer = load("nano").tokenizer
    tokenizer.chat_template = template
    return type(loaded)(**{**vars(loaded), "tokenizer": tokenizer})


def text_of(loaded, prompt):
    return loaded.tokenizer.decode(list(prompt.ids))


def user(text):
    return {"role": "user", "content": text}


def test_tools_go_into_the_system_message_of_a_template_that_ignores_them(loaded):
    chat = Chat(with_template(loaded, CHATML))
    text = text_of(loaded, chat.prepare({"messages": [user("Hi")], "tools": [TOOL]}))
    assert text.startswith("<|im_start|>system\nYou may call functions.")
    assert json.dumps(TOOL) in text
    assert '<tool_call>\n{"name": "NAME", "arguments": {"KEY": "VALUE"}}\n</tool_call>' in text
    system = {"role": "system", "content": "Be brief."}
    text = text_of(loaded, chat.prepare({"messages": [system, user("Hi")], "tools": [TOOL]}))
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou may call functions.")
    assert text.count("<|im_start|>system") == 1
    assert "functions" not in text_of(loaded, chat.prepare({"messages": [user("Hi")]}))


def test_arguments_in_the_history_are_not_quoted_twice(loaded):
    call = {"id": "call_0", "type": "function"}
    call["function"] = {"name": "get_time", "arguments": '{"city": "Oslo"}'}
    messages = [user("Hi"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages.append({"role": "tool", "tool_call_id": "call_0", "content": "12:00"})
    text = text_of(loaded, Chat(loaded).prepare({"messages": messages, "tools": [TOOL]}))
    assert '{"name": "get_time", "arguments": {"city": "Oslo"}}' in text


def test_content_parts_are_joined(loaded):
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]
    text = text_of(loaded, Chat(loaded).prepare({"messages": [user(parts)]}))
    assert "user\nHello there<|im_end|>" in text


def test_a_prompt_that_opens_thinking_is_seen(loaded):
    thinking = with_template(loaded, CHATML + "<think>\n")
    body = {"messages": [user("Hi")], "tools": [TOOL], "tool_choice": "required"}
    chat = Chat(thinking)
    prompt = chat.prepare(body)
    assert prompt.reasoning
    assert prompt.grammar is not None
    message = chat.parse(
        'Hm.</think>\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>', prompt
    ).message
    assert message["reasoning_content"] == "Hm."
    assert message["tool_calls"][0]["function"]["name"] == "get_time"
    assert not Chat(loaded).prepare(body).reasoning


@pytest.mark.parametrize(
    ("format", "template", "reasoning"),
    [
        ("harmony", "<|start|>assistant", False),
        ("gemma_4", "<|channel>thought\n", True),
        ("gemma_4", "<|turn>model\n", False),
        ("kimi_k3", "<|open|>think<|sep|>", True),
    ],
)
def test_thinking_in_the_format_s_own_markers(loaded, format, template, reasoning):
    chat = Chat(with_template(loaded, CHATML + template), format=format)
    body = {"messages": [user("Hi")], "tools": [TOOL], "tool_choice": "required"}
    prompt = chat.prepare(body)
    assert prompt.reasoning is reasoning
    assert prompt.grammar is not None


def test_free_chats_have_no_grammar_and_constrained_ones_follow_the_policy(loaded):
    body = {"messages": [user("Hi")], "tools": [TOOL]}
    assert Chat(loaded, constrained=False, scope="always").prepare(body).grammar is None
    assert Chat(loaded).prepare(body).grammar is None
    assert Chat(loaded, scope="always").prepare(body).grammar is not None


def test_tool_choice_none_takes_the_tools_out_unless_told_not_to(loaded):
    body = {"messages": [user("Hi")], "tools": [TOOL], "tool_choice": "none"}
    assert "get_time" not in text_of(loaded, Chat(loaded).prepare(body))
    kept = Chat(loaded, exclude_tools_when_tool_choice_none=False).prepare(body)
    assert "get_time" in text_of(loaded, kept)
    assert kept.grammar is not None


def test_parsing_knows_the_tools_only_if_given(loaded):
    text = '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'
    chat = Chat(loaded)
    prompt = SimpleNamespace(reasoning=False, plan=SimpleNamespace(answer=None))
    assert chat.parse(text, prompt).message["tool_calls"]
    assert "tool_calls" not in chat.parse(text, prompt, [TOOL]).message
