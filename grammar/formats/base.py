"""What a tool-call format knows: its grammar, its markers, how calls are written and read back.

A new format is one file with one subclass of ``Format``, or of ``MarkedJson`` or ``SectionFormat``
where its calls look like theirs. The grammar comes from xgrammar's builder of the style named by
``style``; what differs from it is in ``Format.structural_tag``, for all formats at once:

* whitespace between JSON tokens is bounded, and so are the digits of a call's index, since a model
  may otherwise write them until its budget is spent;
* the format's markers cannot occur in free text, nor in JSON strings unless that would cost a
  constraint of the schema (see ``_excludable``);
* thinking is free text up to ``end_of_thinking``, then optional whitespace.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import xgrammar
from xgrammar.structural_tag import (
    AnyTextFormat,
    GrammarFormat,
    JSONSchemaFormat,
    RegexFormat,
    SequenceFormat,
    StructuralTag,
    TagFormat,
    TriggeredTagsFormat,
)

from grammar.formats.message import NAME_PATTERN, MessageBuilder, Parsed
from grammar.formats.stream import StreamParser

MAX_WHITESPACE = 2
"""Whitespace characters in a row, between JSON tokens; indented JSON needs more (8 is ample)."""

__all__ = ["MAX_WHITESPACE", "NAME_PATTERN", "Format", "Tool"]

_INDEX = r"[0-9]{1,4}"
_AFTER_THINKING = r"[ \t\r\n]{0,4}"


@dataclass(frozen=True)
class Tool:
    """A tool as the grammar sees it.

    Attributes:
        name: matches ``NAME_PATTERN``.
        schema: JSON Schema of the arguments, the one to be enforced; its root is an object.
        grammar: EBNF of the arguments as JSON text, to be enforced in place of the schema; only in
            formats of ``json_strings``.
    """

    name: str
    schema: Mapping[str, Any]
    grammar: str | None = None


class Format(ABC):
    """One family of tool-call syntax.

    Args:
        name: what this instance is called, where the family has several names.
    """

    name: str
    style: ClassVar[str | None]
    """xgrammar's name for the style; None where no grammar describes the format."""
    markers: ClassVar[tuple[str, ...]]
    """Texts with a meaning in this format. A vocabulary may hold any of them as one token, and
    that token must keep its text (see ``grammar.tokenizer``)."""
    string_excludes: ClassVar[tuple[str, ...]] = ()
    """Texts kept out of JSON strings, for parsers that cut a call at the first marker (ours do
    not). Few, short, and not starting with a common character: each costs every string of every
    schema a set of masks over the whole vocabulary."""
    banned: ClassVar[tuple[str, ...]]
    """Texts that start a call: forbidden, however spelled, when no call is allowed."""
    start_of_thinking: ClassVar[str | None] = "<think>"
    end_of_thinking: ClassVar[str | None] = "</think>"
    """None, both: there is no thinking, or it is written in the format's own way and its scanner
    reads it."""
    json_strings: ClassVar[bool] = True
    """Strings of arguments are written as JSON writes them, and not as plain text."""
    bare_content: ClassVar[bool] = True
    """A message without calls is its content and nothing else."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name or type(self).name

    @property
    def openers(self) -> tuple[str, ...]:
        """How a completion that is calls and not an answer begins."""
        return self.banned

    @property
    def settling(self) -> tuple[str, ...]:
        """Texts that may settle a call which a stream holds back: what can end it."""
        return self.markers

    def structural_tag(
        self,
        tools: Sequence[Tool],
        *,
        tool_choice: Literal["auto", "required", "named"],
        parallel_tool_calls: bool = True,
        reasoning: bool = False,
        max_whitespace_cnt: int = MAX_WHITESPACE,
    ) -> StructuralTag | None:
        """The grammar of a whole completion, or None where the format has none.

        Args:
            tools: not empty, and exactly one for ``named``.
            tool_choice: ``auto`` text and any number of calls; ``required`` at least one call, and
                no text before it; ``named`` exactly one call and nothing else.
            parallel_tool_calls: False allows one call, and nothing after it.
            reasoning: the prompt has opened a think block.
            max_whitespace_cnt: whitespace characters in a row between JSON tokens, at least 1.
        """
        tag = self._build(
            tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            max_whitespace_cnt=max_whitespace_cnt,
        )
        if tag is None:
            return None
        for node in _nodes(tag.format):
            if isinstance(node, JSONSchemaFormat):
                excludable = _excludable(node.json_schema, self.string_excludes)
                node.excludes = list(self.string_excludes) if excludable else []
            elif isinstance(node, TriggeredTagsFormat):
                node.excludes = _free_text_excludes(node, self.markers)
            elif isinstance(node, AnyTextFormat):
                node.excludes = list(dict.fromkeys([*node.excludes, *self.markers]))
            elif isinstance(node, RegexFormat) and node.pattern == r"\d+":
                node.pattern = _INDEX
        _write_grammars(tag.format, {_key(t.schema): t.grammar for t in tools if t.grammar})
        return self.completion(tag.format, reasoning=reasoning)

    def _build(
        self,
        tools: Sequence[Tool],
        *,
        tool_choice: Literal["auto", "required", "named"],
        parallel_tool_calls: bool,
        max_whitespace_cnt: int,
    ) -> StructuralTag | None:
        """xgrammar's own grammar of the style, None where there is none."""
        if self.style is None:
            return None
        if tool_choice == "named":
            choice = {"type": "function", "function": {"name": tools[0].name}}
        else:
            choice = tool_choice
        return xgrammar.get_model_structural_tag(
            self.style,
            tools=[
                {"type": "function", "function": {"name": t.name, "parameters": dict(t.schema)}}
                for t in tools
            ],
            tool_choice=choice,
            reasoning="disabled",
            max_whitespace_cnt=max_whitespace_cnt,
            parallel_tool_calls=parallel_tool_calls,
        )

    def ban(self, *, reasoning: bool = False) -> StructuralTag | None:
        """Any text in which no call can start, thinking included; None where nothing is known.

        It holds for the marker's own token and for its text spelled from smaller ones alike.
        """
        if not self.banned:
            return None
        thinking = filter(None, (self.start_of_thinking, self.end_of_thinking))
        text = AnyTextFormat(excludes=[*self.banned, *thinking])
        if reasoning and self.end_of_thinking:
            return self._after_thinking(text, excludes=self.banned)
        return StructuralTag(format=text)

    def answer(self, node: Any) -> Any:
        """The grammar of a message whose content is ``node``."""
        return node

    def completion(self, node: Any, *, reasoning: bool = False) -> StructuralTag:
        """The grammar of a completion that is ``node``, after thinking if any."""
        if reasoning and self.end_of_thinking:
            return self._after_thinking(node)
        return StructuralTag(format=node)

    def _after_thinking(self, rest: Any, excludes: Sequence[str] = ()) -> StructuralTag:
        thinking = TagFormat(
            begin="", content=AnyTextFormat(excludes=list(excludes)), end=self.end_of_thinking
        )
        gap = RegexFormat(pattern=_AFTER_THINKING)
        return StructuralTag(format=SequenceFormat(elements=[thinking, gap, rest]))

    def call_id(self, name: str, index: int) -> str | None:
        """The id that the model knows a call in the history by, or None where any will do.

        Args:
            name: of the tool.
            index: of the call among all of the conversation, from 0.
        """
        return None

    @abstractmethod
    def render(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """The calls as the model would write them; ``parse`` reads the same calls back.

        Args:
            calls: OpenAI tool calls; ``arguments`` is a JSON string (or a mapping).
        """

    def parse(
        self,
        text: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        reasoning: bool = False,
        answer: bool = False,
        any_tool: bool = False,
        calls: bool = True,
    ) -> Parsed:
        """Read a completion back into a message.

        It takes what models write, not only what the grammar allows. Text that cannot be read as a
        call stays content and is reported; a call that the text breaks off is dropped and reported.
        A call counts only once its own end has been written, so no cut of a completion can turn
        into a call that the model had not finished.

        Args:
            text: detokenised with special tokens kept, the end-of-turn token removed.
            tools: OpenAI tools of the request. Given, a call of any other tool is malformed.
            reasoning: the prompt had opened a think block. A block that the text opens itself, at
                its start, needs no flag. A call inside a closed block is no call; where the block
                is never closed, the first call ends it.
            answer: the request had a ``response_format``. Then a text that does not start with a
                call holds none, whatever its strings spell.
            any_tool: a call of a tool that is not among ``tools`` is a call as well; ``tools`` then
                says only of what types their arguments are.
            calls: False: nothing is a call, as under tool_choice none; what looks like one is
                content, word for word. Of a format that writes content between markers of its own
                (not ``bare_content``) those are left out, as ever.
        """
        stream = StreamParser(
            self, tools, reasoning=reasoning, answer=answer, any_tool=any_tool, calls=calls
        )
        stream.finish(text)
        return stream.parsed

    @abstractmethod
    def _scan(
        self,
        text: str,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        *,
        final: bool = True,
    ) -> int:
        """Feed what is settled of ``text``, which has no think block, to ``out``.

        A stream calls it again and again, each time with the text from where the last call
        stopped; all that it has to remember is ``out.in_block``.

        Args:
            parameters: tool name to its schema, or None where no tools were given.
            final: nothing follows ``text``, so all of it is settled. False: stop before anything
                that could be read otherwise once more text has come.

        Returns:
            How many characters are settled.
        """


def _nodes(node: Any) -> Iterator[Any]:
    """A format and all formats that it is put together from."""
    yield node
    for field in ("elements", "tags", "content"):
        children = getattr(node, field, [])
        for child in children if isinstance(children, list) else [children]:
            yield from _nodes(child)


def _key(schema: Any) -> str:
    return json.dumps(schema, sort_keys=True)


def _write_grammars(root: Any, grammars: Mapping[str, str]) -> None:
    """Put grammars in the place of the schemas that they stand for."""

    def written(node: Any) -> Any:
        grammar = (
            grammars.get(_key(node.json_schema)) if isinstance(node, JSONSchemaFormat) else None
        )
        return node if grammar is None else GrammarFormat(grammar=grammar)

    for node in list(_nodes(root)) if grammars else ():
        if hasattr(node, "content"):
            node.content = written(node.content)
        if hasattr(node, "elements"):
            node.elements = [written(child) for child in node.elements]


def _free_text_excludes(node: TriggeredTagsFormat, markers: Sequence[str]) -> list[str]:
    # An exclusion that a trigger holds would make every call impossible.
    free = [m for m in markers if not any(m in t for t in node.triggers)]
    return list(dict.fromkeys([*node.excludes, *free]))


def _excludable(schema: Any, texts: Sequence[str]) -> bool:
    # xgrammar drops the length bounds of strings that it filters, and removes constants, enum
    # members and keys that hold an excluded text. The schema comes first.
    text = json.dumps(schema, ensure_ascii=False)
    return not any(word in text for word in ('"minLength"', '"maxLength"', *texts))
