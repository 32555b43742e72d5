"""Kimi K2: a section of calls, each ``functions.NAME:INDEX`` and a JSON object between markers."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from grammar.formats import json_text
from grammar.formats.base import NAME_PATTERN, Format
from grammar.formats.message import Malformed, MessageBuilder, call_parts, read_arguments
from grammar.formats.section import SectionFormat
from grammar.schema import judge

SECTION_BEGIN, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
_ID = re.compile(rf"(functions\.)?({NAME_PATTERN}):([0-9]+)")
_SANITISED_ID = re.compile(r"functions[_-](.+)[_-]([0-9]+)")


class KimiK2(SectionFormat):
    """Kimi K2."""

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
    # Some checkpoints write the singular.
    section_begins = (SECTION_BEGIN, "<|tool_call_section_begin|>")
    section_ends = (SECTION_END, "<|tool_call_section_end|>")
    call_begin, call_end = CALL_BEGIN, CALL_END
    inner_markers = (ARGUMENTS,)
    head = re.compile(rf"(?P<id>(?:(?!<\|tool_call)[\s\S])*+){re.escape(ARGUMENTS)}\s*")
    head_so_far = re.compile(r"\s*+[A-Za-z0-9_.:-]*\s*+(?:<[|a-z_]*)?")

    def call_id(self, name: str, index: int) -> str:
        # Other ids in the history mislead it (MoonshotAI/K2-Vendor-Verifier, README).
        return f"functions.{name}:{index}"

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

    def _read_call(
        self,
        head: re.Match[str],
        raw: str,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        mended: list[str],
    ) -> tuple[str, str, str]:
        written = head["id"].strip()
        found = _read_id(written, parameters, len(out.calls))
        if found is None:
            name, index = _infer_tool(raw, parameters), str(len(out.calls))
            if name is None:
                raise Malformed(f"the id {written!r} names no tool of the request")
            mended.append(f"the id {written!r} names no tool; only {name!r} takes these arguments")
        else:
            name, index = found
        known = parameters is not None
        schema = parameters[name] if known else None
        arguments, mended_arguments = read_arguments(raw, schema, known=known)
        if mended_arguments:
            mended.append(mended_arguments)

        call_id = f"functions.{name}:{index}"
        if found and call_id != written:
            mended.append(f"the id {written!r} is not of the form functions.NAME:INDEX")
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
        return judge.accepts(schema, arguments)
    except Exception:  # a schema that cannot be read fits nothing
        return False
