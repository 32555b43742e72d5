"""A chat-completions client of few words: one request, streamed or not, one answer."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    """What came of a request.

    Attributes:
        status: HTTP's, or 0 where there was none.
        choices: message and finish_reason of each, put together where it was a stream.
        usage: tokens, empty where the server told none.
        headers: of the answer, in lower case.
        error: the server's message, or what broke.
    """

    status: int
    choices: tuple[Mapping[str, Any], ...] = ()
    usage: Mapping[str, int] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None


class Client:
    """Speaks to one endpoint; safe to share between threads.

    Args:
        base_url: with its `/v1`.
        api_key: sent as a bearer token, or None.
        timeout_s: of a request.

    Raises:
        ValueError: no http or https URL.
    """

    def __init__(self, base_url: str, api_key: str | None = None, timeout_s: float = 600) -> None:
        self._url = urlsplit(base_url.rstrip("/"))
        if self._url.scheme not in ("http", "https") or not self._url.hostname:
            raise ValueError(f"base_url must be like http://127.0.0.1:8000/v1; got {base_url!r}")
        self._timeout_s = timeout_s
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    def model(self) -> str:
        """The id of the first model that the endpoint has.

        Raises:
            ValueError: it cannot be reached, or names none.
        """
        try:
            _, answer = self._send("GET", "/models")
            return json.loads(answer.read())["data"][0]["id"]
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
            url = self._url.geturl()
            raise ValueError(f"{url}/models names no model: {error}; give --model") from None

    def ask(self, body: Mapping[str, Any]) -> Answer:
        """Send a request; whatever goes wrong is in the answer."""
        try:
            connection, answer = self._send("POST", "/chat/completions", json.dumps(body).encode())
            try:
                headers = {name.lower(): value for name, value in answer.getheaders()}
                if answer.status != 200:
                    return Answer(answer.status, headers=headers, error=_error(answer.read()))
                if body.get("stream"):
                    return _merged(_events(answer), headers)
                done = json.loads(answer.read())
                return Answer(200, tuple(done["choices"]), done.get("usage") or {}, headers)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            return Answer(0, error=f"{type(error).__name__}: {error}")

    def _send(
        self, method: str, path: str, body: bytes | None = None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        secure = self._url.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(self._url.hostname, self._url.port, timeout=self._timeout_s)
        connection.request(method, self._url.path + path, body, self._headers)
        return connection, connection.getresponse()


def _error(body: bytes) -> str:
    try:
        return json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        return body[:300].decode(errors="replace")


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in answer:
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data != b"[DONE]":
            yield json.loads(data)


def _merged(events: Iterator[dict[str, Any]], headers: Mapping[str, str]) -> Answer:
    """A stream put together; one without a finish_reason has broken off."""
    choices: dict[int, dict[str, Any]] = {}
    usage: Mapping[str, int] = {}
    for event in events:
        if "error" in event:
            return Answer(200, headers=headers, error=event["error"]["message"])
        usage = event.get("usage") or usage
        for part in event["choices"]:
            choice = choices.setdefault(
                part["index"], {"message": {"content": "", "tool_calls": []}, "finish_reason": None}
            )
            _add(choice["message"], part["delta"])
            choice["finish_reason"] = part.get("finish_reason") or choice["finish_reason"]
    ended = bool(choices) and all(choice["finish_reason"] for choice in choices.values())
    error = None if ended else "the stream broke off"
    return Answer(200, tuple(choices[i] for i in sorted(choices)), usage, headers, error)


def _add(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    message["content"] += delta.get("content") or ""
    calls = message["tool_calls"]
    for piece in delta.get("tool_calls") or []:
        while len(calls) <= piece["index"]:
            calls.append({"id": None, "function": {"name": "", "arguments": ""}})
        call, function = calls[piece["index"]], piece.get("function") or {}
        call["id"] = piece.get("id") or call["id"]
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        call["function"]["arguments"] += function.get("arguments") or ""
