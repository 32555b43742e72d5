"""A tree over characters, written as a pattern that means the same to xgrammar and to jsonschema.

xgrammar (0.2.9) matches a pattern against the text between the quotes, and reads little more than
classes, groups and counts. So no class here holds a character that JSON escapes, nothing but ``^``
and ``$`` at the ends is an assertion, and every set is spelled out.
"""

from typing import Any

from grammar.schema import charset
from grammar.schema.limits import TooMuch
from grammar.schema.regex import Alt, Chars, Except, Repeat, Seq

RAW = charset.subtract(charset.ANY, charset.union([(0, 31), (34, 34), (92, 92)]))
"""Characters that stand for themselves in a JSON string."""

MAX_WEIGHT = 520
"""Classes that the counts of a pattern add; xgrammar's time grows with their square."""


MAX_NESTING = 250
"""Characters of a key that is to be left out: each is a group within the one before."""


def pattern(tree: Any) -> str | None:
    """The anchored pattern of a tree, without the strings that need an escape.

    Returns:
        It, or None where every string needs an escape.

    Raises:
        TooMuch: its counts are too large for xgrammar.
    """
    if _weight(tree) - _weight(tree, counts=False) > MAX_WEIGHT:
        raise TooMuch("the counts of a pattern")
    written = _write(tree)
    if written is None:
        return None
    return f"^(?:{written})$" if _choice(tree) else f"^{written}$"


def _choice(tree: Any) -> bool:
    return isinstance(tree, Alt) and len(tree.options) != 1


def _weight(node: Any, counts: bool = True) -> int:
    match node:
        case Seq(parts) | Alt(parts):
            return sum(_weight(part, counts) for part in parts)
        case Repeat(part, low, high):
            return _weight(part, counts) * (max(low, high or 1, 1) if counts else 1)
    return 1


def _write(node: Any) -> str | None:
    """The pattern, or None where no string is left."""
    match node:
        case Chars(ranges):
            raw = charset.intersect(ranges, RAW)
            return _class(raw) if raw else None
        case Seq(parts):
            written = [_write(p) for p in parts]
            if None in written:
                return None
            return "".join(
                f"(?:{w})" if _choice(p) else w for p, w in zip(parts, written, strict=True)
            )
        case Alt(options):
            written = [w for w in map(_write, options) if w is not None]
            return "|".join(dict.fromkeys(written)) if written else None
        case Except():
            return _all_but(node)
        case Repeat(part, low, high):
            inner = _write(part)
            if inner is None or high == 0:
                return None if low else ""
            if inner == "":
                return ""
            if not isinstance(part, Chars):
                inner = f"(?:{inner})"
            return inner + _count(low, high)
    raise AssertionError(node)


def _all_but(node: Except) -> str:
    """From the longest beginnings to the shortest: what may follow each."""
    if max(map(len, node.texts), default=0) > MAX_NESTING:
        raise TooMuch("a name that long")
    after: dict[str, str] = {}
    texts = frozenset(node.texts)
    for beginning, heads in reversed(node.steps().items()):
        options = [_class(charset.intersect(charset.other_than(heads), RAW)) + _class(RAW) + "*"]
        for head in heads:
            first = _write(Chars(charset.of(head)))
            rest = after.pop(beginning + head)
            if first is not None:
                options.append(first + rest)
        after[beginning] = f"(?:{'|'.join(options)}){'' if beginning in texts else '?'}"
    return after[""]


def _count(low: int, high: int | None) -> str:
    short = {(1, 1): "", (0, None): "*", (1, None): "+", (0, 1): "?"}
    if (low, high) in short:
        return short[low, high]
    if low == high:
        return f"{{{low}}}"
    return f"{{{low},{'' if high is None else high}}}"


def _class(ranges: charset.Ranges) -> str:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _one(ranges[0][0], r"\^$.*+?()[]{}|/")
    if ranges == RAW:
        return r'[^"\\\x00-\x1f]'
    inside = r"\]^[-"
    parts = [
        _one(low, inside)
        if low == high
        else f"{_one(low, inside)}{'-' if high > low + 1 else ''}{_one(high, inside)}"
        for low, high in ranges
    ]
    return f"[{''.join(parts)}]"


def _one(code: int, special: str) -> str:
    char = chr(code)
    if char in special:
        return "\\" + char
    if 32 <= code < 127 or (code > 0xFFFF and char.isprintable()):
        return char
    # Of \x xgrammar reads every hexadecimal digit that follows.
    return f"\\u{code:04x}" if code <= 0xFFFF else char
