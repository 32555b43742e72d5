"""jsonschema's validators: the judge of every instance, and of the draft a schema is written in."""

from collections.abc import Mapping
from typing import Any

import jsonschema
import jsonschema_specifications
from jsonschema.validators import validator_for

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
    """A validator that never fetches: it knows the published meta-schemas and nothing else."""
    return _VALIDATORS[draft](schema, registry=jsonschema_specifications.REGISTRY)
