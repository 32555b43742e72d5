"""The document that references lead into: base URIs, anchors, pointers. Nothing is ever fetched."""

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import jsonschema_specifications

from grammar.schema.limits import Refused

_ONE = (
    "additionalItems additionalProperties contains contentSchema else if items not"
    " propertyNames then unevaluatedItems unevaluatedProperties".split()
)
_MANY = "allOf anyOf items oneOf prefixItems".split()
_NAMED = "$defs definitions dependencies dependentSchemas patternProperties properties".split()


def escaped(part: str) -> str:
    """One step of a JSON pointer."""
    return part.replace("~", "~0").replace("/", "~1")


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside a schema, each with its relative pointer."""
    for keyword in _ONE:
        if isinstance(schema.get(keyword), Mapping | bool):
            yield f"/{keyword}", schema[keyword]
    for keyword in _MANY:
        if isinstance(schema.get(keyword), list):
            for i, child in enumerate(schema[keyword]):
                yield f"/{keyword}/{i}", child
    for keyword in _NAMED:
        if isinstance(schema.get(keyword), Mapping):
            for name, child in schema[keyword].items():
                if isinstance(child, Mapping | bool):
                    yield f"/{keyword}/{escaped(name)}", child


class Document:
    """A schema and the places in it that have a name.

    Args:
        schema: the root.
        id_keyword: ``$id``, or ``id`` in draft 4.
        ref_hides_id: drafts up to 7 ignore what stands beside ``$ref``.
        named: whether any place may have a name; without one there is no need to look.
    """

    def __init__(
        self, schema: Any, id_keyword: str, ref_hides_id: bool, named: bool = True
    ) -> None:
        self._id = id_keyword
        self._ref_hides_id = ref_hides_id
        self.root_base = self._base_of(schema, "")
        self._resources: dict[str, tuple[Any, str]] = {"": (schema, "#")}
        self._anchors: dict[tuple[str, str], tuple[Any, str]] = {}
        self.dynamic: dict[str, list[tuple[str, Any, str]]] = {}
        """Places with each ``$dynamicAnchor``: base, schema, pointer."""
        self.recursive = False
        """Whether ``$recursiveAnchor`` is true anywhere."""
        self._bases: dict[int, str] = {}
        self._named = named
        if named:
            self._index(schema, "", "#")

    def _base_of(self, schema: Any, base: str) -> str:
        if not isinstance(schema, Mapping):
            return base
        name = schema.get(self._id)
        if not isinstance(name, str) or (self._ref_hides_id and "$ref" in schema):
            return base
        try:
            return urljoin(base, urldefrag(name)[0]) or base
        except ValueError:
            return base

    def base_of(self, schema: Any, base: str) -> str:
        """The base URI inside a schema that is met under ``base``."""
        return self._bases.get(id(schema), base)

    def _index(self, root: Any, base: str, pointer: str) -> None:
        todo = [(root, base, pointer)]
        while todo:
            schema, base, pointer = todo.pop()
            if not isinstance(schema, Mapping):
                continue
            own = self._base_of(schema, base)
            self._bases[id(schema)] = own
            if own != base or schema is root:
                self._resources.setdefault(own, (schema, pointer))
            name = schema.get(self._id)
            if isinstance(name, str) and "#" in name and urldefrag(name)[1]:
                self._anchors.setdefault((own, urldefrag(name)[1]), (schema, pointer))
            for keyword in ("$anchor", "$dynamicAnchor"):
                anchor = schema.get(keyword)
                if isinstance(anchor, str):
                    self._anchors.setdefault((own, anchor), (schema, pointer))
                    if keyword == "$dynamicAnchor":
                        self.dynamic.setdefault(anchor, []).append((own, schema, pointer))
            self.recursive |= schema.get("$recursiveAnchor") is True
            todo.extend((child, own, pointer + path) for path, child in subschemas(schema))

    def resolve(self, ref: Any, base: str, pointer: str) -> tuple[Any, str, str]:
        """The schema that a reference leads to.

        Returns:
            It, the base URI it is met under, and its pointer.

        Raises:
            Refused: it leads out of the schema, or nowhere.
        """
        if not isinstance(ref, str):
            raise Refused(pointer, "$ref", f"$ref must be a string; got {ref!r}")
        try:
            uri, fragment = urldefrag(urljoin(base, ref))
        except ValueError:
            raise Refused(pointer, "$ref", f"$ref {ref!r} is not a URI reference") from None
        if ref.startswith("#"):
            uri, fragment = base, ref[1:]
        found = self._resources.get(uri)
        if found is None:
            found = self._published(uri, ref, pointer)
        schema, place = found
        fragment = unquote(fragment)
        if not fragment:
            return schema, uri, place
        if not fragment.startswith("/"):
            if (uri, fragment) not in self._anchors:
                raise Refused(pointer, "$ref", f"$ref {ref!r} names an anchor that is not there")
            schema, place = self._anchors[uri, fragment]
            return schema, self._bases.get(id(schema), uri), place
        inner = uri
        for part in fragment[1:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            inner = self._bases.get(id(schema), inner)
            if isinstance(schema, Mapping) and key in schema:
                schema = schema[key]
            elif isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
                schema = schema[int(key)]
            else:
                raise Refused(pointer, "$ref", f"$ref {ref!r} leads nowhere; define its target")
            place = f"{place}/{part}"
        if self._named and isinstance(schema, Mapping) and id(schema) not in self._bases:
            # Below an unknown keyword: its own identifiers are found only now.
            self._index(schema, inner, place)
        return schema, self._bases.get(id(schema), inner), place

    def _published(self, uri: str, ref: str, pointer: str) -> tuple[Any, str]:
        try:
            resource = jsonschema_specifications.REGISTRY[uri.rstrip("#")]
        except LookupError:
            raise Refused(
                pointer,
                "$ref",
                f"$ref {ref!r} leads out of the schema and nothing is fetched; put its target under"
                " $defs",
            ) from None
        self._resources[uri] = (resource.contents, uri)
        self._named = True
        self._index(resource.contents, uri, uri)
        return self._resources[uri]
