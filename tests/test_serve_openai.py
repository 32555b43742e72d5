"""The server by way of OpenAI's own client, over a socket: every field, streamed and not."""

import json

import jsonschema
import openai
import pytest

from tests.serving import STRICT, library_answers, plain, reassembled, running

WEATHER = {
    "type": "object",
    "properties": {
        "location": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "num_days": {"type": "integer", "minimum": 1, "maximum": 10},
    },
    "required": ["location", "unit"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather: weather, forecast or rain in a city",
            "parameters": WEATHER,
        },
    },
    {
        "type": "function",
        "function": {
            "name": "web_search",
            "description": "Search: look up or find on the web",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    },
]
ASK = [{"role": "user", "content": "How is the weather in Seoul."}]


@pytest.fixture(scope="module")
def server():
    with running(*STRICT, "--api-key", "secret", "--max-batch-size", "8") as started:
        yield started


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0) as made:
        yield made


def ask(client, *, extra=None, **fields):
    """An answer as a dict, and its headers."""
    raw = client.chat.completions.with_raw_response.create(
        **{"model": "nano", "messages": ASK, "max_tokens": 200, **fields}, extra_body=extra
    )
    return json.loads(raw.text if isinstance(raw.text, str) else raw.text()), raw.headers


def stream(client, *, extra=None, **fields):
    """The chunks of a streamed answer as dicts."""
    chunks = client.chat.completions.create(
        **{"model": "nano", "messages": ASK, "max_tokens": 200, **fields},
        stream=True,
        extra_body=extra,
    )
    return [chunk.model_dump(exclude_unset=True) for chunk in chunks]


def both(client, **fields):
    """The choices of an answer, after a check that a stream has the same."""
    answer, _ = ask(client, **fields)
    streamed = reassembled(stream(client, **fields))
    assert len(streamed) == len(answer["choices"])
    for one, other in zip(answer["choices"], streamed, strict=True):
        assert plain(one["message"]) == plain(other["message"])
        assert one["finish_reason"] == other["finish_reason"]
        assert ((one["logprobs"] or {}).get("content") or []) == other["logprobs"]
    return answer["choices"]


def test_the_shape_of_an_answer(client):
    answer, headers = ask(client, tools=TOOLS, seed=1)
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "nano"
    (choice,) = answer["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["type"] == "function"
    assert call["function"]["name"] == "get_weather"
    jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER)
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens"] > 20
    assert headers["content-type"] == "application/json"
    assert "x-masked-sampling-guard" not in headers


def test_the_shape_of_a_stream(client):
    chunks = stream(client, tools=TOOLS, seed=1, stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    answer, _ = ask(client, tools=TOOLS, seed=1)
    assert chunks[-1]["usage"] == answer["usage"]
    deltas = [part["delta"] for chunk in chunks for part in chunk["choices"]]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"] == {"name": "get_weather", "arguments": ""}
    assert calls[0]["id"]
    assert calls[0]["index"] == 0
    assert "name" not in calls[1]["function"]
    without = stream(client, tools=TOOLS, seed=1)
    assert not any("usage" in chunk for chunk in without)


@pytest.mark.parametrize("fields", [{"tools": TOOLS}, {"stop": ["e"]}, {"max_tokens": 9}])
def test_every_chunk_has_the_usage_so_far_where_that_is_asked_for(client, fields):
    def usages(**options):
        options = {"include_usage": True, "continuous_usage_stats": True, **options}
        return stream(client, seed=2, n=2, logprobs=True, stream_options=options, **fields)

    *chunks, last = usages()
    told = {0: 0, 1: 0}
    for chunk in chunks:
        (part,), usage = chunk["choices"], chunk["usage"]
        # A token has one entry of log-probabilities, sent with the chunk that it led to.
        told[part["index"]] += len((part["logprobs"] or {}).get("content") or [])
        if not part["finish_reason"]:
            assert usage["completion_tokens"] == told[part["index"]]
        assert usage["prompt_tokens"] == last["usage"]["prompt_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    ends = [c["usage"]["completion_tokens"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sum(ends) == last["usage"]["completion_tokens"]
    assert not any("usage" in chunk for chunk in usages(include_usage=False))


def test_the_clients_own_stream_helper_agrees(client):
    with client.chat.completions.stream(
        model="nano", messages=ASK, tools=TOOLS, seed=3, max_tokens=200
    ) as events:
        final = events.get_final_completion().model_dump()
    answer, _ = ask(client, tools=TOOLS, seed=3)
    assert plain(final["choices"][0]["message"]) == plain(answer["choices"][0]["message"])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "choice",
    [
        None,
        "none",
        "auto",
        "required",
        {"type": "function", "function": {"name": "web_search"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "web_search"}}],
            },
        },
    ],
    ids=["absent", "none", "auto", "required", "named", "allowed"],
)
def test_tool_choice(client, loaded, choice, seed):
    fields = {"tools": TOOLS, "seed": seed, "max_tokens": 200}
    if choice is not None:
        fields["tool_choice"] = choice
    (got,) = both(client, **fields)
    message, reason, tied = library_answers(loaded, [{"messages": ASK, **fields}])[0]
    assert (plain(got["message"]), got["finish_reason"]) == (message, reason) or tied
    names = [call["function"]["name"] for call in got["message"].get("tool_calls") or []]
    if choice == "none":
        assert names == []
        assert got["finish_reason"] != "tool_calls"
    elif choice == "required" or isinstance(choice, dict):
        assert names
        assert got["finish_reason"] == "tool_calls"
    if isinstance(choice, dict):
        assert set(names) == {"web_search"}


