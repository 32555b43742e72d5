"""The thread that owns the decoder: whatever one request does, the others are answered."""

import threading
from queue import Queue
from types import SimpleNamespace

import pytest

from sampler.decoding import Decoder
from sampler.params import Completion, Request, SamplingParams
from sampler.serve.metrics import Metrics
from sampler.serve.worker import Progress, Worker
from tests.looping import complete, requests_of


@pytest.fixture
def work(loaded):
    """Starts workers, and stops them."""
    started = []

    def start(**options):
        metrics = Metrics()
        worker = Worker(
            lambda: Decoder(
                loaded.model,
                tokenizer=loaded.tokenizer,
                stop_token_ids=loaded.stop_token_ids,
                **options,
            ),
            metrics,
        )
        worker.start(lambda deliver: deliver())
        started.append(worker)
        return worker, metrics

    yield start
    for worker in started:
        worker.stop()


def answers(worker, requests, **options):
    """Completions by key, as the worker delivers them."""
    inbox = Queue()
    for request in requests:
        worker.submit(request, inbox.put, **options)
    done, progress = {}, {}
    while len(done) < len(requests):
        news = inbox.get(timeout=60)
        if isinstance(news, Completion):
            done[news.key] = news
        else:
            progress.setdefault(id(news), news)
    return done


def value(metric, **labels):
    return (metric.labels(**labels) if labels else metric)._value.get()


def test_rows_are_what_the_library_makes_of_them(loaded, chats, dialogues, work):
    requests = requests_of(chats["constrained"], dialogues[:6])
    expected = complete(loaded, requests, batch_size=4)
    worker, metrics = work(batch_size=4)
    done = answers(worker, requests)
    assert {key: c.token_ids for key, c in done.items()} == {
        key: c.token_ids for key, c in expected.items()
    }
    assert value(metrics.rows, reason="stop") == 6
    assert value(metrics.generated_tokens) == sum(c.steps for c in expected.values())


def test_followed_rows_tell_every_token_once(chats, dialogues, work):
    (request,) = requests_of(chats["free"], dialogues[:1])
    worker, _ = work()
    inbox = Queue()
    worker.submit(request, inbox.put, follow=True)
    tokens = []
    while isinstance(news := inbox.get(timeout=60), Progress):
        tokens += news.token_ids
    assert tokens
    assert tuple(tokens) == news.token_ids[: len(tokens)]


class Unmatchable:
    """A grammar that passes for one until the batch is to match it."""

    def __init__(self, info):
        self.tokenizer_info = info


def test_a_grammar_that_breaks_the_batch_fails_alone(loaded, chats, dialogues, work):
    chat = chats["constrained"]
    requests = requests_of(chat, dialogues[:3])
    expected = complete(loaded, requests)
    bad = Request(requests[0].prompt, SamplingParams(), Unmatchable(chat.compiler.info), "bad")
    worker, metrics = work()
    done = answers(worker, [requests[0], bad, *requests[1:]])
    assert done.pop("bad").finish_reason == "error"
    assert {key: c.token_ids for key, c in done.items()} == {
        key: c.token_ids for key, c in expected.items()
    }
    assert value(metrics.restarts) >= 1
    # And it goes on as before.
    again = answers(worker, requests)
    assert {key: c.text for key, c in again.items()} == {k: c.text for k, c in expected.items()}


def test_a_guard_that_raises_fails_alone(loaded, chats, dialogues, work):
    def check(*arguments, **options):
        raise RuntimeError("broken guard")

    good, other = requests_of(chats["constrained"], dialogues[:2])
    bad = Request(other.prompt, other.params, other.grammar, "bad", SimpleNamespace(check=check))
    worker, _ = work()
    done = answers(worker, [good, bad])
    assert done["bad"].finish_reason == "error"
    assert done[good.key].finish_reason == "stop"


def test_a_prompt_that_does_not_fit_fails_alone(loaded, chats, dialogues, work):
    (good,) = requests_of(chats["constrained"], dialogues[:1])
    worker, _ = work()
    done = answers(worker, [Request((10**9,), key="bad"), good])
    assert done["bad"].finish_reason == "error"
    assert done[good.key].finish_reason == "stop"


def test_a_cancelled_row_is_heard_of_no_more(chats, dialogues, work):
    first, second = requests_of(chats["free"], dialogues[:2], max_tokens=1500)
    never_ends = Request(
        first.prompt, SamplingParams(max_tokens=1500, logit_bias={2: -100.0}), key=0
    )
    worker, metrics = work(batch_size=1)
    begun, heard = threading.Event(), []

    def listen(news):
        heard.append(news)
        begun.set()

    worker.submit(never_ends, listen, follow=True)
    assert begun.wait(60)
    inbox = Queue()
    worker.submit(second, inbox.put)
    worker.cancel(0)
    assert inbox.get(timeout=60).key == second.key
    assert all(isinstance(news, Progress) for news in heard)
    assert sum(len(news.token_ids) for news in heard) < 1500
    assert value(metrics.rows, reason="cancelled") == 1


def test_rows_that_are_left_at_the_end_are_told(chats, dialogues, work):
    (request,) = requests_of(chats["free"], dialogues[:1], max_tokens=1500)
    long = Request(request.prompt, SamplingParams(max_tokens=1500, logit_bias={2: -100.0}), key=0)
    worker, _ = work()
    inbox = Queue()
    worker.submit(long, inbox.put)
    worker.stop()
    assert inbox.get(timeout=1).finish_reason == "error"
    assert not worker.alive
