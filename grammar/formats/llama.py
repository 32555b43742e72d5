"""Llama 3: a bare JSON object, ``{"name": NAME, "parameters": {...}}``.

No marker tells a call from JSON that the model was asked for. An object is read as a call if it has
``name`` and ``parameters`` (or ``arguments``, which some checkpoints write), and nothing else but
``"type": "function"``; every other object is content. The ban is on the keys of the arguments:
without one of them there is no call, and an answer such as ``{"name": "Ann"}`` stays possible.

Llama 3.1 may write ``<|python_tag|>`` before a call (llama.com, prompt format of Llama 3.1).
Several calls are separated by ``;``, as vLLM's ``llama3_json`` reads them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from grammar.formats import json_text
from grammar.formats.base import Format
from grammar.formats.message import (
    Malformed,
    MessageBuilder,
    call_parts,
    check_name,
    open_suffix,
    read_arguments,
)

PYTHON_TAG = "<|python_tag|>"

_OPENER = re.compile(
    r'\{\s*(?:"name"\s*:|"type"\s*:\s*"function"|"(?:parameters|arguments)"\s*:\s*\{)'
)
_OPENERS = ('{"name":', '{"type":"function"', '{"parameters":{', '{"arguments":{')
# As it is banned: without escapes, and with at most one space.
_ARGUMENTS_KEY = re.compile(r'"(?:parameters|arguments)" ?:')
_NAME_SO_FAR = re.compile(r'"name"\s*:\s*"([^"]*)("?)')
_SEPARATOR = re.compile(r"\s*+;?\s*+(?:<\|python_tag\|>\s*+)?")
_TAG_AT_END = re.compile(r"<\|python_tag\|>\s*\Z")


class Llama(Format):
    """Llama 3."""

    name = "llama"
    style = "llama"
    # The python tag has no place in the grammar: it stays a control token.
    markers = (Format.start_of_thinking, Format.end_of_thinking)
    banned = tuple(f'"{key}"{gap}:' for key in ("parameters", "arguments") for gap in ("", " "))
    # An answer may begin so, too: it is read on, and is a call only if it has arguments.
    openers = ('{"name"',)
    settling = ("}",)

    def render(self, calls: Sequence[Mapping[str, Any]]) -> str:
        return "; ".join(
            f'{{"name": "{name}", "parameters": {arguments}}}'
            for name, arguments, _ in map(call_parts, calls)
        )

    def _scan(
        self,
        text: str,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        *,
        final: bool = True,
    ) -> int:
        """``out.in_block``: nothing but a separator has come since the last call."""
        pos = done = 0
        while (start := text.find("{", pos)) >= 0:
            pos = start + 1
            if not _OPENER.match(text, start):
                if not final and _may_open(text[start:]):
                    return done + _release(text[done:start], out)
                continue
            end, state = json_text.value_end(text, start)
            if state == "open" and not final:
                return done + _release(text[done:start], out)
            raw = text[start:end]
            if not _meant_as_call(raw, parameters):
                continue
            if state == "open":
                _text_before_call(text[done:start], out)
                out.incomplete(raw, "the text stops inside a call")
                return len(text)
            try:
                if state == "broken":
                    raise Malformed("no JSON object")
                call = _read_call(raw, parameters)
            except Malformed as error:
                _text(text[done:start], out)
                out.malformed(raw, str(error))
                out.in_block = False
            else:
                if call is None:
                    continue
                name, arguments, mended = call
                _text_before_call(text[done:start], out)
                if mended:
                    out.repaired(raw, mended)
                out.call(f"call_{len(out.calls)}", name, arguments, start, end)
                out.in_block = True
            pos = done = end
        if final:
            _text(text[done:], out)
            return len(text)
        return done + _release(text[done:], out)


def _may_open(text: str) -> bool:
    """Whether more text can make the brace that starts ``text`` the start of a call."""
    bare = "".join(text.split())
    return any(len(bare) < len(o) and o.startswith(bare) for o in _OPENERS)


def _release(text: str, out: MessageBuilder) -> int:
    """Pass on what is content whatever follows; returns how much that is."""
    size = len(text) - open_suffix(text, (PYTHON_TAG,))
    if tag := _TAG_AT_END.search(text, 0, size):
        size = tag.start()
    if out.in_block and _SEPARATOR.fullmatch(text, 0, size):
        return 0
    _text(text[:size], out)
    return size


def _text(text: str, out: MessageBuilder) -> None:
    for i, part in enumerate(text.split(PYTHON_TAG)):
        if i:
            out.malformed(PYTHON_TAG, "no JSON object after it")
        out.text(part)
    if text.strip():
        out.in_block = False


def _text_before_call(text: str, out: MessageBuilder) -> None:
    text = _TAG_AT_END.sub("", text)
    if out.in_block and text.strip() == ";":
        text = text.replace(";", "")
    _text(text, out)


def _meant_as_call(raw: str, parameters: Mapping[str, Any] | None) -> bool:
    if _ARGUMENTS_KEY.search(raw):
        return True
    name = _NAME_SO_FAR.search(raw)
    if not name or not parameters:
        return False
    return name[1] in parameters if name[2] else any(n.startswith(name[1]) for n in parameters)


def _read_call(
    raw: str, parameters: Mapping[str, Any] | None
) -> tuple[str, str, str | None] | None:
    """Name, arguments and what was mended; None for an object that is no call."""
    try:
        json_text.loads(raw, loose=True)
        pairs = list(json_text.members(raw))
    except ValueError as error:
        raise Malformed(f"not JSON: {error}") from None
    fields = dict(pairs)
    written = [fields.pop(key) for key in ("parameters", "arguments") if key in fields]
    name = json_text.loads(fields.pop("name", "null"), loose=True)
    if name is None or (not written and not (parameters and name in parameters)):
        return None
    if len(written) != 1 or not _ARGUMENTS_KEY.search(raw):
        raise Malformed(f"{len(written)} keys for the arguments, not one")
    if len(pairs) != 2 + len(fields):
        raise Malformed("a key is written twice")
    if fields.keys() - {"type"} or fields.get("type", '"function"') != '"function"':
        raise Malformed(f"keys that no call has: {', '.join(fields)}")
    name = check_name(name, parameters)
    known = parameters is not None
    arguments, mended = read_arguments(written[0], parameters[name] if known else None, known=known)
    return name, arguments, mended
