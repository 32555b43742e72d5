"""A graph of shapes, written as a grammar: EBNF over the JSON text itself.

What a schema given to xgrammar cannot say, rules can: escapes in strings that have a pattern or a
length, keys in any order with none of the required ones missing, ``contains``, ``uniqueItems`` over
a few values, multiples, bounds of any size.
"""

import itertools
import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from grammar.schema import charset, numerals
from grammar.schema.automaton import Dfa
from grammar.schema.graph import Graph
from grammar.schema.language import ANYTHING, Language, dfa_of, tree_of
from grammar.schema.limits import Refused, TooMuch
from grammar.schema.regex import Alt, Chars, Except, Repeat, Seq
from grammar.schema.shapes import (
    EVERYTHING,
    FALSE,
    TRUE,
    Array,
    Conj,
    Number,
    Object,
    Shape,
    String,
    Union,
    Values,
)

MAX_RULES = 60_000
MAX_TRACKED = 6
"""Required keys whose presence is tracked in every order; more have to come in declared order."""
_MAX_COUNTED = 24
"""Keys that are counted for minProperties and maxProperties."""
_MAX_STEP = 400
_MAX_UNIQUE = 7

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_RAW = charset.subtract(charset.ANY, charset.union([(0, 31), (34, 34), (92, 92)]))
# A code point beyond U+FFFF is one character and two escapes; half of a pair is no character.
_CHAR = (
    r'[^"\\\0-\x1f] | "\\" (["\\/bfnrt] | "u" ([0-9a-cefA-CEF] [0-9a-fA-F]{3}'
    r" | [dD] [0-7] [0-9a-fA-F]{2}"
    r' | [dD] [89abAB] [0-9a-fA-F]{2} "\\u" [dD] [c-fC-F] [0-9a-fA-F]{2}))'
)


def quoted(text: str) -> str:
    """A text as an EBNF literal."""
    # Of \x xgrammar reads every hexadecimal digit that follows.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") if text else '""'


