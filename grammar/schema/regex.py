"""Patterns: Python's reading of a regular expression as a small tree over character sets.

jsonschema judges with ``re.search``, so Python's parser decides what a pattern means. Where ECMA
262 and Python differ (``\\d``, ``\\w``, ``\\s``, the newline that ``$`` lets by), the tree takes
what both take; with ``wide`` it takes what either takes, for patterns that are negated.
"""

import re
import re._constants as sre
import re._parser as sre_parser
from dataclasses import dataclass
from typing import Any

from grammar.schema import charset
from grammar.schema.hashing import hashed_once


class Unsupported(Exception):
    """No regular language of ours: a backreference, a boundary, a lookaround in the middle."""


@hashed_once
@dataclass(frozen=True)
class Chars:
    """One character of a set."""

    ranges: charset.Ranges


@hashed_once
@dataclass(frozen=True)
class Seq:
    """One after the other."""

    parts: tuple[Any, ...]


@hashed_once
@dataclass(frozen=True)
class Alt:
    """One of these."""

    options: tuple[Any, ...]


@hashed_once
@dataclass(frozen=True)
class Repeat:
    """``low`` to ``high`` times; None for no end."""

    part: Any
    low: int
    high: int | None


@dataclass(frozen=True)
class Anchor:
    """``^`` or ``$``."""

    end: bool


@dataclass(frozen=True)
class Look:
    """A lookahead, which counts only at the very start."""

    part: Any
    negative: bool


@dataclass(frozen=True)
class Found:
    """A pattern in the sense of ``re.search``, as languages of whole strings.

    A string matches if it is in ``language``, in all of ``also`` and in none of ``never``.
    """

    language: Any
    also: tuple[Any, ...] = ()
    never: tuple[Any, ...] = ()


@hashed_once
@dataclass(frozen=True)
class Except:
    """Every text but a few, sorted; kept as texts, since they may be long and many."""

    texts: tuple[str, ...]

    def steps(self) -> dict[str, str]:
        """For each beginning of a text, the characters that lead to a longer one.

        A beginning comes before those that are longer.
        """
        found: dict[str, str] = {"": ""}
        for text in self.texts:
            for i, char in enumerate(text):
                if text[: i + 1] not in found:
                    found[text[: i + 1]] = ""
                    found[text[:i]] += char
        return found


NOTHING = Alt(())
EMPTY = Seq(())
ANY_CHAR = Chars(charset.ANY)
ANY_TEXT = Repeat(ANY_CHAR, 0, None)


def found(pattern: str, *, wide: bool = False) -> tuple[Found, ...]:
    """The whole strings in which ``re.search`` finds a pattern, as a union.

    Raises:
        Unsupported: it has no such language, or does not parse.
    """
    try:
        tree = sre_parser.parse(pythonic(pattern))
    except (re.error, OverflowError, RecursionError, ValueError) as error:
        raise Unsupported(f"it does not parse: {error}") from None
    try:
        node = _Reader(tree.state.flags, wide).sequence(tree)
        return tuple(_search(parts, wide) for parts in _branches(node))
    except RecursionError:
        raise Unsupported("it nests too deeply") from None


def literal(text: str) -> Seq:
    """The language of one text."""
    return Seq(tuple(Chars(charset.of(c)) for c in text))


def pythonic(pattern: str) -> str:
    """The pattern with what ECMA 262 allows as Python spells it; ``re`` takes no other."""
    if "(?<" not in pattern and "\\/" not in pattern:
        return pattern
    pattern = re.sub(r"\(\?<([A-Za-z_]\w*)>", r"(?P<\1>", pattern)
    return re.sub(r"(?<!\\)((?:\\\\)*)\\/", r"\1/", pattern)


