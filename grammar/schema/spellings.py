"""Spellings that 2020-12 no longer knows, and type names that are not JSON Schema's, made modern.

A schema that names no draft is read and judged as 2020-12 after this. One that names its draft is
left as it is, but for the aliases.
"""

import re
from collections.abc import Mapping
from typing import Any

from grammar.schema.document import subschemas
from grammar.schema.result import Reason

ALIASES: dict[str, str | None] = {
    "dict": "object",
    "map": "object",
    "hash": "object",
    "hashmap": "object",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "arraylist": "array",
    "float": "number",
    "double": "number",
    "decimal": "number",
    "int": "integer",
    "long": "integer",
    "short": "integer",
    "byte": "integer",
    "bool": "boolean",
    "str": "string",
    "text": "string",
    "char": "string",
    "none": "null",
    "nonetype": "null",
    "any": None,
}
"""Type names of other languages, in lower case; None allows every type."""

_TYPES = frozenset("null boolean integer number string array object".split())


_OLD = re.compile(
    r'"(?:dependencies|additionalItems)":|"items": \['
    r'|"(?:exclusiveM[a-z]+|required)": (?:true|false)'
)


def may_be_old(text: str) -> bool:
    """Whether a schema, as ``json.dumps`` writes it, may hold a spelling of an older draft."""
    return _OLD.search(text) is not None


def modern(schema: Any, *, aliases: bool, lenient: bool) -> tuple[Any, list[Reason]]:
    """A copy in the spelling of 2020-12, or the schema itself where nothing has to change.

    Args:
        aliases: read the type names of ``ALIASES``, in any case of letters.
        lenient: read the spellings of older drafts.

    Returns:
        The schema, and a reason for each alias.
    """
    reasons: list[Reason] = []
    if not isinstance(schema, Mapping):
        return schema, reasons
    copy: dict[str, Any] = dict(schema)
    changed = moved = False
    nodes = [(copy, "#")]
    for node, pointer in nodes:
        if aliases:
            changed |= _name_types(node, pointer, reasons)
            changed |= _move_enum(node, pointer, reasons)
        if lenient:
            moved |= isinstance(node.get("items"), list)
            changed |= _respell(node)
        for keyword, value in node.items():
            if isinstance(value, Mapping):
                node[keyword] = dict(value)
            elif isinstance(value, list):
                node[keyword] = list(value)
        for path, child in list(subschemas(node)):
            if isinstance(child, Mapping):
                fresh = dict(child)
                _put(node, path, fresh)
                nodes.append((fresh, pointer + path))
    if moved:
        for node, _ in nodes:
            if isinstance(node.get("$ref"), str):
                node["$ref"] = re.sub(r"/items/(?=\d)", "/prefixItems/", node["$ref"])
    return (copy if changed else schema), reasons


def _put(node: dict[str, Any], path: str, child: Any) -> None:
    """Put a child where ``subschemas`` found it."""
    keyword, *rest = path[1:].split("/")
    if rest:
        node = node[keyword]
        keyword = rest[0].replace("~1", "/").replace("~0", "~")
    if isinstance(node, list):
        node[int(keyword)] = child
    else:
        node[keyword] = child


def _name_types(node: dict[str, Any], pointer: str, reasons: list[Reason]) -> bool:
    named = node.get("type")
    names = named if isinstance(named, list) else [named]
    known = [n for n in names if isinstance(n, str)]
    foreign = [n for n in known if n not in _TYPES and n.lower() in ALIASES | dict.fromkeys(_TYPES)]
    if not foreign or len(known) < len(names):
        return False
    read = [n if n in _TYPES else ALIASES.get(n.lower(), n.lower()) for n in known]
    for name in foreign:
        meant = ALIASES.get(name.lower(), name.lower()) or "every type"
        reasons.append(Reason(pointer, "type", "rewritten", f"type {name!r} is read as {meant}"))
    if None in read:
        del node["type"]
    else:
        distinct = list(dict.fromkeys(read))
        node["type"] = distinct if isinstance(named, list) else distinct[0]
    return True


def _move_enum(node: dict[str, Any], pointer: str, reasons: list[Reason]) -> bool:
    """An enum of an array that lists no array is meant for its items."""
    listed, items = node.get("enum"), node.get("items", {})
    if (
        node.get("type") != "array"
        or not isinstance(listed, list)
        or not isinstance(items, Mapping)
    ):
        return False
    if not listed or any(isinstance(v, list) for v in listed):
        return False
    node["items"] = {**items, "enum": node.pop("enum")}
    reasons.append(Reason(pointer, "enum", "rewritten", "enum of an array is read as its items'"))
    return True


def _respell(node: dict[str, Any]) -> bool:
    changed = False
    if isinstance(node.get("items"), list):
        rest = node.pop("additionalItems", True)
        node.setdefault("prefixItems", node["items"])
        node["items"] = rest
        changed = True
    for bound, exclusive in (
        ("minimum", "exclusiveMinimum"),
        ("maximum", "exclusiveMaximum"),
    ):
        if isinstance(node.get(exclusive), bool):
            if node.pop(exclusive) and bound in node:
                node[exclusive] = node.pop(bound)
            changed = True
    needs = node.get("dependencies")
    if isinstance(needs, Mapping):
        listed = {k: [v] if isinstance(v, str) else v for k, v in needs.items()}
        required = {k: v for k, v in listed.items() if isinstance(v, list)}
        schemas = {k: v for k, v in listed.items() if isinstance(v, Mapping | bool)}
        if len(required) + len(schemas) == len(listed):
            del node["dependencies"]
            node["dependentRequired"] = {**required, **node.get("dependentRequired", {})}
            node["dependentSchemas"] = {**schemas, **node.get("dependentSchemas", {})}
            changed = True
    if isinstance(node.get("required"), bool):
        # Draft 3 put it on the property itself, where it means nothing now.
        del node["required"]
        changed = True
    return changed
