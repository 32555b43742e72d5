"""Cohere Command: a block of calls whose arguments are nested ``cofl:value`` tags.

    <cofl:tool_calls>
    <cofl:tool_call id="0" name="get_weather">
    <cofl:value name="city" type="raw">Bern</cofl:value>
    <cofl:value name="days" type="json">3</cofl:value>
    <cofl:value name="at" type="dict"><cofl:value name="x" type="json">1</cofl:value></cofl:value>
    <cofl:value name="tags" type="list"><cofl:value type="raw">a</cofl:value></cofl:value>
    </cofl:tool_call>
    </cofl:tool_calls>

without the newlines, which are read but not written. The attribute ``type`` says what a value is:
``raw`` a string as it stands, ``json`` anything else that is no container. Only keys are escaped
as in XML.
"""

import html
import re
from collections.abc import Sequence

from grammar.formats import json_text, xml_values
from grammar.formats.base import NAME_PATTERN
from grammar.formats.message import Malformed
from grammar.formats.xml_calls import Body, XmlFormat, object_text
from grammar.formats.xml_values import Declared

OPEN, CLOSE = "<cofl:tool_calls>", "</cofl:tool_calls>"
VALUE_HEAD, VALUE_CLOSE = "<cofl:value", "</cofl:value>"

_VALUE = re.compile(r'<cofl:value((?:\s+[a-z]+="[^"<>]*")*)\s*>')
_VALUE_SO_FAR = re.compile(r"<cofl:value[^<>]*")
_ATTRIBUTE = re.compile(r'([a-z]+)="([^"]*)"')
_ID = r'(?:\s+id="[^"<>]*")?'


class _Open(Exception):
    """The text stops inside a value."""


class Cohere(XmlFormat):
    """Cohere Command."""

    name = "cohere"
    style = "cohere"
    start_of_thinking, end_of_thinking = "<|START_THINKING|>", "<|END_THINKING|>"
    block = (OPEN, CLOSE)
    head = "<cofl:tool_call "
    call_open = re.compile(
        rf'<cofl:tool_call(?=\s){_ID}\s+name="(?P<name>{NAME_PATTERN})"{_ID}\s*>'
    )
    call_so_far = re.compile(r"<cofl:tool_call\s[^<>\n]*")
    call_close = "</cofl:tool_call>"
    markers = (OPEN, CLOSE, head, call_close, start_of_thinking, end_of_thinking)
    banned = (OPEN, head)
    raw_strings = "everywhere"

    def _can_write_key(self, key: str) -> bool:
        return bool(key) and "\0" not in key

    def _join(self, calls: Sequence[str]) -> str:
        return f"{OPEN}{''.join(calls)}{CLOSE}" if calls else ""

    def _render_call(self, position: int, name: str, arguments: str) -> str:
        inner = self._render_members(arguments)
        return f'<cofl:tool_call id="{position}" name="{name}">{inner}{self.call_close}'

    def _render_members(self, raw: str) -> str:
        parts = []
        for key, value in json_text.members(raw):
            if not self._can_write_key(key):
                raise ValueError(f"format {self.name!r} has no way to write the key {key!r}")
            parts.append(self._render_value(value, f' name="{html.escape(key, quote=True)}"'))
        return "".join(parts)

    def _render_value(self, raw: str, attribute: str = "") -> str:
        if raw.startswith("{"):
            form, text = "dict", self._render_members(raw)
        elif raw.startswith("["):
            form = "list"
            text = "".join(map(self._render_value, json_text.elements(raw)))
        elif raw.startswith('"'):
            form, text = "raw", json_text.loads(raw)
            if VALUE_CLOSE in text:
                raise ValueError(
                    f"format {self.name!r} has no way to write a string that holds {VALUE_CLOSE}:"
                    f" {text[:60]!r}"
                )
        else:
            form, text = "json", raw
        return f'<cofl:value{attribute} type="{form}">{text}{VALUE_CLOSE}'

    def _read_body(self, text: str, pos: int, declared: Declared, final: bool) -> Body:
        body = Body("complete", pos)
        try:
            while True:
                at = json_text.skip_whitespace(text, body.stop)
                if text.startswith(self.call_close, at):
                    body.stop = at + len(self.call_close)
                    return body
                if body.members and text.startswith(self._openers, at):
                    body.state, body.stop = "unclosed", at
                    return body
                if any(m.startswith(text[at:]) for m in (self.call_close, *self._openers)):
                    raise _Open
                key, value, body.stop = _read_value(text, at, declared, body.mended)
                if key is None:
                    raise Malformed("a parameter without a name")
                if value is not None:
                    body.members.append((key, value))
        except _Open:
            body.state = "open"
        return body


def _read_value(
    text: str, at: int, within: Declared, mended: list[str]
) -> tuple[str | None, str | None, int]:
    """Key, JSON text and end of the value whose tag opens at ``at``."""
    opening = _VALUE.match(text, at)
    if opening is None:
        rest = text[at:]
        if VALUE_HEAD.startswith(rest) or _VALUE_SO_FAR.fullmatch(rest):
            raise _Open
        raise Malformed("text that is no argument")
    attributes = dict(_ATTRIBUTE.findall(opening[1]))
    key = html.unescape(attributes["name"]) if "name" in attributes else None
    declared = within.element() if key is None else within.member(key)
    form, pos = attributes.get("type", "raw"), opening.end()
    if form in ("dict", "list"):
        value, stop = _read_container(text, pos, form, declared, mended)
        return key, value, stop
    end = text.find(VALUE_CLOSE, pos)
    if form == "json":
        first = json_text.skip_whitespace(text, pos)
        if text.startswith(("{", "[", '"'), first):
            json_end, state = json_text.value_end(text, first)
            if state == "open":
                raise _Open
            if state == "complete":
                end = text.find(VALUE_CLOSE, json_end)
    if end < 0:
        raise _Open
    if form == "json":
        value, note = xml_values.read(text[pos:end], _NO_STRING, layout=False)
        if _is_string(text[pos:end].strip()):
            value, note = text[pos:end].strip(), None
    else:
        value, note = xml_values.string(text[pos:end], declared, layout=False), None
    if note:
        mended.append(f"{key!r}: {note}")
    return key, value, end + len(VALUE_CLOSE)


def _read_container(
    text: str, pos: int, form: str, declared: Declared, mended: list[str]
) -> tuple[str, int]:
    members: list[tuple[str, str]] = []
    elements: list[str] = []
    while True:
        at = json_text.skip_whitespace(text, pos)
        if text.startswith(VALUE_CLOSE, at):
            if len({key for key, _ in members}) < len(members):
                raise Malformed("a key is written twice")
            value = object_text(members) if form == "dict" else f"[{', '.join(elements)}]"
            return value, at + len(VALUE_CLOSE)
        if VALUE_CLOSE.startswith(text[at:]):
            raise _Open
        key, value, pos = _read_value(text, at, declared, mended)
        if (key is None) is (form == "dict"):
            raise Malformed(f"a {form} with an entry of the other kind")
        if form == "dict":
            members.append((key, value))
        else:
            elements.append(value)


def _is_string(text: str) -> bool:
    try:
        return isinstance(json_text.loads(text), str)
    except ValueError:
        return False


_NO_STRING = Declared({"type": ["number", "boolean", "null", "object", "array"]})
