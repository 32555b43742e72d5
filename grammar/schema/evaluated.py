"""``unevaluatedProperties`` as jsonschema judges it, with patterns looked for in bounded time.

jsonschema (4.26) has one function for drafts since 2020-12 and one for 2019-09, and both ask ``re``
which keys ``patternProperties`` has seen. Their verdicts are kept, oddities included: under 2019-09
an ``additionalProperties`` that is an object counts the keys which it has in common with the value.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import ValidationError
from referencing.jsonschema import lookup_recursive_ref

from grammar.schema.patterns import found


def unevaluated_properties(
    validator: Any, below: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """The keyword: ``below`` holds for the values of keys that nothing else has looked at."""
    if not validator.is_type(instance, "object"):
        return
    known = _keys(validator, instance, schema)
    extras = [
        key
        for key, value in instance.items()
        if key not in known
        for _ in validator.descend(value, below, path=key, schema_path=key)
    ]
    if not extras:
        return
    listed, were = ", ".join(map(repr, extras)), "was" if len(extras) == 1 else "were"
    if below is False:
        yield ValidationError(
            f"Unevaluated properties are not allowed ({listed} {were} unexpected)"
        )
    else:
        yield ValidationError(
            "Unevaluated properties are not valid under the given schema"
            f" ({listed} {were} unevaluated and invalid)"
        )


def _keys(validator: Any, instance: Mapping[str, Any], schema: Any) -> set[str]:
    """The keys of an object that a schema has looked at, with all that applies in its place."""
    if validator.is_type(schema, "boolean"):
        return set()
    keys: set[str] = set()
    for target in _targets(validator, schema):
        there = validator.evolve(schema=target.contents, _resolver=target.resolver)
        keys |= _keys(there, instance, target.contents)
    named = _named_2019 if _is_2019(validator) else _named
    keys |= named(validator, instance, schema)
    patterns = schema.get("patternProperties", {})
    keys |= {key for key in instance if any(found(pattern, key) for pattern in patterns)}
    for key, sub in schema.get("dependentSchemas", {}).items():
        if key in instance:
            keys |= _keys(validator, instance, sub)
    for keyword in ("allOf", "oneOf", "anyOf"):
        for sub in schema.get(keyword, ()):
            if _accepts(validator, instance, sub):
                keys |= _keys(validator, instance, sub)
    if "if" in schema:
        holds = validator.evolve(schema=schema["if"]).is_valid(instance)
        for keyword in ("if", "then") if holds else ("else",):
            if keyword in schema:
                keys |= _keys(validator, instance, schema[keyword])
    return keys


def _is_2019(validator: Any) -> bool:
    return "$recursiveRef" in validator.VALIDATORS


def _targets(validator: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Where the references of a schema lead."""
    dynamic = "$recursiveRef" if _is_2019(validator) else "$dynamicRef"
    if schema.get("$ref") is not None:
        yield validator._resolver.lookup(schema["$ref"])
    if schema.get(dynamic) is None:
        return
    if _is_2019(validator):
        yield lookup_recursive_ref(validator._resolver)
    else:
        yield validator._resolver.lookup(schema[dynamic])


def _named(validator: Any, instance: Mapping[str, Any], schema: Mapping[str, Any]) -> set[str]:
    keys = set()
    if validator.is_type(schema.get("properties"), "object"):
        keys |= schema["properties"].keys() & instance.keys()
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if (sub := schema.get(keyword)) is not None:
            keys |= {k for k, value in instance.items() if _accepts(validator, value, sub)}
    return keys


def _named_2019(validator: Any, instance: Mapping[str, Any], schema: Mapping[str, Any]) -> set[str]:
    keys = set()
    for keyword in ("properties", "additionalProperties", "unevaluatedProperties"):
        value = schema.get(keyword)
        if value is True:
            keys |= instance.keys()
        elif validator.is_type(value, "object"):
            keys |= value.keys() & instance.keys()
    return keys


def _accepts(validator: Any, instance: Any, schema: Any) -> bool:
    return next(validator.descend(instance, schema), None) is None
