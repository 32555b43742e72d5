"""What a chat-completions request body must look like before anything runs on it."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "_input")
"""OpenAI's, and K2VV's ``_input``, which means system."""

TOOL_CHOICES = ("none", "auto", "required")

DEEPEST = 200
"""Levels of objects and lists. Python's json reads some more, but what is done with a value later,
and with it inside another, does not all reach as far."""
_TOO_DEEP = f"nested too deeply: more than {DEEPEST} levels of objects and lists"


class _Missing:
    """A key that is not there, which is not the same as null."""


_MISSING = _Missing()


def load_json(text: str) -> Any:
    """Parse JSON as RFC 8259 has it: ``NaN`` and ``Infinity``, which Python takes, are refused.

    Raises:
        ValueError: not JSON, nested deeper than ``DEEPEST``, or a number too long to convert.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    check_depth(value)
    return value


def check_depth(value: Any) -> None:
    """Check that what was parsed from JSON can be worked on and written again.

    Raises:
        ValueError: it is nested deeper than ``DEEPEST``.
    """
    level = [[value]]
    for _ in range(DEEPEST + 1):
        level = [one for outer in level for one in _inside(outer) if type(one) in (dict, list)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def check_body(body: Any) -> None:
    """Check one request body; fields that OpenAI does not know are fine.

    Its tools are not looked at: where they are wrong one request fails, when it is run
    (`check_tools`), and not the file.

    Raises:
        ValueError: names the first field that is wrong, what was wanted, and what came.
    """
    if not isinstance(body, dict):
        raise _wrong("a chat request", "a JSON object", body)
    messages = body.get("messages", _MISSING)
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", "a list of at least one message", messages)
    for i, message in enumerate(messages):
        _check_message(f"messages[{i}]", message)
    for name, (wanted, holds) in _OPTIONAL.items():
        value = body.get(name)
        if value is not None and not holds(value):
            raise _wrong(name, wanted, value)


def check_tools(body: Mapping[str, Any]) -> None:
    """Check that the ``tools`` of a request body are what OpenAI's API takes; none are fine.

    Raises:
        ValueError: names the first tool that is wrong, what was wanted, and what came.
    """
    tools = body.get("tools")
    if not isinstance(tools, list | None):
        raise _wrong("tools", "a list of function tools", tools)
    for i, tool in enumerate(tools or []):
        _check_tool(f"tools[{i}]", tool)


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if type(value) is dict else value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_message(where: str, message: Any) -> None:
    if not isinstance(message, dict):
        raise _wrong(where, "an object with role and content", message)
    role = message.get("role", _MISSING)
    if role not in ROLES:
        raise _wrong(f"{where}.role", f"one of {', '.join(ROLES)}", role)
    content = message.get("content")
    if not isinstance(content, str | list | None):
        raise _wrong(f"{where}.content", "a string, a list of parts or null", content)
    calls = message.get("tool_calls")
    if not isinstance(calls, list | None):
        raise _wrong(f"{where}.tool_calls", "a list of calls", calls)
    for i, call in enumerate(calls or []):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise _wrong(f"{where}.tool_calls[{i}]", "a call with function.name", call)


def _check_tool(where: str, tool: Any) -> None:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise _wrong(where, 'a function tool, {"type": "function", "function": {...}}', tool)
    function = tool.get("function", _MISSING)
    if not isinstance(function, dict):
        raise _wrong(f"{where}.function", "an object with name and parameters", function)
    name = function.get("name", _MISSING)
    if not isinstance(name, str) or not name:
        raise _wrong(f"{where}.function.name", "a string", name)
    parameters = function.get("parameters")
    if not isinstance(parameters, dict | None):
        raise _wrong(f"{where}.function.parameters", "a JSON Schema object", parameters)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_stop(value: Any) -> bool:
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, list) and all(isinstance(text, str) for text in texts)


def _is_tool_choice(value: Any) -> bool:
    if isinstance(value, Mapping):
        if value.get("type") == "allowed_tools":
            return True
        function = value.get("function")
        return isinstance(function, dict) and isinstance(function.get("name"), str)
    return value in TOOL_CHOICES


_NUMBER = ("a number", _is_number)
_COUNT = ("an integer >= 1", _is_count)
_BOOL = ("true or false", lambda value: isinstance(value, bool))
_OPTIONAL: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "tool_choice": ("none, auto, required, or a named function", _is_tool_choice),
    "parallel_tool_calls": _BOOL,
    "stream": _BOOL,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "max_tokens": _COUNT,
    "max_completion_tokens": _COUNT,
    "seed": ("an integer", lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "stop": ("a string or a list of strings", _is_stop),
    "metadata": ("an object", lambda value: isinstance(value, dict)),
}


def _wrong(where: str, wanted: str, got: Any) -> ValueError:
    if got is _MISSING:
        return ValueError(f"{where} must be {wanted}; it is missing")
    text = json.dumps(got, ensure_ascii=False)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return ValueError(f"{where} must be {wanted}; got {shown}")
