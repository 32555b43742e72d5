"""Object shapes: what holds for a key, the meet of two, and the keys that are not declared."""

import re

from grammar.schema.shapes import TRUE, Conj, Layer, Object


def conj_at(shape: Object, key: str) -> Conj:
    """What holds for the value of a key, declared or not; ``names`` is not part of it."""
    if key in shape.declared:
        return shape.declared[key]
    conj = TRUE
    for layer in shape.layers:
        conj |= layer_at(layer, key)
    return conj


def layer_at(layer: Layer, key: str) -> Conj:
    """What a layer says of a key that its schema does not declare."""
    matching = [conj for pattern, conj in layer.patterns if re.search(pattern, key)]
    return frozenset().union(*matching) if matching else layer.additional


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
