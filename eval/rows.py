"""Result rows: the lines of K2VV's results.jsonl, anybody's or our own."""

import json
import math
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from eval.plain_or_gzip import read_bytes


class ResultsError(ValueError):
    """A file that is not a results file."""


class ResultRow(BaseModel):
    """One line of a results file: K2VV's fields in K2VV's order, then ours in one key.

    A line that lacks ``finish_reason`` takes it from its response, and one that lacks ``status``
    succeeded if it has a finish reason. Fields that are not listed here are dropped.

    data_index: 1-based line number of the request.
    request: the body that was sent.
    response: an OpenAI ``chat.completion``; of a failed request its error_type, error_message
        and error.
    status: ``success`` or ``failed``.
    finish_reason: of the first choice; None for a failed request and for an answer that broke off.
    tool_calls_valid: the verdict on a response with finish_reason tool_calls and calls, else None.
    last_run_at: ISO 8601.
    duration_ms: milliseconds.
    masked_sampling: whatever else is known about the run of this request.
    """

    model_config = ConfigDict(frozen=True)

    data_index: int
    request: dict[str, Any] = {}
    extra_body: dict[str, Any] = {}
    response: dict[str, Any] | None = None
    status: str
    finish_reason: str | None = None
    tool_calls_valid: bool | None = None
    last_run_at: str | None = None
    duration_ms: float | int | None = None
    hash: str = ""
    masked_sampling: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _tolerate(cls, line: Any) -> Any:
        if not isinstance(line, dict):
            return line
        present = {key: value for key, value in line.items() if value is not None}
        if "finish_reason" not in line:
            choice = _first_choice(line.get("response"))
            present["finish_reason"] = choice.get("finish_reason")
        reason = present.get("finish_reason")
        present.setdefault("status", "failed" if reason is None else "success")
        return present

    @property
    def succeeded(self) -> bool:
        """Whether there is a response to judge."""
        return self.status == "success"

    @property
    def message(self) -> dict[str, Any]:
        """The assistant message of the first choice, {} where there is none."""
        message = _first_choice(self.response).get("message")
        return message if isinstance(message, dict) else {}

    @property
    def answer_finish_reason(self) -> str | None:
        """finish_reason as the response itself gives it, None where it gives none."""
        reason = _first_choice(self.response).get("finish_reason")
        return reason if isinstance(reason, str) else None

    @property
    def usage(self) -> dict[str, int]:
        """Token counts of the response, those it gives."""
        usage = (self.response or {}).get("usage")
        usage = usage if isinstance(usage, dict) else {}
        counts = ((key, n) for key, n in usage.items() if isinstance(n, int))
        return {key: n for key, n in counts if not isinstance(n, bool)}

    def to_line(self) -> bytes:
        """UTF-8 JSON with its newline; floats that are not finite become null."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        if not self.masked_sampling:
            del fields["masked_sampling"]
        try:
            text = json.dumps(fields, ensure_ascii=False, allow_nan=False)
        except ValueError:
            # Hardly a row has such a float, and to look for one takes longer than to write it.
            fields = _finite(fields)
            text = json.dumps(fields, ensure_ascii=False, allow_nan=False)
        try:
            line = text.encode()
        except UnicodeEncodeError:
            # A model may write half a surrogate pair, which UTF-8 cannot hold but an escape can.
            line = json.dumps(fields, allow_nan=False).encode()
        return line + b"\n"


def read_results(path: str | Path, notes: list[str] | None = None) -> list[ResultRow]:
    """Read anybody's results file, plain or gzip: the newest row of each data_index, in order.

    The row with the later ``last_run_at`` is the newer one, as in K2VV; where the two times are
    equal, missing or do not compare, the later line is. Lines that are no result rows, a torn
    last one for instance, are left out, and named in ``notes`` if it is given.

    Raises:
        ResultsError: the file cannot be read, or no line of it is a result row.
    """
    try:
        data = read_bytes(path)
    except OSError as error:
        raise ResultsError(f"cannot read results from {path}: {error.strerror}") from None
    rows, bad = parse_rows(data)
    if bad and not rows:
        raise ResultsError(f"{path} is not a results file: {bad[0]}")
    if notes is not None:
        notes.extend(f"{path}: {text}; left out" for text in bad)
    return newest_rows(rows)


def newest_rows(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """The newest row of each data_index, in order; `read_results` says which is newer."""
    newest: dict[int, ResultRow] = {}
    for row in rows:
        if row.data_index not in newest or _not_older(row, newest[row.data_index]):
            newest[row.data_index] = row
    return [newest[index] for index in sorted(newest)]


def parse_rows(data: bytes) -> tuple[list[ResultRow], list[str]]:
    """Result rows of a file's bytes in the order of its lines, and what is wrong with the rest."""
    rows, bad = [], []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(ResultRow.model_validate(json.loads(line)))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "line"
            bad.append(f"line {number} is not a result row ({where}: {first['msg']})")
        except (ValueError, RecursionError):
            bad.append(f"line {number} is not JSON")
    return rows, bad


def _not_older(row: ResultRow, other: ResultRow) -> bool:
    try:
        return datetime.fromisoformat(row.last_run_at) >= datetime.fromisoformat(other.last_run_at)
    except (TypeError, ValueError):
        return True


def _first_choice(response: Any) -> dict[str, Any]:
    choices = response.get("choices") if isinstance(response, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
