"""A chat-completions endpoint that answers at once, or fails as it is told: for load and faults.

``python tests/stub_endpoint.py [PORT]`` prints the port it listens on. What it does with a request
is the last word of the last message (see ``FAULTS``); without one of those words it calls the first
tool, or says "hello" where there is none. GET /seen tells what came in.
"""

import asyncio
import json
import sys
from collections import Counter

PAGE = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
FAULTS = (
    "always429",  # Retry-After: 0
    "twice429",  # then an answer
    "once500",
    "always500",
    "refused400",
    "quotes_key",  # 401, and the Authorization header in its text
    "html",  # status 200
    "not_json",
    "no_choices",
    "deep",  # JSON nested 700 levels
    "null_reason",
    "drop",  # the connection closes in the middle of the answer
    "drop_once",
    "breaks_off",  # the stream ends, [DONE] and all, without a finish_reason
    "error_event",
    "bad_event",
    "slow",  # 30 s
    "unstreamed",  # JSON, though a stream was asked for
)


class Stub:
    def __init__(self):
        self.attempts, self.bodies = Counter(), {}
        self.count = self.flying = self.most_flying = 0

    async def serve(self, reader, writer):
        try:
            while (head := await read_head(reader)) is not None:
                method, path, headers = head
                data = await reader.readexactly(int(headers.get("content-length", 0)))
                if method == "GET":
                    await send(writer, 200, json.dumps(self.seen()).encode())
                    continue
                self.flying += 1
                self.most_flying = max(self.most_flying, self.flying)
                try:
                    await self.answer(writer, path, headers, json.loads(data))
                finally:
                    self.flying -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def seen(self):
        return {
            "count": self.count,
            "most_flying": self.most_flying,
            "attempts": self.attempts,
            "bodies": self.bodies,
        }

    async def answer(self, writer, path, headers, body):
        assert path == "/v1/chat/completions", path
        text = body["messages"][-1]["content"]
        self.count += 1
        word = text.split()[-1]
        attempt = 0
        if word in FAULTS or "keep" in text:
            self.attempts[text] += 1
            self.bodies[text] = body
            attempt = self.attempts[text]
        if word == "always429" or (word == "twice429" and attempt <= 2):
            error = {"error": {"message": "too many requests"}}
            return await send(writer, 429, json.dumps(error).encode(), {"Retry-After": "0"})
        if word == "always500" or (word == "once500" and attempt == 1):
            headers = {"Content-Type": "text/html", "retry-after-ms": "1"}
            return await send(writer, 500, PAGE, headers)
        if word == "refused400":
            return await send(writer, 400, b'{"error": {"message": "no such parameter"}}')
        if word == "quotes_key":
            said = {"error": {"message": f"bad key: {headers.get('authorization')}"}}
            return await send(writer, 401, json.dumps(said).encode())
        if word == "html":
            return await send(writer, 200, PAGE, {"Content-Type": "text/html"})
        if word == "not_json":
            return await send(writer, 200, b'{"choices": [')
        if word == "deep":
            whole = completion(body, word)
            whole["choices"][0]["message"]["content"] = "NESTED"
            data = json.dumps(whole).replace('"NESTED"', "[" * 700 + "]" * 700)
            return await send(writer, 200, data.encode())
        if word == "no_choices":
            return await send(writer, 200, b'{"choices": [], "object": "chat.completion"}')
        if word == "slow":
            await asyncio.sleep(30)
        dropped = word == "drop" or (word == "drop_once" and attempt == 1)
        if body.get("stream") and word != "unstreamed":
            return await stream(writer, body, word, dropped)
        whole = json.dumps(completion(body, word)).encode()
        if dropped:
            writer.write(head_of(200, {"Content-Length": str(len(whole))}) + whole[:40])
            await writer.drain()
            raise ConnectionError
        return await send(writer, 200, whole)


async def read_head(reader):
    line = await reader.readline()
    if not line:
        return None
    method, path, _ = line.decode().split()
    headers = {}
    while line := (await reader.readline()).decode().strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return method, path, headers


def head_of(status, headers):
    lines = [f"HTTP/1.1 {status} {'OK' if status == 200 else 'Not OK'}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def send(writer, status, data, headers=None):
    headers = {"Content-Type": "application/json", **(headers or {})}
    writer.write(head_of(status, {**headers, "Content-Length": str(len(data))}) + data)
    await writer.drain()


def call_of(body):
    tools = body.get("tools") or []
    if not tools:
        return None
    arguments = json.dumps({"text": body["messages"][-1]["content"]})
    function = {"name": tools[0]["function"]["name"], "arguments": arguments}
    return {"id": "call_1", "type": "function", "function": function}


def completion(body, word):
    call = call_of(body)
    message = {"role": "assistant", "content": None if call else "hello"}
    if call:
        message["tool_calls"] = [call]
    reason = None if word == "null_reason" else "tool_calls" if call else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {
        "id": "chatcmpl-stub",
        "object": "chat.completion",
        "created": 1,
        "model": body.get("model"),
        "choices": [choice],
        "usage": USAGE,
    }


async def stream(writer, body, word, dropped):
    headers = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
    writer.write(head_of(200, headers))
    call = call_of(body)
    deltas = [{"role": "assistant", "content": ""}]
    if call:
        text = call["function"]["arguments"]
        first = {**call, "index": 0, "function": {**call["function"], "arguments": text[:9]}}
        rest = {"index": 0, "function": {"arguments": text[9:]}}
        deltas += [{"tool_calls": [first]}, {"tool_calls": [rest]}]
    else:
        deltas += [{"content": "hel"}, {"content": "lo"}]
    for delta in deltas:
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        write_event(writer, {"choices": [choice]}, body)
    await writer.drain()
    if dropped:
        raise ConnectionError
    if word == "error_event":
        write_event(writer, {"error": {"message": "the engine died", "code": 500}}, body)
    if word == "bad_event":
        write_chunk(writer, b"data: {not json\n\n")
    if word not in ("breaks_off", "null_reason"):
        reason = "tool_calls" if call else "stop"
        write_event(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}, body)
    if (body.get("stream_options") or {}).get("include_usage"):
        write_event(writer, {"choices": [], "usage": USAGE}, body)
    write_chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def write_event(writer, event, body):
    head = {"id": "chatcmpl-stub", "object": "chat.completion.chunk", "created": 1}
    event = {**head, "model": body.get("model"), **event}
    write_chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")


def write_chunk(writer, data):
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def main(port):
    server = await asyncio.start_server(Stub().serve, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
