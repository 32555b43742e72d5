"""Values that stand in a call as plain text between tags, and what they mean.

Such text does not say whether ``5`` is a number or a string; the tool's schema does:

* A string keeps its text, quotes and indentation included. Where the format writes each value on
  lines of its own, exactly one newline on each side is layout.
* Anything else is JSON: ``5``, ``true``, ``null``, ``{"a": [1]}``. Where no string is allowed,
  Python's ``True``, ``False``, ``None`` and literals are understood and reported: some chat
  templates show them to the model.
* Where the schema allows both (or says nothing), text that is JSON of an allowed type, and no JSON
  string, is that value; all other text is a string. So a string that looks like JSON of another
  allowed type cannot be written: ``render(calls, tools)`` refuses it.
* Of several readings the first that validates counts: whitespace around an enum's member is layout,
  however much of it there is.
* A text of no allowed type is not coerced: it stays what it is, for the caller's validator to
  refuse. An empty text where no string is allowed is ``null`` if that is allowed, absent if the
  parameter is optional, and otherwise kept.
"""

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grammar.formats import json_text
from grammar.schema import judge

_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_MAX_LAYOUT = 8  # whitespace characters on one side that may be layout around a constrained string
_MAX_DEPTH = 16  # of references and combinations that are followed in a schema


class Declared:
    """What a schema declares for one value.

    Args:
        schema: of the value; ``{}`` or True where nothing is declared.
        root: the schema that references start from.

    Attributes:
        types: the JSON types it allows; all of them where it says nothing.
    """

    def __init__(self, schema: Any, root: Any = None) -> None:
        self.schema = schema
        self._root = schema if root is None else root
        self.types = self._types(schema, _MAX_DEPTH)

    def member(self, key: str) -> "Declared":
        """What is declared for the member ``key`` of an object."""
        own, other = [], []
        for part in self._parts(self.schema, _MAX_DEPTH):
            properties = part.get("properties")
            if isinstance(properties, Mapping) and key in properties:
                own.append(properties[key])
            elif isinstance(part.get("additionalProperties"), Mapping):
                other.append(part["additionalProperties"])
        return self._one_of(own or other)

    def element(self) -> "Declared":
        """What is declared for the elements of an array."""
        parts = self._parts(self.schema, _MAX_DEPTH)
        return self._one_of([p["items"] for p in parts if isinstance(p.get("items"), Mapping)])

    @property
    def properties(self) -> frozenset[str]:
        """The names of the members that are declared."""
        parts = self._parts(self.schema, _MAX_DEPTH)
        found = [p["properties"] for p in parts if isinstance(p.get("properties"), Mapping)]
        return frozenset(itertools.chain.from_iterable(found))

    @property
    def required(self) -> frozenset[str]:
        """The names of the members that every value needs, as far as they are said plainly."""
        schema = self._resolve(self.schema)
        names = schema.get("required") if isinstance(schema, Mapping) else None
        return frozenset(names) if isinstance(names, Sequence) else frozenset()

    def accepts(self, value: Any) -> bool:
        """Whether ``value`` validates; True too where the schema itself cannot be used."""
        if self.schema in (True, {}):
            return True
        try:
            return judge.accepts(self.schema, value, root=self._root)
        except Exception:  # a schema that cannot be read, or takes too long, forbids nothing
            return True

    def has(self, keyword: str) -> bool:
        """Whether any part of the schema uses ``keyword``."""
        return any(keyword in part for part in self._parts(self.schema, _MAX_DEPTH))

    def _one_of(self, schemas: list[Any]) -> "Declared":
        if not schemas:
            return Declared({}, self._root)
        return Declared(schemas[0] if len(schemas) == 1 else {"anyOf": schemas}, self._root)

    def _resolve(self, schema: Any) -> Any:
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                break
            schema = _pointer(self._root, schema["$ref"])
        return schema

    def _parts(self, schema: Any, depth: int) -> Iterator[Mapping[str, Any]]:
        """The schema itself and all that it is put together from."""
        schema = self._resolve(schema)
        if not isinstance(schema, Mapping) or depth == 0:
            return
        yield schema
        for part in _combined(schema, "anyOf", "oneOf", "allOf"):
            yield from self._parts(part, depth - 1)

    def _types(self, schema: Any, depth: int) -> frozenset[str]:
        schema = self._resolve(schema)
        if not isinstance(schema, Mapping) or depth == 0:
            return _TYPES
        allowed = _TYPES
        declared = schema.get("type", [])
        declared = {declared} if isinstance(declared, str) else set(declared)
        if "number" in declared:
            declared.add("integer")
        if declared:
            allowed &= declared
        if "const" in schema:
            allowed &= {type_of(schema["const"])}
        if isinstance(schema.get("enum"), Sequence):
            allowed &= {type_of(value) for value in schema["enum"]}
        for keyword in ("anyOf", "oneOf"):
            if parts := _combined(schema, keyword):
                allowed &= frozenset().union(*(self._types(p, depth - 1) for p in parts))
        for part in _combined(schema, "allOf"):
            allowed &= self._types(part, depth - 1)
        return allowed


