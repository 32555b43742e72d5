"""``sampler.budget``: completions that would run away end within ``max_tokens``, and are valid."""

import functools
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import jsonschema
import pytest
import torch
import xgrammar
from scipy import stats

from grammar.finish import Finisher, Spelling
from grammar.formats import get_format
from grammar.guard import Guard
from grammar.schema import Options, prepare
from grammar.tokenizer import info_from_bytes, token_bytes
from sampler import budget
from sampler.chat import Chat
from sampler.params import Request, SamplingParams
from tests.looping import complete, decoded, requests_of
from tests.test_finish import SCHEMAS, body

MESSAGES = [{"role": "user", "content": "go"}]


class Even(torch.nn.Module):
    """All tokens are alike to it, but for those that it is told to favour, by so many nats."""

    def __init__(self, loaded, favours=None):
        super().__init__()
        self.config, self.like = loaded.model.config, loaded.model
        self.logits = torch.zeros(loaded.vocab_size)
        for token, nats in (favours or {}).items():
            self.logits[token] = nats

    def get_output_embeddings(self):
        return self.like.get_output_embeddings()

    get_input_embeddings = get_output_embeddings

    def forward(self, input_ids, cache=None, **arguments):
        return SimpleNamespace(logits=self.logits.expand(len(input_ids), 1, -1))


@pytest.fixture(scope="module")
def even(loaded):
    return replace(loaded, model=Even(loaded))


@pytest.fixture(scope="module")
def spelling(loaded):
    return Spelling(token_bytes(loaded.tokenizer))


@pytest.fixture(scope="module")
def prompts(loaded):
    """Prepared prompts by schema and format."""

    @functools.cache
    def prepared(name, format="hermes", **fields):
        chat = Chat(loaded, format=format, scope="always", schema_mode="strict")
        return chat.prepare({"messages": MESSAGES, **body(SCHEMAS[name]), **fields})

    return prepared


def needed(prompt, spelling):
    return len(Finisher(prompt.grammar, spelling).start)


def requests_for(prompt, budgets, seeds=range(2), **overrides):
    overrides = {"finish_in_budget": True, **overrides}
    return [
        prompt.request(SamplingParams(seed=seed, max_tokens=n, **overrides), (n, seed))
        for n in budgets
        for seed in seeds
    ]


def without(request):
    return replace(request, params=replace(request.params, finish_in_budget=False))


def arguments_of(text, format="hermes", tools=None):
    calls = get_format(format).parse(text, tools).tool_calls
    return [json.loads(call["function"]["arguments"]) for call in calls]


def test_every_budget_that_a_finish_fits_ends_in_a_valid_call(even, prompts, spelling):
    requests = [
        replace(request, key=(name, request.key))
        for name in SCHEMAS
        for request in requests_for(
            prompts(name), [needed(prompts(name), spelling) + n for n in (0, 7)], range(1)
        )
    ]
    done = complete(even, requests, batch_size=len(requests))
    for (name, (most, _)), completion in done.items():
        assert completion.finish_reason == "stop", (name, completion)
        assert completion.steps <= most
        [arguments] = arguments_of(completion.text)[:1]
        jsonschema.Draft202012Validator(SCHEMAS[name]).validate(arguments)
    off = complete(even, [without(request) for request in requests], batch_size=len(requests))
    cut = {name for (name, _), c in off.items() if c.finish_reason == "length"}
    assert cut >= {"text", "list", "nested", "recursive", "pattern"}


@pytest.mark.parametrize(
    "format", ["qwen3_coder", "deepseek_v3_2", "kimi_k2", "glm_4_7", "minimax"]
)
def test_other_formats_end_in_a_valid_call_too(even, prompts, spelling, format):
    prompt = prompts("nested", format)
    least = needed(prompt, spelling)
    requests = requests_for(prompt, [least + n for n in (0, 9)])
    tools = body(SCHEMAS["nested"])["tools"]
    for completion in complete(even, requests).values():
        assert completion.finish_reason == "stop"
        [arguments] = arguments_of(completion.text, format, tools)[:1]
        jsonschema.Draft202012Validator(SCHEMAS["nested"]).validate(arguments)


def test_text_before_an_optional_call_ends_too(even, prompts):
    requests = requests_for(prompts("nested", tool_choice="auto"), [1, 2, 20])
    for completion in complete(even, requests).values():
        assert completion.finish_reason == "stop"


def test_what_ends_by_itself_is_left_alone(loaded, dialogues):
    """The bundled model's calls: with room to end in, the same tokens as without the flag."""
    chat = Chat(loaded, scope="always", schema_mode="strict")
    off = complete(loaded, requests_of(chat, dialogues))
    on = complete(loaded, requests_of(chat, dialogues, finish_in_budget=True))
    ended = [key for key, completion in off.items() if completion.finish_reason == "stop"]
    assert len(ended) > len(off) // 2
    for key in ended:
        assert on[key].token_ids == off[key].token_ids
        assert on[key].logprobs == off[key].logprobs
        assert on[key].hurried == 0


