"""Calls written as tags: the envelope that all such formats share, and flat parameters.

A completion is text and calls; a format may put its calls into a block. What a call holds is read
by each format: parameters one after another (``FlatXml``), or values inside values.

Reading follows the grammar first: a value ends at the first closing tag of its own kind, whatever
else it holds. Beyond the grammar it takes calls without a block, blocks and calls that are not
closed but followed by the next marker, and parameters that the next one ends. It never takes a call
that the text breaks off, a parameter that is written twice, or text between parameters.
"""

import functools
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from grammar.formats import json_text, xml_values
from grammar.formats.base import Format, Tool
from grammar.formats.message import Malformed, MessageBuilder, call_parts, open_suffix
from grammar.formats.xml_values import Declared


@dataclass
class Body:
    """What stands between the head of a call and its end.

    Attributes:
        state: ``"complete"``: closed. ``"unclosed"``: all there, but the next marker follows
            instead of the end of the call. ``"open"``: the text stops first. ``"broken"``: text
            that has no place here.
        stop: where it ends, the closing tag included.
        members: the arguments, as keys and JSON texts.
        mended: what the format does not allow.
    """

    state: Literal["complete", "unclosed", "open", "broken"]
    stop: int
    members: list[tuple[str, str]] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)


class XmlFormat(Format):
    """A format whose calls are tags."""

    block: ClassVar[tuple[str, str] | None] = None
    """Opening and closing tag of a block of calls; None where a call stands alone."""
    head: ClassVar[str]
    """How each call starts, up to where calls begin to differ."""
    call_open: ClassVar[re.Pattern[str]]
    """The opening tag of a call; its group ``name`` is the tool."""
    call_so_far: ClassVar[re.Pattern[str]]
    """All beginnings of an opening tag."""
    call_close: ClassVar[str]
    json_strings = False
    foreign: ClassVar[tuple[str, ...]] = ()
    """Tags of calls as other models of the family write them: reported, and left in the content."""
    raw_strings: ClassVar[Literal["top", "everywhere"]] = "top"
    """Where strings are plain text: as parameters only, or inside other values too."""

    @property
    def settling(self) -> tuple[str, ...]:
        return (*self._openers, self.call_close)

    def _build(self, tools: Sequence[Tool], **options: Any) -> Any:
        for tool in tools:
            for key in Declared(tool.schema).properties:
                if not self._can_write_key(key):
                    raise ValueError(
                        f"tool {tool.name!r} has a parameter {key!r}, which format {self.name!r}"
                        " has no way to write; rename it"
                    )
        asked = [Tool(tool.name, self._schema(tool.schema)) for tool in tools]
        tag = super()._build(asked, **options)
        tag.format = self._amend(tag.format, tools)
        return tag

    def _amend(self, node: Any, tools: Sequence[Tool]) -> Any:
        """What this format alone does otherwise than xgrammar's builder, done to its result."""
        return node

    def _schema(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """What xgrammar is to be asked for, where that is not the schema as it stands."""
        return _without_open_ends(schema, deep=self.raw_strings == "everywhere")

    def render(
        self,
        calls: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The calls as the model would write them.

        Args:
            calls: OpenAI tool calls; ``arguments`` is a JSON string (or a mapping).
            tools: OpenAI tools of the request. Given, every value is known to be read back as it
                is; without, a string such as ``"5"`` comes back as a string only if its tool
                says so.

        Raises:
            ValueError: a key or a value that the format has no way to write.
        """
        text = self._join([self._render_call(i, *call_parts(c)[:2]) for i, c in enumerate(calls)])
        if tools is not None:
            read = self.parse(text, tools).tool_calls
            for call, again in zip(calls, [*read, *[None] * len(calls)], strict=False):
                self._check(call, again)
        return text

    def _check(self, call: Mapping[str, Any], again: Mapping[str, Any] | None) -> None:
        name, arguments, _ = call_parts(call)
        if again is None or again["function"]["name"] != name:
            raise ValueError(f"format {self.name!r} cannot write this call of {name!r}")
        wanted = json_text.loads(arguments)
        got = json_text.loads(again["function"]["arguments"])
        for key in wanted:
            if key not in got or not _same(wanted[key], got[key]):
                raise ValueError(
                    f"format {self.name!r} cannot write {key!r} of {name!r}: {wanted[key]!r} would"
                    f" be read back as {got.get(key)!r}; declare a type that tells them apart"
                )

    @abstractmethod
    def _render_call(self, position: int, name: str, arguments: str) -> str:
        """One call, without the block."""

    def _join(self, calls: Sequence[str]) -> str:
        """The calls in their block; an empty text for none."""
        if not calls or self.block is None:
            return "\n".join(calls)
        return f"{self.block[0]}\n" + "\n".join(calls) + f"\n{self.block[1]}"

    def _can_write_key(self, key: str) -> bool:
        return bool(key)

    @abstractmethod
    def _read_body(self, text: str, pos: int, declared: Declared, final: bool) -> Body:
        """Read the arguments of a call, which start at ``pos``, up to its end.

        Raises:
            Malformed: what follows cannot be arguments.
        """

    def _scan(
        self,
        text: str,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        *,
        final: bool = True,
    ) -> int:
        opener, closer = self.block or (None, None)
        pos = 0
        while marker := self._marker.search(text, pos):
            self._between(text[pos : marker.start()], out)
            pos, kind = marker.start(), marker.group()
            if kind == self.head:
                stop = self._scan_call(text, pos, parameters, out, final)
            elif kind == opener:
                if out.in_block:
                    out.repaired("", f"{closer} is missing")
                    out.in_block = False
                stop = self._open_block(text, pos, out, final)
            elif kind in self.foreign:
                stop = marker.end()
                out.malformed(kind, "a call as another model writes it")
            else:
                stop = marker.end()
                if out.in_block:
                    out.boundary()
                    out.in_block = False
                else:
                    out.malformed(kind, "a marker out of place")
            if stop is None:
                return pos
            pos = stop
        rest = text[pos:]
        if final:
            self._end(rest, out)
            return len(text)
        if out.in_block:
            return pos
        end = len(text) - open_suffix(rest, self._openers)
        out.text(text[pos:end])
        return end

    @property
    def _openers(self) -> tuple[str, ...]:
        return (self.head, *(self.block or ()), *self.foreign)

    @functools.cached_property
    def _marker(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._openers)))

    def _between(self, text: str, out: MessageBuilder) -> None:
        if not out.in_block:
            out.text(text)
        elif text.strip():
            out.malformed(text, "text between the calls of a block")

    def _end(self, rest: str, out: MessageBuilder) -> None:
        if out.in_block:
            if not out.problems or out.problems[-1].kind != "incomplete":
                out.repaired("", f"{self.block[1]} is missing")
            if self.block[1].startswith(rest.strip()):
                return
        out.text(rest)

    def _open_block(self, text: str, start: int, out: MessageBuilder, final: bool) -> int | None:
        head = start + len(self.block[0])
        ahead = text[json_text.skip_whitespace(text, head) :]
        if ahead.startswith(self.head):
            out.boundary()
            out.in_block = True
            return head
        if self.head.startswith(ahead):
            if final:
                out.incomplete(text[start:], "the text stops before the first call")
                return len(text)
            return None
        marker = self._marker.search(text, head)
        if marker is None and not final:
            return None
        closed = marker is not None and marker.group() == self.block[1]
        stop = marker.end() if closed else head
        out.malformed(text[start:stop], "a block without a call of this format")
        return stop

    def _scan_call(
        self,
        text: str,
        start: int,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        final: bool,
    ) -> int | None:
        """End of the call that opens at ``start``; None where more text must decide."""
        opening = self.call_open.match(text, start)
        schema = None
        if opening is None:
            state = "open" if self.call_so_far.fullmatch(text, start) else "broken"
            body, reason = Body(state, start), f"{self.head} starts no call here"
        else:
            schema = (parameters or {}).get(opening["name"])
            reason = "text that is no argument"
            try:
                if opening.groupdict().get("empty"):
                    body = Body("complete", opening.end(), mended=["a call without a body"])
                else:
                    declared = Declared(schema or {})
                    body = self._read_body(text, opening.end(), declared, final)
            except Malformed as error:
                body, reason = Body("broken", start), str(error)

        if body.state in ("complete", "unclosed"):
            try:
                arguments = self._arguments(opening["name"], body, parameters)
            except Malformed as error:
                out.malformed(text[start : body.stop], str(error))
                return body.stop
            mended = list(body.mended)
            if body.state == "unclosed":
                mended.append(f"{self.call_close} is missing")
            if self.block and not out.in_block:
                mended.append("a call outside a block")
            if mended:
                out.repaired(text[start : body.stop], "; ".join(mended))
            out.call(f"call_{len(out.calls)}", opening["name"], arguments, start, body.stop)
            return body.stop

        stop = self._region_end(text, start) if body.state == "broken" else None
        if not final and stop is None:
            return None
        if body.state == "open" or (stop is None and out.in_block):
            out.incomplete(text[start:], "the text stops inside a call")
            return len(text)
        # Without an end of its own it is most likely a mention of the tag: keep just that.
        stop = start + len(self.head) if stop is None else stop
        out.malformed(text[start:stop], reason)
        return stop

    def _region_end(self, text: str, start: int) -> int | None:
        """End of the span that a broken call takes up: its end, or where the next one opens."""
        close = text.find(self.call_close, start)
        marker = self._marker.search(text, start + len(self.head))
        ends = [close + len(self.call_close)] if close >= 0 else []
        return min([*ends, *([marker.start()] if marker else [])], default=None)

    def _arguments(self, name: str, body: Body, parameters: Mapping[str, Any] | None) -> str:
        """The arguments of a call as JSON text.

        Raises:
            Malformed: no tool of the request, or a parameter written twice.
        """
        if parameters is not None and name not in parameters:
            raise Malformed(f"the request has no tool {name!r}")
        keys = [key for key, _ in body.members]
        if len(set(keys)) < len(keys):
            raise Malformed("a parameter is written twice")
        return object_text(body.members)


def object_text(members: Sequence[tuple[str, str]]) -> str:
    """JSON text of an object from its keys and the JSON texts of its values."""
    return "{" + ", ".join(f"{json_text.dumps(key)}: {value}" for key, value in members) + "}"


class FlatXml(XmlFormat):
    """Parameters one after another, each a tag that names it around the text of its value."""

    parameter_open: ClassVar[re.Pattern[str]]
    """The opening tag of a parameter; its group ``key`` is the name, and ``string``, if there is
    such a group, says ``true`` where the text is a string and ``false`` where it is JSON."""
    parameter_so_far: ClassVar[re.Pattern[str]]
    """All beginnings of an opening tag."""
    parameter_close: ClassVar[str]
    layout: ClassVar[bool] = False
    """A value stands on lines of its own."""
    next_closes: ClassVar[bool] = False
    """An opening tag inside a value ends that value; else only where a required one is missed."""

    def _schema(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        return _ANY_PARAMETERS if schema == {"type": "object"} else super()._schema(schema)

    @abstractmethod
    def _render_parameter(self, key: str, text: str, *, is_string: bool) -> str:
        """One parameter."""

    def _render_arguments(self, name: str, arguments: str) -> list[str]:
        parts = []
        for key, value in json_text.members(arguments):
            if not self._can_write_key(key):
                raise ValueError(
                    f"format {self.name!r} has no way to write the parameter {key!r} of {name!r}"
                )
            is_string = value.startswith('"')
            text = json_text.loads(value) if is_string else value
            if is_string and self._ends_early(text):
                raise ValueError(
                    f"format {self.name!r} has no way to write {key!r} of {name!r}: the value holds"
                    f" {self.parameter_close} or another tag that ends it"
                )
            if not is_string:
                # Inside JSON a tag that would end the value can be written otherwise.
                text = text.replace(self.parameter_close[:2], f"\\u003c{self.parameter_close[1]}")
            parts.append(self._render_parameter(key, text, is_string=is_string))
        return parts

    def _ends_early(self, text: str) -> bool:
        opens = self.next_closes and self.parameter_open.search(text)
        return self.parameter_close in text or bool(opens)

    def _read_body(self, text: str, pos: int, declared: Declared, final: bool) -> Body:
        body = self._read_parameters(text, pos, declared, final, split=self.next_closes)
        missed = declared.required - {key for key, _ in body.members}
        if body.state == "complete" and missed and not self.next_closes:
            again = self._read_parameters(text, pos, declared, final, split=True)
            if again.state == "complete" and missed <= {key for key, _ in again.members}:
                return again
        return body

    def _read_parameters(
        self, text: str, pos: int, declared: Declared, final: bool, *, split: bool
    ) -> Body:
        members: list[tuple[str, str]] = []
        mended: list[str] = []
        while True:
            at = json_text.skip_whitespace(text, pos)
            if text.startswith(self.call_close, at):
                return Body("complete", at + len(self.call_close), members, mended)
            opening = self.parameter_open.match(text, at)
            if opening is None:
                return Body(self._state_at(text, at, members), at, members, mended)
            key = self._key(opening)
            inner = declared.member(key)
            found = self._value_end(text, opening, inner, final, split)
            if found is None:
                return Body("open", len(text), members, mended)
            end, pos, unclosed = found
            value_text = text[opening.end() : end]
            if unclosed and not self.layout:
                value_text = value_text.removesuffix("\n")
            if unclosed:
                mended.append(f"{self.parameter_close} is missing after {key!r}")
            value, note = self._value(value_text, opening, inner, required=key in declared.required)
            if note:
                mended.append(f"{key!r}: {note}")
            if value is not None:
                members.append((key, value))

    def _key(self, opening: re.Match[str]) -> str:
        return opening["key"]

    def _state_at(self, text: str, at: int, members: Sequence[Any]) -> str:
        """What it means that neither a parameter nor the end of the call stands here."""
        if members and text.startswith(self._openers, at):
            return "unclosed"
        rest = text[at:]
        ends = (self.call_close, *self._openers)
        if any(m.startswith(rest) for m in ends) or self.parameter_so_far.fullmatch(rest):
            return "open"
        return "broken"

    def _value_end(
        self,
        text: str,
        opening: re.Match[str],
        declared: Declared,
        final: bool,
        split: bool,
    ) -> tuple[int, int, bool] | None:
        """Where a value ends, where what follows starts, and whether its closing tag is missing;
        None where the text stops first."""
        start, close = opening.end(), self.parameter_close
        form = opening.groupdict().get("string")
        if form != "true" and not declared.types <= {"string"}:
            first = json_text.skip_whitespace(text, start)
            if text.startswith(("{", "["), first):
                # A closing tag may stand inside a string of JSON.
                end, state = json_text.value_end(text, first)
                after = json_text.skip_whitespace(text, end)
                if state == "complete" and text.startswith(close, after):
                    return after, after + len(close), False
                if state == "complete" and close.startswith(text[after:]):
                    return None
                may_be_text = "string" in declared.types and form is None
                if state == "open" and not (final and may_be_text):
                    return None
        end = text.find(close, start)
        opens = self._next_parameter(text, start, end) if split else None
        if self.next_closes:
            stop = text.find(self.call_close, start)
            if 0 <= stop < min(i for i in (end, opens, len(text)) if i is not None and i >= 0):
                raise Malformed("a parameter is not closed")
        if opens is not None:
            return opens, opens, True
        return None if end < 0 else (end, end + len(close), False)

    def _next_parameter(self, text: str, start: int, end: int) -> int | None:
        """Where the next parameter opens inside what would be the value from ``start``."""
        found = self.parameter_open.search(text, start, len(text) if end < 0 else end)
        return found.start() if found else None

    def _value(
        self, text: str, opening: re.Match[str], declared: Declared, *, required: bool
    ) -> tuple[str | None, str | None]:
        form = opening.groupdict().get("string")
        if form == "true":
            return json_text.dumps(text), None
        if form == "false":
            declared = Declared(_NO_STRING) if "string" in declared.types else declared
        return xml_values.read(text, declared, layout=self.layout, required=required)


# xgrammar (0.2.9) takes the keys of an object that declares none for identifiers: `user-id` and
# `größe` could not be passed.
_ANY_PARAMETERS = {
    "type": "object",
    "patternProperties": {r'^[^\x00-\x20<>"=\x7f]{1,64}$': {}},
    "additionalProperties": False,
}
_NO_STRING = {"type": ["integer", "number", "boolean", "null", "object", "array"]}


def _same(a: Any, b: Any) -> bool:
    """Whether two decoded values are the same JSON, ``1`` and ``true`` being two."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(a, bool) is isinstance(b, bool) and a == b


def _without_open_ends(schema: Any, *, deep: bool) -> Any:
    """The schema with each plain-text string of bounded length as a pattern.

    xgrammar (0.2.9) lets such a string hold any character, its own closing tag included: the
    grammar then never knows that the value is over, and lets anything follow the call. The pattern
    keeps the tag out. Under ``maxLength`` that costs the character ``<``, which could not be
    counted otherwise.
    """
    if not isinstance(schema, Mapping):
        return schema
    changed = dict(schema)
    for keyword in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(keyword), Mapping):
            inner = schema[keyword].items()
            changed[keyword] = {key: _closed(s, deep=deep) for key, s in inner}
    for keyword in ("anyOf", "oneOf", "allOf"):
        for part in schema.get(keyword) or ():
            if isinstance(part, Mapping):
                parts = [_without_open_ends(p, deep=deep) for p in schema[keyword]]
                changed[keyword] = parts
    return changed


def _closed(schema: Any, *, deep: bool) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    bounded = least or most is not None
    fixed = schema.keys() & {"pattern", "format", "enum", "const", "$ref"}
    if schema.get("type") == "string" and bounded and not fixed:
        rest = {k: v for k, v in schema.items() if k not in ("minLength", "maxLength")}
        unit = "([^<]|<[^/<])" if most is None else "[^<]"
        return {**rest, "pattern": f"^{unit}{{{least},{'' if most is None else most}}}$"}
    changed = dict(schema)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(keyword), Sequence):
            changed[keyword] = [_closed(part, deep=deep) for part in schema[keyword]]
    if deep:
        if isinstance(schema.get("items"), Mapping):
            changed["items"] = _closed(schema["items"], deep=deep)
        changed = dict(_without_open_ends(changed, deep=deep))
    return changed


def literal_so_far(text: str) -> str:
    """A pattern for every beginning of ``text``, the whole of it included."""
    pattern = ""
    for character in reversed(text):
        pattern = f"(?:{re.escape(character)}{pattern})?"
    return pattern
