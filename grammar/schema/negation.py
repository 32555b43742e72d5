"""The values that a schema refuses, as a union of shapes: one for each way to break a keyword."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grammar.schema import combining, language, regex
from grammar.schema.document import escaped
from grammar.schema.shapes import (
    EVERYTHING,
    FALSE,
    SCALARS,
    TRUE,
    Array,
    Conj,
    Item,
    Number,
    Object,
    Shape,
    String,
    Union,
    Values,
    canonical,
    exact,
    values,
)

if TYPE_CHECKING:
    from grammar.schema.reading import Reader


def refused_by(reader: "Reader", item: Item) -> Union:
    """The shapes of all that a schema (``item`` is its negation) refuses.

    Where a refusal cannot be written, its shape is wider and says so.
    """
    schema, pointer = item.schema, item.pointer
    if "$ref" in schema and reader.rank <= 7:
        return reader.item_union(reader.target(item, "$ref"))
    upright = replace(item, positive=True)
    found: list[Shape] = []
    if "type" in schema:
        found += _other_types(reader, upright)
    for keyword in ("enum", "const"):
        if reader.counts(schema, keyword):
            found += _other_values(reader, upright, keyword)
    found += _numbers(reader, upright)
    found += _strings(reader, upright)
    found += _arrays(reader, upright)
    found += _objects(reader, upright)
    for union in _combinations(reader, item, upright):
        found += union
    return reader.bounded(tuple(found), pointer, "not")


def negated(conj: Conj) -> Conj:
    """The negation of a conjunction of at most one place."""
    if conj == TRUE:
        return FALSE
    (item,) = conj
    if isinstance(item.schema, bool):
        return TRUE
    return frozenset([replace(item, positive=not item.positive)])


def _wide(reader: "Reader", item: Item, keyword: str, shape: Shape) -> Shape:
    reason = reader.note(item.pointer, keyword, "guarded", f"not {keyword} is not enforced")
    return replace(shape, loose=frozenset([reason]))


def _other_types(reader: "Reader", item: Item) -> Iterator[Shape]:
    named = reader.types(item)
    scalars = [t for s in named if isinstance(s, Values) for t in s.texts]
    left = tuple(t for t in SCALARS.texts if t not in scalars)
    if left:
        yield Values(left)
    kinds = {type(s) for s in named}
    yield from (s for s in EVERYTHING if type(s) not in kinds and not isinstance(s, Values))
    if any(isinstance(s, Number) and s.integral for s in named):
        yield Number(fractional=True)


def _other_values(reader: "Reader", item: Item, keyword: str) -> Iterator[Shape]:
    listed = [v for s in reader.listed(item, keyword) for v in s.values]
    left = [v for v in (None, True, False) if canonical(v) not in map(canonical, listed)]
    if left:
        yield values(left)
    points = sorted(exact(v) for v in listed if type(v) in (int, float))
    edges: list[Any] = [None, *points, None]
    for low, high in itertools.pairwise(edges):
        yield Number(low, high, low is not None, high is not None)
    texts = [v for v in listed if isinstance(v, str)]
    yield String(language.without_texts(texts))
    for kind, free, filled in ((list, Array(), Array(low=1)), (dict, Object(), Object(low=1))):
        found = [v for v in listed if isinstance(v, kind)]
        if not found:
            yield free
        elif any(found):
            yield _wide(reader, item, keyword, free if all(found) else filled)
        else:
            yield filled


def _numbers(reader: "Reader", item: Item) -> Iterator[Shape]:
    shape = reader.number(item)
    if shape.low is not None:
        yield Number(high=shape.low, high_open=not shape.low_open)
    if shape.high is not None:
        yield Number(low=shape.high, low_open=not shape.high_open)
    if shape.step is not None:
        yield _wide(reader, item, "multipleOf", Number())


def _strings(reader: "Reader", item: Item) -> Iterator[Shape]:
    low, high = reader.count(item, "minLength", 0), reader.count(item, "maxLength")
    if low:
        yield String(language.Language(high=low - 1))
    if high is not None:
        yield String(language.Language(low=high + 1))
    pattern = item.schema.get("pattern")
    if isinstance(pattern, str):
        try:
            yield from map(String, language.not_pattern(pattern))
        except regex.Unsupported:
            yield _wide(reader, item, "pattern", String())


def _arrays(reader: "Reader", item: Item) -> Iterator[Shape]:
    shape = reader.array(item)
    if shape.low:
        yield Array(high=shape.low - 1)
    if shape.high is not None:
        yield Array(low=shape.high + 1)
    for i, conj in enumerate(shape.prefix):
        if conj != TRUE:
            yield Array(prefix=(*[TRUE] * i, negated(conj)), low=i + 1)
    more = Array(low=len(shape.prefix) + 1)
    if shape.items == FALSE:
        yield more
    elif shape.items != TRUE:
        yield _wide(reader, item, "items", more)
    if shape.unique:
        yield _wide(reader, item, "uniqueItems", Array(low=2))
    for conj, low, high in shape.contains:
        if low == 1:
            yield Array(items=negated(conj))
        elif low > 1:
            yield _wide(reader, item, "contains", Array())
        if high is not None:
            yield _wide(reader, item, "contains", Array(low=high + 1))


def _objects(reader: "Reader", item: Item) -> Iterator[Shape]:
    base, pointer = item.base, item.pointer
    for key in reader.names(item, "required"):
        yield combining.without(key)
    for key, child in reader.mapping(item, "properties").items():
        conj = reader.conj(child, base, f"{pointer}/properties/{escaped(key)}", positive=False)
        if conj != FALSE and not (child == {} and not isinstance(child, bool)):
            yield Object(props=((key, conj),), required=frozenset([key]))
    shape = reader.object(item)
    if shape.low:
        yield Object(high=shape.low - 1)
    if shape.high is not None:
        yield Object(low=shape.high + 1)
    if any(layer.patterns for layer in shape.layers):
        yield _wide(reader, item, "patternProperties", Object(low=1))
    if any(layer.additional != TRUE for layer in shape.layers):
        yield _wide(reader, item, "additionalProperties", Object(low=1))
    if shape.names != TRUE:
        yield _wide(reader, item, "propertyNames", Object(low=1))


def _combinations(reader: "Reader", item: Item, upright: Item) -> Iterator[Union]:
    """``item`` is the negation itself: targets and branches take its sign."""
    schema, pointer = item.schema, item.pointer
    if "$ref" in schema:
        yield reader.item_union(reader.target(item, "$ref"))
    for keyword in ("$dynamicRef", "$recursiveRef"):
        if reader.counts(schema, keyword):
            yield (_wide(reader, item, keyword, s) for s in EVERYTHING)
    for i, _ in enumerate(combining.branches(item, "allOf")):
        yield reader.union(combining.branch(reader, item, "allOf", i, positive=False))
    for keyword in ("anyOf", "oneOf"):
        branches = combining.branches(item, keyword)
        if branches:
            none: Union = EVERYTHING
            for i, _ in enumerate(branches):
                refused = reader.union(combining.branch(reader, item, keyword, i, positive=False))
                none = reader.product(none, refused, pointer, keyword)
            yield none
        if keyword == "oneOf":
            for i, _ in enumerate(branches):
                for j in range(i):
                    both = combining.branch(reader, item, keyword, i)
                    yield reader.union(both | combining.branch(reader, item, keyword, j))
    if "not" in schema:
        yield reader.union(combining.child(reader, item, "not"))
    if reader.counts(schema, "if"):
        for keyword, positive in (("then", True), ("else", False)):
            if keyword in schema:
                conj = combining.child(reader, item, "if", positive)
                yield reader.union(conj | combining.child(reader, item, keyword, positive=False))
    for key, needed in combining.dependent_required(reader, upright):
        for other in needed:
            if other != key:
                yield (Object(props=((other, FALSE),), required=frozenset([key])),)
    for key, conj in combining.dependent_schemas(reader, upright):
        refused = reader.union(negated(conj))
        yield reader.product((combining.with_keys(key),), refused, pointer, "dependentSchemas")
    for keyword in ("unevaluatedProperties", "unevaluatedItems"):
        if reader.counts(schema, keyword) and schema[keyword] not in (True, {}):
            kind = Object if keyword == "unevaluatedProperties" else Array
            yield (_wide(reader, item, keyword, kind(low=1)),)