def test_a_budget_that_is_just_used_up_is_left_alone(loaded, dialogues):
    """Cut to exactly what they took, calls of the bundled model stay as they are."""
    chat = Chat(loaded, scope="always", schema_mode="strict")
    requests = requests_of(chat, dialogues)
    off = complete(loaded, requests)
    ended = [c for c in off.values() if c.finish_reason == "stop" and "<tool_call>" in c.text]
    params = {c.key: {"max_tokens": c.steps, "finish_in_budget": True} for c in ended}
    just = [
        replace(r, params=replace(r.params, **params[r.key])) for r in requests if r.key in params
    ]
    done = complete(loaded, just)
    assert len(done) >= 5
    assert all(c.finish_reason == "stop" for c in done.values())
    same = sum(c.token_ids == off[key].token_ids for key, c in done.items())
    assert same >= 0.8 * len(done)


def test_the_first_tokens_are_those_without_the_flag(even, prompts, spelling):
    """Until it acts, nothing differs; where it acts, the token without the flag was forbidden."""
    prompt = prompts("text")
    requests = requests_for(prompt, [needed(prompt, spelling) + 30], range(3))
    off = [without(request) for request in requests]
    on, off = complete(even, requests), complete(even, off)
    for key, completion in on.items():
        assert completion.hurried > 0
        n = next(
            i
            for i, (a, b) in enumerate(zip(completion.token_ids, off[key].token_ids, strict=False))
            if a != b
        )
        assert n >= 20
        assert completion.logprobs[:n] == off[key].logprobs[:n]


def test_the_draw_is_that_of_the_smaller_mask(loaded):
    """Over the tokens after which an end still fits, in the proportions that the model gives."""
    pieces = [b"a", b"b", b"x", b"y", b"z", b"xa", b"ab", b"xab", b"q", b""]
    info = info_from_bytes(pieces, vocab_size=len(pieces), stop_token_ids=[9])
    compiled = xgrammar.GrammarCompiler(info).compile_regex(r"x(a|b)+y|zy|zqqqy|bb")

    class Tokenizer:
        pad_token_id = 0

        def decode(self, ids, **_):
            return b"".join(pieces[i] for i in ids).decode()

    class Fixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = torch.tensor([0.1, 0.4, 1.5, 0.0, 0.2, -0.5, 0.3, 0.6, 0.0, 0.9])
            self.config, self.embedding = loaded.model.config, torch.nn.Embedding(len(pieces), 2)

        def get_input_embeddings(self):
            return self.embedding

        get_output_embeddings = get_input_embeddings

        def forward(self, input_ids, cache=None, **_):
            return SimpleNamespace(logits=self.logits.expand(len(input_ids), 1, -1))

    model, draws = Fixed(), 600
    requests = [
        Request((0,), SamplingParams(seed=n, max_tokens=3, finish_in_budget=True), compiled, n)
        for n in range(draws)
    ]
    fixed = SimpleNamespace(model=model, tokenizer=Tokenizer(), stop_token_ids=[9])
    # The tokenizer is none of Hugging Face's.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sampler.decoding.token_bytes", lambda _: pieces)
        done, decoder = decoded(fixed, requests, batch_size=draws)
    # Of three tokens the last is the stop token: `x` and `xa` by itself go no further than y.
    admissible = {b"xa": 5, b"xab": 7, b"z": 4, b"b": 1}
    counts = dict.fromkeys(admissible, 0)
    for completion in done.values():
        assert completion.finish_reason == "stop"
        counts[pieces[completion.token_ids[0]]] += 1
    weights = [math.exp(model.logits[token]) for token in admissible.values()]
    expected = [draws * w / sum(weights) for w in weights]
    assert stats.chisquare(list(counts.values()), expected).pvalue > 1e-4
    assert decoder.counts.hurried == sum(c.hurried for c in done.values()) > 0


@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.4}, {"temperature": 0}])
def test_cuts_and_greedy_draws_keep_within_it(loaded, prompts, spelling, cut):
    """What the model likes best would go on for ever, and is all that a cut keeps."""
    favourites = {
        token: 9.0 - n
        for n, token in enumerate(loaded.tokenizer("a e i", add_special_tokens=False).input_ids)
    }
    fond = replace(loaded, model=Even(loaded, favourites))
    prompt = prompts("text")
    for completion in complete(
        fond, requests_for(prompt, [needed(prompt, spelling) + 20], **cut)
    ).values():
        assert completion.finish_reason == "stop"
        assert completion.steps > 20
        assert arguments_of(completion.text)


