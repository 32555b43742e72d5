"""Gemma 4: ``<|tool_call>call:NAME{key:<|"|>text<|"|>,count:3}<tool_call|>``.

The arguments look like JSON, but keys are bare, and strings stand between ``<|"|>`` without escapes
(the models' chat template; ai.google.dev/gemma/docs/core/prompt-formatting-gemma4). A text that
holds ``<|"|>`` itself cannot be written.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from xgrammar.structural_tag import StructuralTag

from grammar.formats import json_text
from grammar.formats.base import Format, Tool
from grammar.formats.message import (
    NAME_PATTERN,
    Malformed,
    MessageBuilder,
    call_parts,
    check_name,
    open_suffix,
)

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
CHANNEL_OPEN, CHANNEL_CLOSE = "<|channel>", "<channel|>"

_HEAD = re.compile(rf"\s*call:\s*({NAME_PATTERN})\s*(?={{)")
_HEAD_SO_FAR = re.compile(r"\s*+(?:c(?:a(?:l(?:l(?::\s*+[A-Za-z0-9_.-]*\s*+)?)?)?)?)?")
_STRING = re.compile(r'<\|"\|>([\s\S]*?)<\|"\|>')
_BARE = re.compile(r'[^\s,:{}\[\]<"]+(?:[ \t]+[^\s,:{}\[\]<"]+)*')
_BARE_KEY = re.compile(r'[^\s,:{}\[\]<"](?:[^,:{}\[\]<"\n]*[^\s,:{}\[\]<"])?')
_PYTHON = {"None": "null", "True": "true", "False": "false"}


class Gemma4(Format):
    """Gemma 4."""

    name = "gemma_4"
    style = "gemma_4"
    markers = (OPEN, CLOSE, QUOTE, CHANNEL_OPEN, CHANNEL_CLOSE)
    string_excludes = (OPEN, CLOSE, CHANNEL_OPEN, CHANNEL_CLOSE)
    banned = (OPEN,)
    start_of_thinking = "<|channel>thought\n"
    end_of_thinking = CHANNEL_CLOSE
    json_strings = False
    settling = (OPEN, CLOSE)

    def structural_tag(self, tools: Sequence[Tool], **options: Any) -> StructuralTag:
        """xgrammar's, which drops the length bounds of every string in this style: kept here."""
        tools = [Tool(tool.name, _bounds_as_patterns(tool.schema)) for tool in tools]
        return super().structural_tag(tools, **options)

    def render(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """See ``Format.render``.

        Raises:
            ValueError: a text that holds ``<|"|>``, or arguments that are no JSON object.
        """
        parts = []
        for name, arguments, _ in map(call_parts, calls):
            if not arguments.lstrip().startswith("{"):
                raise ValueError(f"the arguments of {name!r} must be a JSON object")
            json_text.loads(arguments)
            parts.append(f"{OPEN}call:{name}{_write(arguments)}{CLOSE}")
        return "".join(parts)

    def _scan(
        self,
        text: str,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        *,
        final: bool = True,
    ) -> int:
        pos = 0
        while (start := text.find(OPEN, pos)) >= 0:
            out.text(text[pos:start])
            stop = _scan_call(text, start, parameters, out, final)
            if stop is None:
                return start
            pos = stop
        end = len(text) if final else len(text) - open_suffix(text[pos:], (OPEN,))
        out.text(text[pos:end])
        return end


def _scan_call(
    text: str,
    start: int,
    parameters: Mapping[str, Any] | None,
    out: MessageBuilder,
    final: bool,
) -> int | None:
    """End of the call that opens at ``start``; None where more text must decide."""
    inside = start + len(OPEN)
    head = _HEAD.match(text, inside)
    reader = _Reader(text, (parameters or {}).get(head[1]) if head else None)
    open_ended, detail, after = False, "no call:NAME{...} between the markers", inside
    if head:
        try:
            arguments, end = reader.read_object(head.end())
        except _TextStops:
            open_ended = True
        except (Malformed, RecursionError) as error:
            detail = str(error) if isinstance(error, Malformed) else "nested too deeply"
        else:
            after = json_text.skip_whitespace(text, end)
            open_ended = any(m.startswith(text[after:]) for m in (CLOSE, OPEN))
    else:
        open_ended = bool(_HEAD_SO_FAR.fullmatch(text, inside))

    if text.startswith((CLOSE, OPEN), after) and after > inside:
        closed = text.startswith(CLOSE, after)
        stop = after + len(CLOSE) if closed else after
        try:
            name = check_name(head[1], parameters)
        except Malformed as error:
            out.malformed(text[start:stop], str(error))
            return stop
        mended = reader.mended if closed else [*reader.mended, f"{CLOSE} is missing"]
        if mended:
            out.repaired(text[start:stop], "; ".join(dict.fromkeys(mended)))
        out.call(f"call_{len(out.calls)}", name, arguments, start, stop)
        return stop

    stop = _region_end(text, start)
    if not final and (open_ended or stop is None):
        return None
    if stop is None and open_ended:
        out.incomplete(text[start:], "the text stops inside a call")
        return len(text)
    stop = inside if stop is None else stop
    out.malformed(text[start:stop], detail)
    return stop


def _region_end(text: str, start: int) -> int | None:
    """End of the span that a broken call takes up: its closer, or where the next call opens."""
    close, reopen = text.find(CLOSE, start), text.find(OPEN, start + len(OPEN))
    ends = [i for i in (close + len(CLOSE) if close >= 0 else -1, reopen) if i >= 0]
    return min(ends, default=None)


class _TextStops(Exception):
    """More text may complete the value."""


class _Reader:
    """Reads Gemma's notation into JSON text.

    Attributes:
        mended: what was read although the format does not allow it.
    """

    def __init__(self, text: str, schema: Any) -> None:
        self.text, self.schema = text, schema
        self.mended: list[str] = []

    def read_object(self, pos: int) -> tuple[str, int]:
        """The object that starts at ``pos`` as JSON text, and where it ends.

        Raises:
            Malformed: it cannot be read.
            RecursionError: it is nested too deeply.
        """
        return self._object(pos, self.schema)

    def _object(self, pos: int, schema: Any) -> tuple[str, int]:
        members: dict[str, str] = {}
        declared = schema.get("properties") if isinstance(schema, Mapping) else None
        declared = declared if isinstance(declared, Mapping) else {}
        pos = self._skip(pos + 1)
        while self.text[pos] != "}":
            key, pos = self._key(pos, declared)
            pos = self._skip(pos)
            if self.text[pos] != ":":
                raise Malformed(f"no colon after the key {key!r}")
            value, pos = self._value(self._skip(pos + 1), declared.get(key))
            if key in members:
                self.mended.append(f"{key!r} is written twice: the last counts")
            members[key] = value
            pos = self._after_item(pos, "}")
        written = (f"{json_text.dumps(key)}: {value}" for key, value in members.items())
        return "{" + ", ".join(written) + "}", pos + 1

    def _list(self, pos: int, schema: Any) -> tuple[str, int]:
        values = []
        items = schema.get("items") if isinstance(schema, Mapping) else None
        pos = self._skip(pos + 1)
        while self.text[pos] != "]":
            value, pos = self._value(pos, items)
            values.append(value)
            pos = self._after_item(pos, "]")
        return "[" + ", ".join(values) + "]", pos + 1

    def _after_item(self, pos: int, closer: str) -> int:
        pos = self._skip(pos)
        if self.text[pos] == ",":
            pos = self._skip(pos + 1)
            if self.text[pos] == closer:
                raise Malformed("a comma before the end")
        elif self.text[pos] != closer:
            raise Malformed(f"neither a comma nor {closer!r} after a value")
        return pos

    def _key(self, pos: int, declared: Mapping[str, Any]) -> tuple[str, int]:
        if self._at_quote(pos):
            return self._string(pos)
        if self.text[pos] == '"':
            key, pos = self._json_string(pos)
            return json_text.loads(key, loose=True), pos
        # A declared name may hold anything, so it comes first.
        for key in sorted(declared, key=len, reverse=True):
            if key and self.text.startswith(key, pos):
                end = self._skip(pos + len(key))
                if self.text[end] == ":":
                    return key, end
        bare = _BARE_KEY.match(self.text, pos)
        if not bare:
            raise Malformed("no key where one must stand")
        return bare[0], bare.end()

    def _value(self, pos: int, schema: Any) -> tuple[str, int]:
        first = self.text[pos]
        if self._at_quote(pos):
            value, pos = self._string(pos)
            return json_text.dumps(value), pos
        if first == "{":
            return self._object(pos, schema)
        if first == "[":
            return self._list(pos, schema)
        if first == '"':
            self.mended.append("a string between JSON's quotes")
            return self._json_string(pos)
        bare = _BARE.match(self.text, pos)
        if not bare:
            raise Malformed("no value where one must stand")
        self._skip(bare.end())
        word = bare[0]
        if word in _PYTHON:
            self.mended.append(f"{word} for {_PYTHON[word]}")
            return _PYTHON[word], bare.end()
        try:
            json_text.loads(word)
        except ValueError:
            self.mended.append("a string without quotes")
            return json_text.dumps(word), bare.end()
        return word, bare.end()

    def _string(self, pos: int) -> tuple[str, int]:
        string = _STRING.match(self.text, pos)
        if not string:
            raise _TextStops
        return string[1], string.end()

    def _json_string(self, pos: int) -> tuple[str, int]:
        end, state = json_text.value_end(self.text, pos)
        if state == "open":
            raise _TextStops
        raw = self.text[pos:end]
        try:
            value = json_text.loads(raw, loose=True)
        except ValueError as error:
            raise Malformed(f"not a string: {error}") from None
        return json_text.dumps(value), end

    def _at_quote(self, pos: int) -> bool:
        if self.text.startswith(QUOTE, pos):
            return True
        if QUOTE.startswith(self.text[pos:]):
            raise _TextStops
        return False

    def _skip(self, pos: int) -> int:
        """Index of the next character that is not whitespace."""
        pos = json_text.skip_whitespace(self.text, pos)
        if pos == len(self.text):
            raise _TextStops
        return pos


def _bounds_as_patterns(schema: Any) -> Any:
    """The schema with a pattern for each length bound of a string, which then holds no ``<``."""
    if isinstance(schema, list):
        return [_bounds_as_patterns(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    data = ("enum", "const", "default", "examples")
    schema = {
        key: value if key in data else _bounds_as_patterns(value) for key, value in schema.items()
    }
    bounded = schema.keys() & {"minLength", "maxLength"}
    if schema.get("type") == "string" and bounded and not schema.keys() & {"pattern", "format"}:
        least, most = schema.pop("minLength", 0), schema.pop("maxLength", "")
        schema["pattern"] = f"^[^<]{{{least},{most}}}$"
    return schema


def _write(raw: str) -> str:
    """The text of a JSON value in Gemma's notation; numbers keep their digits."""
    raw = raw.strip()
    if raw.startswith("{"):
        members = (f"{_write_key(key)}:{_write(value)}" for key, value in json_text.members(raw))
        return "{" + ",".join(members) + "}"
    if raw.startswith("["):
        return "[" + ",".join(map(_write, json_text.elements(raw))) + "]"
    return _quote(json.loads(raw)) if raw.startswith('"') else raw


def _write_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _quote(key)


def _quote(text: str) -> str:
    if QUOTE in text:
        raise ValueError(f"Gemma 4 cannot write a text that holds {QUOTE}; got {text!r}")
    return QUOTE + text + QUOTE
