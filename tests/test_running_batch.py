"""The running batch: rows that join and leave, forced runs, shared prefixes, kinds of head."""

import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from sampler import decoding
from sampler import row as row_module
from sampler.batch import CachedBatch
from sampler.decoding import Decoder
from sampler.forced import step_width
from sampler.head import Head
from sampler.params import Request, SamplingParams
from tests.looping import complete, decoded, part_only_at_ties, parted, requests_of

TINY = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PLAIN = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": None},
    "gemma2": {"final_logit_softcapping": 0.5, "sliding_window": 64},
    "granite": {"logits_scaling": 8.0},
    "cohere": {"logit_scale": 0.0625},
    "phi": {},
    "olmo2": {},
}


def tiny(kind, **extra):
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**TINY, **extra})
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("kind", PLAIN)
def test_a_plain_head_gives_the_models_own_logits(kind):
    model = tiny(kind, **PLAIN[kind])
    head = Head(model)
    assert head.plain, head.note
    ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
    with torch.inference_mode():
        ours = head.logits(head.states(input_ids=ids))
        theirs = model(input_ids=ids).logits[:, -1]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_head_that_does_more_is_used_whole_and_named():
    model = tiny("llama")
    forward = model.forward
    model.forward = lambda **arguments: _shifted(forward(**arguments))
    head = Head(model)
    assert not head.plain
    assert "LlamaForCausalLM is computed whole" in head.note
    assert "off by" in head.note
    with torch.inference_mode():
        ids = torch.tensor([[5, 6]])
        ours, own = head.logits(head.states(input_ids=ids)), model(input_ids=ids).logits[:, -1]
        torch.testing.assert_close(ours, own)


def _shifted(output):
    output.logits = output.logits + torch.arange(output.logits.shape[-1])
    return output


def test_a_quantised_head_is_named():
    class Quantised(torch.nn.Linear):
        pass

    model = tiny("llama", tie_word_embeddings=False)
    model.lm_head = Quantised(32, 97, bias=False)
    assert "the head must be a torch.nn.Linear, got Quantised" in Head(model).note


def run_alone(model, prompt, chunks):
    """Logits after the prompt and after each chunk, of one sequence computed at once."""
    ids = [*prompt, *(token for chunk in chunks for token in chunk)]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    ends = [len(prompt)]
    for chunk in chunks:
        ends.append(ends[-1] + len(chunk))
    return [logits[end - 1] for end in ends]


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2"])
def test_rows_are_what_they_would_be_alone(kind):
    model = tiny(kind, **PLAIN[kind])
    head = Head(model)
    batch = CachedBatch(head, 0)
    generator = torch.Generator().manual_seed(1)

    def tokens(n):
        return torch.randint(3, 97, (n,), generator=generator).tolist()

    histories, prompts, expect = [], [], []

    def check(states):
        with torch.inference_mode():
            got = head.logits(states)
        for row, (prompt, chunks) in enumerate(zip(prompts, histories, strict=True)):
            torch.testing.assert_close(
                got[row], run_alone(model, prompt, chunks)[-1], rtol=1e-4, atol=1e-5
            )
        expect.append(len(prompts))

    def add(sizes):
        new = [tokens(n) for n in sizes]
        states = batch.add(new)
        prompts.extend(new)
        histories.extend([] for _ in new)
        return states

    def step(sizes):
        chunks = [tokens(n) for n in sizes]
        for history, chunk in zip(histories, chunks, strict=True):
            history.append(chunk)
        return batch.step(chunks)

    def keep(rows):
        batch.keep(rows)
        prompts[:] = [prompts[row] for row in rows]
        histories[:] = [histories[row] for row in rows]

    with torch.inference_mode():
        check(add([3, 9, 5]))
        check(step([1, 1, 1]))
        if batch.can_join:
            check(step([4, 1, 2]))
            old = step([1, 3, 1])
            check(torch.cat([old, add([12, 2])]))
            check(step([1, 1, 2, 1, 5]))
            keep([3, 0])
            check(step([1, 2]))
            old = step([1, 1])
            check(torch.cat([old, add([1])]))
        else:
            assert kind == "gemma2"
            with pytest.raises(RuntimeError, match="rows cannot join"):
                batch.add([[5]])
            keep([2, 0])
            check(step([1, 1]))
            keep([1])
            check(step([1]))
        keep([])
        check(add([4, 4]))
    assert len(expect) >= 3


