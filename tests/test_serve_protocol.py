"""Bodies of requests: what is read, what is refused with which words, what is ignored."""

import json

import pytest

from sampler.params import SamplingParams
from sampler.serve.errors import ApiError, refused
from sampler.serve.limits import Limits
from sampler.serve.prepare import prepare
from sampler.serve.protocol import read_request

HELLO = [{"role": "user", "content": "Hello"}]


def body(**fields):
    return json.dumps({"messages": HELLO, **fields}).encode()


def refusal(raw):
    with pytest.raises(ApiError) as caught:
        read_request(raw)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[1]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"temperature": NaN, "messages": []}', "NaN is no JSON number"),
        (b'{"seed": ' + b"1" * 5000 + b"}", "not JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"messages": [{"role": "user", "content": "\\ud83d"}]}', "surrogate"),
    ],
)
def test_what_is_no_request_is_named(raw, says):
    assert says in refusal(raw).message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "10"}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stop": [""]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"tools": {}}, "tools"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": "a"}}, "logit_bias"),
        ({"model": 7}, "model"),
        ({"seed": 1.5}, "seed"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ],
)
def test_a_wrong_type_is_refused_with_its_field(fields, param):
    error = refusal(body(**fields))
    assert error.param == param
    assert param in error.message
    assert error.body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 2},
        {"use_beam_search": True},
        {"length_penalty": 0.5},
        {"min_tokens": 4},
        {"ignore_eos": True},
        {"stop_token_ids": [3]},
        {"bad_words": ["no"]},
        {"functions": [{"name": "f"}]},
        {"modalities": ["audio"]},
        {"echo": True},
        {"continue_final_message": True},
    ],
)
def test_a_field_that_would_change_the_sample_is_never_ignored(fields):
    (name,) = fields
    error = refusal(body(**fields))
    assert error.param == name
    assert error.code == "unsupported_parameter"


def test_such_a_field_that_asks_for_nothing_is_fine():
    request, _ = read_request(
        body(
            best_of=1,
            use_beam_search=False,
            length_penalty=1.0,
            min_tokens=0,
            stop_token_ids=[],
            top_logprobs=0,
        )
    )
    assert request.choices == 1


def test_unknown_fields_are_ignored_and_null_is_not_sent():
    request, raw = read_request(body(user="me", nobody_knows=[1], temperature=None, stop=None))
    assert request.temperature is None
    assert request.stop == []
    assert raw["nobody_knows"] == [1]


def test_token_ids_of_a_bias_come_as_texts():
    request, _ = read_request(body(logit_bias={"12": -100, "7": 1.5}))
    assert request.logit_bias == {12: -100, 7: 1.5}


def test_a_huge_value_is_not_repeated_in_the_error():
    error = refusal(body(temperature="x" * 1_000_000))
    assert len(error.message) < 300
    assert len(refused("y" * 1_000_000).message) <= 2000


@pytest.fixture(scope="module")
def chat(chats):
    return chats["constrained"]


def prepared(chat, limits=None, **fields):
    request, raw = read_request(body(**fields))
    return prepare(chat, limits or Limits(), request, raw)


def test_each_choice_has_a_seed_of_its_own(chat):
    job = prepared(chat, n=3, seed=2**63 - 2)
    assert [p.seed for p in job.params] == [2**63 - 2, 2**63 - 1, -(2**63)]
    drawn = {prepared(chat).params[0].seed for _ in range(20)}
    assert len(drawn) == 20


def test_parameters_reach_the_loop(chat):
    job = prepared(
        chat,
        temperature=0.5,
        top_p=0.9,
        top_k=-1,
        min_p=0.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias={"5": 2},
        max_tokens=99,
        max_completion_tokens=7,
        stop="END",
        logprobs=True,
        seed=5,
    )
    (params,) = job.params
    assert params == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        top_k=0,
        min_p=0.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias={5: 2.0},
        max_tokens=7,
        stop=("END",),
        top_logprobs=1,
        seed=5,
        finish_in_budget=True,
    )


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"temperature": -1}, "temperature", "at least 0"),
        ({"top_p": 0}, "top_p", "(0, 1]"),
        ({"seed": 2**63}, "seed", "64-bit"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"presence_penalty": 3}, "presence_penalty", "[-2, 2]"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "[-100, 100]"),
        ({"logit_bias": {"9999999": 1}}, "logit_bias", "9999999"),
        ({"max_tokens": 140_000}, "max_tokens", "131,072"),
        ({"max_tokens": 2048}, "max_tokens", "context is 2,048"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "text"),
        ({"tools": [{"type": "function"}]}, "tools", "tools[0].function"),
        ({"tools": [5]}, "tools", "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice", "at least one tool"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_object"),
    ],
)
def test_what_cannot_be_is_a_400_with_its_field(chat, fields, param, says):
    with pytest.raises(ApiError) as caught:
        prepared(chat, **fields)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert says in caught.value.message


def test_a_schema_that_cannot_be_guaranteed_names_tool_pointer_and_reason(chat):
    function = {
        "name": "find",
        "parameters": {"type": "object", "properties": {"q": {"$ref": "#/no"}}},
    }
    with pytest.raises(ApiError) as caught:
        prepared(chat, tools=[{"type": "function", "function": function}], tool_choice="required")
    assert caught.value.param == "tools"
    assert "'find'" in caught.value.message
    assert "/properties/q" in caught.value.message
    assert "#/no" in caught.value.message


def test_limits_hold(chat):
    tool = {"type": "function", "function": {"name": "f", "description": "x" * 200}}
    named = [{**tool, "function": {**tool["function"], "name": f"f{i}"}} for i in range(3)]
    with pytest.raises(ApiError, match="at most 2"):
        prepared(chat, Limits(tools=2), tools=named)
    with pytest.raises(ApiError, match=r"tools\[0\] must be at most 100 bytes"):
        prepared(chat, Limits(schema_bytes=100), tools=named)
    with pytest.raises(ValueError, match="queue"):
        Limits(queue=-1)
    assert prepared(chat, Limits(tokens=9)).params[0].max_tokens == 9
    room = 2048 - len(prepared(chat).prompt.ids)
    assert prepared(chat).params[0].max_tokens == room


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        (
            {
                "thinking": {"type": "disabled"},
                "reasoning_effort": "low",
                "chat_template_kwargs": {"x": 1},
            },
            {"x": 1, "thinking": False, "reasoning_effort": "low"},
        ),
        # What Kimi-Vendor-Verifier sends to Moonshot's service, and to open models in its stead.
        (
            {"thinking": {"type": "enabled", "keep": "all", "effort": "max"}},
            {"thinking": True, "preserve_thinking": True, "thinking_effort": "max"},
        ),
        ({"thinking": {"type": "enabled", "keep": None}}, {"thinking": True}),
        (
            {
                "thinking": {"type": "enabled", "effort": "max"},
                "chat_template_kwargs": {"thinking": False, "thinking_effort": "low"},
            },
            {"thinking": False, "thinking_effort": "low"},
        ),
    ],
)
def test_switches_of_the_template_come_by_three_names(chat, fields, variables):
    request, raw = read_request(body(**fields))
    seen = {}

    class Asked(Exception):
        pass

    class Spy:
        loaded = chat.loaded

        def prepare(self, given):
            seen.update(given)
            raise Asked

    with pytest.raises(Asked):
        prepare(Spy(), Limits(), request, raw)
    assert seen["chat_template_kwargs"] == variables
