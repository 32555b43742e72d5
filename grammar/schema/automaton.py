"""Deterministic automata over characters: intersection, complement, and back to a pattern."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grammar.schema import charset
from grammar.schema.limits import TooMuch
from grammar.schema.regex import EMPTY, Alt, Chars, Repeat, Seq

MAX_STATES = 1500
"""States of an automaton on the way; beyond, the caller gives up on the intersection."""


@dataclass(frozen=True)
class Dfa:
    """A partial automaton: a missing edge leads nowhere. State 0 is the start.

    Attributes:
        edges: for each state, target state by set of characters.
        final: the accepting states.
    """

    edges: tuple[tuple[tuple[charset.Ranges, int], ...], ...]
    final: frozenset[int]

    def accepts(self, text: str) -> bool:
        """Whether the whole text is in the language."""
        state = 0
        for c in text:
            for ranges, target in self.edges[state]:
                if charset.has(ranges, ord(c)):
                    state = target
                    break
            else:
                return False
        return state in self.final

    @property
    def empty(self) -> bool:
        """Whether no text is accepted. States that lead nowhere have been removed."""
        return not self.final


class _Nfa:
    def __init__(self) -> None:
        self.chars: list[list[tuple[charset.Ranges, int]]] = []
        self.empty: list[list[int]] = []

    def state(self) -> int:
        if len(self.chars) > 4 * MAX_STATES:
            raise TooMuch("the automaton of a pattern")
        self.chars.append([])
        self.empty.append([])
        return len(self.chars) - 1

    def add(self, node: Any, start: int) -> int:
        """Build a node from ``start``; returns its end."""
        match node:
            case Chars(ranges):
                end = self.state()
                self.chars[start].append((ranges, end))
                return end
            case Seq(parts):
                for part in parts:
                    start = self.add(part, start)
                return start
            case Alt(options):
                end = self.state()
                for option in options:
                    # Its own start: a loop inside must not reach the others.
                    own = self.state()
                    self.empty[start].append(own)
                    self.empty[self.add(option, own)].append(end)
                return end
            case Repeat(part, low, high):
                for _ in range(low):
                    start = self.add(part, start)
                if high is None:
                    loop = self.state()
                    self.empty[start].append(loop)
                    self.empty[self.add(part, loop)].append(loop)
                    end = self.state()
                    self.empty[loop].append(end)
                    return end
                end = self.state()
                self.empty[start].append(end)
                for _ in range(high - low):
                    start = self.add(part, start)
                    self.empty[start].append(end)
                return end
        raise AssertionError(node)

    def closure(self, states: Sequence[int]) -> frozenset[int]:
        seen, todo = set(states), list(states)
        while todo:
            for target in self.empty[todo.pop()]:
                if target not in seen:
                    seen.add(target)
                    todo.append(target)
        return frozenset(seen)


def intersection(wanted: Sequence[Any], unwanted: Sequence[Any]) -> Dfa:
    """The texts in every language of ``wanted`` and in none of ``unwanted``.

    Raises:
        TooMuch: it has more than ``MAX_STATES`` states.
    """
    nfas, starts, ends = [], [], []
    for node in [*wanted, *unwanted]:
        nfa = _Nfa()
        start = nfa.state()
        ends.append(nfa.add(node, start))
        starts.append(nfa.closure([start]))
        nfas.append(nfa)
    pieces = _pieces(nfas)
    first = tuple(starts)
    numbers, todo = {first: 0}, [first]
    edges: list[dict[int, list[tuple[int, int]]]] = []
    final = set()
    while todo:
        subset = todo.pop(0)
        number = len(edges)
        out: dict[int, list[tuple[int, int]]] = {}
        hits = [end in states for end, states in zip(ends, subset, strict=True)]
        if all(hits[: len(wanted)]) and not any(hits[len(wanted) :]):
            final.add(number)
        moves = [
            [edge for state in states for edge in nfa.chars[state]]
            for nfa, states in zip(nfas, subset, strict=True)
        ]
        cache: dict[tuple[frozenset[int], ...], int | None] = {}
        for piece in pieces:
            reached = tuple(
                frozenset(target for ranges, target in move if charset.has(ranges, piece[0]))
                for move in moves
            )
            if reached not in cache:
                if not all(reached[: len(wanted)]):
                    cache[reached] = None
                else:
                    closed = tuple(
                        nfa.closure(list(states)) for nfa, states in zip(nfas, reached, strict=True)
                    )
                    if closed not in numbers:
                        if len(numbers) >= MAX_STATES:
                            raise TooMuch("the intersection of patterns")
                        numbers[closed] = len(numbers)
                        todo.append(closed)
                    cache[reached] = numbers[closed]
            target = cache[reached]
            if target is not None:
                out.setdefault(target, []).append(piece)
        edges.append(out)
    return _trimmed(edges, final)


def _pieces(nfas: Sequence[_Nfa]) -> list[tuple[int, int]]:
    """Ranges that no edge of any automaton tells apart inside."""
    cuts = {0, 0xD800, 0xE000, 0x110000}
    for nfa in nfas:
        for edges in nfa.chars:
            for ranges, _ in edges:
                for low, high in ranges:
                    cuts.update((low, high + 1))
    if len(cuts) > 2 * MAX_STATES:
        raise TooMuch("the character classes of patterns")
    ordered = sorted(cuts)
    return [
        (low, high - 1)
        for low, high in itertools.pairwise(ordered)
        if charset.has(charset.ANY, low)
    ]


def _trimmed(edges: list[dict[int, list[tuple[int, int]]]], final: set[int]) -> Dfa:
    """Without the states from which nothing is accepted, and with equal states merged."""
    into: list[list[int]] = [[] for _ in edges]
    for source, out in enumerate(edges):
        for target in out:
            into[target].append(source)
    alive, todo = set(final), list(final)
    while todo:
        for source in into[todo.pop()]:
            if source not in alive:
                alive.add(source)
                todo.append(source)
    if 0 not in alive:
        return Dfa(((),), frozenset())
    clean = {
        state: {t: charset.union(r) for t, r in edges[state].items() if t in alive}
        for state in sorted(alive)
    }
    block = {state: int(state in final) for state in clean}
    while True:
        signatures = {
            state: (block[state], frozenset(_by_block(out, block).items()))
            for state, out in clean.items()
        }
        names: dict[Any, int] = {}
        for state in clean:
            names.setdefault(signatures[state], len(names))
        fresh = {state: names[signatures[state]] for state in clean}
        if len(names) == len(set(block.values())):
            break
        block = fresh
    # The start's block comes first: it holds state 0, which is looked at first.
    merged: dict[int, Any] = {}
    for state, out in clean.items():
        merged.setdefault(fresh[state], tuple((r, t) for t, r in _by_block(out, fresh).items()))
    return Dfa(
        tuple(merged[b] for b in range(len(merged))),
        frozenset(fresh[state] for state in clean if state in final),
    )


def _by_block(out: dict[int, charset.Ranges], block: dict[int, int]) -> dict[int, charset.Ranges]:
    joined: dict[int, list[tuple[int, int]]] = {}
    for target, ranges in out.items():
        joined.setdefault(block[target], []).extend(ranges)
    return {target: charset.union(ranges) for target, ranges in joined.items()}


def to_tree(dfa: Dfa, limit: int = 6000) -> Any:
    """The language as a tree again, by eliminating states.

    Raises:
        TooMuch: the tree has more than ``limit`` nodes.
    """
    start, end = -1, -2
    table: dict[int, dict[int, Any]] = {start: {0: EMPTY}, end: {}}
    for state, out in enumerate(dfa.edges):
        table[state] = {target: Chars(ranges) for ranges, target in out}
        if state in dfa.final:
            table[state][end] = EMPTY
    sizes: dict[int, int] = {}
    into: dict[int, set[int]] = {state: set() for state in table}
    for state, out in table.items():
        for target in out:
            into[target].add(state)

    def cost(state: int) -> int:
        return (len(into[state] - {state}) or 1) * (len(table[state].keys() - {state}) or 1)

    remaining = set(range(len(dfa.edges)))
    while remaining:
        # From the end backwards among equals: a chain folds into nested options.
        state = min(remaining, key=lambda s: (cost(s), -s))
        remaining.remove(state)
        out = table.pop(state)
        loop = out.pop(state, None)
        again = () if loop is None else (Repeat(loop, 0, None),)
        for source in into.pop(state) - {state}:
            before = table[source].pop(state)
            for target, after in out.items():
                path = _join(before, *again, after)
                old = table[source].get(target)
                table[source][target] = path if old is None else _either(old, path)
                into[target].add(source)
                if _size(table[source][target], sizes) > limit:
                    raise TooMuch("an intersection of patterns, written out")
        for target in out:
            into[target].discard(state)
    return table[start].get(end, Alt(()))


def _join(*parts: Any) -> Any:
    flat: list[Any] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Seq) else [part])
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def _either(a: Any, b: Any) -> Any:
    options = (
        *(a.options if isinstance(a, Alt) else [a]),
        *(b.options if isinstance(b, Alt) else [b]),
    )
    chars = [o for o in options if isinstance(o, Chars)]
    rest = [o for o in dict.fromkeys(options) if not isinstance(o, Chars)]
    if chars:
        rest.insert(0, Chars(charset.union(r for o in chars for r in o.ranges)))
    if EMPTY in rest and len(rest) > 1:
        rest.remove(EMPTY)
        inner = rest[0] if len(rest) == 1 else Alt(tuple(rest))
        return inner if isinstance(inner, Repeat) and inner.low == 0 else Repeat(inner, 0, 1)
    return rest[0] if len(rest) == 1 else Alt(tuple(rest))


def _size(node: Any, sizes: dict[int, int]) -> int:
    match node:
        case Seq(children) | Alt(children):
            return 1 + sum(_size(child, sizes) for child in children)
        case Repeat(part):
            return 1 + _size(part, sizes)
    return 1
