"""The remote engine: any OpenAI-compatible endpoint, through the official client.

One event loop in a thread of its own, `concurrency` workers on it, and a queue that is no longer
than that: a worker takes the next request when its last row has been taken off its hands, so memory
does not grow with the requests. The workers share a few clients: the pool of connections behind a
client looks at each of them several times a request, which for a hundred is most of its time.

A request is asked again after HTTP 429, 408 and 5xx, after a connection that failed or broke, and
after a time-out: 1 + `retries` attempts, no more. Any other refusal stands, and so does an answer
that is not one (no JSON, no choices). A stream without a finish reason broke off, whatever it held.
"""

from __future__ import annotations

import asyncio
import threading
import time
from base64 import b64encode
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from openai import APIConnectionError, APIError, APIStatusError, AsyncOpenAI, AsyncStream

from eval.calls import verdict
from eval.chat_body import load_json
from eval.endpoint_request import EndpointRequests, Sent, public
from eval.engines import failed_row
from eval.request_lines import RequestLine
from eval.retry import retry_wait
from eval.rows import ResultRow
from eval.stream_merge import StreamMerge

_PATH = "/chat/completions"
# Workers that share a client, as long as there are no more clients than `_CLIENTS`: each reads the
# certificates that the machine trusts.
_SHARING, _CLIENTS = 8, 8
# Of a server's own words, as many characters go into a row.
_SHOWN = 300


class BadAnswer(ValueError):
    """The endpoint answered, but not with a chat completion."""


class BrokenStream(ConnectionError):
    """A stream ended before its finish reason; `partial` is what had come."""

    def __init__(self, message: str, partial: dict[str, Any]) -> None:
        super().__init__(message)
        self.partial = partial


