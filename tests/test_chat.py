"""Chat bodies to prompts and grammars."""

import copy
import json
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar.matcher import MatcherBatch
from grammar.schema import SchemaError
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
    plan = SimpleNamespace(is_answer=False, tool_choice="auto")
    prompt = SimpleNamespace(reasoning=False, plan=plan)
    assert chat.parse(text, prompt).message["tool_calls"]
    assert "tool_calls" not in chat.parse(text, prompt, [TOOL]).message
    for tools in ([], [TOOL]):
        plan.tool_choice = "none" if tools else "auto"
        assert chat.parse(text, prompt, tools).message == {"role": "assistant", "content": text}
        assert chat.parse(text, prompt, tools, any_tool=True).message["tool_calls"]


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL], "tool_choice": "none"}])
def test_an_answer_that_looks_like_a_call_is_judged_all_the_same(loaded, fields):
    digits = {"type": "array", "items": {"type": "integer"}, "maxItems": 40, "uniqueItems": True}
    parameters = {"type": "object", "properties": {"digits": digits}}
    schema = {
        "type": "object",
        "properties": {"name": {"const": "get_time"}, "parameters": parameters},
    }
    format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    body = {"messages": [user("Hi")], "response_format": format, **fields}
    guard = Chat(loaded, format="llama").prepare(body).guard
    for digits, keywords in (([1, 2], []), ([1, 1], ["uniqueItems"])):
        text = json.dumps({"name": "get_time", "parameters": {"digits": digits}})
        assert [f.keyword for f in guard.check([text.encode()]).failures] == keywords


@pytest.mark.parametrize("content", [None, "", []])
def test_content_that_is_none_is_empty(loaded, content):
    messages = [user("Hi"), {"role": "assistant", "content": content}, user("Well?")]
    text = text_of(loaded, Chat(loaded).prepare({"messages": messages}))
    assert "<|im_start|>assistant\n<|im_end|>" in text
    assert "None" not in text


def test_parts_that_are_no_text_are_refused_by_name(loaded):
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    parts = [{"type": "text", "text": "What is this?"}, image]
    with pytest.raises(ValueError, match=r"messages\[0\]\.content\[1\] is of type 'image_url'"):
        Chat(loaded).prepare({"messages": [user(parts)]})
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    text = text_of(loaded, Chat(loaded).prepare({"messages": [user("Hi"), refusal]}))
    assert "assistant\nNo.<|im_end|>" in text


@pytest.mark.parametrize(
    ("role", "shown"),
    [
        ("_input", "system"),
        ("developer", "system"),
        ("system", "system"),
        ("function", "tool"),
        ("tool", "tool"),
    ],
)
def test_roles_are_those_that_templates_know(loaded, role, shown):
    messages = [user("Hi"), {"role": role, "name": "f", "content": "12:00"}]
    text = text_of(loaded, Chat(loaded).prepare({"messages": messages}))
    assert f"<|im_start|>{shown}\n12:00" in text
    first = Chat(loaded).prepare({"messages": messages[::-1], "tools": [TOOL]})
    assert text_of(loaded, first).count("<|im_start|>system") == 1


def test_a_template_that_knows_developers_gets_them(loaded):
    template = CHATML + "{# developer messages #}"
    chat = Chat(with_template(loaded, template))
    message = {"role": "developer", "content": "Be brief."}
    assert "<|im_start|>developer\n" in text_of(loaded, chat.prepare({"messages": [message]}))


def test_kimi_knows_calls_of_the_history_by_ids_of_its_own(loaded):
    # MoonshotAI/K2-Vendor-Verifier, README, suggestion 2.
    def call(call_id, name):
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}

    def said(*calls):
        return {"role": "assistant", "content": None, "tool_calls": list(calls)}

    def result(call_id):
        return {"role": "tool", "tool_call_id": call_id, "content": "."}

    history = [
        user("Find it"),
        said(call("search:0", "search")),
        result("search:0"),
        said(call("call_x", "open"), call("search:0", "search")),
        result("call_x"),
        result("search:0"),
    ]
    template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}[{{ c.id }}]{% endfor %}"
        "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}{% endfor %}"
    )
    chat = Chat(with_template(loaded, template), format="kimi_k2")
    assert text_of(loaded, chat.prepare({"messages": history})) == (
        "[functions.search:0](functions.search:0)"
        "[functions.open:1][functions.search:2](functions.open:1)(functions.search:2)"
    )
    plain = Chat(with_template(loaded, template), format="hermes")
    assert "[search:0](search:0)[call_x]" in text_of(loaded, plain.prepare({"messages": history}))