def test_keys_are_not_copied_for_every_query_head(monkeypatch):
    from transformers.integrations import sdpa_attention

    def refuse(states, repeats):
        raise AssertionError("keys and values are copied")

    monkeypatch.setattr(sdpa_attention, "repeat_kv", refuse)
    monkeypatch.delenv("TRANSFORMERS_SDPA_FORCE_GQA", raising=False)
    model = tiny("llama")
    head = Head(model)
    batch = CachedBatch(head, 0)
    prompts, chunks = [[5, 6, 7], [8, 9, 10, 11, 12]], [[13, 14, 15], [16]]
    with torch.inference_mode():
        batch.add(prompts)
        got = head.logits(batch.step(chunks))
    for row in range(2):
        torch.testing.assert_close(
            got[row], run_alone(model, prompts[row], [chunks[row]])[-1], rtol=1e-4, atol=1e-5
        )
    assert "TRANSFORMERS_SDPA_FORCE_GQA" not in os.environ


def test_a_shared_beginning_is_computed_once():
    model = tiny("llama")
    head = Head(model)
    batch = CachedBatch(head, 0)
    beginning = [3 + i % 90 for i in range(100)]
    prompts = [[*beginning, *range(10, 10 + n)] for n in (1, 5, 3)]

    def check(states, prompts):
        with torch.inference_mode():
            got = head.logits(states)
        for row, prompt in enumerate(prompts):
            torch.testing.assert_close(
                got[row], run_alone(model, prompt, [])[-1], rtol=1e-4, atol=1e-5
            )

    with torch.inference_mode():
        check(batch.add(prompts), prompts)
        assert (batch.prompt_tokens, batch.shared_tokens) == (100 + 9, 200)
        batch.step([[7], [7], [7]])
        # A later one finds it stored, with or without others around it.
        check(batch.add([[*beginning, 50, 51]]), [[*beginning, 50, 51]])
        assert (batch.prompt_tokens, batch.shared_tokens) == (109 + 2, 300)
        batch.keep([])
        check(batch.add([prompts[1]]), [prompts[1]])
        assert batch.shared_tokens > 300


def test_nothing_is_shared_when_told_not_to():
    model = tiny("llama")
    batch = CachedBatch(Head(model), 0, share_prefixes=False)
    with torch.inference_mode():
        batch.add([[*range(3, 90), 5], [*range(3, 90), 6]])
    assert (batch.prompt_tokens, batch.shared_tokens) == (176, 0)


def test_forced_runs_change_no_token(loaded, chats, dialogues):
    requests = requests_of(chats["constrained"], dialogues)
    requests += requests_of(chats["free"], dialogues[:4])
    requests = [type(r)(r.prompt, r.params, r.grammar, n) for n, r in enumerate(requests)]
    traced = complete(loaded, requests, trace=True)
    with_runs, decoder = decoded(loaded, requests, batch_size=9)
    without, plain = decoded(loaded, requests, batch_size=9, forced_runs=False)
    assert part_only_at_ties(with_runs, traced) + part_only_at_ties(without, traced) <= 3
    assert decoder.counts.forced > 0.1 * decoder.counts.sampled
    assert decoder.counts.forced == sum(c.forced for c in with_runs.values())
    assert plain.counts.forced == 0
    for completion in with_runs.values():
        assert len(completion.logprobs) == len(completion.token_ids)
        assert completion.steps <= 200


def test_forced_runs_save_forwards(loaded, chats, dialogues):
    requests = requests_of(chats["constrained"], dialogues[:6])
    (done, decoder), (_, plain) = (
        decoded(loaded, requests, batch_size=1, forced_runs=runs) for runs in (True, False)
    )
    # Alone, a row reads each run at once, with the token drawn before it.
    saved = plain.batch.forwards - decoder.batch.forwards
    assert 0.8 * decoder.counts.forced <= saved <= decoder.counts.forced
    assert decoder.counts.forced == sum(c.forced for c in done.values()) > 10


def test_forced_tokens_respect_the_budget_and_stop_texts(loaded, chats, dialogues):
    for limit in (1, 2, 3, 5):
        requests = requests_of(chats["constrained"], dialogues[:6], max_tokens=limit)
        for completion in decoded(loaded, requests)[0].values():
            assert completion.steps <= limit
    requests = requests_of(chats["constrained"], dialogues, stop=('"name"',))
    stopped = [c for c in decoded(loaded, requests)[0].values() if c.stop == '"name"']
    assert stopped
    assert all('"name"' not in c.text for c in stopped)


