"""A completion read piece by piece: the parser of every format, and its stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from grammar.formats.message import MessageBuilder, Parsed, open_suffix, parameters_by_name
from grammar.schema.judge import Patience

if TYPE_CHECKING:
    from grammar.formats.base import Format


@dataclass(frozen=True)
class Delta:
    """What a piece of text added to the message, as OpenAI streams it.

    Attributes:
        content, reasoning_content: text to append.
        tool_calls: calls that have been completed, each whole, with its ``index``. Arguments are
            not streamed in parts: a call that is later broken off would already be half executed.
    """

    content: str = ""
    reasoning_content: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning_content or self.tool_calls)


class StreamParser:
    """Reads one completion, in pieces cut anywhere.

    The deltas, put together, are the message of ``parsed``, which is the same for every way of
    cutting the text. Text is passed on as soon as nothing that may follow can change it.

    Args:
        format, tools, reasoning, answer, any_tool, calls: see ``Format.parse``.

    Attributes:
        parsed: the ``Parsed`` completion, once ``finish`` has been called.
    """

    def __init__(
        self,
        format: Format,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        reasoning: bool = False,
        answer: bool = False,
        any_tool: bool = False,
        calls: bool = True,
    ) -> None:
        self.parsed: Parsed | None = None
        self._format = format
        self._parameters = parameters_by_name(tools, any_tool=any_tool) if calls else {}
        self._verbatim = not calls and format.bare_content
        self._banned = format.banned if calls else ()
        self._reasoning, self._answer = reasoning, answer and format.bare_content
        self._out = MessageBuilder()
        self._phase: Literal["start", "thinking", "gap", "answer", "content"] = "start"
        self._tail = ""
        self._patience = Patience()
        self._sent_content = self._sent_calls = self._sent_reasoning = 0
        self._thought_so_far = ""
        self._longest = max(map(len, (*format.markers, *format.settling)), default=0)

    def feed(self, piece: str) -> Delta:
        """Take the next piece of the completion."""
        before = len(self._tail)
        self._tail += piece
        if self._may_settle(before):
            with self._patience.kept():
                self._advance(final=False)
        return self._delta()

    def finish(self, rest: str = "") -> Delta:
        """Take the last piece; nothing follows it."""
        self._tail += rest
        with self._patience.kept():
            self._advance(final=True)
        self.parsed = self._out.finish()
        return self._delta()

    def _may_settle(self, before: int) -> bool:
        # What is held back beyond a marker's length is a call: only a marker can end it, and
        # reading it anew at every piece would cost the square of its length.
        if self._phase != "answer" or before <= self._longest:
            return True
        new = self._tail[max(0, before - self._longest) :]
        return any(marker in new for marker in self._format.settling)

    def _advance(self, *, final: bool) -> None:
        if self._phase == "start":
            self._start(final)
        if self._phase == "thinking":
            self._think(final)
        if self._phase == "gap":
            self._drop(len(self._tail) - len(self._tail.lstrip()))
            if self._tail:
                self._phase = "answer"
        if self._phase == "answer" and self._verbatim:
            self._phase = "content"
        if self._phase == "answer" and self._answer:
            self._tell_answer(final)
        if self._phase == "content":
            self._out.text(self._tail)
            self._drop(len(self._tail))
        if self._phase == "answer" and not self._answer:
            self._drop(self._format._scan(self._tail, self._parameters, self._out, final=final))

    def _drop(self, count: int) -> None:
        self._tail = self._tail[count:]
        self._out.offset += count

    def _start(self, final: bool) -> None:
        opener = self._format.start_of_thinking
        text = self._tail.lstrip()
        if opener is None:
            self._phase = "answer"
        elif text.startswith(opener):
            self._drop(len(self._tail) - len(text) + len(opener))
            self._phase = "thinking"
        elif final or not opener.startswith(text):
            self._phase = "thinking" if self._reasoning else "answer"

    def _tell_answer(self, final: bool) -> None:
        """Whether this is a call, or an answer whose strings may spell anything."""
        text, openers = self._tail.lstrip(), self._format.openers
        if text.startswith(openers):
            self._answer = False
        elif final or not any(opener.startswith(text) for opener in openers):
            self._phase = "content"

    def _think(self, final: bool) -> None:
        """Thinking stays in the tail until it is closed, or else the text is over."""
        out, closer, text = self._out, self._format.end_of_thinking, self._tail
        thought, closed, _ = text.partition(closer)
        if closed:
            out.reasoning = thought.strip("\n")
            self._drop(len(thought) + len(closer))
            self._phase = "gap"
            return
        banned = self._banned
        at = min((i for i in map(text.find, banned) if i >= 0), default=len(text))
        if not final:
            safe = text[: min(at, len(text) - open_suffix(text, (closer, *banned)))]
            self._thought_so_far = safe.strip("\n")
            return
        detail = f"thinking is not closed by {closer}"
        out.reasoning = text[:at].strip("\n")
        out.repaired(text[:at], f"{detail}; the call after it ends it")
        self._drop(at)
        self._format._scan(self._tail, self._parameters, out, final=True)
        if not out.calls:
            out = self._out = MessageBuilder()
            out.reasoning = text.strip("\n")
            out.incomplete(text, detail)
        self._tail, self._phase = "", "answer"

    def _delta(self) -> Delta:
        out = self._out
        content = "".join(out.content[self._sent_content :])
        self._sent_content = len(out.content)
        calls = out.calls[self._sent_calls :]
        numbered = tuple({"index": self._sent_calls + i, **call} for i, call in enumerate(calls))
        self._sent_calls = len(out.calls)
        thought = self._thought_so_far if out.reasoning is None else out.reasoning
        reasoning = thought[self._sent_reasoning :]
        self._sent_reasoning = len(thought)
        return Delta(content, reasoning, numbered)
