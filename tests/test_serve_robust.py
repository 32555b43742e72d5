"""What clients may do to a server, and what it must not do: fall over, leak, or hold on to rows."""

import http.client
import json
import random
import signal
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest

from tests.serving import ROOT, STRICT, running

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
# Runs until its budget is spent: the model may not end its turn.
ENDLESS = {**HELLO, "max_tokens": 1900, "logit_bias": {"2": -100}}
CANCELLED = 'rows_total{reason="cancelled"}'


@pytest.fixture(scope="module")
def server():
    with running(*STRICT, "--max-body-bytes", "100000", "--max-batch-size", "4") as started:
        yield started


def request(server, method, path, body=None, headers=None):
    """Status, headers and body of an answer."""
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=300)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def post(server, body, **headers):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **headers}
    return request(server, "POST", "/v1/chat/completions", raw, headers)


def until(holds, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.05)


def dial(server):
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), timeout=300)


def raw_request(body):
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


@pytest.mark.parametrize("fields", [{"stream": True}, {"stream": False}, {"n": 3}])
def test_a_client_that_leaves_frees_its_rows(server, fields):
    cancelled = server.metric(CANCELLED)
    with dial(server) as connection:
        connection.sendall(raw_request({**ENDLESS, **fields}))
        until(lambda: server.metric("running_rows") == fields.get("n", 1))
        if fields.get("stream"):
            assert connection.recv(100)
    until(lambda: server.metric("running_rows") == 0)
    until(lambda: server.metric("seats_taken") == 0)
    assert server.metric(CANCELLED) == cancelled + fields.get("n", 1)


def test_a_body_that_is_too_large(server):
    big = {**HELLO, "user": "x" * 200_000}
    status, _, body = post(server, big)
    assert status == 413
    assert json.loads(body)["error"]["code"] == "body_too_large"
    data = json.dumps(big).encode()
    pieces = (data[i : i + 4096] for i in range(0, len(data), 4096))
    # Sent in chunks: nothing says how long it is.
    kind = {"content-type": "application/json"}
    status, _, _ = request(server, "POST", "/v1/chat/completions", pieces, kind)
    assert status == 413
    with dial(server) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
            b"content-length: 99999999999999\r\n\r\n"
        )
        assert b" 413 " in connection.recv(200)


def test_other_errors_have_the_same_body(server):
    for status, answer in (
        (404, request(server, "GET", "/nothing")),
        (405, request(server, "GET", "/v1/chat/completions")),
        (404, request(server, "GET", "/v1/models/%2e%2e/%2e%2e/etc/passwd")),
        (404, post(server, {**HELLO, "model": "other"})),
        (415, post(server, b"x=1", **{"content-type": "application/x-www-form-urlencoded"})),
        (400, post(server, b"{")),
    ):
        got, headers, body = answer
        assert got == status
        assert headers["content-type"] == "application/json"
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]


def mutated(rng, value, depth=0):
    """`value` with some of its parts replaced, moved or dropped."""
    odd = (None, True, -1, 0, 1e308, 2**70, "", "x", [], {}, [[]], {"type": 1}, "\x00", "é" * 40)
    if rng.random() < 0.15:
        return rng.choice(odd)
    if isinstance(value, dict):
        kept = {k: mutated(rng, v, depth + 1) for k, v in value.items() if rng.random() > 0.08}
        if rng.random() < 0.1:
            kept[rng.choice(list(value) or ["x"])] = rng.choice(odd)
        return kept
    if isinstance(value, list):
        return [mutated(rng, v, depth + 1) for v in value for _ in range(rng.choice((1, 1, 1, 2)))]
    return value


FULL = {
    "model": "nano",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "d",
                "strict": True,
                "parameters": {
                    "type": "object",
                    "properties": {"a": {"type": "string", "pattern": "^x+$"}},
                    "required": ["a"],
                },
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": True,
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
    "structured_outputs": {"regex": "a+"},
    "temperature": 1,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 1,
    "max_tokens": 4,
    "stop": ["x"],
    "n": 2,
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": 1},
    "presence_penalty": 1,
    "stream": False,
    "chat_template_kwargs": {"x": 1},
    "thinking": {"type": "enabled"},
    "best_of": None,
}


def test_no_body_breaks_it_or_makes_it_say_where_it_lives(server):
    rng, seen = random.Random(3), {}
    for _ in range(150):
        body = mutated(rng, FULL)
        if isinstance(body, dict):
            # Budgets are the server's to bound; here they keep the test short.
            body["max_tokens"] = body.get("max_tokens") if rng.random() < 0.1 else 4
            if body["max_tokens"] is None:
                body["max_tokens"] = 4
        status, _, answer = post(server, body)
        seen[status] = seen.get(status, 0) + 1
        assert status in (200, 400, 404), (status, answer, body)
        assert str(ROOT).encode() not in answer
        assert b"site-packages" not in answer
        assert b"Traceback" not in answer
    assert seen[400] > 20
    assert server.process.poll() is None
    until(lambda: server.metric("seats_taken") == 0)


def test_no_header_or_path_breaks_it(server):
    rng = random.Random(4)
    for _ in range(40):
        junk = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 200)))
        with dial(server) as connection:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nx: " + junk + b"\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4096)
        assert b"Traceback" not in answer
        assert str(ROOT).encode() not in answer
    assert request(server, "GET", "/" + "a" * 5000)[0] == 404
    assert request(server, "GET", "/health")[0] == 200
    assert server.process.poll() is None


def test_half_a_request_holds_no_row(server):
    with dial(server) as connection:
        connection.sendall(raw_request(HELLO)[:-5])
        until(lambda: server.metric("seats_taken") == 1)
    until(lambda: server.metric("seats_taken") == 0)
    assert post(server, {**HELLO, "max_tokens": 2})[0] == 200


def test_a_named_api_key_and_a_wrong_one():
    with running(MASKED_SAMPLING_API_KEY="schlüssel") as server:
        for sent, status in (
            (None, 401),
            ("Bearer wrong", 401),
            ("Basic schl\xfcssel", 401),
            ("Bearer schlüssel".encode().decode("latin-1"), 200),
        ):
            headers = {} if sent is None else {"authorization": sent.encode("latin-1")}
            assert request(server, "GET", "/v1/models", headers=headers)[0] == status
        assert request(server, "GET", "/health")[0] == 200


def test_sigterm_lets_what_runs_finish_and_takes_nothing_new():
    with running("--max-batch-size", "2") as server:
        answers = []
        waiting = threading.Thread(
            target=lambda: answers.append(post(server, {**ENDLESS, "max_tokens": 400}))
        )
        waiting.start()
        until(lambda: server.metric("running_rows") == 1)
        with dial(server) as connection:
            connection.sendall(raw_request({**ENDLESS, "max_tokens": 400, "stream": True}))
            assert b"200 OK" in connection.recv(1000)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: request(server, "GET", "/health")[0] == 503)
            status, headers, body = post(server, HELLO)
            assert status == 503
            assert headers["retry-after"]
            assert json.loads(body)["error"]["code"] == "shutting_down"
            rest = b""
            while piece := connection.recv(65536):
                rest += piece
        assert rest.rstrip().endswith((b"data: [DONE]", b"0"))
        assert b"data: [DONE]" in rest
        waiting.join(120)
        status, _, body = answers[0]
        assert status == 200
        assert json.loads(body)["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(120) == 0
