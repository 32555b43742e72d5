"""Requests files: one OpenAI chat-completions body a line, as K2VV's samples.jsonl has them."""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, computed_field

from eval.chat_body import check_body, load_json
from eval.plain_or_gzip import read_bytes

_LISTED = 10


class RequestError(ValueError):
    """A requests file that cannot be run; the message names every bad line."""


class RequestLine(BaseModel):
    """One line of a requests file.

    data_index: 1-based line number; blank lines are skipped but count.
    body: the OpenAI chat-completions body, role ``_input`` already read as system.
    hash: hex SHA-256 of the body as canonical JSON (keys sorted, no spaces, UTF-8).
    """

    model_config = ConfigDict(frozen=True)

    data_index: int = Field(ge=1)
    body: dict[str, Any]

    @computed_field
    @cached_property
    def hash(self) -> str:
        """Hex SHA-256 of the body as canonical JSON."""
        text = json.dumps(self.body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_requests(path: str | Path) -> list[RequestLine]:
    """Read a requests file, plain or gzip: one OpenAI chat-completions body a line.

    Raises:
        RequestError: the file cannot be read, holds no request, or has bad lines: each is named
            with its number, what was wanted and what came (ten of them, then a count).
    """
    try:
        data = read_bytes(path)
    except OSError as error:
        raise RequestError(f"cannot read requests from {path}: {error.strerror}") from None
    requests, bad = [], []
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            body = load_json(line.decode())
            check_body(body)
        except ValueError as error:
            bad.append(f"  line {number}: {_explain(error, line)}")
        else:
            requests.append(RequestLine(data_index=number, body=_input_is_system(body)))
    if bad:
        total = len(requests) + len(bad)
        lines = [f"{path}: {len(bad)} of {total} lines are not chat requests", *bad[:_LISTED]]
        if len(bad) > _LISTED:
            lines.append(f"  and {len(bad) - _LISTED} more")
        raise RequestError("\n".join(lines))
    if not requests:
        raise RequestError(f"{path} holds no requests; write one chat-completions body a line")
    return requests


def _input_is_system(body: dict[str, Any]) -> dict[str, Any]:
    messages = [
        {**message, "role": "system"} if message["role"] == "_input" else message
        for message in body["messages"]
    ]
    return {**body, "messages": messages}


def _explain(error: ValueError, line: bytes) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: {error.reason} at byte {error.start}"
    if isinstance(error, json.JSONDecodeError):
        start = line[:40].decode(errors="replace").strip()
        return f"not JSON: {error.msg} at column {error.colno}; the line starts {start!r}"
    return str(error)
