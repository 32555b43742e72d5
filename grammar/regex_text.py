"""A regular expression as a grammar of plain text.

xgrammar (0.2.9) has a reader of its own, which lets by what Python's ``re`` does not: ``.`` is also
a newline, an anchor inside the pattern is nothing. Here a pattern means what it means in
``grammar.schema``: every text that the grammar takes is one that ``re.fullmatch`` takes, and
``\\d``, ``\\w`` and ``\\s`` are ASCII, which is what Python and ECMA 262 agree on.
"""

import re
from typing import Any

from grammar.schema import Options, charset
from grammar.schema.grammar_text import quoted
from grammar.schema.language import of_pattern, tree_of
from grammar.schema.limits import Budget, TooMuch
from grammar.schema.regex import Alt, Chars, Repeat, Seq, Unsupported

_FLAGS = re.compile(r"(?:\(\?[aimsux]+\))?")


def grammar_of(pattern: str) -> str:
    """EBNF of the texts that match a pattern as a whole; its root is ``root``.

    Raises:
        ValueError: the pattern does not parse, matches nothing, or is not regular as far as can be
            told (backreferences, word boundaries, some lookarounds); the message is a clause
            about "it".
    """
    flags = _FLAGS.match(pattern).group()
    try:
        with Budget(Options()):
            tree = tree_of(of_pattern(f"{flags}^(?:{pattern[len(flags) :]})$"))
            written = _written(tree)
    except Unsupported as error:
        raise ValueError(str(error)) from None
    except TooMuch as error:
        raise ValueError(f"it is too large: {error}") from None
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    if written is None:
        raise ValueError("it matches no text")
    return f"root ::= {written}"


def _written(node: Any) -> str | None:
    """The right side of a rule, or None where there is no text to match."""
    match node:
        case Chars(ranges):
            return _class(ranges) if ranges else None
        case Seq(parts):
            written = [_grouped(part) for part in _merged(parts)]
            return None if None in written else " ".join(written) or '""'
        case Alt(options):
            written = [w for w in map(_grouped, options) if w is not None]
            return " | ".join(dict.fromkeys(written)) or None
        case Repeat(part, low, high):
            inner = _grouped(part)
            if inner is None or high == 0:
                return None if low else '""'
            return f"{inner}{{{low},{'' if high is None else high}}}"
        case str():
            return quoted(node)
    raise AssertionError(node)


def _merged(parts: tuple[Any, ...]) -> list[Any]:
    """The parts, with single characters in a row made one text."""
    merged: list[Any] = []
    for part in parts:
        single = isinstance(part, Chars) and len(part.ranges) == 1
        if not (single and part.ranges[0][0] == part.ranges[0][1]):
            merged.append(part)
        elif merged and isinstance(merged[-1], str):
            merged[-1] += chr(part.ranges[0][0])
        else:
            merged.append(chr(part.ranges[0][0]))
    return merged


def _grouped(node: Any) -> str | None:
    written = _written(node)
    return written if written is None or isinstance(node, Chars | str) else f"({written})"


def _class(ranges: charset.Ranges) -> str:
    spans = (_code(a) if a == b else f"{_code(a)}-{_code(b)}" for a, b in ranges)
    return f"[{''.join(spans)}]"


def _code(code: int) -> str:
    if code < 128 and chr(code).isalnum():
        return chr(code)
    # Of \x xgrammar reads every hexadecimal digit that follows.
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
