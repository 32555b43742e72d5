"""The keys that an object does not declare: which are allowed, and what holds for their values."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from grammar.schema import language
from grammar.schema.language import Language
from grammar.schema.limits import TooMuch
from grammar.schema.shapes import FALSE, TRUE, Conj, Layer, Object, String, Values

if TYPE_CHECKING:
    from grammar.schema.reading import Reader

MAX_REGIONS = 64


@dataclass(frozen=True)
class Region:
    """Keys of a language, all of which have the same to hold for their values."""

    keys: Language
    conj: Conj


def admits(reader: "Reader", shape: Object, key: str) -> bool:
    """Whether ``propertyNames`` allows a key."""
    return reader.satisfies(shape.names, key)


def regions(reader: "Reader", shape: Object) -> list[Region]:
    """The undeclared keys of an object, in disjoint regions; declared ones are in none.

    Raises:
        TooMuch, regex.Unsupported: they cannot be told apart.
    """
    if not shape.says and shape.declares and reader.options.undeclared_keys == "forbid":
        return []
    declared = language.without_texts([key for key, _ in shape.props])
    allowed = [declared & names for names in _names(reader, shape.names)]
    patterns = list(dict.fromkeys(p for layer in shape.layers for p, _ in layer.patterns))
    split: list[tuple[Language, frozenset[str]]] = [(keys, frozenset()) for keys in allowed]
    for pattern in patterns:
        last = pattern == patterns[-1]
        finer = []
        for keys, matched in split:
            if not _dead(shape.layers, matched | {pattern}, last):
                finer.append((keys & language.of_pattern(pattern), matched | {pattern}))
            if not _dead(shape.layers, matched, last):
                finer += [(keys & part, matched) for part in language.not_pattern(pattern)]
        split = [(keys, matched) for keys, matched in finer if not keys.impossible]
        if len(split) > MAX_REGIONS:
            raise TooMuch("the regions of patternProperties")
    return [
        Region(keys, conj)
        for keys, matched in split
        if FALSE.isdisjoint(conj := _all_held(shape.layers, matched))
    ]


def _all_held(layers: tuple[Layer, ...], matched: frozenset[str]) -> Conj:
    return frozenset().union(*(_held(layer, matched) for layer in layers))


def _held(layer: Layer, matched: frozenset[str]) -> Conj:
    conjs = [conj for pattern, conj in layer.patterns if pattern in matched]
    return frozenset().union(*conjs) if conjs else layer.additional


def _dead(layers: tuple[Layer, ...], matched: frozenset[str], last: bool) -> bool:
    """Whether no such key is allowed; ``last`` once no pattern is left that might match it."""
    if last:
        return not FALSE.isdisjoint(_all_held(layers, matched))
    return any(
        not FALSE.isdisjoint(conj)
        for layer in layers
        for pattern, conj in layer.patterns
        if pattern in matched
    )


def _names(reader: "Reader", names: Conj) -> list[Language]:
    if names == TRUE:
        return [language.ANYTHING]
    found = []
    for shape in reader.union(names):
        if isinstance(shape, String):
            found.append(shape.language)
        elif isinstance(shape, Values):
            texts = [v for v in shape.values if isinstance(v, str)]
            if texts:
                found.append(language.of_texts(texts))
    # Where two overlap their keys would be in two regions, which does no harm: both hold the same.
    return found
