"""Requests files: one OpenAI chat-completions body a line, as K2VV's samples.jsonl has them."""

import hashlib
import json
from dataclasses import dataclass, field
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
    body: the OpenAI chat-completions body, role ``_input`` already read as system. Its tools are
        as they came: `eval.chat_body.check_tools` says whether they can be run.
    hash: hex SHA-256 of the body as canonical JSON (keys sorted, no spaces, UTF-8).
    """

    model_config = ConfigDict(frozen=True)

    data_index: int = Field(ge=1)
    body: dict[str, Any]

    @computed_field
    @cached_property
    def hash(self) -> str:
        text = json.dumps(self.body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass
class JsonLines:
    """What a file of JSON lines, or the rows of a dataset, holds.

    name: of the file or dataset.
    values: by 1-based number, blank lines left out.
    bad: what is wrong with the other lines, by number. Whoever reads the values adds to it.
    count: lines there are, blank ones too.
    unit: ``line`` or ``row``.
    """

    name: str
    values: dict[int, Any] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)
    count: int = 0
    unit: str = "line"

    def settle(self, wanted: str, *, skip: bool, notes: list[str]) -> None:
        """Refuse the bad lines, or skip them with a note.

        wanted: what lines should be, in the plural ("chat requests").

        Raises:
            RequestError: names every bad line (ten of them, then a count); with ``skip`` only where
                no line is left.
        """
        if not self.bad:
            return
        named = [f"{self.unit} {number}: {self.bad[number]}" for number in sorted(self.bad)]
        more = len(named) - _LISTED
        total = len(self.values.keys() | self.bad.keys())
        if skip and len(named) < total:
            tail = f"; and {more} more" if more > 0 else ""
            notes.append(
                f"{self.name}: skipped {len(named)} of {total} {self.unit}s that are not {wanted}: "
                + "; ".join(named[:_LISTED])
                + tail
            )
            return
        text = [f"{self.name}: {len(named)} of {total} {self.unit}s are not {wanted}"]
        text += [f"  {line}" for line in named[:_LISTED]]
        if more > 0:
            text.append(f"  and {more} more")
        raise RequestError("\n".join(text))


def read_json_lines(path: str | Path) -> JsonLines:
    """Read a file of JSON lines, plain or gzip; what is not JSON is among the bad lines.

    Raises:
        RequestError: the file cannot be read.
    """
    try:
        data = read_bytes(path)
    except OSError as error:
        raise RequestError(f"cannot read requests from {path}: {error.strerror}") from None
    pieces = data.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n").split(b"\n")
    lines = JsonLines(str(path), count=len(pieces))
    for number, line in enumerate(pieces, 1):
        if not line.strip():
            continue
        try:
            lines.values[number] = load_json(line.decode())
        except ValueError as error:
            lines.bad[number] = _explain(error, line)
    return lines


def read_requests(
    path: str | Path, *, skip_bad_lines: bool = False, notes: list[str] | None = None
) -> list[RequestLine]:
    """Read a requests file, plain or gzip: one OpenAI chat-completions body a line.

    Args:
        skip_bad_lines: leave them out and name them in ``notes``, if that is given.

    Raises:
        RequestError: the file cannot be read, holds no request, or has bad lines: each is named
            with its number, what was wanted and what came (ten of them, then a count).
    """
    lines = read_json_lines(path)
    requests = chat_requests(lines)
    lines.settle("chat requests", skip=skip_bad_lines, notes=[] if notes is None else notes)
    if not requests:
        raise RequestError(f"{path} holds no requests; write one chat-completions body a line")
    return requests


def chat_requests(lines: JsonLines, start: int = 0) -> list[RequestLine]:
    """The chat-completions bodies among lines; the others join ``lines.bad``.

    start: added to a line's number for its data_index.
    """
    requests = []
    for number, body in lines.values.items():
        try:
            check_body(body)
        except ValueError as error:
            lines.bad[number] = str(error)
        else:
            index = start + number
            requests.append(RequestLine(data_index=index, body=_input_is_system(body)))
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