def test_the_old_function_call_is_a_tool_call(loaded):
    call = {"name": "get_time", "arguments": '{"city": "Oslo"}'}
    messages = [user("Hi"), {"role": "assistant", "content": None, "function_call": call}]
    text = text_of(loaded, Chat(loaded).prepare({"messages": messages, "tools": [TOOL]}))
    assert '{"name": "get_time", "arguments": {"city": "Oslo"}}' in text


def test_what_a_template_says_is_passed_on(loaded):
    template = "{{ raise_exception('Conversation roles must alternate') }}"
    chat = Chat(with_template(loaded, template))
    with pytest.raises(
        ValueError, match=r"refuses this request: Conversation roles must alternate"
    ):
        chat.prepare({"messages": [user("Hi")]})
    chat = Chat(with_template(loaded, "{{ messages[0].content + 5 }}"))
    with pytest.raises(ValueError, match="fails on this request: TypeError: can only concatenate"):
        chat.prepare({"messages": [user("Hi")]})
    with pytest.raises(ValueError, match="an empty prompt"):
        Chat(with_template(loaded, "{# nothing #}")).prepare({"messages": [user("Hi")]})


def test_variables_of_the_template(loaded):
    template = CHATML + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    chat = Chat(with_template(loaded, template))
    body = {"messages": [user("Hi")]}
    off = chat.prepare(body | {"chat_template_kwargs": {"enable_thinking": False}})
    assert text_of(loaded, off).endswith("<think>\n\n</think>\n\n")
    for variables in (None, {}, {"enable_thinking": True}):
        text = text_of(loaded, chat.prepare(body | {"chat_template_kwargs": variables}))
        assert text.endswith("assistant\n")
    for name in ("messages", "tools", "add_generation_prompt", "tokenize", "chat_template"):
        with pytest.raises(ValueError, match=f"chat_template_kwargs must not hold '{name}'"):
            chat.prepare(body | {"chat_template_kwargs": {name: []}})
    with pytest.raises(ValueError, match="chat_template_kwargs must be an object; got list"):
        chat.prepare(body | {"chat_template_kwargs": [1]})


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "messages must be a list of at least one message; got None"),
        ([], "messages must be a list of at least one message"),
        ("Hi", "messages must be a list"),
        (["Hi"], r"messages\[0\] must be an object with role and content; got 'Hi'"),
        ([{}], r"messages\[0\]\.role must be one of system, developer, user"),
        ([{"role": ["user"]}], r"messages\[0\]\.role must be one of"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content must be a string"),
        ([{"role": "user", "content": [5]}], r"content\[0\] must be a content part"),
        ([{"role": "user", "content": [{"text": 5}]}], r"content\[0\]\.text must be a string"),
        ([{"role": "assistant", "tool_calls": {}}], r"tool_calls must be a list of calls"),
        ([{"role": "assistant", "tool_calls": [5]}], r"tool_calls\[0\]\.function must be"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}],
            r"tool_calls\[0\]\.function must be an object with name",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
            r"tool_calls\[0\]\.function\.arguments must be JSON",
        ),
        ([{"role": "user", "content": "\ud800"}], "half of a surrogate pair"),
    ],
)
def test_messages_that_are_none_are_refused(loaded, messages, message):
    with pytest.raises(ValueError, match=message):
        Chat(loaded).prepare({"messages": messages})


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("get_time", "tools must be a list of function tools"),
        ({}, "tools must be a list of function tools"),
        (["get_time"], r"tools\[0\] must be {"),
        ([None], r"tools\[0\] must be {"),
        ([{"name": "f", "parameters": {}}], r"tools\[0\] must be {"),
        ([{"type": "function"}], r"tools\[0\]\.function must be an object; got None"),
        ([{"type": "function", "function": "f"}], r"tools\[0\]\.function must be an object"),
        ([{"type": "function", "function": {}}], r"tools\[0\]\.function\.name must match"),
        ([{"type": "function", "function": {"name": 5}}], r"function\.name must match .*; got 5"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": ["x"]}}],
            r"tools\[0\]\.function\.parameters must be a JSON Schema object; got \['x'\]",
        ),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}],
            r"tools\[0\]\.function\.parameters\.type must be 'object'",
        ),
        (
            [{"type": "function", "function": {"name": "f", "strict": "yes"}}],
            r"tools\[0\]\.function\.strict must be a boolean",
        ),
        ([{"type": "retrieval"}], r"tools\[0\] must be {"),
    ],
)
def test_tools_that_are_none_are_refused(loaded, tools, message):
    with pytest.raises(ValueError, match=message):
        Chat(loaded).prepare({"messages": [user("Hi")], "tools": tools})


