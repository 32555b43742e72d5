"""Deterministic automata over characters: intersection, complement, and back to a pattern."""

import bisect
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grammar.schema import charset
from grammar.schema.limits import TooMuch, spend
from grammar.schema.regex import EMPTY, Alt, Chars, Except, Repeat, Seq

MAX_STATES = 400
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
            case Except(texts):
                return self.all_but(texts, node.steps(), start)
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

    def all_but(self, texts: tuple[str, ...], steps: dict[str, str], start: int) -> int:
        """Build the texts that are none of ``texts`` from ``start``; returns their end."""
        end, other = self.state(), self.state()
        self.chars[other].append((charset.ANY, other))
        self.empty[other].append(end)
        states = {"": start}
        for beginning, heads in steps.items():
            state = states[beginning]
            if beginning not in texts:
                self.empty[state].append(end)
            self.chars[state].append((charset.other_than(heads), other))
            for head in heads:
                states[beginning + head] = self.state()
                self.chars[state].append((((ord(head), ord(head)),), states[beginning + head]))
        return end

    def closures(self) -> list[frozenset[int]]:
        """For each state, those that it reaches without a character."""
        found = []
        for state in range(len(self.empty)):
            seen, todo = {state}, [state]
            while todo:
                for target in self.empty[todo.pop()]:
                    if target not in seen:
                        seen.add(target)
                        todo.append(target)
            # Only states with an edge of their own, and the last, tell two subsets apart.
            found.append(frozenset(s for s in seen if self.chars[s] or not self.empty[s]))
        return found


@functools.lru_cache(256)
def _nfa_of(tree: Any) -> tuple["_Nfa", int, list[frozenset[int]]] | None:
    nfa = _Nfa()
    try:
        end = nfa.add(tree, nfa.state())
    except TooMuch:
        return None
    return nfa, end, nfa.closures()


