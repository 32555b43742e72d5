"""The decoding loop, on the bundled model and real grammars."""

import json
import math
from random import Random
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest
import torch
from looping import complete, parted, requests_of
from scipy import stats

from kernels.gumbel import gumbel_from_bits, random_bits
from sampler.chat import Chat
from sampler.decoding import Decoder, generate
from sampler.nano.dialogues import dialogue
from sampler.params import Request, SamplingParams
from sampler.trace import TIE_MARGIN


def test_tokens_do_not_depend_on_the_batch_around_them(loaded, chats, dialogues):
    requests = requests_of(chats["free"], dialogues[:12])
    requests += requests_of(chats["constrained"], dialogues[12:])
    requests = [Request(r.prompt, r.params, r.grammar, n) for n, r in enumerate(requests)]
    alone = complete(loaded, requests, batch_size=1, trace=True)
    ties = 0
    for batch_size, order in ((24, requests), (7, requests[::-1])):
        together = complete(loaded, order, batch_size=batch_size, trace=True)
        for key, completion in alone.items():
            at = parted(completion, together[key])
            if at is not None:
                assert at in {tie.position for tie in completion.near_ties}
                ties += 1
    assert ties <= 2


def test_a_constrained_run_is_the_free_run_up_to_the_first_intervention(loaded, chats, dialogues):
    free = complete(loaded, requests_of(chats["free"], dialogues), trace=True)
    constrained = complete(loaded, requests_of(chats["constrained"], dialogues), trace=True)
    touched = 0
    for key, completion in constrained.items():
        at = parted(free[key], completion)
        ties = {tie.position for tie in completion.near_ties + free[key].near_ties}
        if completion.interventions and at not in ties:
            first = completion.interventions[0]
            touched += 1
            assert at == first.position
            ended = len(free[key].token_ids) == at
            assert first.free_token == (free[key].stop if ended else free[key].token_ids[at])
            assert first.token == completion.token_ids[at]
            assert first.kind == "forbidden"
            assert -40 < first.log_removed < 0
        elif at is not None:
            assert at in ties
    assert touched >= 5


def test_what_the_grammar_made_is_valid(loaded, chats, dialogues):
    calls = 0
    for key, completion in complete(loaded, requests_of(chats["constrained"], dialogues)).items():
        if completion.finish_reason == "length":
            continue
        schemas = {t["function"]["name"]: t["function"]["parameters"] for t in dialogues[key].tools}
        for piece in completion.text.split("<tool_call>")[1:]:
            call = json.loads(piece.split("</tool_call>")[0])
            jsonschema.Draft202012Validator(schemas[call["name"]]).validate(call["arguments"])
            calls += 1
    assert calls >= 8


def test_greedy_is_what_transformers_generates(loaded, chats, dialogues):
    requests = requests_of(chats["free"], dialogues[:6], temperature=0, max_tokens=24)
    for completion in complete(loaded, requests, batch_size=6).values():
        prompt = torch.tensor([requests[completion.key].prompt])
        theirs = loaded.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=24
        )[0, prompt.shape[1] :].tolist()
        ours = list(completion.token_ids) + ([completion.stop] if completion.stop else [])
        assert ours == theirs


@pytest.mark.parametrize("cut", [{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.05}])
def test_the_first_token_follows_the_model(loaded, cut):
    prompt = tuple(loaded.tokenizer("<|im_start|>user\nbook", add_special_tokens=False).input_ids)
    draws = 6000
    requests = [
        Request(prompt, SamplingParams(seed=n, max_tokens=1, temperature=1.5, **cut), None, n)
        for n in range(draws)
    ]
    counts = np.zeros(loaded.vocab_size)
    for completion in complete(loaded, requests, batch_size=2000).values():
        counts[completion.token_ids[0] if completion.token_ids else completion.stop] += 1
    with torch.no_grad():
        z = loaded.model(torch.tensor([prompt])).logits[0, -1].double().numpy() / 1.5
    p = np.exp(z - z.max())
    p /= p.sum()
    order = np.argsort(-p)
    if "top_k" in cut:
        p[order[5:]] = 0
    if "top_p" in cut:
        before = np.concatenate([[0], np.cumsum(p[order])[:-1]])
        p[order[before >= 0.8]] = 0
    if "min_p" in cut:
        p[p < 0.05 * p.max()] = 0
    p /= p.sum()
    assert not counts[p == 0].any()
    expected = p * draws
    big = expected >= 5
    observed, wanted = counts[big], expected[big]
    if not big.all() and expected[~big].sum() > 0:
        observed = np.append(observed, counts[~big].sum())
        wanted = np.append(wanted, expected[~big].sum())
    assert stats.chisquare(observed, wanted).pvalue > 1e-4