def test_one_call_where_parallel_calls_are_off(client):
    for seed in range(2):
        (got,) = both(
            client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed
        )
        assert len(got["message"]["tool_calls"]) == 1


def test_a_truncated_call_is_no_call(client):
    (got,) = both(client, tools=TOOLS, tool_choice="required", seed=1, max_tokens=6)
    assert got["finish_reason"] == "length"
    assert not got["message"].get("tool_calls")
    assert got["parse_problems"][0]["kind"] == "incomplete"
    (other,) = both(client, tools=TOOLS, tool_choice="required", seed=1, max_completion_tokens=6)
    assert plain(other["message"]) == plain(got["message"])


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_no_tokens_at_all_are_refused(client, field):
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.chat.completions.create(
            model="nano", messages=[{"role": "user", "content": "hi"}], **{field: 0}
        )


def test_response_format(client):
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Bern"]}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    for seed in range(2):
        (got,) = both(client, response_format=format, seed=seed, max_tokens=120)
        if got["finish_reason"] == "stop":
            jsonschema.validate(json.loads(got["message"]["content"]), schema)
    (got,) = both(client, response_format={"type": "json_object"}, seed=1, max_tokens=40)
    assert got["message"]["content"].lstrip().startswith("{")


@pytest.mark.parametrize(
    ("kind", "value", "holds"),
    [
        ("choice", ["red", "green"], lambda text: text in ("red", "green")),
        ("regex", "[a-c]{3}", lambda text: len(text) == 3 and set(text) <= set("abc")),
        ("json", {"enum": [17, "x"]}, lambda text: json.loads(text) in (17, "x")),
        ("grammar", 'root ::= "yes" | "no"', lambda text: text in ("yes", "no")),
    ],
)
def test_structured_outputs(client, kind, value, holds):
    for seed in range(3):
        (got,) = both(client, extra={"structured_outputs": {kind: value}}, seed=seed)
        assert got["finish_reason"] == "stop"
        assert holds(got["message"]["content"])


CALL_BEGIN, CALL_END = '<tool_call>\n{"name": "get_weather", "arguments": ', "}\n</tool_call>"


def tagged(begin, end):
    """A structural tag: one piece of JSON between two texts."""
    content = {"type": "json_schema", "json_schema": {"enum": [{"location": "Oslo"}]}}
    format = {"type": "tag", "begin": begin, "content": content, "end": end}
    return {"type": "structural_tag", "format": format}


