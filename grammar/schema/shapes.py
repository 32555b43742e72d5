"""Shapes: what a schema allows of one JSON type, and the meet of two of them.

A schema is read as a union of shapes. The children of a shape are conjunctions, sets of places in
the schema that all have to hold; they are read only when they are needed, so recursion ends.
"""

import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from grammar.schema.hashing import hashed_once
from grammar.schema.language import ANYTHING, Language
from grammar.schema.result import Reason


@hashed_once
@dataclass(frozen=True)
class Item:
    """One place in a schema, or its negation.

    Attributes:
        key: identity of the schema object.
        base: URI that its references are relative to.
        positive: False for the values that the schema refuses.
        schema: the object or boolean itself.
        pointer: where it stands in the original.
        order: rank of its first use, so that a conjunction is always read in one order.
    """

    key: int
    base: str
    positive: bool
    schema: Any = field(compare=False, repr=False)
    pointer: str = field(compare=False)
    order: int = field(compare=False, repr=False)


Conj = frozenset[Item]
TRUE: Conj = frozenset()
_NO_SCHEMA = False
FALSE: Conj = frozenset([Item(0, "", True, _NO_SCHEMA, "", -1)])
Loose = frozenset[Reason]
"""Why a shape is wider than its schema; empty where it is not."""


def canonical(value: Any) -> str:
    """A text that two JSON values share exactly if JSON Schema calls them equal."""

    def plain(v: Any) -> Any:
        if isinstance(v, float) and v.is_integer():
            return int(v)
        if isinstance(v, list | tuple):
            return [plain(x) for x in v]
        if isinstance(v, dict):
            return {k: plain(x) for k, x in v.items()}
        return v

    return json.dumps(plain(value), sort_keys=True)


@hashed_once
@dataclass(frozen=True)
class Values:
    """Some values of any type, written out; true, false and null are always written out.

    Attributes:
        texts: their canonical texts, without repeats, in the order of the schema.
    """

    texts: tuple[str, ...]
    loose: Loose = frozenset()

    @property
    def values(self) -> list[Any]:
        """The values themselves."""
        return [json.loads(t) for t in self.texts]


def values(items: Iterable[Any]) -> Values:
    """The shape of some values."""
    return Values(tuple(dict.fromkeys(map(canonical, items))))


@dataclass(frozen=True)
class Number:
    """Numbers between bounds; None for no bound.

    Attributes:
        step: every number is a multiple of it, or None; integers have an integral step.
        fractional: integers are not among them.
    """

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False
    step: Fraction | None = None
    fractional: bool = False
    loose: Loose = frozenset()

    @property
    def integral(self) -> bool:
        """Whether integers alone are in it."""
        return self.step is not None and self.step.denominator == 1

    def has(self, value: Any) -> bool:
        """Whether a number (not a boolean) is in it."""
        x = exact(value)
        if self.low is not None and (x < self.low or (self.low_open and x == self.low)):
            return False
        if self.high is not None and (x > self.high or (self.high_open and x == self.high)):
            return False
        if self.fractional and x.denominator == 1:
            return False
        return self.step is None or is_multiple(value, self.step)

    @property
    def empty(self) -> bool:
        """Whether no number is in it."""
        if self.fractional and self.integral:
            return True
        if self.low is None or self.high is None:
            return False
        if self.fractional and self.low == self.high and self.low.denominator == 1:
            return True
        if self.step is not None:
            first = math.ceil(self.low / self.step)
            first += self.low_open and first * self.step == self.low
            last = math.floor(self.high / self.step)
            last -= self.high_open and last * self.step == self.high
            return first > last
        return self.low > self.high or (self.low == self.high and (self.low_open or self.high_open))


def exact(number: Any) -> Fraction:
    """A JSON number as it is written, not as the nearest float."""
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def is_multiple(value: Any, step: Fraction) -> bool:
    """Whether jsonschema calls the value a multiple: it divides floats as floats."""
    if exact(value) % step:
        return False
    if step.denominator == 1 or isinstance(value, int):
        return True
    quotient = value / float(step)
    return math.isfinite(quotient) and int(quotient) == quotient


@dataclass(frozen=True)
class String:
    """The strings of a language."""

    language: Language = ANYTHING
    loose: Loose = frozenset()