def test_logprobs_are_the_models(loaded, chats, dialogues):
    requests = requests_of(chats["free"], dialogues[:3], max_tokens=12, temperature=0.7)
    for completion in complete(loaded, requests).values():
        prompt = requests[completion.key].prompt
        ids = torch.tensor([prompt + completion.token_ids])
        with torch.no_grad():
            logits = loaded.model(ids).logits[0, len(prompt) - 1 : -1].double() / 0.7
        wanted = logits.log_softmax(-1)[range(len(completion.token_ids)), ids[0, len(prompt) :]]
        assert np.allclose(completion.logprobs, wanted, atol=1e-3)


def test_stop_texts_end_a_completion_and_are_cut_off(loaded, chats, dialogues):
    plain = complete(loaded, requests_of(chats["free"], dialogues))
    key, text = next((k, c.text) for k, c in plain.items() if '", "' in c.text)
    [request] = [r for r in requests_of(chats["free"], dialogues, stop=('", "',)) if r.key == key]
    done = complete(loaded, [request])[key]
    assert done.text == text.split('", "')[0]
    assert (done.finish_reason, done.stop) == ("stop", '", "')


def test_max_tokens_ends_a_completion_by_length(loaded, chats, dialogues):
    for completion in complete(
        loaded, requests_of(chats["constrained"], dialogues[:4], max_tokens=3)
    ).values():
        assert completion.finish_reason == "length"
        assert completion.steps == len(completion.token_ids) == 3
        assert completion.stop is None


def test_a_bad_row_ends_alone(loaded, chats, dialogues):
    class Poisoned(torch.nn.Module):
        """The model, with NaN logits for the row whose last token is `victim`."""

        def __init__(self, model, victim):
            super().__init__()
            self.model, self.victim, self.config = model, victim, model.config

        def get_output_embeddings(self):
            return self.model.get_output_embeddings()

        def get_input_embeddings(self):
            return self.model.get_input_embeddings()

        def forward(self, input_ids, cache=None, **arguments):
            output = self.model(input_ids=input_ids, cache=cache, **arguments)
            if input_ids.shape[1] > 1:
                output.logits[input_ids[:, 0] == self.victim] = math.nan
            return output

    requests = requests_of(chats["free"], dialogues[:5])
    # The longest prompt is the row without padding in front.
    victim = max(range(5), key=lambda n: len(requests[n].prompt))
    poisoned = Poisoned(loaded.model, requests[victim].prompt[0])
    sick = complete(loaded.__class__(**{**vars(loaded), "model": poisoned}), requests)
    healthy = complete(loaded, requests)
    assert sick[victim].finish_reason == "error"
    assert "NAN" in sick[victim].error
    assert sick[victim].token_ids == ()
    for key in set(healthy) - {victim}:
        assert sick[key].token_ids == healthy[key].token_ids


def test_near_ties_are_recorded(loaded):
    class Flat(torch.nn.Module):
        """Two tokens whose logits differ by the noise of seed 0, but for `gap`."""

        def __init__(self, gap):
            super().__init__()
            self.logits = torch.full((8,), -math.inf)
            noise = gumbel_from_bits(random_bits(0, 0, 0, np.array([3, 5])))
            self.logits[3], self.logits[5] = 0.0, float(noise[0] - noise[1]) - gap
            self.config = loaded.model.config
            self.embedding = torch.nn.Embedding(8, 4)

        def get_output_embeddings(self):
            return self.embedding

        get_input_embeddings = get_output_embeddings

        def forward(self, input_ids, cache=None, **arguments):
            return SimpleNamespace(logits=self.logits.expand(len(input_ids), 1, 8))

    class Tokenizer:
        pad_token_id = 0

        def decode(self, ids, **arguments):
            return str(ids)

    for gap, expected in ((TIE_MARGIN / 2, 1), (TIE_MARGIN * 4, 0)):
        [done] = generate(
            Flat(gap),
            [Request((1,), SamplingParams(seed=0, max_tokens=1))],
            tokenizer=Tokenizer(),
            stop_token_ids=[7],
            trace=True,
        )
        assert done.token_ids == (3,)
        assert len(done.near_ties) == expected
        if expected:
            tie = done.near_ties[0]
            assert (tie.token, tie.runner_up) == (3, 5)
            assert tie.margin == pytest.approx(gap, abs=1e-6)


