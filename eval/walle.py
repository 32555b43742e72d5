"""The tool schemas of MoonshotAI/walle, each as the parameters of a tool.

walle's schemas are of any type; arguments are an object. So each becomes the one property of an
object, and what its references lead to moves with them to the root.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEY = "value"
# Of a document, not of a schema in it: they go to the root, or the references would lose their way.
_OF_DOCUMENT = ("$schema", "$id", "$defs", "definitions")
_NO_SCHEMAS = ("enum", "const", "default", "examples")
_NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


@dataclass(frozen=True)
class Case:
    """One schema.

    Attributes:
        name: file and line.
        parameters: the schema wrapped.
    """

    name: str
    parameters: Mapping[str, Any]


def read_cases(folder: str | Path) -> list[Case]:
    """All schemas of a folder: `.jsonl` files, a schema a line.

    Raises:
        ValueError: no such folder, no schemas, or a line that is none.
    """
    paths = sorted(Path(folder).glob("*.jsonl"))
    cases = []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                schema = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not JSON: {error}") from None
            cases.append(Case(f"{path.stem}:{number}", wrapped(schema)))
    if not cases:
        raise ValueError(f"{folder} holds no schemas; give a folder of .jsonl files, one a line")
    return cases


def wrapped(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    """An object whose one property is held to `schema`; references lead where they did."""
    inner = _redirected(schema)
    moved = {}
    if isinstance(inner, dict):
        moved = {key: inner.pop(key) for key in _OF_DOCUMENT if key in inner}
    return {
        **moved,
        "type": "object",
        "properties": {KEY: inner},
        "required": [KEY],
        "additionalProperties": False,
    }


def _redirected(schema: Any) -> Any:
    """A copy in which references to the root, or to what stays in it, lead to the property."""
    if isinstance(schema, list):
        return [_redirected(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    copy = {}
    for key, value in schema.items():
        if key in _NO_SCHEMAS:
            copy[key] = value
        elif key in _NAMED_SCHEMAS and isinstance(value, Mapping):
            copy[key] = {name: _redirected(part) for name, part in value.items()}
        elif key == "$ref" and isinstance(value, str):
            copy[key] = _reference(value)
        else:
            copy[key] = _redirected(value)
    return copy


def _reference(target: str) -> str:
    if target == "#" or (
        target.startswith("#/") and target.split("/")[1] not in ("$defs", "definitions")
    ):
        return f"#/properties/{KEY}{target[1:]}"
    return target
