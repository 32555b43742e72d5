"""Patterns looked for in texts, in bounded time.

A user writes the pattern, and a user or a model the text. ``re`` would hold the whole process for
as long as their backtracking takes; ``regex`` gives up in time, and lets other threads go on
meanwhile. What it reads otherwise than ``re`` is escaped, so that a pattern means here what it
means to jsonschema, but for these:

* JavaScript's named groups and ``\\p{...}``, which ``re`` calls errors, are read;
* combining marks are parts of words (``\\w``, ``\\b``), and U+001C to U+001F no space (``\\s``);
* in a verbose pattern, ``(?x)``, nothing is escaped.
"""

import functools
import re

import regex

from grammar import deadline
from grammar.deadline import OutOfTime

SECONDS = 1.0
"""How long one pattern may take on one text."""

_KEPT = 2**12
"""Characters of a pattern, beyond which it is not remembered compiled."""

# A named character, an escape, a class, or a brace that counts nothing. Each takes what it can, an
# end or none: no pattern is read twice.
_PART = re.compile(
    r"\\[pPN]\{[^}]*+\}?|\\[\s\S]|(\[\^?\]?)((?:\\[\s\S]|[^\\\]])*+)|\{(?!\d+\}|\d*,\d*\})"
)
_IN_CLASS = re.compile(r"\\[\s\S]|\[")
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")


def found(pattern: str, text: str) -> bool:
    """Whether ``re.search`` finds a pattern.

    Raises:
        OutOfTime: it took longer than `SECONDS`, or the deadline around it is over.
        regex.error: it is no pattern.
    """
    deadline.check()
    limit = deadline.current()
    seconds = SECONDS if limit is None else min(SECONDS, limit.left())
    try:
        match = _compiled(pattern).search(text, timeout=max(seconds, 1e-3), concurrent=True)
    except TimeoutError:
        deadline.check()
        raise OutOfTime(
            f"the pattern {_short(pattern)} took more than {SECONDS:g} s on {_short(text)}"
        ) from None
    return match is not None


def _compiled(pattern: str) -> regex.Pattern:
    return (_remembered if len(pattern) <= _KEPT else _compile)(pattern)


def _compile(pattern: str) -> regex.Pattern:
    return regex.compile(_plain(pattern), cache_pattern=False)


_remembered = functools.lru_cache(maxsize=512)(_compile)


def _plain(pattern: str) -> str:
    """The pattern without what only ``regex`` gives a meaning: ``{e}``, ``[[:alpha:]]``."""
    # Of those that span lines a comment may hold a bracket.
    return pattern if _VERBOSE.search(pattern) else _PART.sub(_escaped, pattern)


def _escaped(part: re.Match[str]) -> str:
    if part[1]:
        return part[1] + _IN_CLASS.sub(lambda m: "\\[" if m[0] == "[" else m[0], part[2])
    return "\\{" if part[0] == "{" else part[0]


def _short(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}..."
