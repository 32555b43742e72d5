"""Many clients at once: each is answered as if alone, and memory stays bounded."""

import asyncio
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from random import Random

import openai
import pytest

from sampler.nano.dialogues import dialogue
from tests.serving import STRICT, library_answers, plain, reassembled, running

CLIENTS = 64
BATCH, SEATS = 8, 100


@pytest.fixture(scope="module")
def server():
    with running(
        *STRICT, "--max-batch-size", str(BATCH), "--max-queue", str(SEATS - BATCH)
    ) as started:
        yield started


def mixed_bodies():
    """Requests of many kinds: each choice of tools, formats of answers, short and long ones."""
    rng, bodies = Random(5), []
    for n in range(CLIENTS):
        drawn = dialogue(rng, change=n % 2 == 1, held_out=True)
        body = {"messages": drawn.messages, "seed": n, "max_tokens": (20, 60, 160)[n % 3]}
        if drawn.tools and n % 5:
            body["tools"] = drawn.tools
            body["tool_choice"] = ("auto", "required", "none", "auto")[n % 4]
        elif n % 3 == 0:
            body["response_format"] = {"type": "json_object"}
        if n % 7 == 0:
            body |= {"temperature": 0.0}
        if n % 11 == 0:
            body["stop"] = ["e"]
        bodies.append(body)
    return bodies


def test_64_at_once_are_each_answered_right(server, loaded):
    bodies = mixed_bodies()
    expected = library_answers(loaded, bodies)

    async def ask(client, body, streamed):
        if not streamed:
            done = await client.chat.completions.create(model="nano", **body)
            return done.model_dump()["choices"][0]
        chunks = await client.chat.completions.create(model="nano", **body, stream=True)
        return reassembled([chunk.model_dump() async for chunk in chunks])[0]

    async def ask_all():
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0
        ) as client:
            return await asyncio.gather(
                *(ask(client, body, n % 2 == 0) for n, body in enumerate(bodies))
            )

    asyncio.run(ask_all())
    before = server.resident_bytes()
    for _ in range(2):
        answers = asyncio.run(ask_all())
    ties = 0
    for got, (message, reason, tied) in zip(answers, expected, strict=True):
        if (plain(got["message"]), got["finish_reason"]) != (message, reason):
            assert tied, f"{got} is not {message}, {reason}"
            ties += 1
    assert ties <= CLIENTS // 8
    assert server.resident_bytes() - before < 64 * 2**20
    assert server.metric("seats_taken") == 0
    assert server.metric("running_rows") == 0
    assert server.metric("waiting_rows") == 0


def test_beyond_the_queue_is_a_429(server):
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "n": SEATS,
        "max_tokens": 40,
        "logit_bias": {"2": -100},
    }

    def post(fields):
        request = urllib.request.Request(
            f"{server.url}/v1/chat/completions",
            json.dumps(fields).encode(),
            {"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.status, answer.headers, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, error.headers, json.loads(error.read())

    with ThreadPoolExecutor(1) as pool:
        full = pool.submit(post, body)
        while server.metric("seats_taken") < SEATS:
            assert not full.done()
        status, headers, answer = post({**body, "n": 1, "max_tokens": 1})
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert answer["error"]["code"] == "queue_full"
        status, _, answer = full.result()
    assert status == 200
    assert len(answer["choices"]) == SEATS
    assert post({**body, "n": 1, "max_tokens": 1})[0] == 200
    status, _, answer = post({**body, "n": 128 + 1})
    assert (status, answer["error"]["param"]) == (400, "n")
