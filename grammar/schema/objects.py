"""Object shapes: what holds for a key, the meet of two, and the keys that are not declared."""

import regex

from grammar import deadline
from grammar.deadline import OutOfTime
from grammar.schema.limits import Refused
from grammar.schema.patterns import found
from grammar.schema.regex import pythonic
from grammar.schema.shapes import TRUE, Conj, Layer, Object


def conj_at(shape: Object, key: str) -> Conj:
    """What holds for the value of a key, declared or not; ``names`` is not part of it.

    Raises:
        Refused: a pattern takes too long to tell whether it matches the key.
    """
    if key in shape.declared:
        return shape.declared[key]
    conj = TRUE
    for layer in shape.layers:
        conj |= layer_at(layer, key)
    return conj


def layer_at(layer: Layer, key: str) -> Conj:
    """What a layer says of a key that its schema does not declare.

    Raises:
        Refused: see `conj_at`.
    """
    matching = [conj for pattern, conj in layer.patterns if _matches(pattern, key)]
    return frozenset().union(*matching) if matching else layer.additional


def _matches(pattern: str, key: str) -> bool:
    try:
        return found(pythonic(pattern), key)
    except (OutOfTime, regex.error) as error:
        deadline.check()
        raise Refused("#", "patternProperties", f"{error}; simplify the pattern") from None


def meet_objects(a: Object, b: Object) -> Object | None:
    """Objects in both."""
    ours, theirs = a.declared, b.declared
    props = {
        key: (ours[key] if key in ours else conj_at(a, key))
        | (theirs[key] if key in theirs else conj_at(b, key))
        for key in [*ours, *theirs]
    }
    highs = [h for h in (a.high, b.high) if h is not None]
    met = Object(
        tuple(props.items()),
        a.required | b.required,
        tuple(dict.fromkeys(a.layers + b.layers)),
        a.names | b.names,
        max(a.low, b.low),
        min(highs) if highs else None,
        a.declares or b.declares,
        a.says or b.says,
        a.loose | b.loose,
    )
    if met.high is not None and (met.low > met.high or len(met.required) > met.high):
        return None
    return met
