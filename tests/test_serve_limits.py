"""What one request may take of a server: time to prepare, places, headers, second chances."""

import asyncio
import json
import threading
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import jsonschema
import pytest

from grammar import deadline, structured_outputs
from grammar.deadline import OutOfTime
from grammar.guard import Guard
from sampler.serve.app import create_app
from sampler.serve.limits import Limits
from sampler.serve.prepare import Job
from sampler.serve.service import Service

HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "seed": 1}


def tool(name, **parameters):
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, **parameters}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.fixture
def chat(chats):
    return chats["constrained"]


@asynccontextmanager
async def serving(chat, **limits):
    """A service in this process, and its application."""
    service = Service(chat, Limits(**limits))
    app = create_app(service)
    async with app.router.lifespan_context(app):
        yield service, app


async def happens(event):
    assert await asyncio.to_thread(event.wait, 120), "it did not come about"


async def ask(app, body, *, leave=None, send=None):
    """Status and text of an answer, as ASGI has them.

    Args:
        body: of the request; bytes are sent as they are.
        leave: an event, upon which the client leaves.
        send: takes the messages of the application.
    """
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    waiting = [{"type": "http.request", "body": raw, "more_body": False}]
    leave, sent = leave or asyncio.Event(), []

    async def receive():
        if waiting:
            return waiting.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    async def note(message):
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    await app(scope, receive, send or note)
    status = next((m["status"] for m in sent if "status" in m), None)
    return status, b"".join(m.get("body", b"") for m in sent).decode()


class Endless:
    """Work that goes on until its deadline is over."""

    def __init__(self):
        self.started, self.ended = threading.Event(), threading.Event()

    def __call__(self, *args, **options):
        self.started.set()
        try:
            for _ in range(20_000):
                deadline.check()
                time.sleep(0.01)
        except OutOfTime:
            self.ended.set()
            raise
        raise AssertionError("nobody ended it")


def test_many_slow_schemas_are_one_request_that_takes_too_long(chat, monkeypatch):
    tools = [tool("quick"), *(tool(f"slow_{i}", title=f"slow {i}") for i in range(3))]
    body = {**HELLO, "tools": tools, "tool_choice": "required"}
    prepare = structured_outputs.prepare

    def slowly(schema, **options):
        if schema.get("title", "").startswith("slow"):
            # As if all of the time had gone by.
            deadline.current().expire()
            deadline.check()
        return prepare(schema, **options)

    async def main():
        async with serving(chat, prepare_seconds=300) as (service, app):
            with monkeypatch.context() as patched:
                patched.setattr(structured_outputs, "prepare", slowly)
                status, answer = await ask(app, body)
            assert status == 400
            error = json.loads(answer)["error"]
            assert error["param"] == "tools"
            assert error["message"].startswith(
                "the schema of tool 'slow_0' was not prepared within the 300 s that a request has"
            )
            assert "simplify" in error["message"]
            assert not service.busy
            # What was given up left nothing behind.
            assert (await ask(app, body))[0] == 200

    asyncio.run(main())


def test_bodies_are_read_while_others_are_prepared(chat, monkeypatch):
    opened, started, prepare = threading.Event(), threading.Semaphore(0), chat.prepare

    def gated(body):
        started.release()
        assert opened.wait(120)
        return prepare(body)

    monkeypatch.setattr(chat, "prepare", gated)

    async def main():
        async with serving(chat) as (service, app):
            threads = service._preparing._max_workers
            slow = [asyncio.ensure_future(ask(app, HELLO)) for _ in range(threads)]
            for _ in range(threads):
                assert await asyncio.to_thread(started.acquire, True, 120)
            assert (await ask(app, b"{"))[0] == 400
            assert not any(one.done() for one in slow)
            opened.set()
            assert [status for status, _ in await asyncio.gather(*slow)] == [200] * threads

    asyncio.run(main())


def test_who_leaves_while_being_prepared_gives_back_place_and_thread(chat, monkeypatch):
    endless = Endless()
    monkeypatch.setattr(chat, "prepare", endless)

    async def main():
        async with serving(chat, prepare_seconds=300) as (service, app):
            leave = asyncio.Event()
            asked = asyncio.ensure_future(ask(app, {**HELLO, "n": 3}, leave=leave))
            await happens(endless.started)
            assert service.metrics.seats._value.get() == 3
            leave.set()
            assert (await asked)[0] == 499
            assert not service.busy
            assert service.metrics.seats._value.get() == 0
            await happens(endless.ended)

    asyncio.run(main())


def test_who_leaves_while_its_body_is_read_gives_back_the_place(chat, monkeypatch):
    started, opened = threading.Event(), threading.Event()

    def gated(raw):
        started.set()
        assert opened.wait(120)

    monkeypatch.setattr("sampler.serve.service.read_request", gated)

    async def main():
        async with serving(chat) as (service, app):
            leave = asyncio.Event()
            asked = asyncio.ensure_future(ask(app, HELLO, leave=leave))
            await happens(started)
            assert service.busy
            leave.set()
            await asked
            assert not service.busy
            opened.set()

    asyncio.run(main())


def test_the_end_of_the_server_ends_what_is_being_prepared(chat, monkeypatch):
    endless = Endless()
    monkeypatch.setattr(chat, "prepare", endless)

    async def main():
        async with serving(chat, prepare_seconds=300) as (service, app):
            asked = asyncio.ensure_future(ask(app, HELLO))
            await happens(endless.started)
            service.stop()
            await happens(endless.ended)
            await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(main())


