"""Formats whose calls stand in a section, each a head and a JSON object between markers."""

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from grammar.formats import json_text
from grammar.formats.base import Format
from grammar.formats.message import Malformed, MessageBuilder, open_suffix


class SectionFormat(Format):
    """Section opener, calls, section closer; the scanner that such formats share.

    Attributes:
        section_begins, section_ends: the marker, and others that some checkpoints write for it.
        call_begin, call_end: around one call.
        inner_markers: between the parts of a call.
        head: from just after ``call_begin`` up to where the arguments start.
        head_so_far: what more text may complete to a head.
        tail: what may stand between the arguments and ``call_end``; also a part of it.
    """

    section_begins: ClassVar[tuple[str, ...]]
    section_ends: ClassVar[tuple[str, ...]]
    call_begin: ClassVar[str]
    call_end: ClassVar[str]
    inner_markers: ClassVar[tuple[str, ...]]
    head: ClassVar[re.Pattern[str]]
    head_so_far: ClassVar[re.Pattern[str]]
    tail: ClassVar[re.Pattern[str]] = re.compile(r"\s*")

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._section_markers = (
            *self.section_begins,
            *self.section_ends,
            self.call_begin,
            self.call_end,
            *self.inner_markers,
        )
        self._marker = re.compile("|".join(map(re.escape, self._section_markers)))

    @abstractmethod
    def _read_call(
        self,
        head: re.Match[str],
        raw: str,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        mended: list[str],
    ) -> tuple[str, str, str]:
        """Id, name and arguments of a call; what had to be mended goes to ``mended``.

        Args:
            raw: the arguments as written, ``""`` where there are none.

        Raises:
            Malformed: it is no call.
        """

    def _scan(
        self,
        text: str,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        *,
        final: bool = True,
    ) -> int:
        pos = 0
        while marker := self._marker.search(text, pos):
            between, kind = text[pos : marker.start()], marker.group()
            ahead = text[marker.end() :].lstrip() if kind in self.section_begins else ""
            if not out.in_block:
                out.text(between)
            elif between.strip():
                out.malformed(between, "text between the calls of a section")
            pos = marker.end()
            if kind == self.call_begin:
                stop = self._scan_call(text, marker.start(), parameters, out, final)
                if stop is None:
                    return marker.start()
                pos = stop
            elif kind in self.section_begins and not out.in_block:
                if self.call_begin.startswith(ahead):
                    if not final:
                        return marker.start()
                    out.incomplete(kind + ahead, "the text stops before the first call")
                    return len(text)
                out.in_block = ahead.startswith(self.call_begin)
                if out.in_block:
                    out.boundary()
                else:
                    out.malformed(kind, "a section without a call")
            elif kind in self.section_ends and out.in_block:
                out.in_block = False
                out.boundary()
            else:
                out.malformed(kind, "a marker out of place")
        rest = text[pos:]
        if not final:
            if out.in_block:
                return pos
            end = len(text) - open_suffix(rest, self._section_markers)
            out.text(text[pos:end])
            return end
        follows = (*self.section_ends, self.call_begin)
        if out.in_block and any(m.startswith(rest.strip()) for m in follows):
            broken_off = out.problems and out.problems[-1].kind == "incomplete"
            if not broken_off:
                out.repaired(rest, f"{self.section_ends[0]} is missing")
        else:
            out.text(rest)
        return len(text)

    def _scan_call(
        self,
        text: str,
        start: int,
        parameters: Mapping[str, Any] | None,
        out: MessageBuilder,
        final: bool,
    ) -> int | None:
        """End of the call that begins at ``start``; None where more text must decide."""
        inside = start + len(self.call_begin)
        head = self.head.match(text, inside)
        body = head.end() if head else inside
        if not head:
            end, state = body, "open" if self.head_so_far.fullmatch(text, inside) else "broken"
        elif text.startswith(("{", '"'), body):
            end, state = json_text.value_end(text, body)
        elif text.startswith(self.call_end, body):
            end, state = body, "complete"
        else:
            end, state = body, "open" if self.call_end.startswith(text[body:]) else "broken"
        after = self.tail.match(text, end).end()

        ends = (self.call_end, self.call_begin, *self.section_ends)
        if state == "complete" and text.startswith(ends, after):
            closed = text.startswith(self.call_end, after)
            stop = after + len(self.call_end) if closed else after
            mended = [] if out.in_block else ["a call outside a section"]
            mended += [] if closed else [f"{self.call_end} is missing"]
            try:
                call = self._read_call(head, text[body:end], parameters, out, mended)
            except Malformed as error:
                out.malformed(text[start:stop], str(error))
                return stop
            if mended:
                out.repaired(text[start:stop], "; ".join(mended))
            out.call(*call, start, stop)
            return stop

        stop = self._region_end(text, inside)
        cut_off = head and any(m.startswith(text[after:]) for m in ends)
        unfinished = state == "open" or cut_off
        if not final and (unfinished or stop is None):
            return None
        if stop is None and unfinished:
            out.incomplete(text[start:], "the text stops inside a call")
            return len(text)
        stop = len(text) if stop is None else stop
        out.malformed(text[start:stop], "no head and JSON object between the markers")
        return stop

    def _region_end(self, text: str, inside: int) -> int | None:
        """End of the span that a broken call takes up: its end, or where the next one begins."""
        for marker in self._marker.finditer(text, inside):
            if marker.group() == self.call_end:
                return marker.end()
            if marker.group() not in self.inner_markers:
                return marker.start()
        return None