def type_of(value: Any) -> str:
    """The JSON Schema type of a decoded value; ``5.0`` is an integer, as in JSON Schema."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    names = {str: "string", float: "number", list: "array", dict: "object"}
    return names[type(value)]


def read(
    text: str, declared: Declared, *, layout: bool, required: bool = True
) -> tuple[str | None, str | None]:
    """The value that ``text`` stands for.

    Args:
        text: all that stands between the tags.
        layout: the format puts a value on lines of its own.
        required: what to do with an empty text that can be no value, see above.

    Returns:
        The value as JSON text, or None for no value at all; and what was mended, or None.
    """
    bare = text.strip()
    stringy = "string" in declared.types
    if not bare and not stringy:
        if "null" in declared.types:
            return "null", "an empty value for null"
        return ('""' if required else None), "an empty value where no string is allowed"
    value, mended = _as_json(bare, declared)
    if value is not None:
        decoded = json_text.loads(value, loose=True)
        if type_of(decoded) in declared.types and (not stringy or declared.accepts(decoded)):
            return value, mended
    if stringy:
        return string(text, declared, layout=layout), None
    if value is not None and mended is None:
        return value, None
    wanted = " or ".join(sorted(declared.types)) or "of any type"
    return json_text.dumps(_trimmed(text) if layout else text), f"the value is not {wanted}"


def string(text: str, declared: Declared, *, layout: bool) -> str:
    """The string that ``text`` stands for, as JSON text."""
    first = text.strip() if declared.has("format") else _trimmed(text) if layout else text
    if declared.schema in (True, {}):
        return json_text.dumps(first)
    lead = min(len(text) - len(text.lstrip()), _MAX_LAYOUT)
    trail = min(len(text) - len(text.rstrip()), _MAX_LAYOUT)
    ranges = itertools.product(range(lead + 1), range(trail + 1))
    others = (text[i : max(i, len(text) - j)] for i, j in ranges)
    for candidate in itertools.chain([first, text, text.strip()], others):
        if declared.accepts(candidate):
            return json_text.dumps(candidate)
    return json_text.dumps(first)


def _trimmed(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")


def _as_json(bare: str, declared: Declared) -> tuple[str | None, str | None]:
    """``bare`` as JSON text of no string, and what was mended; None where it is none."""
    value, mended = bare, None
    try:
        decoded = json_text.loads(bare)
    except ValueError:
        value = None
    if value is None and bare[:1] in ("{", "["):
        try:
            decoded = json_text.loads(bare, loose=True)
            value, mended = json_text.dumps(decoded), "raw control characters inside a JSON string"
        except ValueError:
            pass
    if value is None and "string" not in declared.types:
        value, mended = _PYTHON.get(bare), "a Python literal for JSON"
        if value is None and bare[:1] in ("{", "["):
            value = _python_literal(bare)
        decoded = None if value is None else json_text.loads(value)
    if value is None or (isinstance(decoded, str) and "string" in declared.types):
        return None, None
    return value, mended


def _python_literal(text: str) -> str | None:
    try:
        value = json_text.dumps(ast.literal_eval(text))
        json_text.loads(value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return value


def _combined(schema: Mapping[str, Any], *keywords: str) -> list[Any]:
    found = [schema.get(keyword) for keyword in keywords]
    return [part for parts in found if isinstance(parts, Sequence) for part in parts]


def _pointer(root: Any, reference: Any) -> Any:
    """What a reference inside the same document points at; ``{}`` for any other."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return {}
    node = root
    for step in reference[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and step in node:
            node = node[step]
        elif isinstance(node, list) and step.isdigit() and int(step) < len(node):
            node = node[int(step)]
        else:
            return {}
    return node
