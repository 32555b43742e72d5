"""The chunks of a streamed chat completion, put together to the response they stand for.

Which call a piece belongs to is said by ``index``. Servers differ from that, and each way is met
here, as it was reported of one:

* ``index`` is missing: a piece continues the newest call, or begins one if it brings another id
  with a name. Of several pieces in one chunk, each has its place in the list for an index.
* a second call comes under the index of the first: a name with another id begins a call, and so
  does text after arguments that are already a whole JSON object.
* the name is sent again: the same name is not a second half.
* an id is sent anew with every piece: without a name, it does not begin a call.

What is glued inside a single piece stays as it is, and the check of the arguments finds it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from eval.chat_body import check_depth

_HEAD = ("id", "created", "model", "system_fingerprint", "service_tier")


class StreamMerge:
    """One response, as far as its chunks have come.

    Attributes:
        finish_reason: of the first choice; None until a chunk says it.
        chunks: how many have come.
        notes: sentences about calls that were told apart by what they hold.
    """

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.chunks = 0
        self.notes: list[str] = []
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Any] | None = None
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: list[dict[str, Any]] = []
        # The newest call under each index.
        self._at: dict[int, dict[str, Any]] = {}

    def add(self, chunk: Any) -> None:
        """Take in one chunk, as parsed from JSON. Of its choices, only the first is looked at.

        Raises:
            ValueError: it is not shaped like a chunk, or nested too deeply.
        """
        check_depth(chunk)
        if not isinstance(chunk, Mapping):
            raise ValueError(f"a chunk of the stream is no JSON object: {json.dumps(chunk)[:80]}")
        self.chunks += 1
        for key in _HEAD:
            if chunk.get(key) is not None:
                self._head.setdefault(key, chunk[key])
        # The chunk that brings the usage has no choices.
        if isinstance(chunk.get("usage"), Mapping):
            self._usage = dict(chunk["usage"])
        choices = chunk.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(c, Mapping) for c in choices):
            raise ValueError("choices of a chunk are no list of objects")
        for choice in choices:
            if choice.get("index") in (0, None):
                self._choice(choice)

    def response(self) -> dict[str, Any]:
        """The ``chat.completion`` that a server which does not stream would have sent."""
        message = dict(self._message)
        if self._calls:
            message["tool_calls"] = self._calls
        choice = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        whole = {**self._head, "object": "chat.completion", "choices": [choice]}
        return whole if self._usage is None else {**whole, "usage": self._usage}

    def _choice(self, choice: Mapping[str, Any]) -> None:
        if choice.get("finish_reason") is not None:
            self.finish_reason = choice["finish_reason"]
        delta = choice.get("delta") or {}
        if not isinstance(delta, Mapping):
            raise ValueError("the delta of a chunk is no object")
        for key, value in delta.items():
            if key == "tool_calls" or value is None:
                continue
            # content, refusal, reasoning_content and whatever else a server writes piece by piece.
            if isinstance(value, str) and key != "role":
                value = (self._message.get(key) or "") + value
            self._message[key] = value
        pieces = delta.get("tool_calls") or []
        if not isinstance(pieces, list) or not all(isinstance(p, Mapping) for p in pieces):
            raise ValueError("tool_calls of a chunk are no list of objects")
        for place, piece in enumerate(pieces):
            self._piece(piece, place if len(pieces) > 1 else None)

    def _piece(self, piece: Mapping[str, Any], place: int | None) -> None:
        function = piece.get("function")
        function = function if isinstance(function, Mapping) else {}
        name, text = function.get("name") or "", function.get("arguments")
        # Some servers send the arguments as an object, whole.
        text = text if isinstance(text, str) else "" if text is None else json.dumps(text)
        call = self._call_of(piece, place)
        if call is None:
            call = self._begin(piece, place, name)
        elif self._begins_another(call, piece, name, text):
            had = call["function"]["name"]
            if not name:
                self.notes.append(f"text after whole arguments of {had} is taken for another call")
            call = self._begin(piece, place, name or had)
        elif name:
            call["function"]["name"] = _named(call["function"]["name"], name)
        call["id"] = call["id"] or piece.get("id")
        call["function"]["arguments"] += text

    def _call_of(self, piece: Mapping[str, Any], place: int | None) -> dict[str, Any] | None:
        """The call that a piece may continue."""
        index = piece.get("index")
        if isinstance(index, int):
            return self._at.get(index)
        if place is not None:
            return self._at.get(place)
        named = (call for call in self._calls if call["id"] and call["id"] == piece.get("id"))
        return next(named, self._calls[-1] if self._calls else None)

    def _begins_another(
        self, call: Mapping[str, Any], piece: Mapping[str, Any], name: str, text: str
    ) -> bool:
        had = call["function"]
        if name and piece.get("id") and call["id"] and piece["id"] != call["id"]:
            return True
        if name and had["arguments"] and name != had["name"]:
            return True
        return bool(text.strip()) and _is_whole(had["arguments"])

    def _begin(self, piece: Mapping[str, Any], place: int | None, name: str) -> dict[str, Any]:
        function = {"name": name, "arguments": ""}
        call = {"id": None, "type": piece.get("type") or "function", "function": function}
        self._calls.append(call)
        index = piece.get("index")
        index = index if isinstance(index, int) else place
        self._at[len(self._calls) - 1 if index is None else index] = call
        return call


def _named(had: str, name: str) -> str:
    """The name of a call after one more piece of it: said again, or said further."""
    return name if name.startswith(had) else had + name


def _is_whole(arguments: str) -> bool:
    """Whether the text is a JSON object from end to end."""
    if not arguments.rstrip().endswith("}"):
        return False
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False
