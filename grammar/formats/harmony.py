"""Harmony (gpt-oss): messages on channels, a call among them by its recipient.

``<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>``

Analysis is thinking; final is content, and so is commentary without a recipient. The prompt ends
with ``<|start|>assistant``, and every message after the first begins with it. ``<|call|>`` and
``<|return|>`` end a turn: they may be stop tokens, which never reach the text. So a call is whole
once its object is closed and a marker follows, or nothing (developers.openai.com/cookbook, the
harmony response format; the chat template of openai/gpt-oss-120b).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from xgrammar.structural_tag import (
    AnyTextFormat,
    ConstStringFormat,
    GrammarFormat,
    JSONSchemaFormat,
    OptionalFormat,
    OrFormat,
    SequenceFormat,
    StarFormat,
    StructuralTag,
    TagFormat,
)

from grammar.formats import json_text
from grammar.formats.base import Format, Tool
from grammar.formats.message import (
    Malformed,
    MessageBuilder,
    call_parts,
    check_name,
    open_suffix,
    read_arguments,
)

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
CONSTRAIN, CALL, END, RETURN = "<|constrain|>", "<|call|>", "<|end|>", "<|return|>"
NEXT = f"{START}assistant"
FUNCTIONS = "functions."

_PART = re.compile("|".join(map(re.escape, (START, CHANNEL, CALL, END, RETURN))))
_ANY = re.compile("|".join(map(re.escape, (START, CHANNEL, MESSAGE, CONSTRAIN, CALL, END, RETURN))))
_TO = r"\s*+to=(?P<{}>[^\s<]++)"
_HEADER = re.compile(
    rf"\s*+(?:<\|start\|>\s*+assistant)?(?:{_TO.format('first')})?"
    rf"\s*+<\|channel\|>\s*+(?P<channel>[a-z]++)(?:{_TO.format('second')})?"
    r"(?:\s*+(?:<\|constrain\|>)?\s*+[^\s<]++)?\s*+<\|message\|>"
)
_HEADER_SO_FAR = re.compile(
    r"\s*+(?:<\|start\|>\s*+assistant)?(?:\s*+to=[^\s<]++)?"
    r"(?:\s*+<\|channel\|>\s*+[a-z]++(?:\s*+to=[^\s<]++)?(?:\s*+(?:<\|constrain\|>)?\s*+[^\s<]++)?)?"
    r"\s*+(?:<\|?[a-z]*\|?|<\|start\|>\s*+[a-z]*|<\|(?:channel|constrain)\|>\s*+|t|to|to=)?"
)


class Harmony(Format):
    """gpt-oss."""

    name = "harmony"
    style = "harmony"
    markers = (START, CHANNEL, MESSAGE, CONSTRAIN, CALL, END, RETURN)
    # All seven markers are control tokens. Compiled from their whole texts, a tag takes 4.8 s for
    # Qwen3.6's vocabulary instead of 0.4 s.
    string_excludes = ("<|",)
    banned = (f"to={FUNCTIONS}", CALL)
    start_of_thinking = end_of_thinking = None
    bare_content = False

    def structural_tag(
        self,
        tools: Sequence[Tool],
        *,
        tool_choice: Literal["auto", "required", "named"],
        parallel_tool_calls: bool = True,
        reasoning: bool = False,
        **options: Any,
    ) -> StructuralTag:
        """xgrammar's messages, put together anew.

        The model thinks whenever it likes, so analysis is always allowed and ``reasoning`` changes
        nothing. A required call cannot be left out, as it can in xgrammar's. The space before
        ``<|constrain|>`` that the documentation shows is allowed, and so are commentary for the
        user, and a last message that ends with the text.
        """
        built = super().structural_tag(tools, tool_choice=tool_choice, **options)
        arguments = {
            tag.begin: tag.content
            for tag in built.format.tags
            if isinstance(tag.content, JSONSchemaFormat | GrammarFormat)
        }
        calls = [_call(tool.name, arguments) for tool in tools]
        ended_call = SequenceFormat(elements=[OrFormat(elements=calls), _text(CALL)])
        last_call = SequenceFormat(
            elements=[OrFormat(elements=calls), OptionalFormat(content=_text(CALL))]
        )
        auto = tool_choice == "auto"
        headers = _MESSAGE_HEADERS if auto else _MESSAGE_HEADERS[:1]
        earlier: list[Any] = [self._message(header, END, RETURN) for header in headers]
        if parallel_tool_calls and tool_choice != "named":
            earlier.append(ended_call)
        last: list[Any] = [self._message(header, END, RETURN, "") for header in headers[1:]]
        before = StarFormat(
            content=SequenceFormat(elements=[OrFormat(elements=earlier), _text(NEXT)])
        )
        end = OrFormat(elements=[*last, last_call]) if auto else last_call
        return StructuralTag(format=SequenceFormat(elements=[before, end]))

    def answer(self, node: Any) -> Any:
        """Analysis, as much as the model likes, and ``node`` as the final message."""
        analysis = self._message(_MESSAGE_HEADERS[0], END, RETURN)
        thinking = StarFormat(content=SequenceFormat(elements=[analysis, _text(NEXT)]))
        last = TagFormat(begin=_MESSAGE_HEADERS[-1], content=node, end=[END, RETURN, ""])
        return SequenceFormat(elements=[thinking, last])

    def _message(self, header: str, *ends: str) -> TagFormat:
        text = AnyTextFormat(excludes=list(self.markers))
        return TagFormat(begin=header, content=text, end=list(ends))

    def render(self, calls: Sequence[Mapping[str, Any]]) -> str:
        return NEXT.join(
            f"{CHANNEL}commentary to={FUNCTIONS}{name} {CONSTRAIN}json{MESSAGE}{arguments}{CALL}"
            for name, arguments, _ in map(call_parts, calls)
        )

    def _scan(
        self,
        text: str,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        *,
        final: bool = True,
    ) -> int:
        """``out.in_block``: False at the start, then ``analysis``, ``content`` or ``outside``."""
        pos = 0
        while True:
            header = None
            if out.in_block is False:
                header = _HEADER.match(text, pos)
                if not header and _HEADER_SO_FAR.fullmatch(text, pos):
                    if not final:
                        return pos
                    if f"to={FUNCTIONS}" in text or "<" in text:
                        out.incomplete(text, "the text stops inside a header")
                        return len(text)
            elif out.in_block in ("analysis", "content"):
                marker = _PART.search(text, pos)
                end = marker.start() if marker else len(text)
                if not marker and not final:
                    end -= open_suffix(text[pos:], (START, CHANNEL, CALL, END, RETURN))
                _body(text[pos:end], out)
                if not marker:
                    if final and out.in_block == "analysis":
                        out.incomplete(CHANNEL, f"thinking is not ended by {END}")
                    return end
                pos = marker.end()
                if marker[0] == CALL:
                    out.malformed(CALL, "no call before it")
                elif marker[0] in (START, CHANNEL):
                    pos = marker.start()
                out.in_block = "outside"
                out.boundary()
                continue
            if not header:
                out.in_block = "outside"
                marker = _ANY.search(text, pos)
                end = marker.start() if marker else len(text)
                if not marker and not final:
                    end -= open_suffix(text[pos:], self.markers)
                out.text(text[pos:end])
                if not marker:
                    return end
                pos = end
                header = _HEADER.match(text, pos)
                if not header and _HEADER_SO_FAR.fullmatch(text, pos):
                    if not final:
                        return pos
                    out.incomplete(text[pos:], "the text stops inside a header")
                    return len(text)
            if not header:
                pos = marker.end()
                out.malformed(marker[0], "a marker out of place")
            elif header["first"] or header["second"]:
                stop = _scan_call(text, header, parameters, out, final)
                if stop is None:
                    return pos
                out.in_block, pos = "outside", stop
            else:
                out.boundary()
                analysis = header["channel"] == "analysis"
                out.in_block, pos = "analysis" if analysis else "content", header.end()
                if analysis:
                    out.reasoning = "" if out.reasoning is None else out.reasoning + "\n"


_MESSAGE_HEADERS = tuple(
    f"{CHANNEL}{name}{MESSAGE}" for name in ("analysis", "commentary", "final")
)


def _text(value: str) -> ConstStringFormat:
    return ConstStringFormat(value=value)


def _call(name: str, arguments: Mapping[str, Any]) -> SequenceFormat:
    """The headers that call a tool, then its arguments."""
    own = [begin for begin in arguments if f"to={FUNCTIONS}{name}<" in begin]
    spaced = own[0].replace(CONSTRAIN, f" {CONSTRAIN}")
    headers = OrFormat(elements=[_text(header) for header in dict.fromkeys([*own, spaced])])
    return SequenceFormat(elements=[headers, arguments[own[0]]])


def _body(text: str, out: MessageBuilder) -> None:
    if out.in_block == "analysis":
        out.reasoning += text
    else:
        out.text(text)


def _scan_call(
    text: str,
    header: re.Match[str],
    parameters: Mapping[str, Any] | None,
    out: MessageBuilder,
    final: bool,
) -> int | None:
    """End of the call that ``header`` opens; None where more text must decide."""
    start = header.start()
    body = json_text.skip_whitespace(text, header.end())
    if text.startswith("{", body):
        end, state = json_text.value_end(text, body)
    elif text.startswith(CALL, body):
        end, state = body, "complete"
    else:
        end, state = body, "open" if CALL.startswith(text[body:]) else "broken"
    after = json_text.skip_whitespace(text, end)
    marker = _PART.match(text, after)
    cut_off = state == "complete" and any(
        m.startswith(text[after:]) for m in (START, CHANNEL, CALL, END, RETURN)
    )

    if state == "complete" and (marker or (final and cut_off and end > body)):
        if marker is None:
            stop = len(text)
        else:
            stop = end if marker[0] in (START, CHANNEL) else marker.end()
        mended = [] if marker is None or marker[0] == CALL else [f"{CALL} is missing"]
        if header["channel"] != "commentary":
            mended.append(f"a call on the channel {header['channel']}")
        try:
            recipient = header["first"] or header["second"]
            if not recipient.startswith(FUNCTIONS):
                raise Malformed(f"the recipient {recipient!r} is no function")
            name = check_name(recipient.removeprefix(FUNCTIONS), parameters)
            known = parameters is not None
            schema = parameters[name] if known else None
            arguments, how = read_arguments(text[body:end], schema, known=known)
        except Malformed as error:
            out.malformed(text[start:stop], str(error))
            return stop
        mended += [how] if how else []
        if mended:
            out.repaired(text[start:stop], "; ".join(mended))
        out.call(f"call_{len(out.calls)}", name, arguments, start, stop)
        return stop

    region = _PART.search(text, header.end())
    unfinished = state == "open" or cut_off
    if not final and (unfinished or region is None):
        return None
    if region is None and unfinished:
        out.incomplete(text[start:], "the text stops inside a call")
        return len(text)
    if region is None:
        stop = len(text)
    else:
        stop = region.start() if region[0] in (START, CHANNEL) else region.end()
    out.malformed(text[start:stop], "no JSON object in the message")
    return stop
