"""Formats whose call is one JSON object, with the name and the arguments, between two markers.

Such a format is its class attributes: see ``hermes.py``, and the README for one of a model that
xgrammar has no style for.
"""

from collections.abc import Mapping, Sequence
from string import Template
from typing import Any, ClassVar, Literal

from xgrammar.structural_tag import (
    JSONSchemaFormat,
    StructuralTag,
    TagFormat,
    TriggeredTagsFormat,
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


class MarkedJson(Format):
    """Render, scanner, and grammar where xgrammar has no style.

    Attributes:
        opener, closer: the markers.
        layout: a whole call as models write it, with ``$name`` and then ``$arguments``.
        arguments_key: the key of the arguments.
    """

    opener: ClassVar[str]
    closer: ClassVar[str]
    layout: ClassVar[str]
    arguments_key: ClassVar[str] = "arguments"

    def _build(
        self,
        tools: Sequence[Tool],
        *,
        tool_choice: Literal["auto", "required", "named"],
        parallel_tool_calls: bool,
        max_whitespace_cnt: int,
    ) -> StructuralTag:
        if self.style is not None:
            return super()._build(
                tools,
                tool_choice=tool_choice,
                parallel_tool_calls=parallel_tool_calls,
                max_whitespace_cnt=max_whitespace_cnt,
            )
        tags = []
        for tool in tools:
            begin, end = self._write(tool.name, "\0").split("\0")
            arguments = JSONSchemaFormat(
                json_schema=dict(tool.schema), max_whitespace_cnt=max_whitespace_cnt
            )
            tags.append(TagFormat(begin=begin, content=arguments, end=end))
        if tool_choice == "named":
            return StructuralTag(format=tags[0])
        return StructuralTag(
            format=TriggeredTagsFormat(
                triggers=[self.opener],
                tags=tags,
                at_least_one=tool_choice == "required",
                stop_after_first=not parallel_tool_calls,
            )
        )

    def render(self, calls: Sequence[Mapping[str, Any]]) -> str:
        parts = map(call_parts, calls)
        return "\n".join(self._write(name, arguments) for name, arguments, _ in parts)

    def _write(self, name: str, arguments: str) -> str:
        return Template(self.layout).substitute(name=name, arguments=arguments)

    def _scan(
        self,
        text: str,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        *,
        final: bool = True,
    ) -> int:
        pos = 0
        while (start := text.find(self.opener, pos)) >= 0:
            out.text(text[pos:start])
            stop = self._scan_call(text, start, parameters, out, final)
            if stop is None:
                return start
            pos = stop
        end = len(text) if final else len(text) - open_suffix(text[pos:], (self.opener,))
        out.text(text[pos:end])
        return end

    def _scan_call(
        self,
        text: str,
        start: int,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        final: bool,
    ) -> int | None:
        """End of the call that opens at ``start``; None where more text must decide."""
        body = json_text.skip_whitespace(text, start + len(self.opener))
        if text.startswith("{", body):
            end, state = json_text.value_end(text, body)
        else:
            end, state = body, "open" if body == len(text) else "broken"
        after = json_text.skip_whitespace(text, end)

        if state == "complete" and text.startswith((self.closer, self.opener), after):
            closed = text.startswith(self.closer, after)
            stop = after + len(self.closer) if closed else after
            try:
                name, arguments, mended = self._read_call(text[body:end], parameters)
            except Malformed as error:
                out.malformed(text[start:stop], str(error))
                return stop
            if mended or not closed:
                out.repaired(text[start:stop], mended or f"{self.closer} is missing")
            out.call(f"call_{len(out.calls)}", name, arguments, start, stop)
            return stop

        stop = self._region_end(text, start)
        markers = (self.closer, self.opener)
        unfinished = state == "open" or any(m.startswith(text[after:]) for m in markers)
        if not final and (unfinished or stop is None):
            return None
        if stop is None and unfinished:
            out.incomplete(text[start:], "the text stops inside a call")
            return len(text)
        # Without an end of its own it is most likely a mention of the marker: keep just that.
        stop = start + len(self.opener) if stop is None else stop
        out.malformed(text[start:stop], "no JSON object between the markers")
        return stop

    def _region_end(self, text: str, start: int) -> int | None:
        """End of the span that a broken call takes up: its closer, or where the next call opens."""
        close = text.find(self.closer, start)
        reopen = text.find(self.opener, start + len(self.opener))
        ends = [i for i in (close + len(self.closer) if close >= 0 else -1, reopen) if i >= 0]
        return min(ends, default=None)

    def _read_call(
        self, raw: str, parameters: Mapping[str, Any] | None
    ) -> tuple[str, str, str | None]:
        try:
            json_text.loads(raw, loose=True)
            pairs = list(json_text.members(raw))
        except ValueError as error:
            raise Malformed(f"not JSON: {error}") from None
        fields = dict(pairs)
        if len(fields) < len(pairs):
            raise Malformed("a key is written twice")
        name = check_name(json_text.loads(fields.get("name", "null"), loose=True), parameters)
        known = parameters is not None
        schema = parameters[name] if known else None
        arguments, mended = read_arguments(fields.get(self.arguments_key, ""), schema, known=known)
        return name, arguments, mended
