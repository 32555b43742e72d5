"""JSON as it stands inside a completion: where a value ends, and what it says, byte for byte."""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

State = Literal["complete", "open", "broken"]

# A string, a bracket, or a run of what may stand between them.
_PIECE = re.compile(r'"[^"\\]*+(?:\\[\s\S][^"\\]*+)*+"|[{}\[\]]|[\s,:0-9A-Za-z+\-.]++')
_WHITESPACE = re.compile(r"[ \t\r\n]*")
_CLOSES = {"}": "{", "]": "["}


def skip_whitespace(text: str, pos: int) -> int:
    """Index of the first character at or after ``pos`` that is not JSON whitespace."""
    return _WHITESPACE.match(text, pos).end()


def value_end(text: str, pos: int) -> tuple[int, State]:
    """Where the object, array or string that starts at ``pos`` ends, by brackets and quotes alone.

    Returns:
        ``(end, "complete")`` with ``end`` just after the closing bracket or quote;
        ``(len(text), "open")`` where the text stops first;
        ``(at, "broken")`` at the first character that JSON has no place for.
    """
    stack: list[str] = []
    while pos < len(text):
        piece = _PIECE.match(text, pos)
        if piece is None:
            # Only an unterminated string can start with a quote here.
            return (len(text), "open") if text[pos] == '"' else (pos, "broken")
        first, pos = piece.group()[0], piece.end()
        if first in "{[":
            stack.append(first)
        elif first in "}]":
            if not stack or stack.pop() != _CLOSES[first]:
                return piece.start(), "broken"
        elif not stack and first != '"':
            return piece.start(), "broken"
        if not stack:
            return pos, "complete"
    return len(text), "open"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_STRICT = json.JSONDecoder(parse_constant=_no_constant)
_LOOSE = json.JSONDecoder(parse_constant=_no_constant, strict=False)


def loads(text: str, *, loose: bool = False) -> Any:
    """Decode one JSON text.

    Args:
        loose: let raw newlines, tabs and other control characters stand inside strings.

    Raises:
        ValueError: not JSON (``NaN`` and ``Infinity`` are not), too deep, or an integer too long.
    """
    try:
        return (_LOOSE if loose else _STRICT).decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def dumps(value: Any) -> str:
    """JSON text of ``value`` in plain characters, escaped only where UTF-8 could not carry it."""
    text = json.dumps(value, ensure_ascii=False)
    return text if is_utf8(text) else json.dumps(value)


def is_utf8(text: str) -> bool:
    """Whether ``text`` can be encoded (no lone surrogates)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def members(text: str) -> Iterator[tuple[str, str]]:
    """The members of a valid JSON object, each as its key and the raw text of its value.

    Raw, because a number or a string that is decoded and encoded again need not look the same.
    """
    decoder = json.JSONDecoder(strict=False)
    pos = skip_whitespace(text, text.index("{") + 1)
    while text[pos] != "}":
        key, pos = decoder.raw_decode(text, pos)
        pos = skip_whitespace(text, skip_whitespace(text, pos) + 1)
        _, end = decoder.raw_decode(text, pos)
        yield key, text[pos:end]
        pos = skip_whitespace(text, end)
        if text[pos] == ",":
            pos = skip_whitespace(text, pos + 1)


def elements(text: str) -> Iterator[str]:
    """The elements of a valid JSON array, each as its raw text."""
    decoder = json.JSONDecoder(strict=False)
    pos = skip_whitespace(text, text.index("[") + 1)
    while text[pos] != "]":
        _, end = decoder.raw_decode(text, pos)
        yield text[pos:end]
        pos = skip_whitespace(text, end)
        if text[pos] == ",":
            pos = skip_whitespace(text, pos + 1)
