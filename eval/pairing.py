"""Rows of two runs that answer the same request.

Two files are paired by ``data_index``, as K2VV pairs them. That is only right if both were made
from the same requests, so it is checked: by hash where the hashes are equal, else by what was
asked. Not by hash alone: K2VV's covers the model's name and the sampling settings, which two
vendors never share.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from eval.rows import ResultRow

# ``prompt`` stands in for messages and tools in K2VV's raw-completions mode.
_ASKED = (
    "messages",
    "prompt",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
)
_MEANS_NOTHING = (None, [], {})
_DEFAULTS = {"tool_choice": "auto", "parallel_tool_calls": True}


@dataclass(frozen=True)
class Pairing:
    """Two runs, matched; each tuple of data_index is in order.

    pairs: rows of one request, (first, second).
    only_first, only_second: data_index that one of the two lacks.
    other_request: in both, but not the same request; not paired.
    unverified: paired on the data_index alone, for want of a request or a hash in one of the two.
    """

    pairs: tuple[tuple[ResultRow, ResultRow], ...]
    only_first: tuple[int, ...]
    only_second: tuple[int, ...]
    other_request: tuple[int, ...]
    unverified: tuple[int, ...]


def pair(first: Iterable[ResultRow], second: Iterable[ResultRow]) -> Pairing:
    """Match two runs by data_index; of several rows with one index the last counts."""
    ours = {row.data_index: row for row in first}
    theirs = {row.data_index: row for row in second}
    same = {i: same_request(ours[i], theirs[i]) for i in sorted(ours.keys() & theirs.keys())}
    return Pairing(
        pairs=tuple((ours[i], theirs[i]) for i, verdict in same.items() if verdict is not False),
        only_first=tuple(sorted(ours.keys() - theirs.keys())),
        only_second=tuple(sorted(theirs.keys() - ours.keys())),
        other_request=tuple(i for i, verdict in same.items() if verdict is False),
        unverified=tuple(i for i, verdict in same.items() if verdict is None),
    )


def same_request(one: ResultRow, other: ResultRow) -> bool | None:
    """Whether two rows answer the same request; None where the rows do not tell.

    The same is the same conversation, tools and tool_choice. Model, sampling settings and
    everything else may differ, and so may the ids of calls in the history: K2VV renames them from
    one version of its requests to the next. Where a row carries no request, two hashes of one
    length that differ are two requests; of another length they come from another tool.
    """
    if one.hash and one.hash == other.hash:
        return True
    asked = [_question(row.request) for row in (one, other)]
    if all(asked):
        rendered = ["prompt" in question for question in asked]
        return asked[0] == asked[1] if rendered[0] == rendered[1] else None
    if one.hash and len(one.hash) == len(other.hash):
        return False
    return None


def _question(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a request asks, {} for a body that asks nothing."""
    asked = {
        key: body[key]
        for key in _ASKED
        if body.get(key) not in _MEANS_NOTHING and body[key] != _DEFAULTS.get(key)
    }
    if "messages" not in asked and "prompt" not in asked:
        return {}
    if isinstance(asked.get("messages"), list):
        asked["messages"] = [_without_ids(message) for message in asked["messages"]]
    return asked


def _without_ids(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    plain = {
        key: value
        for key, value in message.items()
        if key != "tool_call_id" and value not in _MEANS_NOTHING
    }
    if plain.get("role") == "_input":
        plain["role"] = "system"
    if isinstance(plain.get("tool_calls"), list):
        plain["tool_calls"] = [
            {key: value for key, value in call.items() if key not in ("id", "index")}
            if isinstance(call, dict)
            else call
            for call in plain["tool_calls"]
        ]
    return plain