def test_requests_join_a_running_batch(loaded, chats, dialogues):
    requests = requests_of(chats["constrained"], dialogues)
    traced = complete(loaded, requests, trace=True, batch_size=len(requests))
    decoder = Decoder(
        loaded.model,
        tokenizer=loaded.tokenizer,
        stop_token_ids=loaded.stop_token_ids,
        batch_size=5,
    )
    waiting, done = list(requests), {}
    while waiting or decoder.busy:
        if waiting:
            decoder.submit(waiting.pop(0))
        done.update((c.key, c) for c in decoder.step())
    assert part_only_at_ties(done, traced) <= 2


def out_of_memory_beyond(monkeypatch, rows):
    """The model's body runs out of memory with more rows than that, half way through its layers."""
    forward = Head.states

    def states(self, *, input_ids, **arguments):
        output = forward(self, input_ids=input_ids, **arguments)
        if len(input_ids) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 MiB.\nSee ...")
        return output

    monkeypatch.setattr(Head, "states", states)


def test_out_of_memory_means_fewer_rows_and_nothing_lost(loaded, chats, dialogues, monkeypatch):
    requests = requests_of(chats["constrained"], dialogues[:12])
    traced = complete(loaded, requests, trace=True)
    out_of_memory_beyond(monkeypatch, 3)
    with pytest.warns(UserWarning, match=r"out of memory with 12 rows; going on with 6 \(CUDA"):
        done, decoder = decoded(loaded, requests, batch_size=12)
    assert decoder.batch_size == 3
    assert set(done) == set(traced)
    assert part_only_at_ties(done, traced) <= 2


def test_a_decoder_that_has_emptied_has_its_places_again(loaded, chats, dialogues, monkeypatch):
    requests = requests_of(chats["constrained"], dialogues[:6])
    with monkeypatch.context() as patch:
        out_of_memory_beyond(patch, 3)
        with pytest.warns(UserWarning, match="out of memory"):
            _, decoder = decoded(loaded, requests, batch_size=6)
        assert decoder.batch_size == 3
    for request in requests:
        decoder.submit(request)
    decoder.step()
    assert len(decoder.batch) == decoder.batch_size == 6


def test_memory_that_runs_out_in_the_middle_loses_nothing(loaded, chats, dialogues, monkeypatch):
    requests = requests_of(chats["constrained"], dialogues[:6])
    traced = complete(loaded, requests, trace=True)
    step, calls = CachedBatch.step, []

    def failing(self, tokens):
        calls.append(len(tokens))
        if len(calls) in (9, 20):
            step(self, tokens)
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")
        return step(self, tokens)

    monkeypatch.setattr(CachedBatch, "step", failing)
    with pytest.warns(UserWarning, match="out of memory with 6 rows; going on with 3"):
        done, _ = decoded(loaded, requests, batch_size=6)
    assert part_only_at_ties(done, traced) <= 2


def test_a_row_that_does_not_fit_alone_ends_alone(loaded, chats, dialogues, monkeypatch):
    out_of_memory_beyond(monkeypatch, 0)
    with pytest.warns(UserWarning, match="out of memory"):
        done, _ = decoded(loaded, requests_of(chats["free"], dialogues[:2]), batch_size=2)
    for completion in done.values():
        assert completion.finish_reason == "error"
        assert "out of memory with one row of" in completion.error


def test_kept_beginnings_make_room_before_a_row_fails(loaded, chats, dialogues, monkeypatch):
    """With one row at a time, too: what can be freed is freed first."""
    requests = requests_of(chats["free"], dialogues[:4], max_tokens=8)
    forward, failed = Head.states, []

    def states(self, **arguments):
        if decoder.batch.holds_beginnings and len(failed) < 2:
            failed.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, **arguments)

    decoder = Decoder(
        loaded.model,
        tokenizer=loaded.tokenizer,
        stop_token_ids=loaded.stop_token_ids,
        batch_size=1,
    )
    monkeypatch.setattr(Head, "states", states)
    for request in [*requests, *requests]:
        decoder.submit(request)
    done = []
    while decoder.busy:
        done += decoder.step()
    assert failed
    assert {c.finish_reason for c in done} <= {"stop", "length"}
    assert len(done) == 8


def test_a_pad_token_that_the_model_lacks_is_not_fed_to_it(loaded, chats, dialogues):
    batch = CachedBatch(Head(loaded.model), loaded.vocab_size)
    with torch.inference_mode():
        batch.add([[5, 6, 7], [5]])


