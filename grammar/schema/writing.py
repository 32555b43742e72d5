"""A graph of shapes, written as a JSON Schema that xgrammar enforces as it stands."""

import json
import math
from fractions import Fraction
from typing import Any

from grammar.schema import spelling
from grammar.schema.graph import Graph
from grammar.schema.language import ANYTHING, Language, tree_of
from grammar.schema.limits import TooMuch
from grammar.schema.result import Kind
from grammar.schema.shapes import (
    EVERYTHING,
    FALSE,
    SCALARS,
    TRUE,
    Array,
    Conj,
    Number,
    Object,
    Shape,
    String,
    Values,
)

_MAX_INT = 2**63 - 1
_MAX_STEP = 1024
"""xgrammar (0.2.9) takes ``multipleOf`` up to this."""
_MAX_LISTED = 300
"""Values that are written out in place of a rule."""


class Writer:
    """Writes the conjunctions of a graph; shared and recursive ones go to ``$defs``."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.reader = graph, graph.reader
        self.defs: dict[str, Any] = {}
        self._names: dict[Conj, str] = {}
        self._queue: list[Conj] = []

    def document(self) -> Any:
        """The whole schema."""
        root = self.write(self.graph.root, root=True)
        for conj in self._queue:
            self.defs[self._names[conj]] = self.union(self.graph.shapes[conj])
        return {**root, "$defs": self.defs} if self.defs else root

    def guard(self, shape: Shape, keyword: str, message: str, kind: Kind = "guarded") -> None:
        """Report that a shape is written wider than it is."""
        self.reader.note("#", keyword, kind, message)

    def write(self, conj: Conj, root: bool = False) -> Any:
        """The schema of a conjunction."""
        if conj in self._names:
            return {"$ref": f"#/$defs/{self._names[conj]}"}
        if conj == TRUE:
            return {}
        self.reader.budget.tick()
        union = self.graph.shapes[conj]
        for shape in union:
            self.reader.reasons.update(dict.fromkeys(shape.loose))
        big = any(isinstance(s, Object | Array) and s not in EVERYTHING for s in union)
        shared = big and (self.graph.uses.get(conj, 0) > 1 or conj in self.graph.loops)
        if root and conj not in self.graph.loops:
            shared = False
        if not shared:
            return self.union(union)
        self._names[conj] = f"d{len(self._names)}"
        self._queue.append(conj)
        return {"$ref": f"#/$defs/{self._names[conj]}"}

    def union(self, union: tuple[Shape, ...]) -> Any:
        """The schema of some shapes."""
        if union == EVERYTHING:
            return {}
        written: list[Any] = []
        for shape in union:
            written += self.shape(shape)
        plain = [w["type"] for w in written if w.keys() == {"type"}]
        others = [w for w in written if w.keys() != {"type"}]
        if plain:
            others.insert(0, {"type": plain[0] if len(plain) == 1 else plain})
        return others[0] if len(others) == 1 else {"anyOf": others}

    def shape(self, shape: Shape) -> list[Any]:
        """The schemas, one or more, of one shape."""
        match shape:
            case Values():
                return self.values(shape)
            case Number():
                return self.number(shape)
            case String():
                return [self.string(shape)]
            case Array():
                return self.array(shape)
            case Object():
                return [self.object(shape)]
        raise AssertionError(shape)

    def values(self, shape: Values) -> list[Any]:
        """true, false and null as types where they are complete, the others as ``enum``."""
        texts = list(shape.texts)
        written: list[Any] = []
        if set(SCALARS.texts[1:]) <= set(texts):
            written.append({"type": "boolean"})
            texts = [t for t in texts if t not in SCALARS.texts[1:]]
        if SCALARS.texts[0] in texts and len(texts) == 1:
            written.append({"type": "null"})
            texts = []
        if texts:
            written.append({"enum": [self.reader.written.get(t, json.loads(t)) for t in texts]})
        return written

    def number(self, shape: Number) -> list[Any]:
        """Numbers; where xgrammar cannot count in steps, the values themselves."""
        if shape.integral:
            return self.integers(shape)
        if shape.step is not None:
            listed = self.multiples(shape)
            if listed is not None:
                return [{"enum": listed}]
            self.guard(shape, "multipleOf", f"multiples of {float(shape.step):g} are not enforced")
        if shape.fractional:
            self.guard(shape, "not", "that a number is not whole is not enforced")
        written: dict[str, Any] = {"type": "number"}
        if shape.low is not None:
            written["exclusiveMinimum" if shape.low_open else "minimum"] = plain(shape.low)
        if shape.high is not None:
            written["exclusiveMaximum" if shape.high_open else "maximum"] = plain(shape.high)
        return [written]

    def multiples(self, shape: Number) -> list[Any] | None:
        """All the multiples between two bounds, or None where they are too many."""
        if shape.low is None or shape.high is None or shape.step is None:
            return None
        first, last = math.ceil(shape.low / shape.step), math.floor(shape.high / shape.step)
        if last - first >= _MAX_LISTED:
            return None
        found = [plain(n * shape.step) for n in range(first, last + 1)]
        return [v for v in found if shape.has(v)]

    def integers(self, shape: Number) -> list[Any]:
        """Integers between whole bounds."""
        low = None if shape.low is None else math.ceil(shape.low)
        high = None if shape.high is None else math.floor(shape.high)
        if low is not None and low == shape.low and shape.low_open:
            low += 1
        if high is not None and high == shape.high and shape.high_open:
            high -= 1
        step = shape.step.numerator if shape.step else 1
        if step > _MAX_STEP or (step > 1 and (low is None) != (high is None)):
            listed = self.multiples(shape)
            if listed is not None:
                return [{"enum": listed}]
            self.guard(shape, "multipleOf", f"multiples of {step} are not enforced")
            step = 1
        written: dict[str, Any] = {"type": "integer"}
        if step > 1:
            written["multipleOf"] = step
        if low is not None:
            written["minimum"] = max(low, -_MAX_INT)
        if high is not None:
            written["maximum"] = min(high, _MAX_INT)
        if (low is not None and low > _MAX_INT) or (high is not None and high < -_MAX_INT):
            self.guard(shape, "minimum", "bounds beyond 2^63 are not enforced")
            return [{"type": "integer"}]
        return [written]

    def string(self, shape: String) -> Any:
        """Strings of a language."""
        language = shape.language
        if language == ANYTHING:
            return {"type": "string"}
        bounds_alone = not (language.trees or language.never)
        try:
            if bounds_alone and self.reader.options.lengths == "keywords":
                return self._bounds(language)
            pattern = self.pattern(language)
            if pattern is not None:
                return {"type": "string", "pattern": pattern}
            self.guard(shape, "pattern", "characters that JSON escapes cannot be written here")
            return {"type": "string"}
        except TooMuch as error:
            if not bounds_alone:
                self.guard(shape, "pattern", f"strings here are not enforced: {error}")
        return self._bounds(language)

    def _bounds(self, language: Language) -> dict[str, Any]:
        written: dict[str, Any] = {"type": "string"}
        if language.low:
            written["minLength"] = language.low
        if language.high is not None:
            written["maxLength"] = language.high
        return written

    def pattern(self, language: Language) -> str | None:
        """The anchored pattern of a language; None where all its strings need an escape.

        Raises:
            TooMuch: it has none that xgrammar could read.
        """
        return spelling.pattern(tree_of(language))

    def array(self, shape: Array) -> list[Any]:
        """Arrays."""
        prefix, items, high = list(shape.prefix), shape.items, shape.high
        if high is not None and len(prefix) >= high:
            del prefix[high:]
            items = FALSE
        while prefix and prefix[-1] == items:
            prefix.pop()
        if shape.unique and (high is None or high > 1):
            self.guard(shape, "uniqueItems", "uniqueItems is not enforced")
        for conj, low, most in shape.contains:
            if most is not None or low > 1 or not self._holds(shape, conj):
                self.guard(shape, "contains", "contains is not enforced")
        written: dict[str, Any] = {"type": "array"}
        if prefix:
            written["prefixItems"] = [self.write(conj) for conj in prefix]
        written["items"] = False if items == FALSE else self.write(items)
        if items == FALSE and not prefix:
            written = {"type": "array", "items": {}}
            high = 0
        low = max(shape.low, *(c[1] for c in shape.contains)) if shape.contains else shape.low
        if low:
            written["minItems"] = low
        if high is not None and not (items == FALSE and prefix and high == len(prefix)):
            written["maxItems"] = high
        return [written]

    def _holds(self, shape: Array, conj: Conj) -> bool:
        """Whether one item already satisfies what ``contains`` asks for."""
        return shape.items >= conj or any(c >= conj for c in shape.prefix[: shape.low])

    def object(self, shape: Object) -> Any:
        """Objects, with every key that is not declared decided."""
        written: dict[str, Any] = {"type": "object"}
        props = {k: self.write(c) for k, c in shape.props if c != FALSE}
        regions = self.graph.regions[shape]
        patterns: dict[str, Any] = {}
        additional: Any = False
        for region in regions:
            if region.keys == ANYTHING:
                additional = self.write(region.conj)
                continue
            try:
                pattern = self.pattern(region.keys)
                if pattern is not None:
                    patterns[pattern] = self.write(region.conj)
            except TooMuch as error:
                self.guard(shape, "patternProperties", f"keys here are not enforced: {error}")
                additional = {}
        if additional == {} and regions and regions[0].keys != ANYTHING:
            patterns = {}
        if props:
            written["properties"] = props
        if shape.required:
            written["required"] = [k for k, _ in shape.props if k in shape.required]
        if patterns:
            written["patternProperties"] = patterns
        written["additionalProperties"] = additional
        written |= self.key_counts(shape, bool(regions))
        return written

    def key_counts(self, shape: Object, open_ended: bool) -> dict[str, int]:
        """``minProperties`` and ``maxProperties`` where they say more than ``required``."""
        written = {}
        if shape.low > len(shape.required):
            written["minProperties"] = shape.low
            # An undeclared key may be repeated, and xgrammar counts it twice.
            if open_ended and shape.low > len(shape.required) + 1:
                self.guard(shape, "minProperties", "minProperties counts repeated keys twice")
        if shape.high is not None:
            written["maxProperties"] = shape.high
        return written


def plain(number: Fraction) -> int | float:
    """A bound as a JSON number."""
    if number.denominator == 1:
        return number.numerator
    return float(number)
