"""BFCL's parameter descriptions as JSON Schema, draft 2020-12, and its names as OpenAI takes them.

BFCL's function documents look like JSON Schema and are not: types are Python's (``dict``,
``float``, ``tuple``, ``any``), Java's or JavaScript's, and a list of words may stand where a value
of another type is described.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from eval.chat_body import load_json

TYPES = {
    "object": "object dict Object HashMap Hashtable Map",
    "array": "array tuple list set Array ArrayList List Queue Set Stack Tuple",
    "number": "number float double Number Float Double",
    "integer": "integer int long short byte Bigint Byte Integer Long Short",
    "string": "string str char String Char Character",
    "boolean": "boolean bool Boolean",
    "null": "null None NoneType",
    "": "any Any",
}
"""JSON Schema's types and the words BFCL has for them; "" is no type, which takes any value.

An empty word, as in one question of the JavaScript set, is no type either."""

_TYPE = {"": ""} | {word: name for name, words in TYPES.items() for word in words.split()}
_SCHEMAS = ("items", "additionalProperties", "contains", "not", "if", "then", "else")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPPINGS = ("properties", "patternProperties", "$defs", "definitions")
_NAME_LENGTH = 64


def parameters_schema(parameters: Any) -> dict[str, Any]:
    """The JSON Schema of a function's arguments: an object, whatever the document calls it.

    Raises:
        ValueError: names the place and what cannot be read as a schema there.
    """
    schema = json_schema({} if parameters is None else parameters, "parameters")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise ValueError(f"parameters must describe an object; got {_short(parameters)}")
    return {"type": "object", "properties": {}, **schema}


def json_schema(schema: Any, where: str = "") -> dict[str, Any] | bool:
    """One description as a JSON Schema, and those inside it; keys that it does not know stay.

    * Types are mapped by ``TYPES``; ``any`` is no type. A schema may be a bare type's name.
    * ``optional`` goes: ``required`` of the object around it is what counts. ``required`` as a
      boolean, JSON Schema draft 3's, joins that list.
    * A list as ``items`` is ``prefixItems``; null in place of a schema or a list is left out.
    * ``enum`` beside ``array`` lists the elements. Its values are read as the type beside it
      (``"1"`` as 1, ``"True"`` as true), and where some do not fit that, they count and the type
      does not.

    Raises:
        ValueError: names the place, and a type that BFCL does not have or what is no schema.
    """
    if isinstance(schema, bool):
        return schema
    if isinstance(schema, str):
        schema = {"type": schema}
    if not isinstance(schema, Mapping):
        raise ValueError(f"{where} must be a schema; got {_short(schema)}")
    out = {key: value for key, value in schema.items() if key != "optional"}
    for key in (*_SCHEMAS, *_LISTS, *_MAPPINGS, "required", "enum"):
        if out.get(key, ...) is None:
            del out[key]
    _map_type(out, where)
    if isinstance(out.get("items"), list):
        out["prefixItems"] = out.pop("items")
    for key in _SCHEMAS:
        if key in out:
            out[key] = json_schema(out[key], f"{where}.{key}")
    for key in _LISTS:
        if key in out:
            parts = _expect(out[key], list, f"{where}.{key}")
            out[key] = [json_schema(part, f"{where}.{key}[{i}]") for i, part in enumerate(parts)]
    _map_required(out, where)
    for key in _MAPPINGS:
        if key in out:
            parts = _expect(out[key], Mapping, f"{where}.{key}")
            out[key] = {name: json_schema(part, f"{where}.{name}") for name, part in parts.items()}
    if "enum" in out:
        _map_enum(out, where)
    if out.pop("nullable", None) is True and isinstance(out.get("type"), str):
        out["type"] = [out["type"], "null"]
    return out


def safe_names(names: Iterable[str]) -> dict[str, str]:
    """Each name to one that OpenAI's API takes, ``[a-zA-Z0-9_-]{1,64}``; no two to the same.

    A name that is fit already stays. In others each character that is not becomes ``_``, as BFCL
    does with dots, and what is too long is cut; a number at the end tells apart what would clash.
    """
    names = list(dict.fromkeys(names))
    safe = {name: name for name in names if re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)}
    taken = set(safe)
    for name in names:
        if name in safe:
            continue
        plain = re.sub(r"[^a-zA-Z0-9_-]", "_", name) or "_"
        candidate, n = plain[:_NAME_LENGTH], 2
        while candidate in taken:
            end = f"_{n}"
            candidate, n = plain[: _NAME_LENGTH - len(end)] + end, n + 1
        safe[name] = candidate
        taken.add(candidate)
    return {name: safe[name] for name in names}


def _map_type(schema: dict[str, Any], where: str) -> None:
    if "type" not in schema:
        return
    declared = schema.pop("type")
    words = declared if isinstance(declared, list) else [declared]
    unknown = [word for word in words if not isinstance(word, str) or word not in _TYPE]
    if unknown:
        raise ValueError(f"{where}.type must be one of BFCL's types; got {_short(unknown[0])}")
    types = list(dict.fromkeys(_TYPE[word] for word in words))
    if types and "" not in types:
        # First, as it was: a prompt shows the schema as it stands.
        rest = dict(schema)
        schema.clear()
        schema.update({"type": types[0] if len(types) == 1 else types, **rest})


def _map_required(schema: dict[str, Any], where: str) -> None:
    """``required`` as a list of distinct names, those that the properties claim included."""
    required = schema.get("required", False)
    stated = not isinstance(required, bool)
    names = list(_expect(required, list, f"{where}.required")) if stated else []
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{where}.required must list names; got {_short(required)}")
    properties = _expect(schema.get("properties", {}), Mapping, f"{where}.properties")
    names += [
        name
        for name, part in properties.items()
        if isinstance(part, Mapping) and part.get("required") is True
    ]
    if names or stated:
        schema["required"] = list(dict.fromkeys(names))
    else:
        schema.pop("required", None)


def _map_enum(schema: dict[str, Any], where: str) -> None:
    values = _expect(schema["enum"], list, f"{where}.enum")
    kind = schema.get("type")
    if not values:
        # No value at all would do, which nobody means.
        del schema["enum"]
        return
    if kind == "array" and not any(isinstance(value, list) for value in values):
        items = schema.get("items", {})
        if isinstance(items, dict):
            schema["items"] = json_schema({**items, "enum": values}, f"{where}.items")
        del schema["enum"]
        return
    schema["enum"] = [_read_as(kind, value) for value in values]
    if isinstance(kind, str) and not all(_is_a(kind, value) for value in schema["enum"]):
        del schema["type"]


def _read_as(kind: Any, value: Any) -> Any:
    """A text as the boolean or number that it spells, if the schema is of that type."""
    if kind not in ("boolean", "integer", "number") or not isinstance(value, str):
        return value
    try:
        read = load_json(value.lower())
    except ValueError:
        return value
    return read if _is_a(kind, read) else value


def _is_a(kind: str, value: Any) -> bool:
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    python = {"boolean": bool, "string": str, "array": list, "object": dict, "null": type(None)}
    return isinstance(value, python[kind])


def _expect(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        wanted = "a list" if kind is list else "an object"
        raise ValueError(f"{where} must be {wanted}; got {_short(value)}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
