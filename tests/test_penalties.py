"""Penalties and biases: the formula, alone and in the loop, and whom they leave alone."""

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from grammar.guard import GuardFailure, Verdict
from kernels.masked_sample import masked_sample
from sampler.params import Request, SamplingParams
from sampler.penalties import Penalties, penalised
from tests.looping import complete, decoded, part_only_at_ties, requests_of

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-5, torch.float16: 1e-5}
"""Relative: what comes out is float32 whatever goes in."""

ALL = {
    "presence_penalty": 0.7,
    "frequency_penalty": -0.4,
    "repetition_penalty": 1.3,
    "logit_bias": {2: 5.0, 3: -100.0, 30: 1.5},
}
EACH = [{name: value} for name, value in ALL.items()] + [ALL]


def by_the_formula(logits, params, prompt, generated):
    """OpenAI's penalties and CTRL's, one token at a time, in float64."""
    z = logits.double().clone()
    for token in range(len(z)):
        z[token] += params.logit_bias.get(token, 0.0)
        if token in prompt or token in generated:
            factor = params.repetition_penalty
            z[token] = z[token] / factor if z[token] > 0 else z[token] * factor
        count = generated.count(token)
        z[token] -= params.presence_penalty * (count > 0) + params.frequency_penalty * count
    return z


def told(params, prompt, generated):
    penalties = Penalties(params, prompt)
    for token in generated:
        penalties.add(token)
    return penalties


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("changes", EACH, ids=lambda c: "+".join(c))
def test_the_formula(dtype, changes):
    generator = torch.Generator().manual_seed(3)
    for width in (33, 1000):
        logits = (torch.randn(3, width, generator=generator) * 6).to(dtype)
        params = SamplingParams(**changes)
        prompt = torch.randint(0, width, (40,), generator=generator).tolist()
        generated = torch.randint(0, width, (200,), generator=generator).tolist()
        before = logits.clone()
        changed = penalised(logits, [None, told(params, prompt, generated), None])
        assert torch.equal(logits, before)
        assert torch.equal(changed[0], logits[0].float())
        assert torch.equal(changed[2], logits[2].float())
        expected = by_the_formula(logits[1], params, prompt, generated)
        torch.testing.assert_close(
            changed[1].double(), expected, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype]
        )
        assert not torch.equal(changed[1], logits[1].float())


def test_repetition_is_that_of_transformers():
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(2, 1000, generator=generator) * 4
    ids = torch.randint(0, 1000, (2, 60), generator=generator)
    for penalty in (1.2, 0.6):
        theirs = RepetitionPenaltyLogitsProcessor(penalty)(ids, logits.clone())
        params = SamplingParams(repetition_penalty=penalty)
        rows = [told(params, row[:25], row[25:]) for row in ids.tolist()]
        torch.testing.assert_close(penalised(logits, rows), theirs, rtol=1e-6, atol=0)


def test_what_is_taken_back_was_never_there():
    params = SamplingParams(**ALL)
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(5))
    kept, thrown = [5, 5, 7, 2], [*range(100, 240), 5, 2]
    cut = told(params, [1, 2, 9], kept + thrown)
    cut.take_back(thrown)
    fresh = told(params, [1, 2, 9], kept)
    assert torch.equal(penalised(logits, [cut]), penalised(logits, [fresh]))
    cut.add(150)
    fresh.add(150)
    assert torch.equal(penalised(logits, [cut]), penalised(logits, [fresh]))


def test_without_penalties_nothing_is_copied():
    logits = torch.randn(2, 10)
    assert penalised(logits, [None, None]) is logits
    assert not SamplingParams().penalised
    assert SamplingParams(logit_bias={1: 0.5}).penalised


def drawn_by_the_formula(loaded, request, generated, position, stream):
    """The token at one position, from a forward of its own and the formula."""
    ids = torch.tensor([[*request.prompt, *generated]])
    with torch.inference_mode():
        logits = loaded.model(input_ids=ids).logits[0, -1]
    z = by_the_formula(logits, request.params, request.prompt, generated).float()
    sample = masked_sample(
        z[None],
        None,
        temperature=request.params.temperature,
        seed=request.params.seed,
        position=position,
        stream=stream,
        impl="reference",
    )
    return int(sample.token), float(sample.logprob)


@pytest.mark.parametrize("changes", EACH, ids=lambda c: "+".join(c))
def test_the_loop_draws_from_the_penalised_distribution(loaded, chats, dialogues, changes):
    requests = requests_of(chats["free"], dialogues[:3], max_tokens=14, **changes)
    plain = complete(loaded, requests_of(chats["free"], dialogues[:3], max_tokens=14))
    done = complete(loaded, requests, trace=True)
    for request in requests:
        completion = done[request.key]
        ties = {tie.position for tie in completion.near_ties}
        for position, token in enumerate(completion.token_ids):
            generated = list(completion.token_ids[:position])
            expected, logprob = drawn_by_the_formula(loaded, request, generated, position, 0)
            assert token == expected or position in ties
            if token == expected:
                assert completion.logprobs[position] == pytest.approx(logprob, abs=1e-3)
    assert any(done[key].token_ids != plain[key].token_ids for key in done) or len(changes) == 1


