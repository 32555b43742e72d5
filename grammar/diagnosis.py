"""Where in a schema a compilation fails: xgrammar's errors give the reason and no place."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import xgrammar
from pydantic_core import PydanticSerializationError
from xgrammar.structural_tag import JSONSchemaFormat, StructuralTag

from grammar.formats.base import MAX_WHITESPACE

_MAX_ATTEMPTS = 256
_NOTHING = object()

# Keywords whose value is one schema, a list of them, or schemas by name.
_ONE = "items additionalProperties unevaluatedItems unevaluatedProperties contains propertyNames"
_ONE += " not if then else"
_MANY = "anyOf oneOf allOf prefixItems"
_NAMED = "properties patternProperties dependentSchemas"


@dataclass(frozen=True)
class Fault:
    """What keeps a schema from being compiled.

    Attributes:
        pointer: JSON Pointer (RFC 6901) to the smallest schema that fails by itself; empty for the
            root, or where no part of it fails alone.
        reason: xgrammar's sentence about that schema.
    """

    pointer: str
    reason: str


def schema_fault(schema: Mapping[str, Any]) -> Fault | None:
    """Find the part of a JSON Schema that xgrammar refuses, or None if it takes the whole.

    Each part is tried in place, as a reference into the whole, so that its own references hold. At
    most 256 parts are tried; beyond that the answer is the smallest found so far.
    """
    error = _error(schema)
    if error is None:
        return None
    errors: dict[str, Exception | None] = {"": error}
    # Too deep to be written down is a property of the whole.
    if not isinstance(error, PydanticSerializationError):
        pointer = _smallest(schema, "", errors) or ""
        return Fault(pointer, reason(errors[pointer]))
    return Fault("", reason(error))


def _smallest(
    schema: Mapping[str, Any], pointer: str, errors: dict[str, Exception | None]
) -> str | None:
    """A part at or below ``pointer`` that fails while nothing below it does.

    None if all that fails below leads back to where the search has been. ``errors`` collects what
    was tried.
    """
    something_below = False
    for child in _children(_resolve(schema, pointer), pointer):
        if _resolve(schema, child) is _NOTHING:
            continue
        if child not in errors:
            if len(errors) > _MAX_ATTEMPTS:
                break
            errors[child] = _error({**schema, "$ref": f"#{child}"})
            if errors[child] and (found := _smallest(schema, child, errors)) is not None:
                return found
        something_below |= errors[child] is not None
    return None if something_below else pointer


def reason(error: Exception) -> str:
    """An error of xgrammar's without the time and the source line that come before the sentence."""
    return " ".join(re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error).strip()).split())


def _error(schema: Mapping[str, Any]) -> Exception | None:
    content = JSONSchemaFormat(json_schema=dict(schema), max_whitespace_cnt=MAX_WHITESPACE)
    try:
        xgrammar.Grammar.from_structural_tag(StructuralTag(format=content))
    except (RuntimeError, PydanticSerializationError) as error:
        return error
    return None


def _children(node: Any, pointer: str) -> Iterator[str]:
    """Pointers to the schemas right below a node, and to the one it refers to."""
    if not isinstance(node, Mapping):
        return
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        yield reference[1:]
    for keyword in _ONE.split():
        if keyword in node:
            yield f"{pointer}/{keyword}"
    for keyword in _MANY.split():
        if isinstance(node.get(keyword), list):
            yield from (f"{pointer}/{keyword}/{i}" for i in range(len(node[keyword])))
    for keyword in _NAMED.split():
        if isinstance(node.get(keyword), Mapping):
            names = (name.replace("~", "~0").replace("/", "~1") for name in node[keyword])
            yield from (f"{pointer}/{keyword}/{name}" for name in names)


def _resolve(schema: Any, pointer: str) -> Any:
    """The value at a pointer, or ``_NOTHING`` where it leads nowhere."""
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping) and step in schema:
            schema = schema[step]
        elif isinstance(schema, list) and step.isdecimal() and int(step) < len(schema):
            schema = schema[int(step)]
        else:
            return _NOTHING
    return schema