class GrammarWriter:
    """Writes the conjunctions of a graph as rules.

    Args:
        graph: from the root that is wanted.
        max_whitespace: whitespace characters in a row between tokens.
        any_order: keys may come in any order; else in that of the schema.
    """

    def __init__(self, graph: Graph, *, max_whitespace: int, any_order: bool) -> None:
        self.graph, self.reader = graph, graph.reader
        self.any_order = any_order
        self.rules: dict[str, str] = {}
        self._conjs: dict[Conj, str] = {}
        self._queue: list[Conj] = []
        self._shared: dict[Any, str] = {}
        self._space = max_whitespace

    def text(self) -> str:
        """The whole grammar; its first rule is ``root``."""
        start = self.conj(self.graph.root)
        for conj in self._queue:
            union = self.graph.shapes[conj]
            for shape in union:
                self.reader.reasons.update(dict.fromkeys(shape.loose))
            self.rules[self._conjs[conj]] = self.union(union)
        rules = {"root": start, "ws": f"[ \\t\\n\\r]{{0,{self._space}}}", **self.rules}
        return "".join(f"{name} ::= {body}\n" for name, body in rules.items())

    def guard(self, keyword: str, message: str) -> None:
        """Report that something is written wider than it is."""
        self.reader.note("#", keyword, "guarded", message)

    def rule(self, body: str, stem: str = "r") -> str:
        """A new rule; returns its name."""
        if len(self.rules) >= MAX_RULES:
            raise Refused("#", "", f"its grammar has more than {MAX_RULES:,} rules; simplify it")
        self.reader.budget.tick()
        name = f"{stem}{len(self.rules)}"
        self.rules[name] = body
        return name

    def shared(self, key: Any, build: Callable[[], str], stem: str = "r") -> str:
        """The rule for a key, written once."""
        if key not in self._shared:
            self._shared[key] = self.rule(build(), stem)
        return self._shared[key]

    def conj(self, conj: Conj) -> str:
        """The rule of a conjunction."""
        if conj == TRUE:
            return self.anything()
        if conj not in self._conjs:
            # Written later: a recursive schema leads back to it, and a deep one goes on.
            self._conjs[conj] = self.rule("", "v")
            self._queue.append(conj)
        return self._conjs[conj]

    def anything(self) -> str:
        """The rule of every JSON value."""
        if "any" not in self.rules:
            self.rules["any"] = ""
            string, number = self.string(String()), self.number(Number())
            self.rules["any"] = (
                f'{string} | {number} | "true" | "false" | "null"'
                ' | "[" ws (any (ws "," ws any)* ws)? "]"'
                f' | "{{" ws ({string} ws ":" ws any (ws "," ws {string} ws ":" ws any)* ws)? "}}"'
            )
        return "any"

    def union(self, union: Union) -> str:
        """The alternatives of some shapes."""
        if union == EVERYTHING:
            return self.anything()
        return " | ".join(dict.fromkeys(self.shape(s) for s in union))

    def shape(self, shape: Shape) -> str:
        """One shape."""
        match shape:
            case Values():
                written = self.reader.written
                return " | ".join(self.value(written.get(t, json.loads(t))) for t in shape.texts)
            case Number():
                return self.number(shape)
            case String():
                return self.string(shape)
            case Array():
                return self.array(shape)
            case Object():
                return self.object(shape)
        raise AssertionError(shape)

    def value(self, value: Any) -> str:
        """One value, spelled in the standard way but for whitespace."""
        if isinstance(value, list):
            inner = ' ws "," ws '.join(map(self.value, value))
            return f'"[" ws {inner} ws "]"' if value else '"[" ws "]"'
        if isinstance(value, dict):
            members = [f'{self.literal(k)} ws ":" ws {self.value(v)}' for k, v in value.items()]
            few = self.any_order and len(members) <= 4
            orders = itertools.permutations(members) if few else [members]
            inner = " | ".join(' ws "," ws '.join(order) for order in orders)
            return f'"{{" ws ({inner}) ws "}}"' if value else '"{" ws "}"'
        return self.literal(value) if isinstance(value, str) else quoted(json.dumps(value))

    def literal(self, text: str) -> str:
        """One string."""
        return quoted(json.dumps(text, ensure_ascii=False))

    def number(self, shape: Number) -> str:
        """Numbers of a shape."""
        return self.shared(shape, lambda: self._number(shape), "n")

    def _number(self, shape: Number) -> str:
        if shape.fractional and shape == Number(fractional=True):
            # Few enough digits that no float rounds them to a whole number.
            return '"-"? ("0" | [1-9] [0-9]{0,7}) "." [0-9]{0,6} [1-9]'
        if shape.fractional:
            self.guard("not", "that a number within bounds is not whole is not enforced")
        if shape.step is None:
            text = numerals.decimals(shape)
            if text is not None:
                return text
            self.guard("minimum", "bounds with this many digits are not enforced")
            return numerals.decimals(Number())
        if not shape.integral:
            return self._fractions(shape, shape.step)
        low, high = whole_bounds(shape)
        step = shape.step.numerator
        if step == 1:
            return numerals.integers(low, high) or self.nothing()
        listed = self._listed(shape)
        if listed is not None:
            return listed
        if low is None and high is None and step <= _MAX_STEP:
            return self._multiples(step)
        if low == 0 and high is None and step <= _MAX_STEP:
            return self._multiples(step, signed=False)
        self.guard("multipleOf", f"multiples of {step} within bounds are not enforced")
        return numerals.integers(low, high) or self.nothing()

    def nothing(self) -> str:
        """A rule body that no text matches."""
        # A class without a character: nothing matches it.
        return '"\\0" "\\0"'

    def _listed(self, shape: Number, limit: int = 500) -> str | None:
        """The multiples written out, or None where they are too many."""
        if shape.low is None or shape.high is None or shape.step is None:
            return None
        if (shape.high - shape.low) / shape.step > limit:
            return None
        first, last = -(-shape.low // shape.step), shape.high // shape.step
        values = [n * shape.step for n in range(first, last + 1)]
        plain = [v.numerator if v.denominator == 1 else float(v) for v in values]
        return " | ".join(quoted(json.dumps(v)) for v in plain if shape.has(v)) or self.nothing()

    def _multiples(self, step: int, signed: bool = True) -> str:
        """Multiples of a whole step: one rule for each remainder."""
        names = [self.rule("", "m") for _ in range(step)]
        for rest, name in enumerate(names):
            digits: dict[int, str] = {}
            for digit in range(10):
                target = (rest * 10 + digit) % step
                digits[target] = digits.get(target, "") + str(digit)
            options = [f"[{d}] {names[t]}" for t, d in digits.items()]
            self.rules[name] = " | ".join([*options, '""'] if rest == 0 else options)
        starts = [f'"{d}" {names[d % step]}' for d in range(1, 10)]
        return f'{chr(34) + "-" + chr(34) + "? " if signed else ""}("0" | {" | ".join(starts)})'

    def _fractions(self, shape: Number, step: Fraction) -> str:
        """Multiples of a step that is not whole; ``step`` is a number of decimal digits or less."""
        listed = self._listed(shape)
        if listed is not None:
            return listed
        if step.denominator & (step.denominator - 1):
            # jsonschema divides floats: 0.07 is no multiple of 0.01 to it.
            self.guard("multipleOf", f"multiples of {float(step):g} are checked afterwards")
        places = 0
        while (10**places * step).denominator > 1 and places < 6:
            places += 1
        scaled = 10**places * step
        if scaled.denominator > 1 or 10**places % scaled or 10**places / scaled > 1000:
            self.guard("multipleOf", f"multiples of {float(step):g} are not enforced")
            return numerals.decimals(Number(shape.low, shape.high)) or self.nothing()
        if shape.low is not None or shape.high is not None:
            self.guard("multipleOf", f"multiples of {float(step):g} in bounds are not enforced")
            return numerals.decimals(Number(shape.low, shape.high)) or self.nothing()
        ends = {str(n).zfill(places).rstrip("0") for n in range(0, 10**places, int(scaled))}
        fractions = " | ".join(quoted(e) for e in sorted(ends) if e)
        return f'"-"? ("0" | [1-9] [0-9]*) ("." ("0" | ({fractions}) "0"{{0,3}}))?'

    def char(self) -> str:
        """The rule of one character of a string."""
        return self.shared("char", lambda: _CHAR, "c")

    def string(self, shape: String) -> str:
        """The strings of a language, quotes included."""
        return self.shared(("string", shape.language), lambda: self._string(shape.language), "s")

    def _string(self, language: Language) -> str:
        if language == ANYTHING:
            return f'"\\"" {self.char()}* "\\""'
        try:
            return f'"\\"" ({self.tree(tree_of(language))}) "\\""'
        except TooMuch:
            pass
        try:
            return f'"\\"" {self.dfa(dfa_of(language))} "\\""'
        except TooMuch:
            self.guard("pattern", "strings here are not enforced: their patterns are too large")
        if len(language.trees) == 1:
            (tree,) = language.trees
            return f'"\\"" ({self.tree(tree)}) "\\""'
        count = f"{{{language.low},{'' if language.high is None else language.high}}}"
        return f'"\\"" {self.char()}{count} "\\""'

    def tree(self, node: Any) -> str:
        """A tree over characters as EBNF over their JSON text."""
        match node:
            case Chars(ranges):
                return self.chars(ranges)
            case Seq(parts):
                return " ".join(self._group(p) for p in parts) or '""'
            case Alt(options):
                return " | ".join(self._group(o) for o in options) or self.nothing()
            case Except():
                return self.shared(node, lambda: self.all_but(node), "x")
            case Repeat(part, low, high):
                if high == 0:
                    return '""'
                return self._group(part) + f"{{{low},{'' if high is None else high}}}"
        raise AssertionError(node)

    def _group(self, node: Any) -> str:
        if isinstance(node, Chars):
            return self.tree(node)
        text = self.tree(node)
        return (
            text if text.startswith('"') and text.endswith('"') and len(text) == 3 else f"({text})"
        )

    def chars(self, ranges: charset.Ranges) -> str:
        """One character of a set, as itself or by its short escape."""
        if ranges == charset.ANY:
            return self.char()
        return self.shared(("chars", ranges), lambda: self._chars(ranges), "c")

    def _chars(self, ranges: charset.Ranges) -> str:
        raw = charset.intersect(ranges, _RAW)
        found = [f"[{''.join(map(_span, raw))}]"] if raw else []
        letters = "".join(e for c, e in _ESCAPES.items() if charset.has(ranges, ord(c)))
        if letters:
            found.append(f'"\\\\" [{letters}]')
        codes = [
            code
            for low, high in charset.intersect(ranges, ((0, 31),))
            for code in range(low, high + 1)
            if chr(code) not in _ESCAPES
        ]
        if codes and not found:
            found = [quoted(f"\\u{code:04x}") for code in codes]
        return " | ".join(found) or self.nothing()

    def all_but(self, node: Except) -> str:
        """Every text but a few: a rule for what may follow each of their beginnings."""
        texts, steps = frozenset(node.texts), node.steps()
        names = {beginning: self.rule("", "x") for beginning in steps}
        for beginning, heads in steps.items():
            options = [f"{self.chars(charset.other_than(heads))} {self.char()}*"]
            options += [
                f"{self.chars(charset.of(head))} {names[beginning + head]}" for head in heads
            ]
            if beginning not in texts:
                options.append('""')
            self.rules[names[beginning]] = " | ".join(options)
        return names[""]

    def dfa(self, dfa: Dfa) -> str:
        """An automaton, one rule a state."""
        names = [self.rule("", "q") for _ in dfa.edges]
        for state, out in enumerate(dfa.edges):
            options = [f"{self.chars(ranges)} {names[target]}" for ranges, target in out]
            if state in dfa.final:
                options.append('""')
            self.rules[names[state]] = " | ".join(options) or self.nothing()
        return names[0]

    def array(self, shape: Array) -> str:
        """Arrays of a shape."""
        return self.shared(shape, lambda: self._array(shape), "a")

    def _array(self, shape: Array) -> str:
        prefix, items, high = list(shape.prefix), shape.items, shape.high
        if high is not None and len(prefix) >= high:
            del prefix[high:]
        if shape.unique and (high is None or high > 1):
            unique = self._unique(shape)
            if unique is not None:
                return unique
            self.guard("uniqueItems", "uniqueItems is not enforced")
        low = shape.low
        if shape.contains:
            containing = self._containing(shape)
            if containing is not None:
                return containing
            self.guard("contains", "contains is not enforced beside these bounds")
            low = max(low, *(c[1] for c in shape.contains))
        return self._brackets(self._sequence([self.conj(c) for c in prefix], items, low, high))

    def _brackets(self, inner: str) -> str:
        return f'"[" ws {inner} "]"'

    def _sequence(self, prefix: list[str], items: Conj, low: int, high: int | None) -> str:
        """Items with their commas, and whitespace after the last; the prefix may end early."""
        left = None if high is None else high - len(prefix)
        least = max(low - len(prefix), 0)
        tail = ""
        if (left is None or left > 0) and items != FALSE:
            item = self.conj(items)
            if not prefix:
                most = "" if left is None else left - 1
                some = f'{item} (ws "," ws {item}){{{max(least - 1, 0)},{most}}} ws'
                return f"({some})" if low else f"({some})?"
            tail = f'(ws "," ws {item}){{{least},{"" if left is None else left}}}'
        if not prefix:
            return '""'
        for i in range(len(prefix) - 1, 0, -1):
            more = f'ws "," ws {prefix[i]} {tail}'
            tail = f"({more})" if i < low else f"({more})?"
        whole = f"{prefix[0]} {tail} ws"
        return f"({whole})" if low else f"({whole})?"

    def _unique(self, shape: Array) -> str | None:
        """Arrays of distinct values out of a few, or None where they are not a few."""
        if shape.prefix or shape.contains:
            return None
        union = self.graph.shapes.get(shape.items, ()) if shape.items != TRUE else EVERYTHING
        if not union or not all(isinstance(s, Values) for s in union):
            return None
        texts = [t for s in union if isinstance(s, Values) for t in s.texts]
        high = len(texts) if shape.high is None else min(shape.high, len(texts))
        if len(texts) > _MAX_UNIQUE or high < shape.low:
            return None if high >= shape.low else self.nothing()
        spelled = [self.value(json.loads(t)) for t in texts]
        names: dict[int, str] = {}

        def after(used: int) -> str:
            if used not in names:
                names[used] = self.rule("", "u")
                count = used.bit_count()
                options = ["ws"] if count >= shape.low else []
                if count < high:
                    options += [
                        f'ws "," ws ({text}) {after(used | 1 << i)}'
                        for i, text in enumerate(spelled)
                        if not used >> i & 1
                    ]
                self.rules[names[used]] = " | ".join(options) or self.nothing()
            return names[used]

        first = [f"({text}) {after(1 << i)}" for i, text in enumerate(spelled)] if high else []
        if shape.low == 0:
            first.append('""')
        return self._brackets(f"({' | '.join(first)})")

    def _containing(self, shape: Array) -> str | None:
        """Arrays one of whose items satisfies a conjunction, or None where that is not simple."""
        if len(shape.contains) != 1 or shape.prefix or shape.items == FALSE:
            return None
        ((conj, low, high),) = shape.contains
        both = shape.items | conj
        if not self.graph.shapes.get(both, ()) and both != TRUE:
            return None
        item, held = self.conj(shape.items), self.conj(both)
        if low == 1 and high is None:
            if shape.high is None and shape.low <= 1:
                return self._brackets(f'({item} ws "," ws)* {held} (ws "," ws {item})* ws')
            limit = shape.high if shape.high is not None else max(shape.low, 1)
            if limit > 30:
                return None
            options = []
            for i in range(limit):
                least = max(shape.low - i - 1, 0)
                most = "" if shape.high is None else shape.high - i - 1
                before = f'({item} ws "," ws){{{i}}} '
                if shape.high is None and i == limit - 1:
                    before = f'({item} ws "," ws){{{i},}} '
                options.append(f'{before}{held} (ws "," ws {item}){{{least},{most}}} ws')
            return self._brackets(f"({' | '.join(options)})")
        return None

    def object(self, shape: Object) -> str:
        """Objects of a shape."""
        return self.shared(shape, lambda: self._object(shape), "o")

    def _object(self, shape: Object) -> str:
        members = {
            key: f'{self.literal(key)} ws ":" ws {self.conj(conj)}'
            for key, conj in shape.props
            if conj != FALSE
        }
        others = [self._other(region.keys, region.conj) for region in self.graph.regions[shape]]
        other = self.rule(" | ".join(others), "k") if others else None
        low, high = shape.low, shape.high
        if low <= len(shape.required):
            low = 0
        if high is not None and other is None and high >= len(members):
            high = None
        if other is not None and low > len(shape.required) + 1:
            self.guard("minProperties", "minProperties counts repeated keys twice")
        if max(low, high or 0) > _MAX_COUNTED:
            if members:
                self.guard("maxProperties", f"more than {_MAX_COUNTED} keys are not counted")
                low, high = min(low, 1), None
            else:
                return self._braces(self._several(other, low, high))
        start = _Members(self, members, shape.required, other, low, high).start()
        return self._braces(start)

    def _several(self, other: str | None, low: int, high: int | None) -> str:
        if other is None:
            return '""' if low == 0 else self.nothing()
        most = "" if high is None else high - 1
        some = f'{other} (ws "," ws {other}){{{max(low - 1, 0)},{most}}} ws'
        return f"({some})" if low else f"({some})?"

    def _braces(self, inner: str) -> str:
        return f'"{{" ws {inner} "}}"'

    def _other(self, keys: Language, conj: Conj) -> str:
        return f'{self.string(String(keys))} ws ":" ws {self.conj(conj)}'


_State = tuple[int, frozenset[str], int]
"""Place in the declared order, keys seen, members counted."""


class _Members:
    """The members of one kind of object: a rule for what may follow each state.

    Keys are tracked where their order is declared, or where they are few; else the required ones
    are, and an optional key may be repeated (the last counts, and each has been checked).
    """

    def __init__(
        self,
        writer: GrammarWriter,
        members: dict[str, str],
        required: frozenset[str],
        other: str | None,
        low: int,
        high: int | None,
    ) -> None:
        self.writer, self.low, self.high = writer, low, high
        self.keys = list(members)
        self.required = [k for k in self.keys if k in required]
        self.must = required
        self.last_required = max((i for i, k in enumerate(self.keys) if k in required), default=-1)
        self.rules = {key: writer.rule(text, "k") for key, text in members.items()}
        self.counted = low > 0 or high is not None
        counts = (max(low, high or 0) + 1) if self.counted else 1
        self.tracked = len(self.keys) <= MAX_TRACKED and counts <= 8
        self.sequential = not self.tracked and len(self.required) > MAX_TRACKED
        self.free = other
        if writer.any_order and not self.tracked:
            # Members that change no state are one alternative, however many they are.
            free = [self.rules[k] for k in self.keys if k not in required]
            free += [other] if other else []
            self.free = writer.rule(" | ".join(free), "k") if free else None
        self.names: dict[_State, str] = {}
        self.pending: list[_State] = []

    def start(self) -> str:
        """What may stand between the braces."""
        options = self._options((0, frozenset(), 0), first=True)
        first = f"({' | '.join(options) or self.writer.nothing()})"
        for state in self.pending:
            options = self._options(state, first=False)
            self.writer.rules[self.names[state]] = " | ".join(options) or self.writer.nothing()
        return first

    def _after(self, state: _State) -> str:
        if state not in self.names:
            self.names[state] = self.writer.rule("", "o")
            self.pending.append(state)
        return self.names[state]

    def _options(self, state: _State, first: bool) -> list[str]:
        place, seen, count = state
        found = []
        comma = "" if first else 'ws "," ws '
        more = 0 if not self.counted else count + 1 if self.high else min(count + 1, self.low)
        full = self.high is not None and count >= self.high
        if not (first or self.writer.any_order) and place < len(self.keys):
            # This key or, where it is optional, whatever may follow it: many keys stay a chain.
            key = self.keys[place]
            if not full:
                found.append(f"{comma}{self.rules[key]} {self._after((place + 1, seen, more))}")
            if key not in self.must:
                found.append(self._after((place + 1, seen, count)))
            return found
        if not full:
            for key, place_after, seen_after in self._next(place, seen):
                after = self._after((place_after, seen_after, more))
                found.append(f"{comma}{self.rules[key]} {after}")
            if self.free is not None and (self.writer.any_order or place > self.last_required):
                stay = place if self.writer.any_order else len(self.keys)
                found.append(f"{comma}{self.free} {self._after((stay, seen, more))}")
        if self._complete(place, seen) and count >= self.low:
            found.append('""' if first else "ws")
        return found

    def _next(self, place: int, seen: frozenset[str]) -> list[tuple[str, int, frozenset[str]]]:
        """The keys that may come, each with the place and the keys seen after it."""
        if not self.writer.any_order:
            found = []
            for i in range(place, len(self.keys)):
                found.append((self.keys[i], i + 1, seen))
                if self.keys[i] in self.must:
                    break
            return found
        if self.sequential:
            return [(k, place + 1, seen) for k in self.required[place : place + 1]]
        keys = self.keys if self.tracked else self.required
        return [(k, 0, seen | {k}) for k in keys if k not in seen]

    def _complete(self, place: int, seen: frozenset[str]) -> bool:
        if not self.writer.any_order:
            return place > self.last_required
        if self.sequential:
            return place >= len(self.required)
        return seen.issuperset(self.required)


def whole_bounds(shape: Number) -> tuple[int | None, int | None]:
    """The least and the greatest integer between the bounds of a shape; None for no bound."""
    low = high = None
    if shape.low is not None:
        low = -(-shape.low // 1)
        low += shape.low_open and low == shape.low
    if shape.high is not None:
        high = shape.high // 1
        high -= shape.high_open and high == shape.high
    return low, high


def _span(span: tuple[int, int]) -> str:
    low, high = span
    return _code(low) if low == high else f"{_code(low)}-{_code(high)}"


def _code(code: int) -> str:
    char = chr(code)
    if char in '\\]^-["':
        return "\\" + char
    if 32 <= code < 127:
        return char
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
