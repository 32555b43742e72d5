"""A schema as a union of shapes: every keyword with its siblings, none of them dropped."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from grammar.schema import combining, language, negation, regex
from grammar.schema.document import Document, escaped
from grammar.schema.limits import Budget, Refused, TooMuch
from grammar.schema.objects import conj_at, meet_objects
from grammar.schema.result import Kind, Options, Reason
from grammar.schema.shapes import (
    EVERYTHING,
    SCALARS,
    TRUE,
    Array,
    Conj,
    Item,
    Layer,
    Number,
    Object,
    Shape,
    String,
    Union,
    Values,
    canonical,
    exact,
    loosened,
    meet_arrays,
    meet_numbers,
    meet_strings,
    values,
)
from grammar.schema.string_formats import PATTERNS

MAX_SHAPES = 64
"""Shapes of one union. A product that is larger is not taken; its factor is left to the guard."""

_LISTS = frozenset(["const", "enum"])
_MAX_MEETS = 3000
"""Pairs of shapes that are looked at for one product."""
_MAX_COUNT = 2**31 - 1
"""xgrammar counts no further; no text gets that long."""
_MAX_ASKING = 3
"""Levels below which two objects are taken to have something in common."""

TYPES: dict[str, Shape] = {
    "null": values([None]),
    "boolean": values([True, False]),
    "integer": Number(step=Fraction(1)),
    "number": Number(),
    "string": String(),
    "array": Array(),
    "object": Object(),
}
_SINCE = {
    "const": 6,
    "contains": 6,
    "propertyNames": 6,
    "if": 7,
    "dependentRequired": 8,
    "dependentSchemas": 8,
    "unevaluatedItems": 8,
    "unevaluatedProperties": 8,
    "minContains": 8,
    "maxContains": 8,
    "prefixItems": 9,
    "$dynamicRef": 9,
}
_UNTIL = {"dependencies": 7, "additionalItems": 8, "$recursiveRef": 8}
_RANK = {"4": 4, "6": 6, "7": 7, "2019-09": 8, "2020-12": 9}


class _Circular(Exception):
    """A question about what lies deeper came back to a schema that is still being read."""


class Reader:
    """Reads schemas of one document.

    Args:
        document: where references lead.
        draft: decides which keywords count.
        coarse: leave to the guard what takes negation, for schemas where that is too much.
    """

    def __init__(
        self,
        document: Document,
        options: Options,
        draft: str,
        budget: Budget,
        coarse: bool = False,
    ) -> None:
        self.document, self.options, self.budget = document, options, budget
        self.rank, self.coarse = _RANK[draft], coarse
        self.reasons: dict[Reason, None] = {}
        self.written: dict[str, Any] = {}
        """Arrays and objects of enum and const as the schema has them, by canonical text."""
        self._orders: dict[tuple[int, str, bool], int] = {}
        self._unions: dict[Conj, Union] = {}
        self._items: dict[Item, Union] = {}
        self._open: set[Item] = set()
        self._asking = 0
        self._texts: dict[Conj, frozenset[str] | None] = {}
        self._met: dict[tuple[Object, Object], Object | None] = {}
        self._kept: list[Any] = []
        self._made: dict[Any, Any] = {}

    def note(self, item_pointer: str, keyword: str, kind: Kind, message: str) -> Reason:
        """Record a reason."""
        reason = Reason(item_pointer, keyword, kind, message)
        self.reasons[reason] = None
        return reason

    def item(self, schema: Any, base: str, pointer: str, positive: bool = True) -> Item:
        """A place in the schema, as a member of conjunctions."""
        base = self.document.base_of(schema, base)
        if isinstance(schema, bool):
            key = int(schema == positive)
            return Item(key, "", True, bool(key), pointer, -1)
        order = self._orders.setdefault((id(schema), base, positive), len(self._orders))
        return Item(id(schema), base, positive, schema, pointer, order)

    def conj(self, schema: Any, base: str, pointer: str, positive: bool = True) -> Conj:
        """The conjunction of one place; ``TRUE`` where it says nothing."""
        if schema is positive or (positive and schema == {}):
            return TRUE
        return frozenset([self.item(schema, base, pointer, positive)])

    def made(self, key: Any, build: Callable[[], Any]) -> Any:
        """A schema that does not stand in the document, the same one for the same key."""
        if key not in self._made:
            self._made[key] = build()
        return self._made[key]

    def union(self, conj: Conj) -> Union:
        """The shapes of everything that a conjunction allows."""
        if conj in self._unions:
            return self._unions[conj]
        result: Union = EVERYTHING
        for item in sorted(conj, key=lambda i: i.order):
            result = self.product(result, self.item_union(item), item.pointer, "")
        self._unions[conj] = result
        return result

    def item_union(self, item: Item) -> Union:
        """The shapes of one place.

        Raises:
            Refused: the schema is not one, or refers to itself without end.
        """
        if item in self._items:
            return self._items[item]
        if item in self._open:
            if self._asking:
                raise _Circular
            raise Refused(item.pointer, "$ref", "it refers to itself without a step in between")
        self._open.add(item)
        try:
            self.budget.spend(1, item.pointer)
            result = self._positive(item) if item.positive else negation.refused_by(self, item)
        finally:
            self._open.discard(item)
        self._items[item] = result
        return result

    def product(self, a: Union, b: Union, pointer: str, keyword: str) -> Union:
        """The meet of two unions; where it would be too large, the first, marked as wider."""
        if a is EVERYTHING or b is EVERYTHING:
            return b if a is EVERYTHING else a
        self.budget.spend(len(a) * len(b) // 4, pointer)
        met: dict[Shape, None] = {}
        too_many = len(a) * len(b) > _MAX_MEETS
        for x in () if too_many else a:
            for y in b:
                shape = self.meet(x, y)
                if shape is not None:
                    met[shape] = None
        if too_many or len(met) > MAX_SHAPES:
            reason = self.note(
                pointer,
                keyword,
                "guarded",
                f"{keyword or 'it'} combines into more than {MAX_SHAPES} cases; not enforced here",
            )
            return loosened(a, reason)
        return tidy(tuple(met))

    def overlap(self, a: Union, b: Union) -> bool:
        """Whether two unions have a value in common, as far as can be told."""
        self.budget.spend(len(a) * len(b) // 4)
        return any(self.meet(x, y) is not None for x in a for y in b)

    def bounded(self, shapes: Union, pointer: str, keyword: str) -> Union:
        """The union tidied; where it is still too large, every value, marked as wider."""
        shapes = tidy(shapes)
        self.budget.spend(len(shapes) // 4, pointer)
        if len(shapes) <= 4 * MAX_SHAPES:
            return shapes
        reason = self.note(
            pointer,
            keyword,
            "guarded",
            f"{keyword} has more than {4 * MAX_SHAPES} cases; not enforced here",
        )
        return loosened(EVERYTHING, reason)

    def meet(self, a: Shape, b: Shape) -> Shape | None:
        """Values in both shapes, or None where there are none."""
        if isinstance(a, Values) or isinstance(b, Values):
            if not isinstance(a, Values):
                a, b = b, a
            kept = tuple(
                text for text, value in zip(a.texts, a.values, strict=True) if self.has(b, value)
            )
            return Values(kept, a.loose | b.loose) if kept else None
        if type(a) is not type(b):
            return None
        if isinstance(a, Number):
            return meet_numbers(a, b)
        if isinstance(a, String):
            return meet_strings(a, b)
        if isinstance(a, Array):
            return meet_arrays(a, b)
        if (a, b) not in self._met:
            self._met[a, b] = self._meet_objects(a, b)
        return self._met[a, b]

    def _meet_objects(self, a: Object, b: Object) -> Object | None:
        needed = []
        for key in a.required | b.required:
            ours, theirs = conj_at(a, key), conj_at(b, key)
            both = ours | theirs
            if both != ours and both != theirs:
                if self._tags_differ(ours, theirs):
                    return None
                needed.append(both)
        met = meet_objects(a, b)
        return None if met is None or any(map(self.impossible, needed)) else met

    def _tags_differ(self, a: Conj, b: Conj) -> bool:
        """Whether two conjunctions list values, and have none in common."""
        ours, theirs = self._listed_texts(a), self._listed_texts(b)
        return ours is not None and theirs is not None and ours.isdisjoint(theirs)

    def _listed_texts(self, conj: Conj) -> frozenset[str] | None:
        if conj not in self._texts:
            lists = any(
                item.positive and isinstance(item.schema, Mapping) and item.schema.keys() & _LISTS
                for item in conj
            )
            union = self.union(conj) if lists else EVERYTHING
            listed = all(isinstance(s, Values) for s in union)
            self._texts[conj] = frozenset(t for s in union for t in s.texts) if listed else None
        return self._texts[conj]

    def impossible(self, conj: Conj) -> bool:
        """Whether nothing satisfies a conjunction, as far as can be told without a circle."""
        if conj in self._unions:
            return not self._unions[conj]
        if self._asking > _MAX_ASKING or len(self._open) > self.options.max_depth:
            return False
        self._asking += 1
        try:
            return not self.union(conj)
        except _Circular:
            return False
        finally:
            self._asking -= 1

    def has(self, shape: Shape, value: Any) -> bool:
        """Whether a value is in a shape; a loose shape may hold more than its schema."""
        if isinstance(shape, Values):
            return canonical(value) in shape.texts
        if isinstance(value, bool) or value is None:
            return False
        if isinstance(value, int | float):
            return isinstance(shape, Number) and shape.has(value)
        if isinstance(value, str):
            try:
                return isinstance(shape, String) and shape.language.has(value)
            except TooMuch:
                return True
        if isinstance(value, list):
            return isinstance(shape, Array) and self._has_array(shape, value)
        return isinstance(shape, Object) and self._has_object(shape, value)

    def satisfies(self, conj: Conj, value: Any) -> bool:
        """Whether a value satisfies a conjunction."""
        if conj == TRUE:
            return True
        self._asking += 1
        try:
            return any(self.has(shape, value) for shape in self.union(conj))
        except _Circular:
            self.note("#", "enum", "guarded", "values are not checked against a recursive schema")
            return True
        finally:
            self._asking -= 1

    def _has_array(self, shape: Array, value: list[Any]) -> bool:
        if len(value) < shape.low or (shape.high is not None and len(value) > shape.high):
            return False
        if shape.unique and len(set(map(canonical, value))) < len(value):
            return False
        for conj, low, high in shape.contains:
            count = sum(self.satisfies(conj, v) for v in value)
            if count < low or (high is not None and count > high):
                return False
        return all(self.satisfies(shape.at(i), v) for i, v in enumerate(value))

    def _has_object(self, shape: Object, value: dict[str, Any]) -> bool:
        if len(value) < shape.low or (shape.high is not None and len(value) > shape.high):
            return False
        return shape.required <= value.keys() and all(
            self.satisfies(shape.names, key) and self.satisfies(conj_at(shape, key), v)
            for key, v in value.items()
        )

    def counts(self, schema: Mapping[str, Any], keyword: str) -> bool:
        """Whether a keyword is there and means something in this draft."""
        if keyword not in schema:
            return False
        return _SINCE.get(keyword, 0) <= self.rank <= _UNTIL.get(keyword, 9)

    def _positive(self, item: Item) -> Union:
        schema, pointer = item.schema, item.pointer
        if isinstance(schema, bool):
            return EVERYTHING if schema else ()
        if not isinstance(schema, Mapping):
            raise Refused(
                pointer, "", f"a schema must be an object or a boolean; got {type(schema).__name__}"
            )
        if "$ref" in schema and self.rank <= 7:
            return self.item_union(self.target(item, "$ref"))
        result = self.plain(item)
        for keyword, other in combining.factors(self, item, result):
            result = self.product(result, other, pointer, keyword)
        return result

    def target(self, item: Item, keyword: str) -> Item:
        """The place that a reference of ``item`` leads to."""
        schema, base, pointer = self.document.resolve(item.schema[keyword], item.base, item.pointer)
        return self.item(schema, base, pointer, item.positive)

    def plain(self, item: Item) -> Union:
        """The shapes of the keywords that bear on one type each."""
        schema = item.schema
        shapes: list[Shape] = [
            SCALARS,
            self.number(item),
            self.string(item),
            self.array(item),
            self.object(item),
        ]
        result: Union = tuple(s for s in shapes if not _empty(s))
        if result == EVERYTHING:
            result = EVERYTHING
        if "type" in schema:
            result = self.product(result, self.types(item), item.pointer, "type")
        for keyword in ("enum", "const"):
            if self.counts(schema, keyword):
                result = self.product(result, self.listed(item, keyword), item.pointer, keyword)
        return result

    def types(self, item: Item) -> Union:
        """The shapes that ``type`` names.

        Raises:
            Refused: it names no type of JSON Schema.
        """
        names = item.schema["type"]
        names = names if isinstance(names, list) else [names]
        shapes: dict[Shape, None] = {}
        for name in names:
            if not isinstance(name, str) or name not in TYPES:
                raise Refused(
                    item.pointer,
                    "type",
                    f"type {name!r} is none of {', '.join(TYPES)}; the option aliases reads those"
                    " of other languages",
                )
            shapes[TYPES[name]] = None
        if TYPES["number"] in shapes:
            shapes.pop(TYPES["integer"], None)
        return tidy(tuple(shapes))

    def listed(self, item: Item, keyword: str) -> Union:
        """The values of ``enum`` or ``const``.

        Raises:
            Refused: ``enum`` is not a list.
        """
        listed = item.schema[keyword]
        for value in listed if keyword == "enum" and isinstance(listed, list) else [listed]:
            if isinstance(value, dict | list):
                self.written.setdefault(canonical(value), value)
        if keyword == "const":
            return (values([listed]),)
        if not isinstance(listed, list):
            raise Refused(item.pointer, "enum", f"enum must be a list; got {listed!r}")
        return (values(listed),) if listed else ()

    def number(self, item: Item) -> Number:
        """The shape of the bounds and ``multipleOf``."""
        schema = item.schema
        low, high = self.numeral(item, "minimum"), self.numeral(item, "maximum")
        low_open = high_open = False
        for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
            bound = schema.get(keyword)
            if isinstance(bound, bool) and self.rank == 4:
                low_open |= bound and keyword == "exclusiveMinimum"
                high_open |= bound and keyword == "exclusiveMaximum"
                continue
            bound = self.numeral(item, keyword)
            if bound is None:
                continue
            if keyword == "exclusiveMinimum" and (low is None or bound >= low):
                low, low_open = bound, True
            elif keyword == "exclusiveMaximum" and (high is None or bound <= high):
                high, high_open = bound, True
        step = self.numeral(item, "multipleOf")
        if step is not None and step <= 0:
            raise Refused(item.pointer, "multipleOf", "multipleOf must be greater than 0")
        return Number(low, high, low_open and low is not None, high_open and high is not None, step)

    def numeral(self, item: Item, keyword: str) -> Fraction | None:
        """A number among the keywords, or None.

        Raises:
            Refused: it is there and no number.
        """
        value = item.schema.get(keyword)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Refused(item.pointer, keyword, f"{keyword} must be a number; got {value!r}")
        return exact(value)

    def count(self, item: Item, keyword: str, default: int | None = None) -> int | None:
        """A count among the keywords, or ``default``.

        Raises:
            Refused: it is there and no whole number from 0 up.
        """
        value = self.numeral(item, keyword)
        if value is None:
            return default
        if value < 0:
            raise Refused(item.pointer, keyword, f"{keyword} must not be negative; got {value}")
        # 2.5 items or characters at least are 3; at most, 2.
        count = math.ceil(value) if keyword.startswith("min") else math.floor(value)
        return min(count, _MAX_COUNT)

    def string(self, item: Item) -> String:
        """The shape of lengths, ``pattern`` and ``format``."""
        schema = item.schema
        shape = String(
            language.Language(
                low=self.count(item, "minLength", 0), high=self.count(item, "maxLength")
            )
        )
        pattern = schema.get("pattern")
        if pattern is not None:
            if not isinstance(pattern, str):
                raise Refused(item.pointer, "pattern", f"pattern must be a string; got {pattern!r}")
            try:
                shape = replace(shape, language=shape.language & language.of_pattern(pattern))
            except regex.Unsupported as error:
                self.check_pattern(item, pattern, error)
                reason = self.note(
                    item.pointer, "pattern", "guarded", f"pattern is not enforced: {error}"
                )
                shape = replace(shape, loose=shape.loose | {reason})
        name = schema.get("format")
        if isinstance(name, str) and name in PATTERNS:
            shape = replace(shape, language=shape.language & language.of_pattern(PATTERNS[name]))
        return shape

    def check_pattern(self, item: Item, pattern: str, error: Exception) -> None:
        """Refuse a pattern that the validator cannot judge either.

        Raises:
            Refused: Python cannot compile it.
        """
        if "does not parse" in str(error):
            raise Refused(
                item.pointer,
                "pattern",
                f"pattern {pattern!r} is not understood by Python, which judges it: {error}",
            )

    def array(self, item: Item) -> Array:
        """The shape of the keywords for arrays."""
        schema, base, pointer = item.schema, item.base, item.pointer
        prefix: tuple[Conj, ...] = ()
        items = TRUE
        listed = schema.get("prefixItems") if self.counts(schema, "prefixItems") else None
        keyword = "prefixItems"
        rest = "items"
        if isinstance(schema.get("items"), list) and self.rank <= 8:
            listed, keyword, rest = schema["items"], "items", "additionalItems"
        if listed is not None:
            if not isinstance(listed, list):
                raise Refused(pointer, keyword, f"{keyword} must be a list; got {listed!r}")
            prefix = tuple(
                self.conj(child, base, f"{pointer}/{keyword}/{i}") for i, child in enumerate(listed)
            )
        if rest not in schema and self.lone(item, "unevaluatedItems"):
            rest = "unevaluatedItems"
        if rest in schema and not isinstance(schema[rest], list):
            items = self.conj(schema[rest], base, f"{pointer}/{rest}")
        contains: tuple[tuple[Conj, int, int | None], ...] = ()
        if self.counts(schema, "contains"):
            low = self.count(item, "minContains", 1) if self.rank >= 8 else 1
            high = self.count(item, "maxContains") if self.rank >= 8 else None
            conj = self.conj(schema["contains"], base, f"{pointer}/contains")
            if low or high is not None:
                contains = ((conj, low, high),)
        return Array(
            prefix,
            items,
            self.count(item, "minItems", 0),
            self.count(item, "maxItems"),
            schema.get("uniqueItems") is True,
            contains,
        )

    def object(self, item: Item) -> Object:
        """The shape of the keywords for objects."""
        schema, base, pointer = item.schema, item.base, item.pointer
        declared = self.mapping(item, "properties")
        patterns = self.mapping(item, "patternProperties")
        pairs = tuple(
            (pattern, self.conj(child, base, f"{pointer}/patternProperties/{escaped(pattern)}"))
            for pattern, child in patterns.items()
        )
        for pattern in patterns:
            try:
                regex.found(pattern)
            except regex.Unsupported as error:
                self.check_pattern(item, pattern, error)
        additional = TRUE
        rest = "additionalProperties"
        if rest not in schema and self.lone(item, "unevaluatedProperties"):
            rest = "unevaluatedProperties"
        if rest in schema:
            additional = self.conj(schema[rest], base, f"{pointer}/{rest}")
        layers = (Layer(pairs, additional),) if pairs or additional != TRUE else ()
        # Keys that are required and not declared come last, once everything is met.
        props = {
            name: self.conj(child, base, f"{pointer}/properties/{escaped(name)}")
            | (conj_at(Object(layers=(Layer(pairs, TRUE),)), name) if pairs else TRUE)
            for name, child in declared.items()
        }
        required = self.names(item, "required")
        names = TRUE
        if self.counts(schema, "propertyNames"):
            names = self.conj(schema["propertyNames"], base, f"{pointer}/propertyNames")
        return Object(
            tuple(props.items()),
            frozenset(required),
            layers,
            names,
            self.count(item, "minProperties", 0),
            self.count(item, "maxProperties"),
            "properties" in schema,
            rest in schema or "patternProperties" in schema,
        )

    def lone(self, item: Item, keyword: str) -> bool:
        """Whether an ``unevaluated`` keyword has no combination beside it: then it is simple."""
        others = combining.APPLICATORS | ({"contains"} if keyword == "unevaluatedItems" else set())
        return self.counts(item.schema, keyword) and not others & item.schema.keys()

    def mapping(self, item: Item, keyword: str) -> Mapping[str, Any]:
        """A keyword that maps names to schemas.

        Raises:
            Refused: it is there and no object.
        """
        value = item.schema.get(keyword)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise Refused(item.pointer, keyword, f"{keyword} must be an object; got {value!r}")
        return value

    def names(self, item: Item, keyword: str) -> list[str]:
        """A keyword that lists property names.

        Raises:
            Refused: it is there and no list of strings.
        """
        value = item.schema.get(keyword)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise Refused(
                item.pointer, keyword, f"{keyword} must be a list of property names; got {value!r}"
            )
        return list(dict.fromkeys(value))


def _empty(shape: Shape) -> bool:
    if isinstance(shape, Number):
        return shape.empty
    if isinstance(shape, String):
        return shape.language.impossible
    if isinstance(shape, Array):
        return shape.high is not None and shape.low > shape.high
    if isinstance(shape, Object):
        return shape.high is not None and max(shape.low, len(shape.required)) > shape.high
    return not shape.texts


def tidy(shapes: Union) -> Union:
    """The union without repeats, its written-out values together."""
    texts: dict[str, None] = {}
    loose: frozenset[Reason] = frozenset()
    rest: dict[Shape, None] = {}
    for shape in shapes:
        if isinstance(shape, Values):
            texts.update(dict.fromkeys(shape.texts))
            loose |= shape.loose
        else:
            rest[shape] = None
    found: list[Shape] = [Values(tuple(texts), loose)] if texts else []
    free = {type(s) for s in rest if s == type(s)()}
    found += [s for s in rest if type(s) not in free or s == type(s)()]
    result = tuple(found)
    return EVERYTHING if set(result) == set(EVERYTHING) else result
