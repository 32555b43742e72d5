"""Qwen3-Coder, Qwen3.5, Nemotron Nano and MiMo: ``<function=NAME>`` around ``<parameter=KEY>``.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Bern
    </parameter>
    </function>
    </tool_call>

MiMo writes the same without the newlines. Some chat templates write ``True`` and ``None`` for
values that are not strings, objects or arrays; ``render`` writes JSON, which is what the grammar
allows.
"""

import re
from collections.abc import Sequence
from typing import Any

from xgrammar.structural_tag import TriggeredTagsFormat

from grammar.formats.base import NAME_PATTERN, Format, Tool
from grammar.formats.xml_calls import FlatXml
from grammar.formats.xml_values import Declared

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class QwenXml(FlatXml):
    """What the models of this notation have in common."""

    block = (OPEN, CLOSE)
    head = "<function="
    call_open = re.compile(rf"<function=[ \t]*(?P<name>{NAME_PATTERN})[ \t]*>")
    call_so_far = re.compile(r"<function=[ \t]*+[A-Za-z0-9_.-]*[ \t]*+")
    call_close = "</function>"
    parameter_open = re.compile(r"<parameter=(?P<key>[^>\n]+)>")
    parameter_so_far = re.compile(r"<parameter=[^>\n]*")
    parameter_close = "</parameter>"
    markers = (
        OPEN,
        CLOSE,
        head,
        call_close,
        Format.start_of_thinking,
        Format.end_of_thinking,
    )
    string_excludes = ("tool_call>",)
    banned = (OPEN, head)

    def _can_write_key(self, key: str) -> bool:
        return bool(self.parameter_open.fullmatch(f"<parameter={key}>")) and key == key.strip()

    def _key(self, opening: re.Match[str]) -> str:
        return opening["key"].strip()

    def _state_at(self, text: str, at: int, members: Sequence[Any]) -> str:
        if "<parameter=".startswith(text[at:]):
            return "open"
        return super()._state_at(text, at, members)

    def _next_parameter(self, text: str, start: int, end: int) -> int | None:
        # Source code may well hold such a tag: one that closes a value starts a line.
        found = re.compile(r"\n(?=<parameter=)").search(text, start, len(text) if end < 0 else end)
        return found.end() if found else None

    def _render_call(self, position: int, name: str, arguments: str) -> str:
        inner = "".join(f"{p}\n" for p in self._render_arguments(name, arguments))
        return f"{OPEN}\n<function={name}>\n{inner}</function>\n{CLOSE}"

    def _render_parameter(self, key: str, text: str, *, is_string: bool) -> str:
        return f"<parameter={key}>\n{text}\n</parameter>"

    def _join(self, calls: Sequence[str]) -> str:
        return "\n".join(calls)

    def _amend(self, node: Any, tools: Sequence[Tool]) -> Any:
        if isinstance(node, TriggeredTagsFormat):
            # In free text the tag opens a call or nothing: `<tool_call>` followed by anything else
            # would be no call to any parser, and `<function=` alone is one to ours.
            node.triggers = [OPEN]
            tags = node.tags
        else:
            tags = [node]
        for tag, tool in zip(tags, tools, strict=True):
            if not Declared(tool.schema).required:
                # Without parameters the newlines before and after them would be two, and the
                # standard text has one: here they count as the whitespace of the content.
                tag.begin = tag.begin.removesuffix("\n")
                tag.end = tag.end.removeprefix("\n")
        return node


class Qwen3Coder(QwenXml):
    """Qwen3-Coder."""

    name = "qwen3_coder"
    style = "qwen_3_coder"
    layout = True


class NemotronNano(Qwen3Coder):
    """Nemotron Nano."""

    name = "nemotron_nano"
    foreign = ("<TOOLCALL>",)  # of Nemotron Nano 9B v2, around a JSON list
    markers = (*QwenXml.markers, *foreign)


class Qwen35(Qwen3Coder):
    """Qwen3.5."""

    name = "qwen_3_5"
    style = "qwen_3_5"


class MiMo(QwenXml):
    """MiMo: no newlines for layout."""

    name = "mimo"
    style = "mimo"

    def _render_call(self, position: int, name: str, arguments: str) -> str:
        inner = "".join(self._render_arguments(name, arguments))
        return f"{OPEN}<function={name}>{inner}</function>{CLOSE}"

    def _render_parameter(self, key: str, text: str, *, is_string: bool) -> str:
        return f"<parameter={key}>{text}</parameter>"

    def _join(self, calls: Sequence[str]) -> str:
        return "".join(calls)

    def _amend(self, node: Any, tools: Sequence[Tool]) -> Any:
        return node