def test_a_model_with_states_is_decoded_row_by_row():
    model = tiny(
        "qwen3_5_text",
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    )
    tokenizer = SimpleNamespace(pad_token_id=0, decode=lambda ids, **_: str(ids))
    with pytest.warns(UserWarning, match="are decoded one by one"):
        decoder = Decoder(model, tokenizer=tokenizer, stop_token_ids=[2], batch_size=3)
    for n in range(3):
        decoder.submit(Request((5, 6, 7 + n), SamplingParams(seed=n, max_tokens=3 + 2 * n)))
    done = []
    while decoder.busy:
        done += decoder.step()
    assert {c.finish_reason for c in done} <= {"stop", "length"}
    assert len(done) == 3


def test_other_errors_are_not_taken_for_memory(loaded, chats, dialogues, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Head, "states", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        decoded(loaded, requests_of(chats["free"], dialogues[:2]))


def test_top_logprobs_are_the_models_own(loaded, chats, dialogues):
    requests = requests_of(
        chats["constrained"], dialogues[:4], top_logprobs=3, temperature=2.0, max_tokens=40
    )
    plain = requests_of(chats["constrained"], dialogues[:4], temperature=2.0, max_tokens=40)
    traced = complete(loaded, plain, trace=True)
    done, decoder = decoded(loaded, requests)
    assert decoder.counts.forced == 0
    assert part_only_at_ties(done, traced) <= 1
    outside = 0
    for request in requests:
        completion = done[request.key]
        ids = torch.tensor([[*request.prompt, *completion.token_ids]])
        with torch.inference_mode():
            logits = loaded.model(input_ids=ids).logits[0, len(request.prompt) - 1 : -1]
        expected = logits.double().log_softmax(-1)
        assert len(completion.top_logprobs) == len(completion.token_ids) > 0
        for row, top, token in zip(
            expected, completion.top_logprobs, completion.token_ids, strict=True
        ):
            assert token in top
            outside += len(top) == 4
            assert list(top)[:3] == row.topk(3).indices.tolist()
            for i, logprob in top.items():
                assert logprob == pytest.approx(float(row[i]), abs=1e-3)
    assert outside


@pytest.mark.parametrize(
    ("unread", "width"),
    [
        ([1, 1, 1], 1),
        ([12] * 8, 12),  # all rows begin alike: one forward
        ([4, 1, 1, 1, 1, 1, 1, 1], 1),  # one row's run is not worth padding the other seven
        ([6], 6),
        ([9, 9, 9, 1], 9),
    ],
)
def test_the_width_of_a_step(unread, width):
    assert step_width(unread, device="cpu", can_pad=True) == width


def test_the_width_where_rows_cannot_stand_still():
    assert step_width([12, 3, 5], device="cpu", can_pad=False) == 3


def decoder_of(loaded, **options):
    return Decoder(
        loaded.model, tokenizer=loaded.tokenizer, stop_token_ids=loaded.stop_token_ids, **options
    )


def run_dry(decoder):
    done = {}
    while decoder.busy:
        done.update((c.key, c) for c in decoder.step())
    return done


@pytest.mark.parametrize("cancelled", [(0,), (5,), (2, 4), (9,), (0, 1, 2, 3, 4, 5)])
def test_a_cancelled_request_is_gone_and_the_others_do_not_notice(
    loaded, chats, dialogues, cancelled
):
    """The first six of ten run at that time, the last four wait."""
    requests = requests_of(chats["constrained"], dialogues[:8])
    requests += requests_of(chats["free"], dialogues[8:10])
    requests = [Request(r.prompt, r.params, r.grammar, n) for n, r in enumerate(requests)]
    traced = complete(loaded, requests, trace=True)
    decoder = decoder_of(loaded, batch_size=6)
    for request in requests:
        decoder.submit(request)
    for _ in range(4):
        assert decoder.step() == []
    assert not decoder.cancel("nobody")
    for key in cancelled:
        assert decoder.cancel(key)
        assert not decoder.cancel(key)
    running = [n for n in range(6) if n not in cancelled]
    assert [live.key for live in decoder.live()] == running
    assert len(decoder.batch) == len(decoder.matchers) == len(running)
    done = run_dry(decoder)
    assert set(done) == set(range(10)) - set(cancelled)
    others = {key: traced[key] for key in done}
    assert part_only_at_ties(done, others) <= 1


def test_cancelling_all_leaves_nothing_to_do(loaded, chats, dialogues):
    decoder = decoder_of(loaded, batch_size=2)
    for request in requests_of(chats["free"], dialogues[:4]):
        decoder.submit(Request(request.prompt, request.params, None, "same"))
    decoder.step()
    assert decoder.cancel("same")
    assert not decoder.busy
    assert decoder.step() == []
    (request,) = requests_of(chats["free"], dialogues[:1])
    decoder.submit(request)
    assert parted(run_dry(decoder)[0], complete(loaded, [request], trace=True)[0]) is None


def test_memory_that_runs_out_while_cancelling_loses_nothing(loaded, chats, dialogues, monkeypatch):
    requests = requests_of(chats["constrained"], dialogues[:6])
    traced = complete(loaded, requests, trace=True)
    decoder = decoder_of(loaded, batch_size=6)
    for request in requests:
        decoder.submit(request)
    for _ in range(5):
        decoder.step()
    keep, failed = CachedBatch.keep, []

    def failing(self, rows):
        if not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return keep(self, rows)

    monkeypatch.setattr(CachedBatch, "keep", failing)
    with pytest.warns(UserWarning, match="out of memory"):
        assert decoder.cancel(3)
    done = run_dry(decoder)
    assert set(done) == {0, 1, 2, 4, 5}
    assert part_only_at_ties(done, {key: traced[key] for key in done}) <= 1


def test_what_runs_can_be_watched(loaded, chats, dialogues):
    requests = requests_of(chats["free"], dialogues[:5], top_logprobs=2, max_tokens=30)
    decoder = decoder_of(loaded, batch_size=3)
    for request in requests:
        decoder.submit(request)
    assert list(decoder.live()) == []
    seen, done = {}, {}
    while decoder.busy:
        done.update((c.key, c) for c in decoder.step())
        live = list(decoder.live())
        assert len(live) <= 3
        for row in live:
            assert row.retries == 0
            assert len(row.token_ids) == len(row.logprobs) == len(row.top_logprobs)
            before = seen.get(row.key, ())
            assert tuple(row.token_ids[: len(before)]) == before
            assert len(row.token_ids) > len(before)
            seen[row.key] = tuple(row.token_ids)
        again = list(decoder.live())
        assert all(a.token_ids is b.token_ids for a, b in zip(live, again, strict=True))
    for key, tokens in seen.items():
        assert done[key].token_ids[: len(tokens)] == tokens
        assert len(done[key].token_ids) - len(tokens) <= 1


@pytest.mark.parametrize("place", ["masked_sample", "top_logprobs"])
def test_memory_that_runs_out_in_a_draw_leaves_top_logprobs_aligned(
    loaded, chats, dialogues, monkeypatch, place
):
    """After the logits: before any row has its tokens, or when one row has its top_logprobs."""
    requests = requests_of(chats["free"], dialogues[:3], top_logprobs=2, max_tokens=20)
    traced = complete(loaded, requests, trace=True)
    function, calls = getattr(decoding, place), []

    def failing(*arguments, **named):
        calls.append(1)
        # Of the fifth step; of its three rows, the second.
        if len(calls) == {"masked_sample": 5, "top_logprobs": 14}[place]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return function(*arguments, **named)

    monkeypatch.setattr(decoding, place, failing)
    with pytest.warns(UserWarning, match="out of memory with 3 rows; going on with 1"):
        done, decoder = decoded(loaded, requests, batch_size=3)
    assert decoder.batch_size == 1
    assert part_only_at_ties(done, traced) <= 1
    for key, completion in done.items():
        assert len(completion.top_logprobs) == len(completion.token_ids) > 0
        if parted(completion, traced[key]) is not None:
            continue
        for top, expected, token in zip(
            completion.top_logprobs, traced[key].top_logprobs, completion.token_ids, strict=True
        ):
            assert token in top
            assert top == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("fails", "batch_size", "seconds"),
    [
        # A token a second. The second request waits while the first one runs.
        (False, 1, {0: 2.0, 1: 2.0}),
        # Both run; one second goes on running out of memory, and then the second one waits again.
        (True, 2, {0: 3.0, 1: 5.0}),
    ],
)
def test_seconds_count_from_the_first_prefill(
    loaded, chats, dialogues, monkeypatch, fails, batch_size, seconds
):
    clock = [100.0]
    monkeypatch.setattr(row_module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    step = CachedBatch.step

    def failing(self, tokens):
        if fails and len(tokens) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return step(self, tokens)

    monkeypatch.setattr(CachedBatch, "step", failing)
    decoder = decoder_of(loaded, batch_size=batch_size, share_prefixes=False)
    for request in requests_of(chats["free"], dialogues[:2], max_tokens=3, temperature=0):
        decoder.submit(request)
    got = {}
    with pytest.warns(UserWarning, match="out of memory") if fails else nullcontext():
        while decoder.busy:
            for completion in decoder.step():
                assert len(completion.token_ids) == 3
                got[completion.key] = completion.seconds
            clock[0] += 1
    assert got == seconds