def test_a_structural_tag_is_the_grammar_of_the_whole_completion(client):
    for value in (tagged("<a>", "</a>"), json.dumps(tagged("<a>", "</a>"))):
        (got,) = both(client, extra={"structured_outputs": {"structural_tag": value}}, seed=1)
        assert got["finish_reason"] == "stop"
        text = got["message"]["content"]
        assert json.loads(text.removeprefix("<a>").removesuffix("</a>")) == {"location": "Oslo"}
        assert not got["message"].get("tool_calls")


def test_calls_that_a_structural_tag_spells_are_calls(client):
    tag = {"structured_outputs": {"structural_tag": tagged(CALL_BEGIN, CALL_END)}}
    (got,) = both(client, extra=tag, tools=TOOLS, seed=1)
    assert got["finish_reason"] == "tool_calls"
    (call,) = got["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"location": "Oslo"}


SPELT = CALL_BEGIN + '{"location": "Oslo"}' + CALL_END


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        ({"choice": [SPELT]}, SPELT),
        ({"grammar": f"root ::= {json.dumps(SPELT)}"}, SPELT),
        ({"regex": "<tool_call>[a-c]{2}"}, None),
        ({"structural_tag": tagged(CALL_BEGIN, CALL_END)}, SPELT),
    ],
)
def test_under_tool_choice_none_no_text_is_a_call(client, constraint, text):
    fields = {"tools": TOOLS, "tool_choice": "none", "seed": 1}
    (got,) = both(client, extra={"structured_outputs": constraint}, **fields)
    assert got["finish_reason"] == "stop"
    assert not got["message"].get("tool_calls")
    assert "parse_problems" not in got
    content = got["message"]["content"]
    if text is None:
        assert len(content) == len("<tool_call>") + 2
        assert content.startswith("<tool_call>")
    else:
        assert content.replace(" ", "") == text.replace(" ", "")


def test_sampling_fields_are_the_librarys(client, loaded):
    fields = {"temperature": 0.7, "top_p": 0.9, "seed": 11, "max_tokens": 60}
    extra = {"top_k": 20, "min_p": 0.01}
    (got,) = both(client, extra=extra, **fields)
    body = {"messages": ASK, **fields, **extra}
    message, reason, tied = library_answers(loaded, [body])[0]
    assert (plain(got["message"]), got["finish_reason"]) == (message, reason) or tied


def test_stop_texts_are_cut_and_named(client):
    (whole,) = both(client, seed=2, temperature=0.0)
    text = whole["message"]["content"]
    stop = text[3:7]
    (cut,) = both(client, seed=2, temperature=0.0, stop=["never", stop])
    assert cut["message"]["content"] == text[: text.find(stop)]
    assert cut["finish_reason"] == "stop"
    assert cut["stop_reason"] == stop


def test_choices_differ_by_their_seeds(client):
    choices = both(client, n=4, seed=20, max_tokens=40)
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert len({choice["message"]["content"] for choice in choices}) > 1
    (third,) = both(client, seed=22, max_tokens=40)
    assert plain(third["message"]) == plain(choices[2]["message"])


def test_without_a_seed_answers_differ(client):
    texts = {
        ask(client, max_tokens=20, temperature=2.0)[0]["choices"][0]["message"]["content"]
        for _ in range(4)
    }
    assert len(texts) > 1


def test_logprobs(client):
    (got,) = both(client, logprobs=True, top_logprobs=3, seed=5, max_tokens=30)
    content = got["logprobs"]["content"]
    text = b"".join(bytes(entry["bytes"]) for entry in content).decode()
    assert text == got["message"]["content"]
    for entry in content:
        assert len(entry["top_logprobs"]) == 3
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert entry["logprob"] <= values[0] <= 0
    (alone,) = both(client, logprobs=True, seed=5, max_tokens=30)
    assert [e["logprob"] for e in alone["logprobs"]["content"]] == pytest.approx(
        [e["logprob"] for e in content], abs=1e-3
    )
    assert all(e["top_logprobs"] == [] for e in alone["logprobs"]["content"])


