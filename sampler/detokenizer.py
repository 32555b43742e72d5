"""Tokens to text as they come, without reading all of them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_HALF = "\ufffd"


class Detokenizer:
    """The text of tokens, in pieces that no later token changes.

    But for Llama's decoder, which gives up on a whole run of bytes if a part of it is no character.

    Each piece is what the newest tokens add to the text of the few before them: some tokenizers
    write a token otherwise at the start of a text.

    Args:
        decode: token ids to text.

    Attributes:
        open: the text behind the last piece: of a character whose bytes have not all come.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        # The text of the ids before this one has been given.
        self._read = 0
        self.open = ""

    def add(self, ids: Sequence[int]) -> str:
        """The piece that these tokens settle, perhaps none."""
        self._ids += ids
        known = self._decode(self._ids[: self._read])
        text = self._decode(self._ids)
        self.open = text[len(known) :]
        # A character whose bytes have not all come decodes to this one.
        if text.endswith(_HALF) or not self.open:
            return ""
        piece, self.open = self.open, ""
        self._ids = self._ids[self._read :]
        self._read = len(self._ids)
        return piece


class StopTexts:
    """Looks out for texts that end a completion, a token at a time.

    Args:
        stops: the texts, at least one.
        decode: token ids to text.
    """

    def __init__(self, stops: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        self._stops, self._text = stops, Detokenizer(decode)
        self._longest = max(map(len, stops))
        self._end = ""

    def reached(self, ids: Sequence[int]) -> bool:
        """Whether these tokens bring one of the texts, or the last character of one."""
        seen = self._end + self._text.add(ids)
        self._end = seen[max(0, len(seen) - self._longest + 1) :]
        return any(stop in seen + self._text.open for stop in self._stops)