def matches(tree: Any, text: str) -> bool:
    """Whether a text is in the language of a tree, in time linear in both.

    Raises:
        TooMuch: the tree is too large.
    """
    built = _nfa_of(tree)
    if built is None:
        raise TooMuch("the automaton of a pattern")
    nfa, end, closures = built
    states = closures[0]
    for char in text:
        code = ord(char)
        spend(len(states) // 8)
        states = frozenset().union(
            *(
                closures[target]
                for state in states
                for ranges, target in nfa.chars[state]
                if charset.has(ranges, code)
            )
        )
    return end in states


def intersection(wanted: Sequence[Any], unwanted: Sequence[Any]) -> Dfa:
    """The texts in every language of ``wanted`` and in none of ``unwanted``.

    Raises:
        TooMuch: it has more than ``MAX_STATES`` states.
    """
    nfas, ends = [], []
    for node in [*wanted, *unwanted]:
        nfa = _Nfa()
        ends.append(nfa.add(node, nfa.state()))
        nfas.append(nfa)
    columns = _columns(nfas)
    moves = [_moves(nfa, columns) for nfa in nfas]
    first = tuple(nfa.closures()[0] for nfa in nfas)
    numbers, todo = {first: 0}, [first]
    edges: list[list[int]] = []
    final = set()
    for subset in todo:
        hits = [end in states for end, states in zip(ends, subset, strict=True)]
        if all(hits[: len(wanted)]) and not any(hits[len(wanted) :]):
            final.add(len(edges))
        out = []
        for column in range(len(columns)):
            closed = tuple(
                frozenset().union(*(move[state].get(column, ()) for state in states))
                for move, states in zip(moves, subset, strict=True)
            )
            if not all(closed[: len(wanted)]):
                out.append(_NOWHERE)
                continue
            if closed not in numbers:
                if len(numbers) >= MAX_STATES:
                    raise TooMuch("the intersection of patterns")
                numbers[closed] = len(numbers)
                todo.append(closed)
            out.append(numbers[closed])
        edges.append(out)
        spend(len(columns) * sum(map(len, subset)))
    return _minimal(edges, final, columns)


_NOWHERE = -1


def _moves(nfa: _Nfa, columns: list[charset.Ranges]) -> list[dict[int, frozenset[int]]]:
    """For each state and column, the states it leads to."""
    spend(len(nfa.chars) * 4)
    closures = nfa.closures()
    inside: dict[charset.Ranges, list[int]] = {}
    found = []
    for edges in nfa.chars:
        out: dict[int, frozenset[int]] = {}
        for ranges, target in edges:
            if ranges not in inside:
                inside[ranges] = [
                    i for i, column in enumerate(columns) if charset.has(ranges, column[0][0])
                ]
            spend(len(inside[ranges]))
            for i in inside[ranges]:
                out[i] = out.get(i, frozenset()) | closures[target]
        found.append(out)
    return found


def _columns(nfas: Sequence[_Nfa]) -> list[charset.Ranges]:
    """Sets of characters that no edge of any automaton tells apart, each with one member first."""
    sets = {ranges for nfa in nfas for edges in nfa.chars for ranges, _ in edges}
    cuts = {0, 0xD800, 0xE000, 0x110000}
    cuts.update(c for ranges in sets for low, high in ranges for c in (low, high + 1))
    ordered = sorted(cuts)
    spend(len(ordered))
    masks = [0] * len(ordered)
    for k, ranges in enumerate(sets):
        for low, high in ranges:
            for i in range(bisect.bisect_left(ordered, low), bisect.bisect_left(ordered, high + 1)):
                masks[i] |= 1 << k
    members: dict[int, list[tuple[int, int]]] = {}
    for i, (low, high) in enumerate(itertools.pairwise(ordered)):
        if charset.has(charset.ANY, low):
            members.setdefault(masks[i], []).append((low, high - 1))
    return [charset.union(parts) for parts in members.values()]


def _minimal(edges: list[list[int]], final: set[int], columns: list[charset.Ranges]) -> Dfa:
    """Without the states from which nothing is accepted, and with equal states merged."""
    into: list[set[int]] = [set() for _ in edges]
    for source, out in enumerate(edges):
        for target in out:
            if target != _NOWHERE:
                into[target].add(source)
    alive, stack = set(final), list(final)
    while stack:
        for source in into[stack.pop()]:
            if source not in alive:
                alive.add(source)
                stack.append(source)
    if 0 not in alive:
        return Dfa(((),), frozenset())
    states = sorted(alive)
    block = [-1] * (len(edges) + 1)
    for state in states:
        block[state] = int(state in final)
    count = len({block[state] for state in states})
    while True:
        spend(len(states) * len(columns) // 8)
        names: dict[tuple[int, ...], int] = {}
        fresh = [-1] * (len(edges) + 1)
        for state in states:
            signature = (block[state], *(block[target] for target in edges[state]))
            # The start's block comes first, since state 0 is looked at first.
            fresh[state] = names.setdefault(signature, len(names))
        block = fresh
        if len(names) == count:
            break
        count = len(names)
    merged: list[Any] = [None] * count
    for state in states:
        if merged[block[state]] is None:
            parts: dict[int, list[tuple[int, int]]] = {}
            for target, column in zip(edges[state], columns, strict=True):
                if block[target] >= 0:
                    parts.setdefault(block[target], []).extend(column)
            merged[block[state]] = tuple((charset.union(r), t) for t, r in parts.items())
    return Dfa(tuple(merged), frozenset(block[state] for state in states if state in final))


def to_tree(dfa: Dfa, limit: int = 6000) -> Any:
    """The language as a tree again, by eliminating states.

    Raises:
        TooMuch: the tree has more than ``limit`` nodes, or nests too deeply to be read.
    """
    start, end = -1, -2
    # Beside each tree its size, as a bound on its depth too: both are cheap to keep along.
    table: dict[int, dict[int, _Sized]] = {start: {0: (EMPTY, 1, 1)}, end: {}}
    for state, out in enumerate(dfa.edges):
        table[state] = {target: (Chars(ranges), 1, 1) for ranges, target in out}
        if state in dfa.final:
            table[state][end] = (EMPTY, 1, 1)
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
        again = [] if loop is None else [(Repeat(loop[0], 0, None), loop[1] + 1, loop[2] + 1)]
        for source in into.pop(state) - {state}:
            before = table[source].pop(state)
            for target, after in out.items():
                path = _sized(_join, before, *again, after)
                old = table[source].get(target)
                table[source][target] = path if old is None else _sized(_either, old, path)
                into[target].add(source)
                if table[source][target][1] > limit or table[source][target][2] > _MAX_DEPTH:
                    raise TooMuch("an intersection of patterns, written out")
        for target in out:
            into[target].discard(state)
    found = table[start].get(end)
    return Alt(()) if found is None else found[0]


_MAX_DEPTH = 60
_Sized = tuple[Any, int, int]


def _sized(make: Callable[..., Any], *parts: _Sized) -> _Sized:
    node = make(*(p[0] for p in parts))
    return node, 2 + sum(p[1] for p in parts), 2 + max(p[2] for p in parts)


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