def test_what_cannot_be_guaranteed_names_tool_place_and_reason(loaded):
    bad = copy.deepcopy(TOOL)
    bad["function"]["parameters"]["properties"]["city"] = {"$ref": "https://example.org/city"}
    body = {"messages": [user("Hi")], "tools": [bad], "tool_choice": "required"}
    where = "the schema of tool 'get_time' is refused at #/properties/city: "
    with pytest.raises(SchemaError, match=f"^{where}.*example.org"):
        Chat(loaded, schema_mode="strict").prepare(body)


def test_allowed_tools_reach_the_grammar(loaded):
    other = copy.deepcopy(TOOL)
    other["function"]["name"] = "get_date"
    chosen = [{"type": "function", "function": {"name": "get_date"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": chosen}}
    body = {"messages": [user("Hi")], "tools": [TOOL, other], "tool_choice": choice}
    prompt = Chat(loaded).prepare(body)
    assert "get_time" in text_of(loaded, prompt)
    verdicts = {}
    for name in ("get_time", "get_date"):
        batch = MatcherBatch([prompt.grammar], vocab_size=loaded.vocab_size)
        text = f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'
        ids = loaded.tokenizer(text, add_special_tokens=False).input_ids
        verdicts[name] = all(batch.accept(0, token) for token in ids)
    assert verdicts == {"get_time": False, "get_date": True}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["function", "user", "required", "text", "object", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "function", "name", "role", "content", "schema", "json", "format"])
        | st.text(max_size=5),
        inner,
        max_size=3,
    ),
    max_leaves=8,
)  # fmt: skip
BODY = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_0",
                    "type": "function",
                    "function": {"name": "get_time", "arguments": '{"city": "Oslo"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "12:00"},
    ],
    "tools": [TOOL],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "chat_template_kwargs": {"enable_thinking": True},
}
CONSTRAINTS = [
    {},
    {"tool_choice": {"type": "function", "function": {"name": "get_time"}}},
    {
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "auto",
                "tools": [{"type": "function", "function": {"name": "get_time"}}],
            },
        }
    },
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "array", "items": {"enum": [1, "x"]}}},
        }
    },
    {"structured_outputs": {"json": {"properties": {"a": {"type": "integer"}}}}},
    {"structured_outputs": {"regex": "[a-c]+"}},
    {"structured_outputs": {"grammar": 'root ::= "a" root | "b"'}},
    {"structured_outputs": {"choice": ["yes", "no"]}},
    {
        "structured_outputs": {
            "structural_tag": {
                "structures": [{"begin": "<a>", "schema": {"type": "object"}, "end": "</a>"}],
                "triggers": ["<a"],
            }
        }
    },
    {
        "structured_outputs": {
            "structural_tag": {
                "format": {
                    "type": "tag",
                    "begin": "<a>",
                    "content": {"type": "json_schema", "json_schema": {"type": "object"}},
                    "end": "</a>",
                }
            }
        }
    },
]


def places(value, path=()):
    """The path to every value inside one, itself first."""
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def replaced(value, path, by):
    """A copy of a value, with another at that path."""
    if not path:
        return by
    made = copy.copy(value)
    made[path[0]] = replaced(value[path[0]], path[1:], by)
    return made


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=str)
def test_bodies_that_the_property_starts_from_are_good(loaded, constraint):
    prompt = Chat(loaded).prepare(BODY | constraint)
    assert prompt.ids
    assert prompt.grammar is not None


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_json_gives_a_prompt_or_says_why_not(declared, data):
    """One value somewhere in a good body is replaced by anything."""
    body = BODY | data.draw(st.sampled_from(CONSTRAINTS))
    path = data.draw(st.sampled_from(list(places(body))))
    body = replaced(body, path, data.draw(JSON))
    try:
        prompt = declared.prepare(body)
    except ValueError as error:
        assert len(str(error)) > 10
    else:
        assert prompt.ids


@pytest.mark.parametrize("field", [*BODY, "response_format", "structured_outputs", "guided_json"])
def test_what_nests_too_deeply_is_refused(loaded, field):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match=r"\S"):
        Chat(loaded).prepare(BODY | {field: deep})
    deep = {}
    for _ in range(100_000):
        deep = {"type": deep}
    with pytest.raises(ValueError, match=r"\S"):
        Chat(loaded).prepare(BODY | {field: deep})