def test_a_bias_and_a_penalty_reach_the_draw(client, loaded):
    end = loaded.stop_token_ids[0]
    (got,) = both(client, logit_bias={str(end): -100}, max_tokens=60, seed=1)
    assert got["finish_reason"] == "length"
    (first,) = both(client, seed=4, max_tokens=30, logprobs=True)
    token = first["logprobs"]["content"][0]
    wanted = loaded.tokenizer.convert_tokens_to_ids("a")
    (biased,) = both(client, seed=4, max_tokens=3, logprobs=True, logit_bias={str(wanted): 100})
    assert biased["logprobs"]["content"][0]["token"] == "a" != token["token"]
    plainly = both(client, seed=4, max_tokens=80, logit_bias={str(end): -100})
    penal = both(client, seed=4, max_tokens=80, logit_bias={str(end): -100}, frequency_penalty=2.0)
    assert plain(plainly[0]["message"]) != plain(penal[0]["message"])


def test_history_with_calls_results_and_parts(client, loaded):
    history = [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
        },
        *ASK,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"location": "Seoul"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 21 degrees"},
    ]
    fields = {"messages": history, "tools": TOOLS, "seed": 3, "max_tokens": 100}
    (got,) = both(client, **fields)
    message, reason, tied = library_answers(loaded, [fields])[0]
    assert (plain(got["message"]), got["finish_reason"]) == (message, reason) or tied


GUARDED = {
    "type": "object",
    "properties": {
        "digits": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 99},
            "minItems": 2,
            "maxItems": 40,
            "uniqueItems": True,
        }
    },
    "required": ["digits"],
    "additionalProperties": False,
}


def test_a_guarded_schema_is_validated_redone_and_announced(client, server):
    tool = {"type": "function", "function": {"name": "pick", "parameters": GUARDED}}
    fields = {"tools": [tool], "tool_choice": "required", "max_tokens": 300}
    redone = 0
    for seed in range(12):
        answer, headers = ask(client, **fields, seed=seed)
        says = headers["x-masked-sampling-guard"]
        assert says.endswith("guarded=pick")
        redone += int(says.split(";")[0].removeprefix("redone="))
        (got,) = answer["choices"]
        for call in got["message"].get("tool_calls") or []:
            jsonschema.validate(json.loads(call["function"]["arguments"]), GUARDED)
    assert redone > 0
    assert server.metric("redone_rows_total") > 0
    (got,) = both(client, **fields, seed=1)
    with client.chat.completions.with_streaming_response.create(
        model="nano", messages=ASK, stream=True, seed=1, **fields
    ) as raw:
        assert raw.headers["x-masked-sampling-guard"] == "guarded=pick"
        assert raw.headers["content-type"].startswith("text/event-stream")


def test_what_cannot_be_guaranteed_is_refused_with_tool_pointer_and_reason(client):
    parameters = {"type": "object", "properties": {"a": {"$ref": "https://example.com/x.json"}}}
    tool = {"type": "function", "function": {"name": "far", "parameters": parameters}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, tools=[tool], tool_choice="required")
    error = caught.value.body
    assert error["param"] == "tools"
    assert "'far'" in error["message"]
    assert "/properties/a" in error["message"]
    with pytest.raises(openai.BadRequestError):
        stream(client, tools=[tool], tool_choice="required")


def test_errors_are_the_clients_own_classes(client, server):
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, model="gpt-4")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, temperature=-1)
    assert caught.value.param == "temperature"
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="sécret", max_retries=0) as stranger,
        pytest.raises((openai.AuthenticationError, UnicodeEncodeError)),
    ):
        stranger.models.list()
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        stranger.models.list()
    assert caught.value.code == "invalid_api_key"


def test_models(client):
    (model,) = client.models.list().data
    assert model.id == "nano"
    assert client.models.retrieve("nano").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/other")


def test_pydantic_models_as_answers(client):
    from pydantic import BaseModel

    class City(BaseModel):
        name: str
        capital: bool

    try:
        done = client.chat.completions.parse(
            model="nano", messages=ASK, response_format=City, seed=1, max_tokens=300
        )
    except openai.LengthFinishReasonError:
        pytest.fail("an answer of two fields has room in 300 tokens")
    assert isinstance(done.choices[0].message.parsed, City)
