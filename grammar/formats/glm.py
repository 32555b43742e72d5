"""GLM 4.5 to 5: ``<tool_call>NAME`` and pairs of ``<arg_key>`` and ``<arg_value>``.

    <tool_call>get_weather<arg_key>city</arg_key><arg_value>Bern</arg_value></tool_call>

Earlier versions put newlines between the tags, which are read too. A value is the text as it
stands.
"""

import re
from collections.abc import Sequence
from typing import Any

from grammar.formats.base import NAME_PATTERN, Format
from grammar.formats.xml_calls import FlatXml, literal_so_far

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY_OPEN, KEY_CLOSE = "<arg_key>", "</arg_key>"
VALUE_OPEN, VALUE_CLOSE = "<arg_value>", "</arg_value>"


class Glm47(FlatXml):
    """GLM 4.5 to 5."""

    name = "glm_4_7"
    style = "glm_4_7"
    head = OPEN
    call_open = re.compile(rf"{OPEN}\s*(?P<name>{NAME_PATTERN})\s*(?={KEY_OPEN}|{CLOSE})")
    call_so_far = re.compile(rf"{OPEN}\s*+[A-Za-z0-9_.-]*\s*+(?:<[/a-z_]*)?")
    call_close = CLOSE
    parameter_open = re.compile(rf"{KEY_OPEN}(?P<key>[^<\n]+){KEY_CLOSE}\s*{VALUE_OPEN}")
    parameter_so_far = re.compile(
        rf"{KEY_OPEN}[^<\n]*(?:{literal_so_far(KEY_CLOSE)}|{KEY_CLOSE}\s*"
        rf"{literal_so_far(VALUE_OPEN)})"
    )
    parameter_close = VALUE_CLOSE
    markers = (
        OPEN,
        CLOSE,
        KEY_OPEN,
        KEY_CLOSE,
        VALUE_OPEN,
        VALUE_CLOSE,
        Format.start_of_thinking,
        Format.end_of_thinking,
    )
    string_excludes = ("tool_call>",)
    banned = (OPEN,)

    def _can_write_key(self, key: str) -> bool:
        return bool(key.strip()) and key == key.strip() and "<" not in key and "\n" not in key

    def _key(self, opening: re.Match[str]) -> str:
        return opening["key"].strip()

    def _state_at(self, text: str, at: int, members: Sequence[Any]) -> str:
        if KEY_OPEN.startswith(text[at:]):
            return "open"
        return super()._state_at(text, at, members)

    def _render_call(self, position: int, name: str, arguments: str) -> str:
        inner = "".join(self._render_arguments(name, arguments))
        return f"{OPEN}{name}{inner}{CLOSE}"

    def _render_parameter(self, key: str, text: str, *, is_string: bool) -> str:
        return f"{KEY_OPEN}{key}{KEY_CLOSE}{VALUE_OPEN}{text}{VALUE_CLOSE}"

    def _join(self, calls: Sequence[str]) -> str:
        return "".join(calls)
