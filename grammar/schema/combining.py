"""Keywords that combine whole schemas: references, allOf, anyOf, oneOf, not, if, dependencies."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from grammar.schema.document import escaped
from grammar.schema.limits import Refused
from grammar.schema.shapes import (
    EVERYTHING,
    FALSE,
    SCALARS,
    Array,
    Conj,
    Item,
    Number,
    Object,
    String,
    Union,
    loosened,
)

if TYPE_CHECKING:
    from grammar.schema.reading import Reader

APPLICATORS = frozenset(
    "$ref $dynamicRef $recursiveRef allOf anyOf oneOf not if then else dependentSchemas"
    " dependencies".split()
)
_NEGATING = "oneOf not if dependentRequired dependentSchemas dependencies".split()
_NO_OBJECT: Union = (SCALARS, Number(), String(), Array())


def factors(reader: "Reader", item: Item, plain: Union) -> Iterator[tuple[str, Union]]:
    """What each of the keywords allows; the values that all of them allow are the schema's.

    Args:
        plain: what the other keywords of ``item`` allow: a factor may leave out all else.
    """
    schema, pointer = item.schema, item.pointer
    if "$ref" in schema:
        yield "$ref", reader.item_union(reader.target(item, "$ref"))
    for keyword in ("$dynamicRef", "$recursiveRef"):
        if reader.counts(schema, keyword):
            yield keyword, dynamic(reader, item, keyword)
    for i, _ in enumerate(branches(item, "allOf")):
        yield "allOf", reader.union(branch(reader, item, "allOf", i))
    if "anyOf" in schema:
        yield "anyOf", any_of(reader, item)
    if reader.coarse:
        yield from _left_to_guard(reader, item)
        return
    if "oneOf" in schema:
        reader.note(pointer, "oneOf", "rewritten", "oneOf is written as disjoint cases")
        yield "oneOf", one_of(reader, item, plain)
    if "not" in schema:
        reader.note(pointer, "not", "rewritten", "not is written as what is left")
        yield "not", reader.union(child(reader, item, "not", False))
    if reader.counts(schema, "if"):
        reader.note(pointer, "if", "rewritten", "if is written as two cases")
        yield "if", if_then_else(reader, item)
    for key, needed in dependent_required(reader, item):
        yield "dependentRequired", (*_NO_OBJECT, without(key), with_keys(key, *needed))
    for key, conj in dependent_schemas(reader, item):
        held = reader.product((with_keys(key),), reader.union(conj), pointer, "dependentSchemas")
        yield "dependentSchemas", (*_NO_OBJECT, without(key), *held)
    for keyword in ("unevaluatedProperties", "unevaluatedItems"):
        if reader.counts(schema, keyword) and not reader.lone(item, keyword):
            if schema[keyword] in (True, {}):
                continue
            reason = reader.note(
                pointer, keyword, "guarded", f"{keyword} beside combinations is not enforced"
            )
            yield keyword, loosened(EVERYTHING, reason)


def _left_to_guard(reader: "Reader", item: Item) -> Iterator[tuple[str, Union]]:
    """oneOf as anyOf, and of the other keywords that they are there."""
    for keyword in (*_NEGATING, "unevaluatedProperties", "unevaluatedItems"):
        if not reader.counts(item.schema, keyword):
            continue
        union = any_of(reader, item, "oneOf") if keyword == "oneOf" else EVERYTHING
        message = f"{keyword} would take too many cases here; not enforced"
        yield keyword, loosened(union, reader.note(item.pointer, keyword, "guarded", message))


def branches(item: Item, keyword: str) -> list[Any]:
    """The schemas of allOf, anyOf or oneOf; none where it is absent.

    Raises:
        Refused: it is there and no list, or an empty one.
    """
    listed = item.schema.get(keyword)
    if listed is None:
        return []
    if not isinstance(listed, list) or not listed:
        raise Refused(item.pointer, keyword, f"{keyword} must be a list that is not empty")
    return listed


def branch(reader: "Reader", item: Item, keyword: str, i: int, positive: bool = True) -> Conj:
    """One of the schemas of allOf, anyOf or oneOf, or its negation."""
    schema = item.schema[keyword][i]
    return reader.conj(schema, item.base, f"{item.pointer}/{keyword}/{i}", positive)


def child(reader: "Reader", item: Item, keyword: str, positive: bool = True) -> Conj:
    """The schema under a keyword, or its negation."""
    schema = item.schema[keyword]
    return reader.conj(schema, item.base, f"{item.pointer}/{keyword}", positive)


def any_of(reader: "Reader", item: Item, keyword: str = "anyOf") -> Union:
    """Every value that one branch allows."""
    found: list[Any] = []
    for i, _ in enumerate(branches(item, keyword)):
        found.extend(reader.union(branch(reader, item, keyword, i)))
    return reader.bounded(tuple(found), item.pointer, keyword)


def one_of(reader: "Reader", item: Item, plain: Union) -> Union:
    """Every value that exactly one branch allows: each without those that it overlaps."""
    count = len(branches(item, "oneOf"))
    unions = [
        reader.product(plain, reader.union(branch(reader, item, "oneOf", i)), item.pointer, "oneOf")
        for i in range(count)
    ]
    found: list[Any] = []
    common = {
        frozenset((i, j))
        for i in range(count)
        for j in range(i)
        if reader.overlap(unions[i], unions[j])
    }
    for i, own in enumerate(unions):
        result = own
        for j in range(count):
            if result and frozenset((i, j)) in common:
                refused = reader.union(branch(reader, item, "oneOf", j, positive=False))
                result = reader.product(result, refused, item.pointer, "oneOf")
        found.extend(result)
    return reader.bounded(tuple(found), item.pointer, "oneOf")


def if_then_else(reader: "Reader", item: Item) -> Union:
    """What ``then`` allows of the values ``if`` allows, and ``else`` of the others."""
    yes, no = child(reader, item, "if"), child(reader, item, "if", positive=False)
    if "then" in item.schema:
        yes |= child(reader, item, "then")
    if "else" in item.schema:
        no |= child(reader, item, "else")
    if yes == no:
        return EVERYTHING
    return reader.bounded(reader.union(yes) + reader.union(no), item.pointer, "if")


def without(key: str) -> Object:
    """Objects that do not have a key."""
    return Object(props=((key, FALSE),))


def with_keys(*keys: str) -> Object:
    """Objects that have some keys."""
    return Object(required=frozenset(keys))


def dependent_required(reader: "Reader", item: Item) -> Iterator[tuple[str, list[str]]]:
    """Each key with the keys that it needs."""
    for keyword in ("dependentRequired", "dependencies"):
        if not reader.counts(item.schema, keyword):
            continue
        for key, needed in reader.mapping(item, keyword).items():
            if keyword == "dependencies" and isinstance(needed, str):
                needed = [needed]
            if isinstance(needed, list):
                reader.note(
                    item.pointer, keyword, "rewritten", f"{keyword} is written as two cases a key"
                )
                if not all(isinstance(n, str) for n in needed):
                    raise Refused(item.pointer, keyword, f"{keyword} must list property names")
                if needed:
                    yield key, needed
            elif keyword == "dependentRequired":
                raise Refused(item.pointer, keyword, f"{keyword} must list property names")


def dependent_schemas(reader: "Reader", item: Item) -> Iterator[tuple[str, Conj]]:
    """Each key with the schema that it brings."""
    for keyword in ("dependentSchemas", "dependencies"):
        if not reader.counts(item.schema, keyword):
            continue
        for key, schema in reader.mapping(item, keyword).items():
            if isinstance(schema, Mapping | bool):
                reader.note(
                    item.pointer, keyword, "rewritten", f"{keyword} is written as two cases a key"
                )
                pointer = f"{item.pointer}/{keyword}/{escaped(key)}"
                yield key, reader.conj(schema, item.base, pointer)


def dynamic(reader: "Reader", item: Item, keyword: str) -> Union:
    """What a reference to a dynamic anchor allows, where only one place can be meant."""
    document = reader.document
    ref = item.schema[keyword]
    if keyword == "$recursiveRef":
        if not document.recursive:
            # Whatever it says, the validator goes to the root.
            schema, base, pointer = document.resolve("#", item.base, item.pointer)
            return reader.item_union(reader.item(schema, base, pointer, item.positive))
    elif isinstance(ref, str) and "#" in ref:
        places = document.dynamic.get(ref.rpartition("#")[2], [])
        if len(places) <= 1:
            return reader.item_union(reader.target(item, keyword))
    reason = reader.note(
        item.pointer, keyword, "guarded", f"{keyword} may mean several places; not enforced"
    )
    return loosened(EVERYTHING, reason)
