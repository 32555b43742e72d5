"""The conjunctions that a schema comes to: their shapes, which can be satisfied, and how they nest.

What cannot be satisfied by any finite value is found as a least fixpoint and pruned, so that no
grammar leads into a dead end.
"""

from dataclasses import dataclass, field, replace

from grammar.schema import keys, language, regex
from grammar.schema.keys import Region
from grammar.schema.limits import Refused, TooMuch
from grammar.schema.objects import conj_at
from grammar.schema.reading import Reader
from grammar.schema.result import Reason
from grammar.schema.shapes import FALSE, TRUE, Array, Conj, Object, Shape, Union, Values


@dataclass
class Graph:
    """Everything that can be reached from a root.

    Attributes:
        shapes: of each conjunction, those that can be satisfied.
        regions: of each object shape, its undeclared keys.
        uses: how many places lead to a conjunction.
        loops: conjunctions that lead to themselves.
    """

    reader: Reader
    root: Conj
    shapes: dict[Conj, Union] = field(default_factory=dict)
    regions: dict[Object, list[Region]] = field(default_factory=dict)
    uses: dict[Conj, int] = field(default_factory=dict)
    loops: set[Conj] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._explore()
        self._prune()
        self._count(self.root, [])

    def _explore(self) -> None:
        level, depth = [self.root], 0
        while level:
            if depth > self.reader.options.max_depth:
                raise Refused("#", "", f"it nests deeper than {self.reader.options.max_depth}")
            following: dict[Conj, None] = {}
            for conj in level:
                if conj in self.shapes:
                    continue
                self.shapes[conj] = self._settled(self.reader.union(conj))
                for shape in self.shapes[conj]:
                    following.update(dict.fromkeys(self.children(shape)))
            level, depth = [c for c in following if c not in self.shapes], depth + 1

    def _settled(self, union: Union) -> Union:
        """The shapes with their undeclared keys worked out."""
        found = []
        for shape in union:
            if isinstance(shape, Object):
                shape = self._settle_object(shape)
            found.append(shape)
        return tuple(dict.fromkeys(found))

    def _settle_object(self, shape: Object) -> Object:
        late = sorted(shape.required - shape.declared.keys())
        if late:
            props = shape.props + tuple((key, conj_at(shape, key)) for key in late)
            shape = replace(shape, props=props)
        if shape.names != TRUE:
            props = tuple(
                (key, conj if keys.admits(self.reader, shape, key) else FALSE)
                for key, conj in shape.props
            )
            shape = replace(shape, props=props)
        if shape in self.regions:
            return shape
        try:
            regions = keys.regions(self.reader, shape)
        except (TooMuch, regex.Unsupported) as error:
            reason = self._reason(
                "patternProperties",
                f"which pattern a key matches cannot be told by the grammar: {error}",
            )
            shape = replace(shape, loose=shape.loose | {reason})
            declared = language.without_texts([key for key, _ in shape.props])
            regions = [Region(declared, TRUE)]
        self.regions[shape] = regions
        return shape

    def _reason(self, keyword: str, message: str) -> Reason:
        return self.reader.note("#", keyword, "guarded", message)

    def children(self, shape: Shape) -> list[Conj]:
        """The conjunctions that the parts of a shape have to satisfy."""
        if isinstance(shape, Array):
            held = [conj for conj, _, _ in shape.contains]
            return [*shape.prefix, shape.items, *held, *(shape.items | conj for conj in held)]
        if isinstance(shape, Object):
            return [conj for _, conj in shape.props] + [r.conj for r in self.regions[shape]]
        return []

    def _prune(self) -> None:
        alive: set[Conj] = set()
        waiting = dict(self.shapes)
        changed = True
        while changed:
            changed = False
            for conj in list(waiting):
                if any(self._possible(shape, alive) for shape in waiting[conj]):
                    alive.add(conj)
                    del waiting[conj]
                    changed = True
        for conj, union in self.shapes.items():
            self.shapes[conj] = tuple(
                self._pruned(s, alive) for s in union if self._possible(s, alive)
            )

    def _possible(self, shape: Shape, alive: set[Conj]) -> bool:
        if isinstance(shape, Array):
            needed = [shape.at(i) for i in range(min(shape.low, len(shape.prefix) + 1))]
            needed += [conj for conj, low, _ in shape.contains if low]
            least = max([shape.low, *(low for _, low, _ in shape.contains)])
            high = self._ceiling(shape, alive)
            return all(conj in alive for conj in needed) and (high is None or least <= high)
        if isinstance(shape, Object):
            if not all(conj in alive for key, conj in shape.props if key in shape.required):
                return False
            open_ended = any(region.conj in alive for region in self.regions[shape])
            return open_ended or shape.low <= sum(conj in alive for _, conj in shape.props)
        return not isinstance(shape, Values) or bool(shape.texts)

    def _ceiling(self, shape: Array, alive: set[Conj]) -> int | None:
        """How many items an array may have before one that nothing satisfies."""
        dead = next((i for i, c in enumerate(shape.prefix) if c not in alive), None)
        if dead is None and shape.items not in alive:
            dead = len(shape.prefix)
        return min((h for h in (dead, shape.high) if h is not None), default=None)

    def _pruned(self, shape: Shape, alive: set[Conj]) -> Shape:
        if isinstance(shape, Array):
            high = self._ceiling(shape, alive)
            if high == shape.high:
                return shape
            return replace(shape, prefix=shape.prefix[:high], items=FALSE, high=high)
        if isinstance(shape, Object):
            regions = [r for r in self.regions[shape] if r.conj in alive]
            props = tuple((k, c if c in alive else FALSE) for k, c in shape.props)
            shape = replace(shape, props=props)
            self.regions[shape] = regions
        return shape

    def _count(self, root: Conj, path: list[Conj]) -> None:
        # An explicit stack: a schema may nest deeper than Python likes to recurse.
        on_path: set[Conj] = set()
        stack: list[tuple[Conj, bool]] = [(root, False)]
        while stack:
            conj, leaving = stack.pop()
            if leaving:
                on_path.discard(conj)
                continue
            self.uses[conj] = self.uses.get(conj, 0) + 1
            if conj in on_path:
                self.loops.add(conj)
            if self.uses[conj] > 1:
                continue
            on_path.add(conj)
            stack.append((conj, True))
            for shape in self.shapes.get(conj, ()):
                stack += [(child, False) for child in self.children(shape) if child != FALSE]