def test_a_row_does_not_depend_on_the_batch(even, prompts, spelling):
    requests = [
        request
        for name in ("list", "nested", "recursive")
        for request in requests_for(prompts(name), [needed(prompts(name), spelling) + 9], range(2))
    ]
    requests = [replace(request, key=n) for n, request in enumerate(requests)]
    together = complete(even, requests)
    assert sum(c.hurried for c in together.values()) > 0
    for request in reversed(requests):
        [alone] = complete(even, [request], batch_size=1).values()
        assert alone.token_ids == together[request.key].token_ids
        assert alone.hurried == together[request.key].hurried


def test_free_rows_beside_it_are_untouched(even, prompts, spelling):
    prompt = prompts("text")
    bound = requests_for(prompt, [needed(prompt, spelling) + 5])
    free = [
        Request(prompt.ids, SamplingParams(seed=n, max_tokens=12, finish_in_budget=True), None, n)
        for n in range(4)
    ]
    off = [without(request) for request in free]
    beside, alone = complete(even, [*bound, *free]), complete(even, off)
    for n in range(4):
        assert beside[n].token_ids == alone[n].token_ids
        assert beside[n].hurried == 0


def test_a_budget_that_nothing_fits_changes_nothing(even, prompts, spelling):
    prompt = prompts("nested")
    requests = requests_for(prompt, [needed(prompt, spelling) - 1])
    off = [without(request) for request in requests]
    done, decoder = decoded(even, requests)
    cut = complete(even, off)
    assert decoder.counts.lost == len(requests)
    for key, completion in done.items():
        assert completion.finish_reason == "length"
        assert completion.hurried == 0
        assert completion.token_ids == cut[key].token_ids


def test_a_trace_shows_what_it_forbade(even, prompts, spelling):
    prompt = prompts("text")
    requests = requests_for(prompt, [needed(prompt, spelling) + 12])
    plain, traced = complete(even, requests), complete(even, requests, trace=True)
    for key, completion in traced.items():
        assert completion.token_ids == plain[key].token_ids
        assert completion.hurried == plain[key].hurried > 0
        at = len(completion.token_ids) - 2
        assert completion.log_removed[at] > math.log(0.9)
        assert any(i.kind == "forbidden" and i.position >= 12 for i in completion.interventions)


def test_without_forced_runs_it_is_the_same(even, prompts, spelling):
    requests = requests_for(prompts("items"), [needed(prompts("items"), spelling) + 6])
    ran, stepped = complete(even, requests), complete(even, requests, forced_runs=False)
    for key, completion in ran.items():
        assert completion.token_ids == stepped[key].token_ids
        assert completion.hurried == stepped[key].hurried
    assert sum(c.forced for c in ran.values()) > 0


def test_what_a_guard_has_redone_ends_within_what_is_left(even, prompts, spelling):
    """The guard wants what the mask does not enforce; each attempt has its own share of haste."""
    prompt = prompts("list")
    schema = {"type": "object", "properties": {"tags": {"type": "array", "minItems": 1}}}
    prepared = prepare(schema, options=Options())
    guard = Guard({"act": prepared}, format="hermes")
    params = SamplingParams(max_tokens=needed(prompt, spelling) + 25, finish_in_budget=True)
    requests = [
        Request(prompt.ids, replace(params, seed=n), prompt.grammar, n, guard) for n in range(6)
    ]
    done = complete(even, requests)
    assert any(c.retries for c in done.values())
    for completion in done.values():
        assert completion.finish_reason == "stop"
        assert completion.steps <= params.max_tokens
        assert completion.error or arguments_of(completion.text)[0]["tags"]


def test_far_from_the_end_rows_are_not_looked_at(loaded, dialogues, monkeypatch):
    """With a thousand tokens to spare the start of each grammar is looked at, and nothing else."""
    looks = []
    find = Finisher.find
    monkeypatch.setattr(Finisher, "find", lambda *a, **k: looks.append(1) or find(*a, **k))
    chat = Chat(loaded, scope="always", schema_mode="strict")
    requests = requests_of(chat, dialogues[:6], max_tokens=1000, finish_in_budget=True)
    done = complete(loaded, requests)
    assert max(c.steps for c in done.values()) < 200
    assert len(looks) == len({id(request.grammar) for request in requests} - {id(None)})


def test_after_so_many_draws_the_known_way_is_taken(loaded, prompts, spelling, monkeypatch):
    draws = []
    allow_only = budget._allow_only
    monkeypatch.setattr(budget, "_allow_only", lambda *a: draws.append(1) or allow_only(*a))
    letters = [i for i, piece in enumerate(token_bytes(loaded.tokenizer)) if piece.isalpha()]
    fond = replace(loaded, model=Even(loaded, dict.fromkeys(letters, 12.0)))
    prompt = prompts("text")
    for completion in complete(fond, requests_for(prompt, [needed(prompt, spelling) + 6])).values():
        assert completion.finish_reason == "stop"
    assert draws