@hashed_once
@dataclass(frozen=True)
class Array:
    """Arrays.

    Attributes:
        prefix: what holds at the first places, one conjunction each.
        items: what holds at the others.
        low, high: the number of items; ``high`` None for no end.
        unique: no two items are equal.
        contains: how many items a conjunction must hold for: ``(conj, low, high)``.
    """

    prefix: tuple[Conj, ...] = ()
    items: Conj = TRUE
    low: int = 0
    high: int | None = None
    unique: bool = False
    contains: tuple[tuple[Conj, int, int | None], ...] = ()
    loose: Loose = frozenset()

    def at(self, index: int) -> Conj:
        """What holds at a place."""
        return self.prefix[index] if index < len(self.prefix) else self.items


@hashed_once
@dataclass(frozen=True)
class Layer:
    """What one schema says of the keys that it does not declare.

    Attributes:
        patterns: ``(pattern, conj)``; every one that matches a key holds for its value.
        additional: holds for the values of keys that no pattern matches.
    """

    patterns: tuple[tuple[str, Conj], ...]
    additional: Conj


@hashed_once
@dataclass(frozen=True)
class Object:
    """Objects.

    Attributes:
        props: what holds for the value of each declared key, patterns included.
        required: keys that must be there; each is declared.
        layers: what holds for keys that are not declared, all of them.
        names: conjunction that every key has to satisfy.
        low, high: the number of keys; ``high`` None for no end.
        declares: whether a schema had ``properties``.
        says: whether a schema said what undeclared keys may hold.
    """

    props: tuple[tuple[str, Conj], ...] = ()
    required: frozenset[str] = frozenset()
    layers: tuple[Layer, ...] = ()
    names: Conj = TRUE
    low: int = 0
    high: int | None = None
    declares: bool = False
    says: bool = False
    loose: Loose = frozenset()

    @functools.cached_property
    def declared(self) -> dict[str, Conj]:
        """``props`` by key."""
        return dict(self.props)


Shape = Values | Number | String | Array | Object
Union = tuple[Shape, ...]
SCALARS = values([None, True, False])
EVERYTHING: Union = (SCALARS, Number(), String(), Array(), Object())


def loosened(shapes: Union, reason: Reason) -> Union:
    """The shapes, marked as wider than their schema."""
    return tuple(replace(s, loose=s.loose | {reason}) for s in shapes)


def meet_numbers(a: Number, b: Number) -> Number | None:
    """Numbers in both."""
    low, low_open = _tighter(a.low, a.low_open, b.low, b.low_open, 1)
    high, high_open = _tighter(a.high, a.high_open, b.high, b.high_open, -1)
    step = a.step or b.step
    if a.step and b.step:
        step = Fraction(
            math.lcm(a.step.numerator * b.step.denominator, b.step.numerator * a.step.denominator),
            a.step.denominator * b.step.denominator,
        )
    met = Number(
        low, high, low_open, high_open, step, a.fractional or b.fractional, a.loose | b.loose
    )
    return None if met.empty else met


def _tighter(
    a: Fraction | None, a_open: bool, b: Fraction | None, b_open: bool, sign: int
) -> tuple[Fraction | None, bool]:
    if a is None or b is None:
        return (b, b_open) if a is None else (a, a_open)
    if a == b:
        return a, a_open or b_open
    return (a, a_open) if (a > b) == (sign > 0) else (b, b_open)


def meet_strings(a: String, b: String) -> String | None:
    """Strings in both."""
    language = a.language & b.language
    return None if language.impossible else String(language, a.loose | b.loose)


def meet_arrays(a: Array, b: Array) -> Array | None:
    """Arrays in both."""
    size = max(len(a.prefix), len(b.prefix))
    highs = [h for h in (a.high, b.high) if h is not None]
    met = Array(
        tuple(a.at(i) | b.at(i) for i in range(size)),
        a.items | b.items,
        max(a.low, b.low),
        min(highs) if highs else None,
        a.unique or b.unique,
        tuple(dict.fromkeys(a.contains + b.contains)),
        a.loose | b.loose,
    )
    return None if met.high is not None and met.low > met.high else met