class RefusesOnce:
    """A schema that a mask was said to enforce, and that refuses the first value it is shown."""

    verdict = "exact"
    validator = jsonschema.Draft202012Validator(False)

    def __init__(self):
        self.asked = 0

    def is_valid(self, value):
        self.asked += 1
        return self.asked > 1


def test_a_fault_of_the_mask_is_the_same_streamed_and_not(chat, monkeypatch):
    prepare, body = chat.prepare, {**HELLO, "max_tokens": 200, "tool_choice": "required"}
    body["tools"] = [tool("get_weather")]

    def unsound(body):
        prompt = prepare(body)
        assert not prompt.plan.guarded
        guard = Guard({"get_weather": RefusesOnce()}, format=chat.format, tools=body["tools"])
        return replace(prompt, guard=guard)

    monkeypatch.setattr(chat, "prepare", unsound)

    async def main():
        async with serving(chat) as (_, app):
            return await ask(app, body), await ask(app, {**body, "stream": True})

    (status, whole), (_, streamed) = asyncio.run(main())
    assert status == 500
    assert json.loads(whole)["error"]["code"] == "guard_gave_up"
    events = [line.removeprefix("data: ") for line in streamed.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2]) == json.loads(whole)


def test_headers_have_an_end():
    names = tuple(f"tool_{i:03}_{'x' * 50}" for i in range(500))
    plan = SimpleNamespace(guarded=names, warnings=("format 'x' knows no text\r\nto ban " * 500,))
    headers = Job(None, SimpleNamespace(plan=plan), (), []).headers
    assert all(len(value) < 1200 and value.isprintable() for value in headers.values())
    *shown, more = headers["x-masked-sampling-guard"].removeprefix("guarded=").split(",")
    assert tuple(shown) == names[: len(shown)]
    assert len(shown) + int(more) == len(names)
    few = SimpleNamespace(guarded=names[:3], warnings=())
    assert Job(None, SimpleNamespace(plan=few), (), []).headers == {
        "x-masked-sampling-guard": f"guarded={','.join(names[:3])}"
    }


def test_a_client_that_stops_reading_is_one_that_has_left(chat):
    async def main():
        async with serving(chat, send_seconds=1) as (service, app):
            taken = []

            async def send(message):
                if len(taken) == 2:
                    await asyncio.Event().wait()
                taken.append(message)

            body = {**HELLO, "stream": True, "max_tokens": 1900, "logit_bias": {"2": -100}}
            await asyncio.wait_for(ask(app, body, send=send), 120)
            assert len(taken) == 2
            assert not service.busy
            cancelled = service.metrics.rows.labels("cancelled")
            while not cancelled._value.get():
                await asyncio.sleep(0.05)

    asyncio.run(main())


def test_a_request_must_fit_the_cache(chat):
    async def answers():
        async with serving(chat, cache_tokens=300) as (_, app):
            return [await ask(app, {**HELLO, "max_tokens": n}) for n in (4, 299)]

    (fits, _), (too_long, text) = asyncio.run(answers())
    assert (fits, too_long) == (200, 400)
    error = json.loads(text)["error"]
    assert "and max_tokens is 299, but this server's cache is 300" in error["message"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")


def test_a_small_cache_makes_rows_wait_and_changes_no_answer(chat, monkeypatch):
    """And what a stream has sent of a row that waits again is not sent anew."""
    monkeypatch.setattr("sampler.room.HEADROOM", 4)
    bodies = [{**HELLO, "seed": n, "max_tokens": 60, "stream": n % 2 == 1} for n in range(12)]

    async def answers(**limits):
        async with serving(chat, **limits) as (service, app):
            texts = await asyncio.gather(*(ask(app, body) for body in bodies))
            preempted = service.metrics.registry.get_sample_value(
                "masked_sampling_preempted_rows_total"
            )
            return [said(text) for _, text in texts], preempted

    roomy, none = asyncio.run(answers())
    tight, some = asyncio.run(answers(cache_tokens=150))
    assert none == 0 < some
    # The model's sums depend on the rows beside; a near-tie may fall either way.
    assert sum(one != other for one, other in zip(tight, roomy, strict=True)) <= 1


def said(text):
    """The content of an answer, whole or streamed."""
    if not text.startswith("data:"):
        return json.loads(text)["choices"][0]["message"]["content"]
    events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    return "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])


def test_a_stream_that_has_nothing_to_say_says_so(chat):
    """A guarded call is sent when it is whole; until then comments keep the connection open."""
    body = {**HELLO, "stream": True, "max_tokens": 200, "tool_choice": "required"}
    body["tools"] = [
        tool("get_weather", properties={"x": {"type": "array", "contains": {"type": "number"}}})
    ]

    async def main():
        async with serving(chat) as (_, app):
            quiet = await ask(app, body)
        async with serving(chat, ping_seconds=0.01) as (_, app):
            return quiet, await ask(app, body)

    (_, quiet), (status, pinged) = asyncio.run(main())
    assert status == 200
    assert ": still at it" not in quiet
    assert ": still at it\n\n" in pinged
    events = [event for event in pinged.split("\n\n") if event and not event.startswith(":")]
    assert events[-1] == "data: [DONE]"
    assert calls(events) == calls(quiet.split("\n\n"))


def calls(events):
    """Arguments of the calls in events, put together."""
    parts = [json.loads(event[6:]) for event in events if event.startswith("data: {")]
    found = [c for p in parts for one in p["choices"] for c in one["delta"].get("tool_calls") or []]
    assert found
    return "".join(call["function"].get("arguments", "") for call in found)
