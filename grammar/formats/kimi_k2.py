"""Kimi K2: a section of calls, each ``functions.NAME:INDEX`` and a JSON object between markers."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema

from grammar.formats import json_text
from grammar.formats.base import NAME_PATTERN, Format
from grammar.formats.message import (
    Malformed,
    MessageBuilder,
    call_parts,
    open_suffix,
    read_arguments,
)

SECTION_BEGIN, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
# Some checkpoints write the singular.
_SECTION_BEGINS = (SECTION_BEGIN, "<|tool_call_section_begin|>")
_SECTION_ENDS = (SECTION_END, "<|tool_call_section_end|>")

_MARKERS = (*_SECTION_BEGINS, *_SECTION_ENDS, CALL_BEGIN, CALL_END, ARGUMENTS)
_MARKER = re.compile("|".join(map(re.escape, _MARKERS)))
_ID = re.compile(rf"(functions\.)?({NAME_PATTERN}):([0-9]+)")
_ID_SO_FAR = re.compile(r"\s*[A-Za-z0-9_.:-]*\s*(?:<[|a-z_]*)?")
_SANITISED_ID = re.compile(r"functions[_-](.+)[_-]([0-9]+)")


class KimiK2(Format):
    name = "kimi_k2"
    style = "kimi"
    markers = (
        SECTION_BEGIN,
        SECTION_END,
        CALL_BEGIN,
        CALL_END,
        ARGUMENTS,
        Format.start_of_thinking,
        Format.end_of_thinking,
    )
    string_excludes = ("<|tool_call",)
    banned = (SECTION_BEGIN, CALL_BEGIN)

    def render(self, calls: Sequence[Mapping[str, Any]]) -> str:
        if not calls:
            return ""
        parts = []
        for position, call in enumerate(calls):
            name, arguments, call_id = call_parts(call)
            own = _ID.fullmatch(call_id or "")
            if not (own and own[1] and own[2] == name):
                call_id = f"functions.{name}:{position}"
            parts.append(f"{CALL_BEGIN}{call_id}{ARGUMENTS}{arguments}{CALL_END}")
        return SECTION_BEGIN + "".join(parts) + SECTION_END

    def _scan(
        self,
        text: str,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        *,
        final: bool = True,
    ) -> int:
        pos = 0
        while marker := _MARKER.search(text, pos):
            between, kind = text[pos : marker.start()], marker.group()
            ahead = text[marker.end() :].lstrip() if kind in _SECTION_BEGINS else ""
            if not out.in_block:
                out.text(between)
            elif between.strip():
                out.malformed(between, "text between the calls of a section")
            pos = marker.end()
            if kind == CALL_BEGIN:
                stop = _scan_call(text, marker.start(), parameters, out, final)
                if stop is None:
                    return marker.start()
                pos = stop
            elif kind in _SECTION_BEGINS and not out.in_block:
                if CALL_BEGIN.startswith(ahead):
                    if not final:
                        return marker.start()
                    out.incomplete(kind + ahead, "the text stops before the first call")
                    return len(text)
                out.in_block = ahead.startswith(CALL_BEGIN)
                if out.in_block:
                    out.boundary()
                else:
                    out.malformed(kind, "a section without a call")
            elif kind in _SECTION_ENDS and out.in_block:
                out.in_block = False
                out.boundary()
            else:
                out.malformed(kind, "a marker out of place")
        rest = text[pos:]
        if not final:
            if out.in_block:
                return pos
            end = len(text) - open_suffix(rest, _MARKERS)
            out.text(text[pos:end])
            return end
        if out.in_block and any(m.startswith(rest.strip()) for m in (*_SECTION_ENDS, CALL_BEGIN)):
            broken_off = out.problems and out.problems[-1].kind == "incomplete"
            if not broken_off:
                out.repaired(rest, f"{SECTION_END} is missing")
        else:
            out.text(rest)
        return len(text)


def _scan_call(
    text: str,
    start: int,
    parameters: Mapping[str, Any] | None,
    out: MessageBuilder,
    final: bool,
) -> int | None:
    """End of the call that begins at ``start``; None where more text must decide."""
    head = start + len(CALL_BEGIN)
    marker = _MARKER.search(text, head)
    if marker is None:
        if not final:
            return None
        if _ID_SO_FAR.fullmatch(text, head):
            out.incomplete(text[start:], "the text stops inside a call")
        else:
            out.malformed(text[start:], f"no id and no {ARGUMENTS}")
        return len(text)
    body = json_text.skip_whitespace(text, marker.end())
    if marker.group() != ARGUMENTS:
        end, state = body, "broken"
    elif text.startswith(("{", '"'), body):
        end, state = json_text.value_end(text, body)
    elif text.startswith(CALL_END, body):
        end, state = body, "complete"
    else:
        end, state = body, "open" if CALL_END.startswith(text[body:]) else "broken"
    after = json_text.skip_whitespace(text, end)

    ends = (CALL_END, CALL_BEGIN, *_SECTION_ENDS)
    if state == "complete" and text.startswith(ends, after):
        closed = text.startswith(CALL_END, after)
        stop = after + len(CALL_END) if closed else after
        mended = [] if out.in_block else ["a call outside a section"]
        mended += [] if closed else [f"{CALL_END} is missing"]
        try:
            call_id, name, arguments = _read_call(
                text[head : marker.start()].strip(), text[body:end], parameters, out, mended
            )
        except Malformed as error:
            out.malformed(text[start:stop], str(error))
            return stop
        if mended:
            out.repaired(text[start:stop], "; ".join(mended))
        out.call(call_id, name, arguments, start, stop)
        return stop

    stop = _region_end(text, head)
    unfinished = state == "open" or any(m.startswith(text[after:]) for m in ends)
    if not final and (unfinished or stop is None):
        return None
    if stop is None and unfinished:
        out.incomplete(text[start:], "the text stops inside a call")
        return len(text)
    stop = len(text) if stop is None else stop
    out.malformed(text[start:stop], "no JSON object between the markers")
    return stop


def _region_end(text: str, head: int) -> int | None:
    """End of the span that a broken call takes up: its end marker, or where the next one begins."""
    for marker in _MARKER.finditer(text, head):
        if marker.group() == CALL_END:
            return marker.end()
        if marker.group() != ARGUMENTS:
            return marker.start()
    return None


def _read_call(
    head: str,
    raw: str,
    parameters: Mapping[str, Any] | None,
    out: MessageBuilder,
    mended: list[str],
) -> tuple[str, str, str]:
    found = _read_id(head, parameters, len(out.calls))
    if found is None:
        name, index = _infer_tool(raw, parameters), str(len(out.calls))
        if name is None:
            raise Malformed(f"the id {head!r} names no tool of the request")
        mended.append(f"the id {head!r} names no tool; only {name!r} takes these arguments")
    else:
        name, index = found
    known = parameters is not None
    schema = parameters[name] if known else None
    arguments, mended_arguments = read_arguments(raw, schema, known=known)
    if mended_arguments:
        mended.append(mended_arguments)

    call_id = f"functions.{name}:{index}"
    if found and call_id != head:
        mended.append(f"the id {head!r} is not of the form functions.NAME:INDEX")
    used = {call["id"] for call in out.calls}
    if call_id in used:
        mended.append(f"the id {call_id!r} is used twice")
        index = next(i for i in range(len(used) + 1) if f"functions.{name}:{i}" not in used)
        call_id = f"functions.{name}:{index}"
    return call_id, name, arguments


def _read_id(
    head: str, parameters: Mapping[str, Any] | None, position: int
) -> tuple[str, str] | None:
    """Tool name and index that an id stands for, or None."""
    if match := _ID.fullmatch(head):
        prefix, name, index = match[1] or "", match[2], match[3]
        names = (name, prefix + name) if prefix else (name,)
        return next(((n, index) for n in names if parameters is None or n in parameters), None)
    if parameters is None:
        return None
    if match := _SANITISED_ID.fullmatch(head):
        # Clients that restrict ids replace what they do not allow by an underscore.
        names = [n for n in parameters if re.sub(r"[^A-Za-z0-9_-]", "_", n) == match[1]]
        return (names[0], match[2]) if len(names) == 1 else None
    name = head.removeprefix("functions.")
    return (name, str(position)) if name in parameters else None


def _infer_tool(raw: str, parameters: Mapping[str, Any] | None) -> str | None:
    """The one tool that declares every argument written and is content with their values."""
    try:
        value = json_text.loads(raw)
    except ValueError:
        return None
    if not parameters or not isinstance(value, dict) or not value:
        return None
    fitting = [name for name, schema in parameters.items() if _fits(value, schema)]
    return fitting[0] if len(fitting) == 1 else None


def _fits(arguments: dict[str, Any], schema: Any) -> bool:
    try:
        if not arguments.keys() <= schema["properties"].keys():
            return False
        return jsonschema.validators.validator_for(schema)(schema).is_valid(arguments)
    except Exception:  # a schema that cannot be read fits nothing
        return False