def test_a_model_in_love_with_whitespace_still_ends(loaded):
    class Whitespace(torch.nn.Module):
        """Prefers, at every step, a space, then a newline, then the lowest id."""

        def __init__(self):
            super().__init__()
            self.config = loaded.model.config
            self.logits = -torch.arange(loaded.vocab_size).float()
            for text, value in ((" ", 2.0), ("\n", 1.0)):
                self.logits[loaded.tokenizer(text, add_special_tokens=False).input_ids] = value

        def get_output_embeddings(self):
            return loaded.model.get_output_embeddings()

        get_input_embeddings = get_output_embeddings

        def forward(self, input_ids, cache=None, **arguments):
            return SimpleNamespace(logits=self.logits.expand(len(input_ids), 1, -1))

    properties = {"loud": {"type": "boolean"}, "mode": {"type": "string", "enum": ["a", "b"]}}
    parameters = {"type": "object", "properties": properties, "required": ["loud", "mode"]}
    body = {
        "messages": [{"role": "user", "content": "go"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    }
    prompt = Chat(loaded, schema_mode="strict").prepare(body)
    [done] = generate(
        Whitespace(),
        [Request(prompt.ids, SamplingParams(temperature=0, max_tokens=200), prompt.grammar)],
        tokenizer=loaded.tokenizer,
        stop_token_ids=loaded.stop_token_ids,
    )
    assert done.finish_reason == "stop"
    call = json.loads(done.text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    jsonschema.Draft202012Validator(parameters).validate(call["arguments"])


@pytest.mark.parametrize("impl", ["torch", "reference"])
def test_both_paths_of_the_sampler_give_the_same_tokens(loaded, chats, dialogues, impl):
    requests = requests_of(chats["constrained"], dialogues[:6], top_p=0.9, max_tokens=40)
    auto = complete(loaded, requests)
    named = complete(loaded, requests, impl=impl)
    assert {k: c.token_ids for k, c in auto.items()} == {k: c.token_ids for k, c in named.items()}


def test_a_request_that_does_not_fit_the_model_is_refused_before_anything_runs(loaded, chats):
    too_far = Request((loaded.vocab_size,), SamplingParams())
    with pytest.raises(ValueError, match="prompt of request 0 has ids outside"):
        complete(loaded, [too_far])
    drawn = dialogue(Random(0), kind="call")
    body = {"messages": drawn.messages, "tools": drawn.tools, "tool_choice": "required"}
    prompt = chats["constrained"].prepare(body)
    request = Request(prompt.ids, SamplingParams(), prompt.grammar)
    with pytest.raises(ValueError, match="give both the same stop_token_ids"):
        list(generate(loaded.model, [request], tokenizer=loaded.tokenizer, stop_token_ids=[1]))
    with pytest.raises(ValueError, match="at least one id"):
        list(generate(loaded.model, [], tokenizer=loaded.tokenizer, stop_token_ids=[]))


def test_completions_come_as_they_end(loaded, chats, dialogues):
    decoder = Decoder(
        loaded.model,
        tokenizer=loaded.tokenizer,
        stop_token_ids=loaded.stop_token_ids,
        batch_size=8,
    )
    for request in requests_of(chats["free"], dialogues[:8]):
        decoder.submit(request)
    forwards = []
    hook = loaded.model.base_model.register_forward_hook(lambda *_: forwards.append(1))
    try:
        steps = []
        while decoder.busy:
            for completion in decoder.step():
                assert completion.steps == len(forwards)
                steps.append(completion.steps)
    finally:
        hook.remove()
    assert len(steps) == 8
    assert len(set(steps)) > 1


def test_a_model_without_a_cache_that_the_loop_knows_is_refused():
    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.config = torch.nn.Embedding(8, 4), None

        def get_input_embeddings(self):
            return self.embedding

        get_output_embeddings = get_input_embeddings

        def forward(self, input_ids, cache_params=None):
            raise AssertionError("not to be run")

    with pytest.raises(ValueError, match="Recurrent takes no KV cache that the loop knows"):
        list(
            generate(
                Recurrent(),
                [Request((1,))],
                tokenizer=SimpleNamespace(pad_token_id=0),
                stop_token_ids=[2],
            )
        )