class OpenAIEngine:
    """An OpenAI-compatible endpoint.

    Args:
        base_url: up to and with ``/v1``.
        requests: what is sent for a request line.
        api_key: goes into the header ``Authorization``, and nowhere else.
        concurrency: requests in flight at a time, at most 1,000.
        timeout: seconds for one attempt, from the first byte sent to the last received.
        retries: further attempts after a first that failed for a passing reason.
    """

    def __init__(
        self,
        base_url: str,
        requests: EndpointRequests,
        *,
        api_key: str | None = None,
        concurrency: int = 16,
        timeout: float = 600.0,
        retries: int = 3,
    ) -> None:
        self.base_url, self.requests, self._api_key = base_url, requests, api_key
        self._secrets = _secrets(base_url, api_key)
        self.concurrency, self.timeout, self.retries = concurrency, timeout, retries
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._clients = self._call(self._connect())

    def run(self, lines: Iterable[RequestLine]) -> Iterator[ResultRow]:
        """Answer requests; a row comes as soon as its request ends."""
        # With those of one crossing that are not yet taken, no more than `concurrency` wait.
        rows: asyncio.Queue[ResultRow | None] = asyncio.Queue(max(1, self.concurrency // 2))
        work = asyncio.run_coroutine_threadsafe(self._work(iter(lines), rows), self._loop)
        try:
            yield from self._taken(rows)
            work.result()
        finally:
            work.cancel()

    def close(self) -> None:
        """Drop what is in flight, close the connections, end the thread."""
        if self._loop.is_closed():
            return
        self._call(self._disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def describe(self) -> dict[str, Any]:
        """The endpoint, less any password in its address, and what is sent to it."""
        return {"engine": "openai", "base_url": public(self.base_url), **self.requests.describe()}

    def _taken(self, rows: asyncio.Queue[ResultRow | None]) -> Iterator[ResultRow]:
        """Rows as they come, up to the None at their end."""
        while True:
            for row in self._call(_waiting(rows)):
                if row is None:
                    return
                yield row

    def _call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _connect(self) -> list[AsyncOpenAI]:
        # The client wants a key even where the server does not. Time limits and retries are ours.
        options = {"api_key": self._api_key or "none", "timeout": None, "max_retries": 0}
        clients = min(_CLIENTS, -(-self.concurrency // _SHARING))
        return [AsyncOpenAI(base_url=self.base_url, **options) for _ in range(clients)]

    async def _disconnect(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for client in self._clients:
            await client.close()

    async def _work(self, lines: Iterator[RequestLine], rows: asyncio.Queue) -> None:
        async def worker(client: AsyncOpenAI) -> None:
            for line in lines:
                await rows.put(await self._row(line, client))

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self.concurrency):
                    group.create_task(worker(self._clients[number % len(self._clients)]))
        except Exception:
            await rows.put(None)
            raise
        await rows.put(None)

    async def _row(self, line: RequestLine, client: AsyncOpenAI) -> ResultRow:
        """The row of one request; never raises for what the request or the endpoint does."""
        started = time.monotonic()
        retried: list[str] = []
        sent = Sent(line.body, {})
        try:
            sent = self.requests.sent(line)
            response, notes = await self._ask_patiently(client, sent.body, retried)
            return self._answered(line, sent, response, time.monotonic() - started, retried, notes)
        except Exception as error:
            return failed_row(
                line,
                error,
                message=self._reason(error),
                request=sent.request,
                seconds=time.monotonic() - started,
                extra_body=sent.extra_body,
                masked_sampling=self._details(retried, partial=getattr(error, "partial", None)),
            )

    async def _ask_patiently(
        self, client: AsyncOpenAI, body: Mapping[str, Any], retried: list[str]
    ) -> tuple[dict[str, Any], list[str]]:
        """What `_ask` returns, after as many attempts as it takes; their reasons go to `retried`.

        Raises:
            Exception: that of the last attempt.
        """
        while True:
            try:
                return await self._ask(client, body)
            except Exception as error:
                if len(retried) == self.retries or not _passes(error):
                    raise
                wait = retry_wait(len(retried), _headers(error))
                retried.append(self._reason(error))
                await asyncio.sleep(wait)

    async def _ask(
        self, client: AsyncOpenAI, body: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        """One attempt: the response, and notes on how its stream was read."""
        async with asyncio.timeout(self.timeout):
            if body.get("stream"):
                return await self._stream(client, body)
            text = await client.post(_PATH, cast_to=str, body=body)
            return _completion(text), []

    async def _stream(
        self, client: AsyncOpenAI, body: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        stream = await client.post(
            _PATH, cast_to=object, body=body, stream=True, stream_cls=AsyncStream[object]
        )
        async with stream:
            kind = stream.response.headers.get("content-type", "")
            if "json" in kind or "html" in kind:
                # Some servers do not stream, or answer with a page of their proxy's.
                return _completion((await stream.response.aread()).decode(errors="replace")), []
            merge = StreamMerge()
            try:
                async for chunk in stream:
                    merge.add(chunk)
            except APIConnectionError as error:
                raise _broken(merge, error.__cause__ or error) from error
            except APIError as error:
                raise BadAnswer(f"an error came in the stream: {error.message}") from error
            except ValueError as error:
                raise BadAnswer(f"the stream cannot be read: {error}") from error
            except Exception as error:
                raise _broken(merge, error) from error
        if merge.finish_reason is None:
            said = f"the stream ended after {merge.chunks} chunks without a finish_reason"
            raise BrokenStream(said, merge.response())
        return merge.response(), merge.notes

    def _answered(
        self,
        line: RequestLine,
        sent: Sent,
        response: dict[str, Any],
        seconds: float,
        retried: list[str],
        notes: list[str],
    ) -> ResultRow:
        choice = response["choices"][0]
        reason = choice["finish_reason"]
        valid, failures = verdict(reason, choice["message"], line.body.get("tools"))
        return ResultRow(
            data_index=line.data_index,
            request=sent.request,
            extra_body=sent.extra_body,
            response=response,
            status="success",
            finish_reason=reason,
            tool_calls_valid=valid,
            last_run_at=datetime.now().isoformat(),
            duration_ms=round(seconds * 1000),
            hash=line.hash,
            masked_sampling=self._details(
                retried, stream=notes, failures=[asdict(failure) for failure in failures]
            ),
        )

    def _details(self, retried: list[str], **found: Any) -> dict[str, Any]:
        known = {
            "constrained_via": self.requests.via,
            "attempts": len(retried) + 1,
            "retried": retried,
            **found,
        }
        return {key: value for key, value in known.items() if value not in (None, [])}

    def _reason(self, error: Exception) -> str:
        if isinstance(error, APIStatusError):
            text = f"HTTP {error.status_code}: {_short(error.response.text)}"
        elif isinstance(error, TimeoutError):
            text = f"no whole answer within {self.timeout:g} s; raise --timeout for a slow endpoint"
        elif isinstance(error, APIConnectionError):
            text = f"no connection to {public(self.base_url)} ({_said(error.__cause__ or error)})"
        elif isinstance(error, BadAnswer | BrokenStream):
            text = str(error)
        else:
            text = _said(error)
        # A server may quote the key that it refuses.
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return text


async def _waiting(rows: asyncio.Queue[ResultRow | None]) -> list[ResultRow | None]:
    """What is in a queue, at least one; to cross to another thread costs more than a row does."""
    waiting = [await rows.get()]
    while not rows.empty():
        waiting.append(rows.get_nowait())
    return waiting


def _secrets(base_url: str, api_key: str | None) -> list[str]:
    """What may be in no message: the key, and a password in the address, as it is sent."""
    parts = urlsplit(base_url)
    secrets = [api_key or ""]
    if parts.password:
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password)}"
        secrets += [b64encode(pair.encode()).decode(), parts.password, unquote(parts.password)]
    return [secret for secret in secrets if secret]


def _broken(merge: StreamMerge, cause: BaseException) -> BrokenStream:
    said = f"the connection broke after {merge.chunks} chunks ({_said(cause)})"
    return BrokenStream(said, merge.response())


def _passes(error: Exception) -> bool:
    """Whether a failure may be gone at the next attempt."""
    if isinstance(error, APIStatusError):
        return error.status_code in (408, 429) or error.status_code >= 500
    return isinstance(error, APIConnectionError | ConnectionError | TimeoutError)


def _headers(error: Exception) -> Mapping[str, str] | None:
    return error.response.headers if isinstance(error, APIStatusError) else None


def _completion(text: str) -> dict[str, Any]:
    """A response body as a chat completion that has an answer in it.

    Raises:
        BadAnswer: it is something else; the message quotes its beginning.
    """
    try:
        response = load_json(text)
    except ValueError as error:
        raise BadAnswer(f"the answer is not JSON ({error}): {_short(text)}") from None
    choices = response.get("choices") if isinstance(response, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise BadAnswer(f"the answer has no choices with a message: {_short(text)}")
    if not isinstance(choice.get("finish_reason"), str):
        raise BadAnswer(f"the answer has no finish_reason: {_short(text)}")
    return response


def _said(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _short(text: str) -> str:
    text = " ".join(text.split())
    return (text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}...") or "(empty)"
