"""Kimi K3: a message of channels, and calls whose arguments stand in one tag each.

``<|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|><|open|>argument key="KEY"
type="TYPE"<|sep|>VALUE<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>``

A value of type ``string`` is raw text, any other is JSON. Attributes are escaped (``&amp;``,
``&quot;``). In place of its arguments a call may hold ``<|open|>json type="object"<|sep|>{...}
<|close|>json<|sep|>``; it is written so where a text could not stand in a tag. The prompt opens the
``response`` channel, or ``think`` (after TensorRT-LLM's and vLLM's parsers, which follow the
checkpoint's ``encoding_k3.py``).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from xgrammar.structural_tag import (
    ConstStringFormat,
    OptionalFormat,
    SequenceFormat,
    StructuralTag,
)

from grammar.formats import json_text
from grammar.formats.base import Format, Tool
from grammar.formats.message import (
    Malformed,
    MessageBuilder,
    call_parts,
    check_name,
    open_suffix,
    read_arguments,
)
from grammar.schema import judge

OPEN, CLOSE, SEP = "<|open|>", "<|close|>", "<|sep|>"
END_OF_MESSAGE = "<|end_of_msg|>"
RESPONSE_BEGIN, RESPONSE_END = f"{OPEN}response{SEP}", f"{CLOSE}response{SEP}"
TOOLS_BEGIN, TOOLS_END = f"{OPEN}tools{SEP}", f"{CLOSE}tools{SEP}"
MESSAGE_END = f"{CLOSE}message{SEP}"
CALL_END, ARGUMENT_END, JSON_END = (f"{CLOSE}{name}{SEP}" for name in ("call", "argument", "json"))

_MARKER = re.compile(r"<\|(?:open|close|end_of_msg)\|>")
_ATTRIBUTE = re.compile(r'\s+([a-z]+)="([^"]*)"')
_TAG = re.compile(
    r'(?P<side><\|open\|>|<\|close\|>)\s*+(?P<name>[a-z]+)(?P<attributes>(?:\s++[a-z]+="[^"]*")*)'
    r"\s*+<\|sep\|>"
)
_TAG_SO_FAR = re.compile(
    r'<\|(?:open|close)\|>\s*+(?:[a-z]+(?:\s++[a-z]+="[^"]*")*'
    r'(?:\s++(?:[a-z]+(?:=(?:"[^"]*)?)?)?)?(?:\s*+<(?:\|(?:s(?:e(?:p\|?)?)?)?)?)?)?'
)
_ARGUMENT_END = re.compile(r"<\|close\|>\s*argument\s*<\|sep\|>")
_ENVELOPE = {
    *((OPEN, name) for name in ("response", "message")),
    *((CLOSE, name) for name in ("response", "message", "think")),
}


class KimiK3(Format):
    """Kimi K3."""

    name = "kimi_k3"
    style = "kimi_k3"
    markers = (OPEN, CLOSE, SEP)
    string_excludes = (OPEN, CLOSE, SEP)
    banned = (OPEN,)
    start_of_thinking = f"{OPEN}think{SEP}"
    end_of_thinking = f"{CLOSE}think{SEP}"
    bare_content = False
    json_strings = False

    def structural_tag(
        self,
        tools: Sequence[Tool],
        *,
        tool_choice: Literal["auto", "required", "named"],
        **options: Any,
    ) -> StructuralTag:
        """xgrammar's, with nothing before a call that is required."""
        tag = super().structural_tag(tools, tool_choice=tool_choice, **options)
        if tool_choice != "auto":
            message = tag.format.elements[-1] if options.get("reasoning") else tag.format
            message.elements[0] = ConstStringFormat(value=RESPONSE_END)
        return tag

    def answer(self, node: Any) -> Any:
        end = ConstStringFormat(value=RESPONSE_END + MESSAGE_END)
        return SequenceFormat(elements=[node, end])

    def _after_thinking(self, rest: Any, excludes: Sequence[str] = ()) -> StructuralTag:
        opener = OptionalFormat(content=ConstStringFormat(value=RESPONSE_BEGIN))
        tag = super()._after_thinking(rest, excludes)
        tag.format.elements.insert(-1, opener)
        return tag

    def render(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """See ``Format.render``.

        Raises:
            ValueError: arguments that are no JSON object.
        """
        if not calls:
            return ""
        parts = []
        for index, call in enumerate(calls, start=1):
            name, arguments, _ = call_parts(call)
            try:
                is_object = isinstance(json_text.loads(arguments), dict)
            except ValueError:
                is_object = False
            if not is_object:
                raise ValueError(f"the arguments of {name!r} must be a JSON object")
            header = f'{OPEN}call tool="{_escape(name)}" index="{index}"{SEP}'
            parts.append(header + _write_arguments(arguments) + CALL_END)
        return RESPONSE_END + TOOLS_BEGIN + "".join(parts) + TOOLS_END + MESSAGE_END

    def _scan(
        self,
        text: str,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        *,
        final: bool = True,
    ) -> int:
        """``out.in_block``: inside the tools channel."""
        pos = 0
        while marker := _MARKER.search(text, pos):
            start = marker.start()
            _text(text[pos:start], out)
            pos = marker.end()
            tag = _TAG.match(text, start)
            if marker[0] == END_OF_MESSAGE:
                out.boundary()
            elif not tag:
                if _TAG_SO_FAR.fullmatch(text, start):
                    if not final:
                        return start
                    out.incomplete(text[start:], "the text stops inside a tag")
                    return len(text)
                out.malformed(marker[0], "a marker without its tag")
            elif (tag["side"], tag["name"]) == (OPEN, "call"):
                stop = _scan_call(text, tag, parameters, out, final)
                if stop is None:
                    return start
                pos = stop
            else:
                pos = tag.end()
                if tag["name"] == "tools":
                    out.in_block = tag["side"] == OPEN
                    out.boundary()
                elif (tag["side"], tag["name"]) in _ENVELOPE:
                    out.in_block = False
                    out.boundary()
                else:
                    out.malformed(tag[0], "a tag out of place")
        end = len(text)
        if not final:
            end -= open_suffix(text[pos:], (OPEN, CLOSE, END_OF_MESSAGE))
        _text(text[pos:end], out)
        return end


def _text(text: str, out: MessageBuilder) -> None:
    if out.in_block and text.strip():
        out.malformed(text, "text between the calls of a message")
    else:
        out.text(text)


def _scan_call(
    text: str,
    header: re.Match[str],
    parameters: Mapping[str, Any] | None,
    out: MessageBuilder,
    final: bool,
) -> int | None:
    """End of the call that ``header`` opens; None where more text must decide."""
    start, mended = header.start(), [] if out.in_block else ["a call outside the tools channel"]
    try:
        attributes = _attributes(header)
        name = check_name(attributes.get("tool"), parameters)
        schema = parameters[name] if parameters is not None else None
        raw, stop = _read_body(text, header.end(), schema, mended, final)
        arguments, how = read_arguments(raw, schema, known=parameters is not None)
        mended += [how] if how else []
    except _TextStops:
        if not final:
            return None
        out.incomplete(text[start:], "the text stops inside a call")
        return len(text)
    except Malformed as error:
        # Its end, or where something else starts.
        end = re.compile(r"<\|close\|>\s*(call|tools)\s*<\|sep\|>|<\|open\|>\s*call\b").search(
            text, header.end()
        )
        if end is None and not final:
            return None
        stop = len(text) if end is None else end.end() if end[1] == "call" else end.start()
        out.malformed(text[start:stop], str(error))
        return stop
    if mended:
        out.repaired(text[start:stop], "; ".join(mended))
    out.call(f"call_{len(out.calls)}", name, arguments, start, stop)
    return stop


class _TextStops(Exception):
    """More text may complete the call."""


def _read_body(text: str, pos: int, schema: Any, mended: list[str], final: bool) -> tuple[str, int]:
    """Arguments as JSON text, and the end of the call."""
    members: dict[str, str] = {}
    whole: str | None = None
    while True:
        pos = json_text.skip_whitespace(text, pos)
        tag = _TAG.match(text, pos)
        if not tag:
            if pos == len(text) or _TAG_SO_FAR.fullmatch(text, pos) or OPEN.startswith(text[pos:]):
                raise _TextStops
            if CLOSE.startswith(text[pos:]):
                raise _TextStops
            raise Malformed("text between the arguments of a call")
        side, kind = tag["side"], tag["name"]
        pos = tag.end()
        if (side, kind) == (CLOSE, "call"):
            break
        if whole is not None or side == CLOSE or (kind == "json" and members):
            raise Malformed(f"{tag[0]} inside a call")
        if kind == "json":
            whole, pos = _read_json(text, pos)
        elif kind == "argument":
            attributes = _attributes(tag)
            if "key" not in attributes:
                raise Malformed("an argument without a key")
            key = attributes["key"]
            raw, pos = _raw_value(text, pos, attributes.get("type"), final)
            if key in members:
                raise Malformed(f"the argument {key!r} is written twice")
            members[key] = _typed(raw, attributes.get("type"), key, schema, mended)
        else:
            raise Malformed(f"{tag[0]} inside a call")
    if whole is not None:
        return whole, pos
    written = (f"{json_text.dumps(key)}: {value}" for key, value in members.items())
    return "{" + ", ".join(written) + "}", pos


def _read_json(text: str, pos: int) -> tuple[str, int]:
    pos = json_text.skip_whitespace(text, pos)
    end, state = json_text.value_end(text, pos)
    if state == "open":
        raise _TextStops
    after = json_text.skip_whitespace(text, end)
    tag = _TAG.match(text, after)
    if state == "complete" and tag and (tag["side"], tag["name"]) == (CLOSE, "json"):
        return text[pos:end], tag.end()
    if state == "complete" and (
        CLOSE.startswith(text[after:]) or _TAG_SO_FAR.fullmatch(text, after)
    ):
        raise _TextStops
    raise Malformed("no JSON object in the json block")


def _raw_value(text: str, pos: int, kind: str | None, final: bool) -> tuple[str, int]:
    """The text of an argument, and where the tag that closes it ends."""
    body = json_text.skip_whitespace(text, pos)
    if kind != "string" and text.startswith(("{", "[", '"'), body):
        # The closing tag may be quoted inside.
        end, state = json_text.value_end(text, body)
        after = json_text.skip_whitespace(text, end)
        if close := _ARGUMENT_END.match(text, after):
            return text[pos : close.start()], close.end()
        stops = state == "open" or (state == "complete" and _closing_so_far(text, after))
        if stops and not final:
            raise _TextStops
    close = _ARGUMENT_END.search(text, pos)
    if close is None:
        raise _TextStops
    return text[pos : close.start()], close.end()


def _closing_so_far(text: str, pos: int) -> bool:
    return CLOSE.startswith(text[pos:]) or bool(_TAG_SO_FAR.fullmatch(text, pos))


def _typed(raw: str, kind: str | None, key: str, schema: Any, mended: list[str]) -> str:
    """JSON text of an argument's value.

    Where a schema allows several types, xgrammar's grammar lets any type stand before any of their
    values, with whitespace around it. So the reading that the declared type asks for is taken if
    the schema accepts it, and otherwise the first that it does accept.
    """
    stripped = raw.strip(" \t\r\n")
    try:
        json_text.loads(stripped)
        as_json = stripped
    except ValueError:
        as_json = None
    as_text = json_text.dumps(raw)
    own = as_text if kind == "string" else as_json
    readings = [r for r in (own, as_text, json_text.dumps(stripped), as_json) if r is not None]
    for reading in readings:
        if _accepts(schema, key, reading):
            return reading
    if own is None:
        mended.append(f"the argument {key!r} is no JSON of type {kind}: read as text")
        return as_text
    return own


def _accepts(schema: Any, key: str, value: str) -> bool:
    """Whether the schema of argument ``key`` accepts a value, given as JSON text."""
    try:
        return judge.accepts(schema["properties"][key], json_text.loads(value), root=schema)
    except Exception:  # no tools, no such property, a schema that cannot be used or is too slow
        return False


def _attributes(tag: re.Match[str]) -> dict[str, str]:
    pairs = _ATTRIBUTE.findall(tag["attributes"])
    attributes = {key: _unescape(value) for key, value in pairs}
    if len(attributes) < len(pairs):
        raise Malformed("an attribute is written twice")
    return attributes


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


def _unescape(text: str) -> str:
    return text.replace("&quot;", '"').replace("&amp;", "&")


def _write_arguments(arguments: str) -> str:
    tags, seen = [], set()
    for key, raw in json_text.members(arguments):
        kind, value = _kind(raw), raw
        if kind == "string":
            value = json_text.loads(raw)
            if _ARGUMENT_END.search(value + ARGUMENT_END).start() < len(value):
                break
        if key in seen or not json_text.is_utf8(key + value):
            break
        seen.add(key)
        tags.append(f'{OPEN}argument key="{_escape(key)}" type="{kind}"{SEP}{value}{ARGUMENT_END}')
    else:
        return "".join(tags)
    return f'{OPEN}json type="object"{SEP}{arguments}{JSON_END}'


def _kind(raw: str) -> str:
    kinds = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean"}
    return kinds.get(raw[0], "null" if raw[0] == "n" else "number")
