"""OpenAI's chat messages, checked and brought to the form that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "_input")
"""OpenAI's, and the ``_input`` of K2 Vendor Verifier, which means system."""

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
"""Types of content parts that are text, and the key it stands under."""


def read_messages(messages: Any, template: str) -> list[dict[str, Any]]:
    """Messages as a template takes them.

    Content is text (null is none, parts are joined), arguments are objects where their JSON is one
    (templates print them with ``tojson``, which would quote a string twice), and roles are those
    that templates know: ``_input`` is system, ``function`` is tool, and ``developer`` is system for
    a template that never speaks of developers.

    Args:
        messages: of a request.
        template: the chat template's source.

    Raises:
        ValueError: what is no list of messages, with the place; parts that are not text.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise _wrong("messages", "a list of at least one message", messages)
    return [_read(f"messages[{i}]", m, template) for i, m in enumerate(messages)]


def with_call_ids(
    messages: Sequence[Mapping[str, Any]], call_id: Callable[[str, int], str | None]
) -> list[dict[str, Any]]:
    """Messages whose calls have the ids that a format wants, and whose results point to them.

    Args:
        messages: as `read_messages` returns them.
        call_id: `grammar.formats.Format.call_id`. Calls are counted over the whole conversation.
    """
    renamed: dict[Any, str] = {}
    changed, count = [], 0
    for message in messages:
        message = dict(message)
        calls = []
        for call in message.get("tool_calls", ()):
            wanted = call_id(call["function"]["name"], count)
            count += 1
            if wanted is not None:
                # An id that is used again means the newest call of that id from here on.
                renamed[call.get("id")] = wanted
                call = {**call, "id": wanted}
            calls.append(call)
        if calls:
            message["tool_calls"] = calls
        old = message.get("tool_call_id")
        if isinstance(old, str) and old in renamed:
            message["tool_call_id"] = renamed[old]
        changed.append(message)
    return changed


def _read(where: str, message: Any, template: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _wrong(where, "an object with role and content", message)
    role = message.get("role")
    if role not in ROLES:
        raise _wrong(f"{where}.role", f"one of {', '.join(ROLES)}", role)
    read = {**message, "role": _known_role(role, template)}
    read["content"] = _text(f"{where}.content", message.get("content"))
    calls = message.get("tool_calls")
    if not isinstance(calls, Sequence | None) or isinstance(calls, str):
        raise _wrong(f"{where}.tool_calls", "a list of calls", calls)
    read_calls = [_call(f"{where}.tool_calls[{i}]", call) for i, call in enumerate(calls or ())]
    old = read.pop("function_call", None)
    if old is not None and not read_calls:
        read_calls = [_call(where, {"type": "function", "function": old}, "function_call")]
    read.pop("tool_calls", None)
    return read | {"tool_calls": read_calls} if read_calls else read


def _known_role(role: str, template: str) -> str:
    if role == "developer" and "developer" in template:
        return role
    return {"_input": "system", "developer": "system", "function": "tool"}.get(role, role)


def _text(where: str, content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise _wrong(where, "a string, a list of parts or null", content)
    return "".join(_part(f"{where}[{i}]", part) for i, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise _wrong(where, "a content part, an object with type and text", part)
    if kind not in _TEXT_PARTS:
        raise ValueError(f"{where} is of type {kind!r}; this model reads text only")
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise _wrong(f"{where}.{_TEXT_PARTS[kind]}", "a string", text)
    return text


def _call(where: str, call: Any, key: str = "function") -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _wrong(f"{where}.{key}", "an object with name and arguments", function)
    arguments = function.get("arguments")
    if not isinstance(arguments, str | Mapping | None):
        raise _wrong(f"{where}.{key}.arguments", "JSON, as a string", arguments)
    if not isinstance(arguments, Mapping):
        # A model's broken JSON stays the text that it was.
        with suppress(ValueError, RecursionError):
            read = json.loads(arguments or "{}")
            arguments = read if isinstance(read, dict) else arguments
    return {**call, "function": {**function, "arguments": arguments}}


def _wrong(where: str, wanted: str, got: Any) -> ValueError:
    try:
        text = repr(got)
    except RecursionError:
        text = "what nests too deeply to be shown"
    return ValueError(
        f"{where} must be {wanted}; got {text if len(text) <= 80 else text[:77] + '...'}"
    )
