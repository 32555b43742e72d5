"""Which requests are asked, where they come from, and what can be read off a request."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from eval import bfcl, hub
from eval.chat_body import TOOL_CHOICES
from eval.request_lines import (
    JsonLines,
    RequestError,
    RequestLine,
    chat_requests,
    read_json_lines,
    read_requests,
)
from eval.rows import ResultRow, read_results

UNGROUPED = "ungrouped"
_DATA = Path(__file__).parent / "data"
_PATTERNS = ("*.jsonl", "*.json", "*.jsonl.gz", "*.json.gz")


@dataclass(frozen=True)
class Workload:
    """Requests, and what their source says about good answers to them.

    kind: of the source: K2VV's chat-completions bodies, or BFCL's questions.
    reference: when to call, as rows of a results file; None where the source does not say.
    answers: data_index to the calls that are right, as `eval.answers` takes them; None where the
        source has none. What calls for no call is not in it.
    notes: sentences about what was left out or not found.
    """

    kind: Literal["k2vv", "bfcl"]
    requests: list[RequestLine]
    reference: list[ResultRow] | None = None
    answers: Mapping[int, Any] | None = None
    notes: list[str] = field(default_factory=list)


def load_workload(source: str | Path | None, *, skip_bad_lines: bool = False) -> Workload:
    """Read requests: a file, a folder of files, or a dataset of the Hugging Face Hub.

    A file is K2VV's or BFCL's, plain or gzip; its lines say which. The answers to a file of BFCL's
    are found beside it (`eval.bfcl.answers_beside`). A folder's files are read in the order of
    their names; a data_index is then the number of a line, plus the lines of the files before. A
    folder without such files is left to ``datasets``. What exists here is not looked up on the Hub.

    Args:
        source: a path, ``ORG/NAME[/CONFIG][:SPLIT]`` of a dataset, or None for the bundled
            requests with the bundled reference.
        skip_bad_lines: leave out the lines that cannot be asked, and name them in the notes.

    Raises:
        RequestError: nothing there, or nothing that can be asked; requests of both kinds; or bad
            lines, each named with its number, what was wanted and what came.
    """
    if source is None:
        reference = read_results(bundled_reference())
        return Workload("k2vv", read_requests(bundled_requests()), reference)
    path = Path(source)
    if path.is_dir():
        return _read_folder(path, skip_bad_lines)
    if not path.exists() and hub.is_dataset_id(str(source)):
        return _read(str(source), [hub.read_dataset(str(source))], skip_bad_lines)
    return _read(str(source), [read_json_lines(path)], skip_bad_lines)


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


def limited(
    requests: Sequence[RequestLine], limit: int | None = None, per_group: int | None = None
) -> list[RequestLine]:
    """A part of the requests, always the same one, in their order; None means all.

    per_group: this many of each group, evenly spaced from its first on: neighbours in a set are
        often of one making.
    limit: of those the first so many.

    Raises:
        ValueError: a number under 1.
    """
    for name, value in (("limit", limit), ("per_group", per_group)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be an integer >= 1, got {value}; leave it out for all")
    if per_group is not None:
        members = defaultdict(list)
        for i, request in enumerate(requests):
            members[group_of(request.body)].append(i)
        chosen = {i for part in members.values() for i in _evenly(part, per_group)}
        requests = [request for i, request in enumerate(requests) if i in chosen]
    return list(requests[:limit])


def _evenly(members: Sequence[int], count: int) -> list[int]:
    if count >= len(members):
        return list(members)
    return [members[i * len(members) // count] for i in range(count)]


def _read_folder(folder: Path, skip: bool) -> Workload:
    files = sorted({file for pattern in _PATTERNS for file in folder.glob(pattern)})
    if not files or hub.is_saved_dataset(folder):
        return _read(str(folder), [hub.read_dataset_folder(folder)], skip)
    parts, notes = [], []
    for file in files:
        if bfcl.is_answers_file(file):
            continue
        lines = read_json_lines(file)
        if not any(_kind_of(value) for value in lines.values.values()):
            notes.append(f"{file}: left out: no line is a chat request or a BFCL question")
        elif bfcl.without_functions(lines):
            notes.append(f"{file}: left out: no question has functions, as in sets of many turns")
        else:
            parts.append(lines)
    if not parts:
        raise RequestError("\n  ".join([f"{folder} holds nothing that can be asked", *notes[:10]]))
    workload = _read(str(folder), parts, skip)
    return replace(workload, notes=notes + workload.notes)


def _read(source: str, parts: Sequence[JsonLines], skip: bool) -> Workload:
    kind, wanted = _kind(source, parts)
    requests, reference, answers, notes = [], [], {}, []
    start = 0
    for lines in parts:
        if kind == "bfcl":
            questions = bfcl.read_questions(lines, start, skip=skip, notes=notes)
            requests += questions.requests
            reference += questions.reference
            answers |= questions.answers
        else:
            requests += chat_requests(lines, start)
        lines.settle(wanted, skip=skip, notes=notes)
        start += lines.count
    return Workload(kind, requests, reference or None, answers or None, notes)


def _kind(source: str, parts: Sequence[JsonLines]) -> tuple[Literal["k2vv", "bfcl"], str]:
    """What the lines are, and how to call them.

    Raises:
        RequestError: there are none, or of both kinds, or answers alone.
    """
    if not any(lines.values or lines.bad for lines in parts):
        raise RequestError(f"{source} holds no requests; write one chat-completions body a line")
    first: dict[str, str] = {}
    for lines in parts:
        for number, value in lines.values.items():
            if kind := _kind_of(value):
                first.setdefault(kind, f"{lines.name}, {lines.unit} {number}")
    if len(first) == 2:
        raise RequestError(
            f"{source} mixes chat requests ({first['k2vv']}) with BFCL questions"
            f" ({first['bfcl']}); run them apart"
        )
    if "bfcl" in first:
        return "bfcl", "BFCL questions"
    if "k2vv" in first:
        return "k2vv", "chat requests"
    if any(bfcl.is_answer(value) for lines in parts for value in lines.values.values()):
        raise RequestError(
            f"{source} holds answers of BFCL's; give the file of questions, and its answers are"
            " found beside it"
        )
    return "k2vv", "chat requests or BFCL questions"


def _kind_of(value: Any) -> Literal["k2vv", "bfcl", ""]:
    if isinstance(value, dict) and "messages" in value:
        return "k2vv"
    return "bfcl" if bfcl.is_question(value) else ""
