"""Which requests are asked, and what can be read off a request."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from eval.chat_body import TOOL_CHOICES
from eval.request_lines import RequestLine, read_requests
from eval.rows import ResultRow, read_results

UNGROUPED = "ungrouped"
_DATA = Path(__file__).parent / "data"


def bundled_requests() -> Path:
    """The requests that ship with the project, in K2VV's format."""
    return _DATA / "requests.jsonl"


def bundled_reference() -> Path:
    """What the bundled requests call for, as a K2VV results file."""
    return _DATA / "reference.jsonl"


def requests_of(rows: Iterable[ResultRow]) -> list[RequestLine]:
    """The requests that a results file carries, for scoring it without the requests file."""
    return [RequestLine(data_index=row.data_index, body=row.request) for row in rows]


def groups(requests: Iterable[RequestLine]) -> dict[int, str]:
    """data_index to ``metadata.group``, ``ungrouped`` where the request has none."""
    return {request.data_index: group_of(request.body) for request in requests}


def group_of(body: Mapping[str, Any]) -> str:
    """``metadata.group`` of a request body, else ``ungrouped``."""
    metadata = body.get("metadata")
    group = metadata.get("group") if isinstance(metadata, dict) else None
    return group if isinstance(group, str) and group else UNGROUPED


def tool_choice_of(body: Mapping[str, Any]) -> Literal["none", "auto", "required", "named"]:
    """The kind of a request's tool_choice; absent, it is auto with tools and none without."""
    choice = body.get("tool_choice")
    if not body.get("tools"):
        return "none"
    if not isinstance(choice, dict):
        return choice if choice in TOOL_CHOICES else "auto"
    if choice.get("type") == "allowed_tools":
        return choice.get("allowed_tools", choice).get("mode", "auto")
    return "named"


def asked_freely(requests: Iterable[RequestLine]) -> set[int]:
    """data_index of the requests that leave it to the model whether to call: those of auto."""
    return {r.data_index for r in requests if tool_choice_of(r.body) == "auto"}


def with_tool_choice(requests: Iterable[RequestLine], choice: str) -> list[RequestLine]:
    """The same requests, and with other hashes, under another tool_choice.

    Requests without tools stay as they are.

    Raises:
        ValueError: a choice other than none, auto or required.
    """
    if choice not in TOOL_CHOICES:
        raise ValueError(f"tool_choice must be one of {', '.join(TOOL_CHOICES)}; got {choice!r}")
    return [
        RequestLine(data_index=r.data_index, body={**r.body, "tool_choice": choice})
        if r.body.get("tools")
        else r
        for r in requests
    ]


def limited(requests: Sequence[RequestLine], limit: int | None) -> list[RequestLine]:
    """The first ``limit`` requests; None means all.

    Raises:
        ValueError: a limit under 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be an integer >= 1, got {limit}; leave it out for all")
    return list(requests[:limit])


@dataclass(frozen=True)
class Workload:
    """Requests, and what their source says about good answers to them.

    kind: of the source: K2VV's chat-completions bodies, or BFCL's questions.
    reference: when to call, as rows of a results file; None where the source does not say.
    answers: data_index to the calls that are right; None where the source has none.
    notes: sentences about what was left out or not found.
    """

    kind: Literal["k2vv", "bfcl"]
    requests: list[RequestLine]
    reference: list[ResultRow] | None = None
    answers: Mapping[int, Any] | None = None
    notes: list[str] = field(default_factory=list)


def load_workload(source: str | Path | None, *, skip_bad_lines: bool = False) -> Workload:
    """K2VV's requests: a file, or the bundled ones with their reference."""
    if skip_bad_lines:
        raise ValueError("skip_bad_lines is not there yet; mend the lines")
    if source is None:
        reference = read_results(bundled_reference())
        return Workload("k2vv", read_requests(bundled_requests()), reference)
    return Workload("k2vv", read_requests(source))
