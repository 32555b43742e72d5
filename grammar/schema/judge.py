"""jsonschema's validators: the judge of every instance, and of the draft a schema is written in."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import jsonschema_specifications
import regex
from jsonschema.validators import extend, validator_for

PATTERN_SECONDS = 1.0
"""How long one pattern may take on one string. A model writes the string and a user the pattern,
and `re` would hold the whole process for as long as their backtracking takes."""

_VALIDATORS = {
    "4": jsonschema.Draft4Validator,
    "6": jsonschema.Draft6Validator,
    "7": jsonschema.Draft7Validator,
    "2019-09": jsonschema.Draft201909Validator,
    "2020-12": jsonschema.Draft202012Validator,
}
_DRAFTS = {validator: draft for draft, validator in _VALIDATORS.items()}
_DRAFTS[jsonschema.Draft3Validator] = "3"

DRAFTS = tuple(_VALIDATORS)


def draft_of(schema: Any) -> str | None:
    """The draft that ``$schema`` names, or None where it is absent or unknown."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("$schema"), str):
        return None
    return _DRAFTS.get(validator_for(schema, default=None))


def validator_of(schema: Any, draft: str) -> Any:
    """A validator that never fetches: it knows the published meta-schemas and nothing else.

    Its ``iter_errors`` and ``is_valid`` raise TimeoutError where a pattern takes more than
    `PATTERN_SECONDS` on a string; other threads go on meanwhile.
    """
    return _PATIENT[draft](schema, registry=jsonschema_specifications.REGISTRY)


def _found(pattern: str, text: str) -> bool:
    try:
        compiled = regex.compile(pattern)
    except regex.error:
        # A few patterns are `re`'s alone.
        return re.search(pattern, text) is not None
    return compiled.search(text, timeout=PATTERN_SECONDS, concurrent=True) is not None


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, below in patterns.items():
        for key, value in instance.items():
            if _found(pattern, key):
                yield from validator.descend(value, below, path=key, schema_path=pattern)


_PATIENT = {
    draft: extend(known, {"pattern": _pattern, "patternProperties": _pattern_properties})
    for draft, known in _VALIDATORS.items()
}
