"""MiniMax M2 to M2.7: a block of ``invoke`` tags around ``parameter`` tags.

    <minimax:tool_call>
    <invoke name="get_weather">
    <parameter name="city">Bern</parameter>
    <parameter name="days">3</parameter>
    </invoke>
    </minimax:tool_call>

A value is the text as it stands, without newlines for layout: the file that a model writes keeps
its last newline.
"""

import re
from collections.abc import Sequence
from typing import Any

from xgrammar.structural_tag import SequenceFormat

from grammar.formats.base import NAME_PATTERN, Format, Tool
from grammar.formats.dsml import with_optional_newlines
from grammar.formats.xml_calls import FlatXml

OPEN, CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"


class MiniMax(FlatXml):
    """MiniMax M2 to M2.7."""

    name = "minimax"
    style = "minimax"
    block = (OPEN, CLOSE)
    head = "<invoke name="
    call_open = re.compile(rf'<invoke name="(?P<name>{NAME_PATTERN})"\s*>')
    call_so_far = re.compile(r'<invoke name=(?:"[A-Za-z0-9_.-]*(?:"\s*)?)?')
    call_close = "</invoke>"
    parameter_open = re.compile(r'<parameter name="(?P<key>[^"\n]+)"\s*>')
    parameter_so_far = re.compile(r'<parameter name=(?:"[^"\n]*(?:"\s*)?)?')
    parameter_close = "</parameter>"
    markers = (OPEN, CLOSE, head, call_close, Format.start_of_thinking, Format.end_of_thinking)
    string_excludes = ("minimax:tool_call>",)
    banned = (OPEN, head)

    def _can_write_key(self, key: str) -> bool:
        return bool(key) and '"' not in key and "\n" not in key

    def _state_at(self, text: str, at: int, members: Sequence[Any]) -> str:
        if "<parameter name=".startswith(text[at:]):
            return "open"
        return super()._state_at(text, at, members)

    def _render_call(self, position: int, name: str, arguments: str) -> str:
        inner = "".join(f"{p}\n" for p in self._render_arguments(name, arguments))
        return f'<invoke name="{name}">\n{inner}</invoke>'

    def _render_parameter(self, key: str, text: str, *, is_string: bool) -> str:
        return f'<parameter name="{key}">{text}</parameter>'

    def _amend(self, node: Any, tools: Sequence[Tool]) -> Any:
        # xgrammar takes "no reasoning" for a think block that the prompt has opened and that the
        # model has to close at once. Here it means that none is open.
        answer = node.elements[-1] if isinstance(node, SequenceFormat) else node
        return with_optional_newlines(answer)
