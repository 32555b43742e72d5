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
        inside = language.of_pattern(pattern)
        outside = language.not_pattern(pattern)
        finer = []
        for keys, matched in split:
            finer.append((keys & inside, matched | {pattern}))
            finer += [(keys & part, matched) for part in outside]
        split = [
            (keys, matched)
            for keys, matched in finer
            if not _dead(shape.layers, matched) and not keys.impossible
        ]
        if len(split) > MAX_REGIONS:
            raise TooMuch("the regions of patternProperties")
    found = []
    for keys, matched in split:
        conj = frozenset().union(*(_held(layer, matched) for layer in shape.layers))
        if FALSE.isdisjoint(conj):
            found.append(Region(keys, conj))
    return found


def _held(layer: Layer, matched: frozenset[str]) -> Conj:
    conjs = [conj for pattern, conj in layer.patterns if pattern in matched]
    return frozenset().union(*conjs) if conjs else layer.additional


def _dead(layers: tuple[Layer, ...], matched: frozenset[str]) -> bool:
    """Whether a pattern that is matched already forbids the key."""
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
