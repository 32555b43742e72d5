"""Decoding with string jump-forward: forced text is put in, the rest is drawn as ever."""

import json

import pytest
import torch

from grammar.matcher import MatcherBatch
from sampler.chat import Chat
from sampler.decoding import Decoder
from sampler.params import Request, SamplingParams
from tests.looping import decoded

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "where": {"enum": ["Amsterdam", "Rotterdam"]},
                    "how_many_days_ahead": {"type": "integer", "minimum": 0, "maximum": 9},
                },
                "required": ["where", "how_many_days_ahead"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("get_weather_forecast", "get_traffic_forecast")
]
BODY = {
    "messages": [{"role": "user", "content": "weather in Amsterdam please"}],
    "tools": TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": False,
}


@pytest.fixture(scope="module")
def prompt(loaded):
    chat = Chat(loaded, scope="always", schema_mode="strict")
    return chat, chat.prepare(BODY)


def requests(prompt, count=6, **params):
    settings = {"max_tokens": 200, **params}
    return [
        Request(prompt.ids, SamplingParams(seed=n, **settings), prompt.grammar, n)
        for n in range(count)
    ]


def test_text_is_put_in_and_calls_are_whole(loaded, prompt):
    chat, prompt = prompt
    plain, slow = decoded(loaded, requests(prompt))
    done, fast = decoded(loaded, requests(prompt), jump_forward=True)
    assert all(completion.jumped == 0 for completion in plain.values())
    assert fast.counts.jumped >= sum(completion.jumped for completion in done.values()) > 6 * 10
    assert fast.batch.forwards < slow.batch.forwards
    for completion in done.values():
        assert completion.finish_reason == "stop"
        [call] = chat.parse(completion.text, prompt).message["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        assert arguments["where"] in ("Amsterdam", "Rotterdam")
        assert arguments["how_many_days_ahead"] in range(10)
        matchers = MatcherBatch([prompt.grammar], vocab_size=loaded.vocab_size)
        assert all(matchers.accept(0, t) for t in (*completion.token_ids, completion.stop))
        assert len(completion.logprobs) == len(completion.token_ids)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_what_is_drawn_follows_the_tokens_that_were_put_in(loaded, prompt, batch_size):
    """Greedily, each token that was drawn is the likeliest one allowed, after all before it."""
    _, prompt = prompt
    done, _ = decoded(
        loaded, requests(prompt, 4, temperature=0.0), jump_forward=True, batch_size=batch_size
    )
    assert len({completion.token_ids for completion in done.values()}) == 1
    ids = done[0].token_ids
    with torch.inference_mode():
        whole = torch.tensor([[*prompt.ids, *ids]])
        logits = loaded.model(input_ids=whole).logits[0, len(prompt.ids) - 1 :]
    matchers = MatcherBatch([prompt.grammar], vocab_size=loaded.vocab_size)
    drawn = 0
    for at, token in enumerate(ids):
        # One that was put in, or was the only one, has log-probability 0.
        if done[0].logprobs[at] != 0:
            words = matchers.fill()[0]
            allowed = ((words[:, None] >> torch.arange(32)) & 1).flatten().bool()
            masked = logits[at].masked_fill(~allowed[: loaded.vocab_size], -torch.inf)
            assert int(masked.argmax()) == token
            drawn += 1
        assert matchers.accept(0, token)
    assert drawn >= 3


def test_the_budget_holds(loaded, prompt):
    _, prompt = prompt
    for limit in (1, 5, 17):
        done, _ = decoded(loaded, requests(prompt, 2, max_tokens=limit), jump_forward=True)
        for completion in done.values():
            assert completion.finish_reason == "length"
            assert completion.steps == len(completion.token_ids) == limit


def test_rows_that_are_free_or_ask_for_more_are_decoded_as_ever(loaded, prompt):
    _, prompt = prompt
    made = [
        Request(prompt.ids, SamplingParams(seed=1, max_tokens=40), None, 0),
        Request(
            prompt.ids, SamplingParams(seed=2, max_tokens=40, top_logprobs=2), prompt.grammar, 1
        ),
        Request(prompt.ids, SamplingParams(seed=3, max_tokens=40, stop="qqq"), prompt.grammar, 2),
        Request(
            prompt.ids,
            SamplingParams(seed=4, max_tokens=40, finish_in_budget=True),
            prompt.grammar,
            3,
        ),
    ]
    plain, _ = decoded(loaded, made)
    done, decoder = decoded(loaded, made, jump_forward=True)
    assert decoder.counts.jumped == 0
    assert {n: c.token_ids for n, c in done.items()} == {n: c.token_ids for n, c in plain.items()}


@pytest.mark.parametrize("options", [{"trace": True}, {"forced_runs": False}])
def test_what_does_not_go_together_is_refused(loaded, options):
    with pytest.raises(ValueError, match="jump_forward wants forced_runs and no trace"):
        Decoder(
            loaded.model,
            tokenizer=loaded.tokenizer,
            stop_token_ids=loaded.stop_token_ids,
            jump_forward=True,
            **options,
        )
