"""What a parsed completion is: an OpenAI message, and apart from it what was wrong with it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grammar.formats import json_text

NAME_PATTERN = r"[A-Za-z0-9_.-]{1,64}"
"""Names are pasted into the envelope unescaped, so they may hold nothing that needs escaping."""


@dataclass(frozen=True)
class Problem:
    """One thing a parser had to decide against the letter of the text.

    Attributes:
        kind: ``"incomplete"``: the text stops inside it; dropped, neither a call nor content.
            ``"malformed"``: no call can be read; the text stays in the content.
            ``"repaired"``: an executable call, read from text that the format does not allow.
        text: the piece of the completion concerned.
        detail: one sentence fragment saying what is wrong with it.
    """

    kind: Literal["incomplete", "malformed", "repaired"]
    text: str
    detail: str


@dataclass(frozen=True)
class Parsed:
    """A completion read back.

    Attributes:
        message: an OpenAI assistant message: ``role``, ``content`` (``""`` where there is none),
            ``tool_calls`` (absent without calls; ``arguments`` is a JSON string, always of an
            object) and ``reasoning_content`` (absent without a think block).
        problems: in the order of the text. A message without any is just what was written.
        spans: of each call, where it stands in the text: its first character and the one after its
            last, markers included.
    """

    message: dict[str, Any]
    problems: tuple[Problem, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The calls of the message, an empty list where it has none."""
        return self.message.get("tool_calls", [])


class MessageBuilder:
    """Collects the pieces of a completion in order; ``finish`` returns the ``Parsed``.

    What has been added is never taken back, so that a stream can pass it on at once.

    Attributes:
        content: the content so far, in pieces; whitespace that may turn out to be layout is not
            yet in it.
        in_block: for scanners: the block they are in, such as a section of calls; False at first.
        offset: for scanners: where the text that is being scanned starts in the completion.
    """

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.problems: list[Problem] = []
        self.content: list[str] = []
        self.reasoning: str | None = None
        self.in_block: bool | str = False
        self.offset = 0
        self._spans: list[tuple[int, int]] = []
        self._bounded = False
        # Whitespace at the end of the current segment, and of the last one that was not blank.
        self._blank = self._gap = ""
        self._segment_has_text = False

    def text(self, text: str) -> None:
        """Content."""
        run = self._blank + text
        written = run.rstrip()
        self._blank = run[len(written) :]
        if written:
            self.content.append(self._gap + written)
            self._gap, self._segment_has_text = "", True

    def boundary(self) -> None:
        """A marker that is layout: whitespace alone between two of them is no content."""
        if self._segment_has_text:
            self._gap = self._blank
        self._blank, self._segment_has_text, self._bounded = "", False, True

    def call(self, call_id: str, name: str, arguments: str, start: int, stop: int) -> None:
        """An executable call.

        Args:
            arguments: the JSON text of an object.
            start, stop: where it stands in the text that is being scanned.
        """
        function = {"name": name, "arguments": arguments}
        self.calls.append({"id": call_id, "type": "function", "function": function})
        self._spans.append((self.offset + start, self.offset + stop))
        self.boundary()

    def repaired(self, text: str, detail: str) -> None:
        """A call that was read although the format does not allow how it is written."""
        self.problems.append(Problem("repaired", text, detail))

    def malformed(self, text: str, detail: str) -> None:
        """What looks like a call and is none: it stays content."""
        self.text(text)
        self.problems.append(Problem("malformed", text, detail))

    def incomplete(self, text: str, detail: str) -> None:
        """A call that the text breaks off: it is dropped."""
        self.boundary()
        self.problems.append(Problem("incomplete", text, detail))

    def finish(self) -> Parsed:
        """Nothing follows. Trailing whitespace is content only in a text without any marker."""
        if not self._bounded and self._blank:
            self.content.append(self._blank)
            self._blank = ""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.content)}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        return Parsed(message, tuple(self.problems), tuple(self._spans))


def open_suffix(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of ``text`` with which a marker may be starting; 0 for none."""
    longest = max(map(len, markers), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(marker.startswith(text[-size:]) and len(marker) > size for marker in markers):
            return size
    return 0


class Malformed(ValueError):
    """A call that cannot be read; its message is the ``detail`` of a ``Problem``."""


def check_name(name: Any, parameters: Mapping[str, Any] | None) -> str:
    """``name``, where it can be called.

    Raises:
        Malformed: no name, or of no tool of the request.
    """
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
        raise Malformed("no tool name")
    if parameters is not None and name not in parameters:
        raise Malformed(f"the request has no tool {name!r}")
    return name


def read_arguments(
    raw: str, parameters: Mapping[str, Any] | None, *, known: bool
) -> tuple[str, str | None]:
    """The arguments of a call as the JSON text of an object.

    Args:
        raw: text of the value as written; empty where the model wrote none.
        parameters: the tool's JSON Schema, or None where it declares none.
        known: whether the tool is known at all; without that, missing arguments are not ``{}``.

    Returns:
        The JSON text, ``raw`` itself wherever it already is one, and what was mended or None.

    Raises:
        Malformed: anything that is not an object, or nothing where the tool takes arguments.
    """
    if raw in ("", "null"):
        if (
            known
            and not (parameters or {}).get("properties")
            and not (parameters or {}).get("required")
        ):
            return "{}", "no arguments written for a tool that takes none"
        raise Malformed("the call has no arguments")
    mended = None
    try:
        value = json_text.loads(raw)
    except ValueError:
        try:
            value = json_text.loads(raw, loose=True)
        except ValueError as error:
            raise Malformed(f"the arguments are not JSON: {error}") from None
        raw, mended = json_text.dumps(value), "raw control characters inside a JSON string"
    if isinstance(value, str):
        text, value, mended = value, None, "the arguments are a JSON text inside a JSON string"
        if not text.strip():
            return read_arguments("", parameters, known=known)
        try:
            value = json_text.loads(text)
        except ValueError as error:
            raise Malformed(f"the arguments are a string that holds no JSON: {error}") from None
        raw = text.strip() if json_text.is_utf8(text) else json_text.dumps(value)
    if not isinstance(value, dict):
        raise Malformed(f"the arguments are not an object but {type(value).__name__}")
    return raw, mended


def call_parts(call: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Name, arguments as JSON text, and id (or None) of one OpenAI tool call.

    ``arguments`` may also be a mapping; it is then written as ``json.dumps`` would.
    """
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json_text.dumps(arguments)
    return function["name"], arguments, call.get("id")


class _AnyTool(dict):
    """Tools by name, and every other name as a tool that declares nothing."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> None:
        return None


def parameters_by_name(
    tools: Sequence[Mapping[str, Any]] | None, *, any_tool: bool = False
) -> dict[str, Any] | None:
    """Tool name to ``parameters`` (None where undeclared), or None where no list was given.

    Args:
        any_tool: names that are not among the tools are there all the same.
    """
    if tools is None:
        return None
    functions = [t["function"] for t in tools if isinstance(t.get("function"), Mapping)]
    named = {f["name"]: f.get("parameters") for f in functions}
    return _AnyTool(named) if any_tool else named