class _Reader:
    def __init__(self, flags: int, wide: bool) -> None:
        self.flags, self.wide = flags, wide

    def sequence(self, tree: Any, flags: int | None = None) -> Any:
        flags = self.flags if flags is None else flags
        parts = [self.node(op, arg, flags) for op, arg in tree]
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def node(self, op: Any, arg: Any, flags: int) -> Any:
        if op is sre.LITERAL:
            return self.chars(((arg, arg),), flags)
        if op is sre.NOT_LITERAL:
            return Chars(charset.complement(self.chars(((arg, arg),), flags).ranges))
        if op is sre.ANY:
            return ANY_CHAR if flags & re.DOTALL else Chars(charset.complement(((10, 10),)))
        if op is sre.IN:
            return self.set(arg, flags)
        if op is sre.BRANCH:
            return Alt(tuple(self.sequence(tree, flags) for tree in arg[1]))
        if op is sre.SUBPATTERN:
            _, add, drop, tree = arg
            return self.sequence(tree, (flags | add) & ~drop)
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            low, high, tree = arg
            part = self.sequence(tree, flags)
            if _has_assertion(part):
                raise Unsupported("an anchor or lookaround is repeated")
            return Repeat(part, low, None if high is sre.MAXREPEAT else high)
        if op is sre.AT:
            return self.anchor(arg, flags)
        if op in (sre.ASSERT, sre.ASSERT_NOT):
            direction, tree = arg
            if direction < 0:
                raise Unsupported("it looks behind")
            negative = op is sre.ASSERT_NOT
            reader = _Reader(self.flags, not self.wide) if negative else self
            return Look(reader.sequence(tree, flags), negative)
        raise Unsupported(f"it uses {str(op).lower()}")

    def anchor(self, where: Any, flags: int) -> Any:
        if flags & re.MULTILINE:
            raise Unsupported("it is read line by line")
        if where in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
            return Anchor(end=False)
        if where is sre.AT_END_STRING:
            return Anchor(end=True)
        if where is sre.AT_END:
            return Anchor(end=True)
        raise Unsupported("it uses a word boundary")

    def chars(self, ranges: charset.Ranges, flags: int) -> Chars:
        ranges = charset.intersect(ranges, charset.ANY)
        if flags & re.IGNORECASE:
            ranges = charset.fold(ranges)
        return Chars(ranges)

    def set(self, items: Any, flags: int) -> Chars:
        negated = items[0][0] is sre.NEGATE
        ranges: list[tuple[int, int]] = []
        for op, arg in items[1:] if negated else items:
            if op is sre.LITERAL:
                ranges.append((arg, arg))
            elif op is sre.RANGE:
                ranges.append(arg)
            elif op is sre.CATEGORY:
                ranges.extend(self.category(arg, larger=self.wide != negated))
            else:
                raise Unsupported(f"a class holds {str(op).lower()}")
        chars = self.chars(charset.union(ranges), flags)
        return Chars(charset.complement(chars.ranges)) if negated else chars

    def category(self, category: Any, larger: bool) -> charset.Ranges:
        """The set of a class escape: the larger or the smaller of the readings."""
        negative = category in (
            sre.CATEGORY_NOT_DIGIT,
            sre.CATEGORY_NOT_WORD,
            sre.CATEGORY_NOT_SPACE,
        )
        if negative:
            larger = not larger
        if category in (sre.CATEGORY_DIGIT, sre.CATEGORY_NOT_DIGIT):
            chars = charset.unicode_class(r"\d") if larger else charset.ASCII_DIGIT
        elif category in (sre.CATEGORY_WORD, sre.CATEGORY_NOT_WORD):
            chars = charset.unicode_class(r"\w") if larger else charset.ASCII_WORD
        elif category in (sre.CATEGORY_SPACE, sre.CATEGORY_NOT_SPACE):
            feff = ((0xFEFF, 0xFEFF),)
            chars = charset.union([*charset.SPACE, *feff]) if larger else charset.COMMON_SPACE
        else:
            raise Unsupported("it uses an unknown class")
        return charset.complement(chars) if negative else chars


def _has_assertion(node: Any) -> bool:
    match node:
        case Anchor() | Look():
            return True
        case Seq(parts):
            return any(map(_has_assertion, parts))
        case Alt(options):
            return any(map(_has_assertion, options))
        case Repeat(part):
            return _has_assertion(part)
    return False


def _branches(node: Any, limit: int = 200) -> list[list[Any]]:
    """The node as a union of sequences whose anchors and lookarounds stand at top level."""
    if not _has_assertion(node):
        return [[node]]
    if isinstance(node, Alt):
        found = [branch for option in node.options for branch in _branches(option)]
    elif isinstance(node, Seq):
        found = [[]]
        for part in node.parts:
            found = [a + b for a in found for b in _branches(part)]
            if len(found) > limit:
                raise Unsupported("its anchors stand in too many places")
    else:
        return [[node]]
    if len(found) > limit:
        raise Unsupported("its anchors stand in too many places")
    return found


def nullable(node: Any) -> bool:
    """Whether the language holds the empty string."""
    match node:
        case Chars():
            return False
        case Seq(parts):
            return all(map(nullable, parts))
        case Alt(options):
            return any(map(nullable, options))
        case Repeat(part, low):
            return low == 0 or nullable(part)
    return True


def _search(parts: list[Any], wide: bool) -> Found:
    """One branch: strip its anchors, or let any text stand where there is none."""
    first = last = False
    also: list[Any] = []
    never: list[Any] = []
    body: list[Any] = []
    impossible = False
    for part in parts:
        if isinstance(part, Look):
            inner = _branches(part.part)
            if body and not all(nullable(p) and p == EMPTY for p in body):
                raise Unsupported("it looks ahead in the middle")
            if not first:
                raise Unsupported("it looks ahead without ^ before")
            looked = Alt(tuple(_ahead(branch) for branch in inner))
            (never if part.negative else also).append(looked)
        elif isinstance(part, Anchor) and part.end:
            last = True
        elif isinstance(part, Anchor):
            if body:
                if not all(map(nullable, body)):
                    impossible = True
                body = []
            first = True
        else:
            if last:
                if wide:
                    raise Unsupported("it goes on after $")
                if not nullable(part):
                    impossible = True
                continue
            body.append(part)
    if impossible:
        return Found(NOTHING)
    if not first:
        body.insert(0, ANY_TEXT)
    if not last:
        body.append(ANY_TEXT)
    elif wide:
        body.append(Repeat(Chars(((10, 10),)), 0, 1))
    return Found(Seq(tuple(body)), tuple(also), tuple(never))


def _ahead(parts: list[Any]) -> Any:
    if any(isinstance(p, Look) or (isinstance(p, Anchor) and not p.end) for p in parts):
        raise Unsupported("a lookahead holds another, or ^")
    ends = bool(parts) and isinstance(parts[-1], Anchor)
    if any(isinstance(p, Anchor) for p in parts[:-1]):
        raise Unsupported("a lookahead has $ in the middle")
    body = tuple(parts[:-1] if ends else parts)
    return Seq(body if ends else (*body, ANY_TEXT))
