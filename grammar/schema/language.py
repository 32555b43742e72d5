"""Languages of strings: the intersection of patterns, formats, lengths and excluded texts."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grammar.schema import regex
from grammar.schema.automaton import Dfa, intersection, matches, to_tree
from grammar.schema.hashing import hashed_once
from grammar.schema.limits import OutOfMoves, TooMuch
from grammar.schema.regex import ANY_CHAR, Alt, Chars, Repeat, Seq

_KEPT = 256
"""Languages whose automata, or trees, are remembered: more than a schema has."""


@hashed_once
@dataclass(frozen=True)
class Language:
    """A set of strings, as what has to hold of each.

    Attributes:
        trees: languages that a string is in, all of them.
        never: languages that it is in none of.
        low, high: its length in code points; ``high`` None for no end.
    """

    trees: frozenset[Any] = frozenset()
    never: frozenset[Any] = frozenset()
    low: int = 0
    high: int | None = None

    def __and__(self, other: "Language") -> "Language":
        highs = [h for h in (self.high, other.high) if h is not None]
        return Language(
            self.trees | other.trees,
            self.never | other.never,
            max(self.low, other.low),
            min(highs) if highs else None,
        )

    @property
    def free(self) -> bool:
        """Whether every string is in it."""
        return self == ANYTHING

    @property
    def impossible(self) -> bool:
        """Whether no string is in it, as far as can be told at once."""
        if self.high is not None and self.high < self.low:
            return True
        if regex.NOTHING in self.trees:
            return True
        if not self.never and len(self.trees) + (self.low > 0 or self.high is not None) <= 1:
            return False
        try:
            return _dfa(self).empty
        except TooMuch:
            return False

    def has(self, text: str) -> bool:
        """Whether a string is in it.

        Raises:
            TooMuch: it cannot be told.
        """
        if len(text) < self.low or (self.high is not None and len(text) > self.high):
            return False
        return all(matches(t, text) for t in self.trees) and not any(
            matches(t, text) for t in self.never
        )


ANYTHING = Language()


def of_pattern(pattern: str) -> Language:
    """The strings in which ``re.search`` finds the pattern.

    Raises:
        regex.Unsupported: that is no regular language of ours.
    """
    return _as_language(regex.found(pattern))


def not_pattern(pattern: str) -> list[Language]:
    """The strings in which ``re.search`` does not find the pattern, as a union.

    Raises:
        regex.Unsupported: that is no regular language of ours.
    """
    branches = regex.found(pattern, wide=True)
    if not any(b.also or b.never for b in branches):
        return [Language(never=frozenset(b.language for b in branches))]
    if len(branches) > 1:
        raise regex.Unsupported("it is negated and looks ahead in one branch of several")
    (branch,) = branches
    return [Language(never=frozenset([t])) for t in (branch.language, *branch.also)] + [
        Language(frozenset([t])) for t in branch.never
    ]


def _as_language(branches: Sequence[regex.Found]) -> Language:
    if len(branches) == 1:
        (b,) = branches
        return Language(frozenset([b.language, *b.also]), frozenset(b.never))
    trees = []
    for b in branches:
        if b.also or b.never:
            try:
                trees.append(to_tree(intersection([b.language, *b.also], b.never)))
            except TooMuch:
                raise regex.Unsupported("it looks ahead in one branch of several") from None
        else:
            trees.append(b.language)
    return Language(frozenset([Alt(tuple(trees))]))


def of_texts(texts: Sequence[str]) -> Language:
    """Exactly these strings."""
    return Language(frozenset([Alt(tuple(regex.literal(t) for t in texts))]))


def without_texts(texts: Sequence[str]) -> Language:
    """Every string but these."""
    return Language(frozenset([regex.Except(tuple(sorted(texts)))])) if texts else ANYTHING


def _dfa(language: Language) -> Dfa:
    found = _dfa_or_reason(language)
    if isinstance(found, str):
        raise TooMuch(found)
    return found


@functools.lru_cache(_KEPT)
def _dfa_or_reason(language: Language) -> Dfa | str:
    try:
        return _build(language)
    except OutOfMoves:
        # Not to be remembered: it says nothing about the language.
        raise
    except TooMuch as error:
        # Not the error itself: it would keep all that was built before it gave up.
        return str(error)


def _build(language: Language) -> Dfa:
    wanted = list(language.trees)
    if language.low or language.high is not None or not wanted:
        wanted.append(Repeat(ANY_CHAR, language.low, language.high))
    return intersection(wanted, list(language.never))


@functools.lru_cache(_KEPT)
def tree_of(language: Language) -> Any:
    """One tree for the whole language.

    Raises:
        TooMuch: there is none of reasonable size.
    """
    bounded = language.low > 0 or language.high is not None
    if not language.never and len(language.trees) <= 1:
        if not language.trees:
            return Repeat(ANY_CHAR, language.low, language.high)
        (tree,) = language.trees
        if not bounded:
            return tree
        measured = _measured(tree, language.low, language.high)
        if measured is not None:
            return measured
    return to_tree(_dfa(language))


def dfa_of(language: Language) -> Dfa:
    """The automaton of a language.

    Raises:
        TooMuch: it is too large.
    """
    return _dfa(language)


def _lengths(node: Any) -> tuple[int, int | None]:
    match node:
        case Chars():
            return 1, 1
        case regex.Except():
            return 0, None
        case Seq(parts):
            low, high = 0, 0
            for part in parts:
                a, b = _lengths(part)
                low, high = low + a, None if b is None or high is None else high + b
            return low, high
        case Alt(options):
            spans = [_lengths(o) for o in options]
            if not spans:
                return 0, 0
            highs = [b for _, b in spans]
            return min(a for a, _ in spans), None if None in highs else max(highs)
        case Repeat(part, low, high):
            a, b = _lengths(part)
            return a * low, 0 if b == 0 else None if b is None or high is None else b * high
    raise AssertionError(node)


def _measured(tree: Any, low: int, high: int | None) -> Any | None:
    """The tree with its length held to bounds by changing one count in each of its branches.

    None where no single count carries the length: then it takes an automaton.
    """
    shortest, longest = _lengths(tree)
    if shortest >= low and (high is None or (longest is not None and longest <= high)):
        return tree
    if (longest is not None and longest < low) or (high is not None and shortest > high):
        return regex.NOTHING
    match tree:
        case Chars():
            return None
        case Alt(options):
            held = [_measured(o, low, high) for o in options]
            return None if None in held else Alt(tuple(h for h in held if h != regex.NOTHING))
        case Repeat(Chars() as part, least, most):
            highs = [h for h in (most, high) if h is not None]
            return Repeat(part, max(least, low), min(highs) if highs else None)
        case Repeat(part, 0, 1):
            inner = _measured(part, low, high)
            if inner is None:
                return None
            if inner == regex.NOTHING:
                return regex.EMPTY
            return Repeat(inner, 0, 1) if low <= 0 else inner
        case Seq(parts):
            loose = [i for i, p in enumerate(parts) if len(set(_lengths(p))) > 1]
            if len(loose) != 1:
                return None
            fixed = sum(_lengths(p)[0] for i, p in enumerate(parts) if i != loose[0])
            part = _measured(
                parts[loose[0]], max(0, low - fixed), None if high is None else high - fixed
            )
            if part is None:
                return None
            return Seq((*parts[: loose[0]], part, *parts[loose[0] + 1 :]))
    return None
