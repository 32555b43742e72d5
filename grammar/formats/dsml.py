"""DeepSeek V3.2, V4 and V4.1: a block of ``invoke`` tags in DSML, DeepSeek's markup.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="get_weather">
    <｜DSML｜parameter name="city" string="true">Bern</｜DSML｜parameter>
    <｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

V4 calls the block ``tool_calls``; V4.1 calls it `` calls`` and starts its other tag names with a
space too. The attribute ``string`` says what a value is, so the schema is not asked: a string is
the text as it stands, anything else is JSON. Every tag holds the one token ``｜DSML｜``, which is
what tool choice none forbids.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xgrammar.structural_tag import ConstStringFormat, RegexFormat, SequenceFormat

from grammar.formats import json_text
from grammar.formats.base import NAME_PATTERN, Format, Tool
from grammar.formats.message import Malformed
from grammar.formats.xml_calls import Body, FlatXml
from grammar.formats.xml_values import Declared

DSML = "｜DSML｜"


class Dsml(FlatXml):
    """What the versions have in common; ``block`` and ``space`` are what differs."""

    banned = (DSML,)
    openers = (f"<{DSML}", DSML)
    string_excludes = (DSML,)
    next_closes = True

    def __init_subclass__(cls, block: str, space: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        tag = f"{DSML}{space}"
        cls.block = (f"<{DSML}{block}>", f"</{DSML}{block}>")
        cls.head = f"<{tag}invoke"
        cls.call_close = f"</{tag}invoke>"
        cls.call_open = re.compile(
            rf'{cls.head}\s+name="(?P<name>{NAME_PATTERN})"\s*(?P<empty>/)?>'
        )
        cls.call_so_far = re.compile(rf"{cls.head}[^>\n]*")
        cls.parameter_head = f"<{tag}parameter"
        cls.parameter_open = re.compile(
            rf'{cls.parameter_head}\s+name="(?P<key>[^"\n]+)"'
            r'(?:\s+string="(?P<string>true|false)")?\s*>'
        )
        cls.parameter_so_far = re.compile(rf"{cls.parameter_head}[^>\n]*")
        cls.parameter_close = f"</{tag}parameter>"
        cls.markers = (
            DSML,
            *cls.block,
            cls.head,
            cls.call_close,
            cls.parameter_head,
            cls.parameter_close,
            Format.start_of_thinking,
            Format.end_of_thinking,
        )

    parameter_head: ClassVar[str]

    def _can_write_key(self, key: str) -> bool:
        return bool(key) and '"' not in key and "\n" not in key

    def _render_call(self, position: int, name: str, arguments: str) -> str:
        inner = "".join(f"{p}\n" for p in self._render_arguments(name, arguments))
        return f'{self.head} name="{name}">\n{inner}{self.call_close}'

    def _render_parameter(self, key: str, text: str, *, is_string: bool) -> str:
        form = "true" if is_string else "false"
        return f'{self.parameter_head} name="{key}" string="{form}">{text}{self.parameter_close}'

    def _ends_early(self, text: str) -> bool:
        return self.call_close in text or super()._ends_early(text)

    def _state_at(self, text: str, at: int, members: Sequence[Any]) -> str:
        if self.parameter_head.startswith(text[at:]):
            return "open"
        return super()._state_at(text, at, members)

    def _read_body(self, text: str, pos: int, declared: Declared, final: bool) -> Body:
        at = json_text.skip_whitespace(text, pos)
        if text.startswith("{", at):
            return self._read_object(text, at)
        return super()._read_body(text, pos, declared, final)

    def _read_object(self, text: str, at: int) -> Body:
        """A call with one JSON object for all its parameters, as V3.2 writes at times."""
        end, state = json_text.value_end(text, at)
        after = json_text.skip_whitespace(text, end)
        if state == "open" or self.call_close.startswith(text[after:]):
            return Body("open", len(text))
        if state == "broken" or not text.startswith(self.call_close, after):
            return Body("broken", after)
        try:
            json_text.loads(text[at:end])
        except ValueError as error:
            raise Malformed(f"the arguments are not JSON: {error}") from None
        members = list(json_text.members(text[at:end]))
        stop = after + len(self.call_close)
        return Body("complete", stop, members, ["a JSON object instead of parameters"])

    def _arguments(self, name: str, body: Body, parameters: Mapping[str, Any] | None) -> str:
        # Some checkpoints put everything into one parameter called `arguments`.
        known = Declared((parameters or {}).get(name) or {}).properties
        if len(body.members) == 1 and known and "arguments" not in known:
            key, value = body.members[0]
            if key == "arguments" and value.startswith("{"):
                body.members = list(json_text.members(value))
                body.mended.append("all parameters in one called 'arguments'")
        return super()._arguments(name, body, parameters)

    def _amend(self, node: Any, tools: Sequence[Tool]) -> Any:
        # A calls block ends the turn: nothing after it under required, and in V4 under auto too.
        # xgrammar has required and named start with exactly two newlines. They are what follows
        # text or thinking; where thinking is done they may have been written already.
        return with_optional_newlines(node)


def with_optional_newlines(node: Any) -> Any:
    """Let the newlines that a sequence starts with be absent."""
    if isinstance(node, SequenceFormat) and isinstance(node.elements[0], ConstStringFormat):
        first = node.elements[0]
        bare = first.value.lstrip("\n")
        newlines = RegexFormat(pattern=rf"\n{{0,{len(first.value) - len(bare)}}}")
        node.elements = [newlines, ConstStringFormat(value=bare), *node.elements[1:]]
    return node


class DeepSeekV32(Dsml, block="function_calls"):
    """DeepSeek V3.2."""

    name = "deepseek_v3_2"
    style = "deepseek_v3_2"


class DeepSeekV4(Dsml, block="tool_calls"):
    """DeepSeek V4."""

    name = "deepseek_v4"
    style = "deepseek_v4"


class DeepSeekV41(Dsml, block=" calls", space=" "):
    """DeepSeek V4.1."""

    name = "deepseek_v4_1"
    style = "deepseek_v4_1"
