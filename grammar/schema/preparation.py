"""``prepare``: from a schema as written to one that xgrammar enforces."""

from collections.abc import Mapping
from typing import Any

from grammar.schema.judge import draft_of
from grammar.schema.result import Options, Prepared, Reason

_ANNOTATIONS = set(
    "$schema $id $comment title description default examples deprecated readOnly writeOnly".split()
)
_OBJECT = {"type", "properties", "required", "additionalProperties"}
_ARRAY = {"type", "items", "minItems", "maxItems"}


def prepare(schema: Any, *, options: Options = Options(), pointer: str = "") -> Prepared:
    """Make a schema ready for xgrammar; see the package."""
    reasons: list[Reason] = []
    draft = options.draft or draft_of(schema) or "2020-12"
    prepared = _node(schema, options, f"#{pointer}", reasons)
    verdict = "guarded" if reasons else "exact"
    return Prepared(prepared, schema, verdict, tuple(reasons), draft, schema)


def _node(schema: Any, options: Options, pointer: str, reasons: list[Reason]) -> Any:
    if not isinstance(schema, Mapping) or not schema.keys() - _ANNOTATIONS:
        return {}
    keys = schema.keys() - _ANNOTATIONS
    kind = schema.get("type")
    if kind == "object" and keys <= _OBJECT:
        properties = schema.get("properties", {})
        if set(schema.get("required", [])) <= properties.keys():
            return {
                "type": "object",
                "properties": {
                    k: _node(v, options, f"{pointer}/properties/{k}", reasons)
                    for k, v in properties.items()
                },
                "required": schema.get("required", []),
                "additionalProperties": _node(
                    schema["additionalProperties"],
                    options,
                    f"{pointer}/additionalProperties",
                    reasons,
                )
                if isinstance(schema.get("additionalProperties"), Mapping)
                else schema.get("additionalProperties", options.undeclared_keys == "allow"),
            }
    if kind == "array" and keys <= _ARRAY and isinstance(schema.get("items", {}), Mapping):
        rest = {k: schema[k] for k in keys - {"items"}}
        return rest | {
            "items": _node(schema.get("items", {}), options, f"{pointer}/items", reasons)
        }
    if isinstance(kind, str) and keys == {"type"}:
        return {"type": kind}
    reasons.append(
        Reason(pointer, "", "guarded", f"{sorted(keys)} are not rewritten yet: any value is taken")
    )
    return {}