def test_a_greedy_run_is_what_transformers_generates(loaded, chats, dialogues):
    requests = requests_of(
        chats["free"], dialogues[:4], temperature=0, max_tokens=24, repetition_penalty=1.3
    )
    for completion in complete(loaded, requests, batch_size=4).values():
        prompt = torch.tensor([requests[completion.key].prompt])
        theirs = loaded.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=24,
            repetition_penalty=1.3,
        )[0, prompt.shape[1] :].tolist()
        assert [*completion.token_ids, *([completion.stop] if completion.stop else [])] == theirs


def test_rows_neither_disturb_others_nor_are_disturbed(loaded, chats, dialogues):
    plain = requests_of(chats["constrained"], dialogues[:10])
    mixed = [
        Request(
            r.prompt,
            SamplingParams(seed=r.key, max_tokens=200, **EACH[r.key // 2]),
            r.grammar,
            r.key,
        )
        if r.key % 2
        else r
        for r in plain
    ]
    undisturbed = complete(loaded, plain, trace=True)
    alone = complete(loaded, mixed, trace=True, batch_size=1)
    together, _ = decoded(loaded, mixed, batch_size=10)
    assert part_only_at_ties(together, alone) <= 1
    even = [key for key in undisturbed if key % 2 == 0]
    others = {key: undisturbed[key] for key in even}
    assert part_only_at_ties({key: together[key] for key in even}, others) <= 1
    # A penalty is no reason to sample what is forced.
    assert sum(together[key].forced for key in together if key % 2) > 0


@pytest.mark.parametrize("forced_runs", [True, False])
def test_no_bias_is_stronger_than_a_mask(loaded, chats, forced_runs):
    chat = chats["constrained"]
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "structured_outputs": {"choice": ["yes, of course"]},
    }
    prompt = chat.prepare(body)
    ids = loaded.tokenizer("yes, of course no", add_special_tokens=False).input_ids
    bias = dict.fromkeys([*ids, *loaded.stop_token_ids], -100.0)
    bias |= dict.fromkeys(loaded.tokenizer(" not", add_special_tokens=False).input_ids, 100.0)
    request = prompt.request(SamplingParams(logit_bias=bias, repetition_penalty=2.0))
    (completion,) = decoded(loaded, [request], forced_runs=forced_runs)[0].values()
    assert completion.text == "yes, of course"
    assert completion.finish_reason == "stop"


def test_a_bias_of_100_is_an_order(loaded, chats, dialogues):
    token = loaded.tokenizer("a", add_special_tokens=False).input_ids[0]
    requests = requests_of(chats["free"], dialogues[:2], max_tokens=5, logit_bias={token: 100.0})
    for completion in complete(loaded, requests).values():
        assert completion.token_ids == (token,) * 5


class Refuses:
    """A guard that has the first attempt decoded again from token `at`."""

    def __init__(self, at):
        self.at = at

    def check(self, pieces, *, retries, ended):
        if retries:
            return Verdict()
        failure = GuardFailure(None, None, "", "", "once more", "guarded", 0)
        return Verdict((failure,), self.at)


def test_what_a_guard_threw_away_does_not_count(loaded, chats, dialogues):
    endless = ALL | {"logit_bias": dict.fromkeys(loaded.stop_token_ids, -100.0)}
    requests = [
        Request(r.prompt, r.params, None, r.key, Refuses(4))
        for r in requests_of(chats["free"], dialogues[:3], max_tokens=12, **endless)
    ]
    for key, completion in complete(loaded, requests, trace=True).items():
        assert (completion.retries, completion.redone) == (1, 8)
        ties = {tie.position for tie in completion.near_ties}
        for position, token in enumerate(completion.token_ids):
            generated = list(completion.token_ids[:position])
            stream = int(position >= 4)
            expected, _ = drawn_by_the_formula(loaded, requests[key], generated, position, stream)
            assert token == expected or position in ties


def test_top_logprobs_are_from_before_and_logprobs_from_after(loaded, chats, dialogues):
    (request,) = requests_of(
        chats["free"], dialogues[:1], max_tokens=8, top_logprobs=2, logit_bias={7: 100.0}
    )
    (completion,) = complete(loaded, [request]).values()
    assert completion.token_ids == (7,) * 8
    assert all(logprob == pytest.approx(0.0, abs=1e-6) for logprob in completion.logprobs)
    ids = torch.tensor([[*request.prompt, *completion.token_ids]])
    with torch.inference_mode():
        logits = loaded.model(input_ids=ids).logits[0, len(request.prompt) - 1 : -1]
    expected = logits.double().log_softmax(-1)[:, 7]
    got = torch.tensor([top[7] for top in completion.top_logprobs]).double()
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-3)


def test_a_biased_token_that_the_model_lacks_is_refused(loaded):
    for token in (loaded.vocab_size, -1):
        request = Request((5, 6), SamplingParams(logit_bias={token: 1.0}))
        width = rf"outside \[0, {loaded.vocab_size:,}\)"
        with pytest.raises(ValueError, match=rf"logit_bias of request 0 names token .*{width}"):
            complete(loaded, [request])
