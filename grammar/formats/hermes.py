"""Hermes and Qwen 2.5/3: ``<tool_call>`` + newline + JSON object + newline + ``</tool_call>``."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from grammar.formats import json_text
from grammar.formats.base import NAME_PATTERN, Format
from grammar.formats.message import (
    Malformed,
    MessageBuilder,
    call_parts,
    open_suffix,
    read_arguments,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes(Format):
    name = "hermes"
    style = "qwen_3"
    markers = (OPEN, CLOSE, Format.start_of_thinking, Format.end_of_thinking)
    string_excludes = ("tool_call>",)
    banned = (OPEN,)

    def render(self, calls: Sequence[Mapping[str, Any]]) -> str:
        parts = map(call_parts, calls)
        return "\n".join(
            f'{OPEN}\n{{"name": "{name}", "arguments": {arguments}}}\n{CLOSE}'
            for name, arguments, _ in parts
        )

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
            stop = self._scan_call(text, start, parameters, out, final)
            if stop is None:
                return start
            pos = stop
        end = len(text) if final else len(text) - open_suffix(text[pos:], (OPEN,))
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
        body = json_text.skip_whitespace(text, start + len(OPEN))
        if text.startswith("{", body):
            end, state = json_text.value_end(text, body)
        else:
            end, state = body, "open" if body == len(text) else "broken"
        after = json_text.skip_whitespace(text, end)

        if state == "complete" and text.startswith((CLOSE, OPEN), after):
            closed = text.startswith(CLOSE, after)
            stop = after + len(CLOSE) if closed else after
            try:
                name, arguments, mended = _read_call(text[body:end], parameters)
            except Malformed as error:
                out.malformed(text[start:stop], str(error))
                return stop
            if mended or not closed:
                out.repaired(text[start:stop], mended or f"{CLOSE} is missing")
            out.call(f"call_{len(out.calls)}", name, arguments, start, stop)
            return stop

        stop = _region_end(text, start)
        unfinished = state == "open" or any(m.startswith(text[after:]) for m in (CLOSE, OPEN))
        if not final and (unfinished or stop is None):
            return None
        if stop is None and unfinished:
            out.incomplete(text[start:], "the text stops inside a call")
            return len(text)
        # Without an end of its own it is most likely a mention of the marker: keep just that.
        stop = start + len(OPEN) if stop is None else stop
        out.malformed(text[start:stop], "no JSON object between the markers")
        return stop


def _region_end(text: str, start: int) -> int | None:
    """End of the span that a broken call takes up: its closer, or where the next call opens."""
    close, reopen = text.find(CLOSE, start), text.find(OPEN, start + len(OPEN))
    ends = [i for i in (close + len(CLOSE) if close >= 0 else -1, reopen) if i >= 0]
    return min(ends, default=None)


def _read_call(raw: str, parameters: Mapping[str, Any] | None) -> tuple[str, str, str | None]:
    try:
        json_text.loads(raw, loose=True)
        pairs = list(json_text.members(raw))
    except ValueError as error:
        raise Malformed(f"not JSON: {error}") from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise Malformed("a key is written twice")
    name = json_text.loads(fields.get("name", "null"), loose=True)
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
        raise Malformed("no tool name")
    if parameters is not None and name not in parameters:
        raise Malformed(f"the request has no tool {name!r}")
    known = parameters is not None
    schema = parameters[name] if known else None
    arguments, mended = read_arguments(fields.get("arguments", ""), schema, known=known)
    return name, arguments, mended
