"""DeepSeek before V3.2: a section of calls, each a name and a JSON object between markers.

V3.1 writes ``NAME<｜tool▁sep｜>{...}``. V3 and R1 write ``function<｜tool▁sep｜>NAME``, then the
object in a Markdown fence (the chat templates in the models' ``tokenizer_config.json``). Both are
read, whichever model it is.
"""

import re
from collections.abc import Mapping, Sequence
from string import Template
from typing import Any

from grammar.formats.base import NAME_PATTERN, Format
from grammar.formats.message import MessageBuilder, call_parts, check_name, read_arguments
from grammar.formats.section import SectionFormat

SECTION_BEGIN, SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"

_HEAD = (
    rf"\s*+(?:function\s*+{SEPARATOR}\s*+)?(?P<name>{NAME_PATTERN})"
    rf"\s*+(?:{SEPARATOR}\s*+)?(?:```(?:json)?\s*+)?"
)
_PART = r"(?:[<｜a-z▁]*+>?)?+"  # of a marker


class DeepSeekV31(SectionFormat):
    """DeepSeek V3.1."""

    name = "deepseek_v3_1"
    style = "deepseek_v3_1"
    markers = (
        SECTION_BEGIN,
        SECTION_END,
        CALL_BEGIN,
        CALL_END,
        SEPARATOR,
        Format.start_of_thinking,
        Format.end_of_thinking,
    )
    string_excludes = ("｜tool▁",)
    banned = (SECTION_BEGIN, CALL_BEGIN)
    section_begins, section_ends = (SECTION_BEGIN,), (SECTION_END,)
    call_begin, call_end = CALL_BEGIN, CALL_END
    inner_markers = (SEPARATOR,)
    head = re.compile(rf'{_HEAD}(?=[{{"]|{CALL_END})')
    head_so_far = re.compile(
        rf"\s*+[A-Za-z0-9_.-]*+\s*+{_PART}"
        rf"\s*+[A-Za-z0-9_.-]*+\s*+{_PART}\s*+(?:`{{1,3}}[json]*+)?+\s*+{_PART}"
    )
    tail = re.compile(r"\s*+`{0,3}\s*+")
    layout = f"{CALL_BEGIN}$name{SEPARATOR}$arguments{CALL_END}"
    between = ""

    def render(self, calls: Sequence[Mapping[str, Any]]) -> str:
        if not calls:
            return ""
        parts = [
            Template(self.layout).substitute(name=name, arguments=arguments)
            for name, arguments, _ in map(call_parts, calls)
        ]
        return SECTION_BEGIN + self.between.join(parts) + SECTION_END

    def _read_call(
        self,
        head: re.Match[str],
        raw: str,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        mended: list[str],
    ) -> tuple[str, str, str]:
        name = check_name(head["name"], parameters)
        known = parameters is not None
        arguments, how = read_arguments(raw, parameters[name] if known else None, known=known)
        mended += [how] if how else []
        return f"call_{len(out.calls)}", name, arguments


class DeepSeekR1(DeepSeekV31):
    """DeepSeek V3 and R1: the object in a Markdown fence."""

    name = "deepseek_r1"
    style = "deepseek_r1"
    layout = f"{CALL_BEGIN}function{SEPARATOR}$name\n```json\n$arguments\n```{CALL_END}"
    between = "\n"
