"""Ways to finish: tokens that end a text of the grammar from where a matcher stands.

A finish is found by walking the matcher itself ahead, byte by byte, so it serves any grammar, and
what is returned has been accepted token by token, the stop token last: that it finishes is certain,
that nothing shorter does is not. No mask is worked out on the way. A mask off the path of decoding
costs up to tens of milliseconds on a large vocabulary when it is new; a byte that is tried costs
about a microsecond on any.

The walk goes downhill, with what is known about texts in general and no grammar in particular:

* what is forced is taken (``find_jump_forward_string``);
* in free text (the inside of a string, of an XML element, thinking) it looks for what leads out:
  a quote, or a marker that the grammar spells. Where nothing does yet, it fills;
* elsewhere it prefers what closes, then what separates, then the rest. Between names (keys, values
  of an enumeration, tools) it tries all and takes the one with the shortest end;
* where that fails it walks once more, and at each place that looks like one before takes another
  way than before.

The bytes are then split into the fewest tokens that the vocabulary allows.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import xgrammar

EFFORT = 12_000
"""Bytes tried in one search to compare ways; beyond it the first is taken. Some 12 ms."""
_GIVE_UP = 40_000
"""Bytes tried in one search, in all."""
_LONGEST_TEXT = 16_384
"""Bytes of a text that is looked for."""
_LONGEST_PIECE = 32
"""Bytes of a token that a text is split into."""

_CLOSING = tuple(bytes([b]) for b in b'}],:"<>/')
"""What ends or separates, in the order to try."""
_TEXT_PROBES = (b"~", b"Q", b"#")
"""Where all three may follow, anything may: it is free text."""
_FILLERS = tuple(bytes([b]) for b in b"-a0A .")
_ORDER = tuple(
    bytes([b])
    for b in b"0123456789tfnabcdeghijklmopqrsuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    b"-_.+*=()'|;!?@#$%&^`~\\{[ \n\t\r"
)
"""The rest of what can be typed: short values before openers, whitespace last."""
_TYPED = (*_CLOSING, *_ORDER)
_OTHER = tuple(bytes([b]) for b in (*range(0x80, 0x100), *range(0x20), 0x7F))
_CONTEXT = 16
"""Bytes before a choice; after the same bytes the same is chosen again, if it can be."""
_RUN = 6
"""So many neighbouring characters are a class, as digits are: one stands for all."""
_PATIENCE = 32
"""Times that the same way is taken at places that look the same, before another is."""
_BEFORE_OTHERS = 4
"""Characters of filling after which less likely ways out are tried. Then also two by two: out of
thinking, say, and out of the text that follows it."""
_MOST_PAIRED = 24
_MOST_WORDS = 256
"""Literals of the grammar, markers or not, that are tried where all else has failed."""
_MARKER = re.compile(rb"[<>\[\]|]|\xef\xbd\x9c")
_MOST_SUFFIXES = 48
_MOST_RESPELLINGS = 8

# A character class, so as to step over it, or a literal.
_LITERAL = re.compile(r'\[(?:[^\]\\]|\\.)*\]|"((?:[^"\\]|\\.)*)"', re.DOTALL)
_TOKEN = re.compile(r"\bToken\(([\d, ]+)\)")
_ESCAPE = re.compile(r"\\(?:x(\w{2})|u(\w{4})|U(\w{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}


@dataclass(frozen=True)
class Finish:
    """Tokens that finish.

    Attributes:
        token_ids: to be accepted in this order; the last is a stop token.
        pieces: the bytes of each; empty for the stop token, and for a token that the grammar asks
            for by its id.
    """

    token_ids: tuple[int, ...]
    pieces: tuple[bytes, ...]

    def __len__(self) -> int:
        """Tokens, the stop token included."""
        return len(self.token_ids)

    def after(self, n: int) -> "Finish":
        """What is left of it once its first ``n`` tokens have been accepted."""
        return Finish(self.token_ids[n:], self.pieces[n:])

    @property
    def text(self) -> bytes | None:
        """The bytes, or None where some token has none."""
        return b"".join(self.pieces) if all(self.pieces[:-1]) else None


class Spelling:
    """Splits bytes into tokens, as few as there can be.

    Args:
        pieces: the bytes of each token, by id; empty where an id has none.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._ids: dict[bytes, int] = {}
        for token_id, piece in enumerate(pieces):
            if piece and len(piece) <= _LONGEST_PIECE:
                self._ids.setdefault(piece, token_id)
        self._longest = max(map(len, self._ids), default=0)

    def shortest(self, text: bytes, without: frozenset[bytes] = frozenset()) -> list[bytes] | None:
        """The pieces of ``text``; of splits of the same length, the one that begins with more.

        Args:
            without: pieces not to use.

        Returns:
            None where the vocabulary cannot spell it.
        """
        end = len(text)
        need: list[float] = [float("inf")] * end + [0]
        first = [0] * end
        for start in range(end - 1, -1, -1):
            for stop in range(min(end, start + self._longest), start, -1):
                if need[stop] + 1 < need[start]:
                    piece = text[start:stop]
                    if piece in self._ids and piece not in without:
                        need[start], first[start] = need[stop] + 1, stop
        if need[0] == float("inf"):
            return None
        pieces, start = [], 0
        while start < end:
            pieces.append(text[start : first[start]])
            start = first[start]
        return pieces

    def id(self, piece: bytes) -> int:
        """The token of a piece that `shortest` gave."""
        return self._ids[piece]


class Finisher:
    """Finds finishes under one grammar. What it learns of the grammar on the way, it keeps.

    The same searches in the same order find the same finishes; ``copy`` it for a row whose results
    are not to depend on those of others.

    Args:
        compiled: the grammar.
        spelling: of the vocabulary it was compiled for.

    Attributes:
        start: from the start of the grammar, or None if none was found.
    """

    def __init__(self, compiled: xgrammar.CompiledGrammar, spelling: Spelling) -> None:
        self._spelling = spelling
        text = str(compiled.grammar)
        literals = list(dict.fromkeys(_literals(text)))
        self._exits = (b'"', *sorted(filter(_is_marker, literals), key=_likely_first))
        self._words = tuple(text for text in literals if len(text) > 1)[:_MOST_WORDS]
        listed = {int(i) for found in _TOKEN.findall(text) for i in found.split(",")}
        self._tokens = tuple(sorted(listed))
        self._best: dict[tuple[bytes | int, ...], bytes | int] = {}
        self._habits: dict[bytes, bytes] = {}
        self._no_better: Finish | None = None
        self.start = self.find(xgrammar.GrammarMatcher(compiled))

    def copy(self) -> "Finisher":
        """One that knows the same, and learns by itself."""
        other = object.__new__(Finisher)
        other.__dict__ = {
            **self.__dict__,
            "_best": dict(self._best),
            "_habits": dict(self._habits),
        }
        return other

    def find(
        self,
        matcher: xgrammar.GrammarMatcher,
        *,
        known: Finish | None = None,
        enough: int | None = None,
    ) -> Finish | None:
        """The shortest finish that is found from where the matcher stands, or None.

        Args:
            matcher: comes back as it was.
            known: a finish from a token or so before: what is left of it is tried first.
            enough: tokens; a finish that is no longer ends the search.
        """
        if matcher.is_terminated():
            return None
        if matcher.is_completed():
            return Finish((matcher.stop_token_ids[0],), (b"",))
        found = self._continued(matcher, known) if known else None
        fits = found is not None and enough is not None and len(found) <= enough
        if fits or (found is not None and found is self._no_better):
            return found
        for again in (False, True):
            moves = self._search(matcher, again)
            fresh = self._spelled(matcher, moves) if moves else None
            if fresh is not None or found is not None:
                break
        if fresh is not None and (found is None or len(fresh) < len(found)):
            return fresh
        # Token after token may be tried against the same known finish: one search will do.
        self._no_better = found
        return found

    def _continued(self, matcher: xgrammar.GrammarMatcher, known: Finish) -> Finish | None:
        """What was known, if it still finishes: text was added to a string. Else a rest of it."""
        with _Walk(matcher) as walk:
            if all(map(walk.push, known.token_ids)):
                return known
        text = known.text
        for start in range(1, min(len(text or b""), _MOST_SUFFIXES)):
            with _Walk(matcher) as walk:
                finishes = walk.push(text[start:]) and matcher.is_completed()
            if finishes:
                return self._spelled(matcher, [text[start:]])
        return None

    def _search(self, matcher: xgrammar.GrammarMatcher, again: bool) -> list[bytes | int] | None:
        exits = self._exits
        with _Walk(matcher) as walk:
            reached = self._descend(walk, _LONGEST_TEXT, again, compare=not again)
            moves = list(walk.moves)
        if self._exits is not exits:
            # A way out of text was learned, after some filling.
            return self._search(matcher, again)
        return moves if reached else None

    def _descend(
        self, walk: "_Walk", limit: int, again: bool, compare: bool, tries: int = _GIVE_UP
    ) -> bool:
        """Walk to an end of less than ``limit`` bytes; whether it was reached within ``tries``."""
        seen: Counter = Counter()
        filled = 0
        while walk.size < limit and walk.tries < tries:
            if walk.matcher.is_completed():
                return True
            forced = walk.matcher.find_jump_forward_string()
            if forced:
                if not walk.push(forced.encode()):
                    return False
            elif walk.in_text():
                if self._leave(walk, filled, again):
                    filled = 0
                elif _fill(walk, seen, again) or self._leave(walk, 0, again):
                    filled += 1
                else:
                    return False
            elif not self._step(walk, limit, again, compare, seen):
                return False
        return False

    def _leave(self, walk: "_Walk", filled: int, again: bool) -> bool:
        """Out of free text of which ``filled`` characters are filling, if there is a way."""
        if filled & (filled - 1):
            # Not all ways at every character of a long text.
            return _leads_out(walk, self._exits[0])
        if any(_leads_out(walk, text) for text in self._exits):
            return True
        if filled != _BEFORE_OTHERS:
            return False
        learned = next(self._other_exits(walk, again), None)
        if learned is None:
            return False
        self._exits = (self._exits[0], learned, *self._exits[1:])
        return True

    def _other_exits(self, walk: "_Walk", again: bool) -> Iterator[bytes]:
        """Ways out of free text that are less likely, taken: single characters, and pairs."""
        yield from (text for text in _TYPED if _leads_out(walk, text))
        pairs = self._exits[:_MOST_PAIRED]
        if again:
            yield from (text for text in self._words if _leads_out(walk, text))
            pairs = _TYPED
        for first in pairs:
            if walk.push(first):
                yield from (first + second for second in pairs if _leads_out(walk, second))
                walk.pop()

    def _step(self, walk: "_Walk", limit: int, again: bool, compare: bool, seen: Counter) -> bool:
        if not again and any(map(walk.push, _CLOSING)):
            return True
        context = walk.tail
        if not again and seen[context] < _PATIENCE and walk.push(self._habits.get(context, b"")):
            seen[context] += 1
            return True
        options = self._options(walk, again)
        if not options:
            return False
        key = tuple(options)
        best = self._best.get(key)
        if best is None and compare and len(options) > 1 and walk.tries < EFFORT:
            best = self._best[key] = self._compared(walk, options, limit)

        def cost(option: bytes | int) -> tuple[int, bool]:
            return seen[key, option] // (1 if again or best is None else _PATIENCE), option != best

        chosen = min(options, key=cost)
        seen[key, chosen] += 1
        if compare and isinstance(chosen, bytes) and len(context) == _CONTEXT:
            self._habits[context] = chosen
        return walk.push(chosen)

    def _options(self, walk: "_Walk", again: bool) -> list[bytes | int]:
        order = _TYPED if again else _ORDER
        if walk.last.isdigit() and not again:
            # A number that may end with whitespace need not grow.
            order = (b"\n", b" ", *_ORDER)
        options: list[bytes | int] = list(dict.fromkeys(walk.legal(order)))
        if not options:
            options = list(walk.legal(_OTHER))
        options += [t for t in self._tokens if walk.takes(t)]
        return options if again else _telling(options)

    def _compared(self, walk: "_Walk", options: list[bytes | int], limit: int) -> bytes | int:
        """The option with the shortest end."""
        best, shortest = options[0], limit
        share = (EFFORT - walk.tries) // len(options)
        for option in options:
            at, tries = len(walk.moves), walk.tries + share
            if (
                walk.push(option)
                and self._descend(walk, shortest, again=False, compare=False, tries=tries)
                and walk.size < shortest
            ):
                best, shortest = option, walk.size
            walk.pop(len(walk.moves) - at)
        return best

    def _spelled(
        self, matcher: xgrammar.GrammarMatcher, moves: Sequence[bytes | int]
    ) -> Finish | None:
        """Moves as tokens that the matcher takes, the stop token after them."""
        without: frozenset[bytes] = frozenset()
        for _ in range(_MOST_RESPELLINGS):
            tokens = self._split(moves, without)
            if tokens is None:
                return None
            ids = [t if isinstance(t, int) else self._spelling.id(t) for t in tokens]
            ids.append(matcher.stop_token_ids[0])
            with _Walk(matcher) as walk:
                refused = next((n for n, i in enumerate(ids) if not walk.push(i)), None)
            if refused is None:
                pieces = [b"" if isinstance(t, int) else t for t in tokens]
                return Finish(tuple(ids), (*pieces, b""))
            if refused >= len(tokens) or isinstance(tokens[refused], int):
                return None
            # A control token that spells the same, or one that the grammar excludes by its id.
            without |= {tokens[refused]}
        return None

    def _split(
        self, moves: Sequence[bytes | int], without: frozenset[bytes]
    ) -> list[bytes | int] | None:
        tokens: list[bytes | int] = []
        for move in _joined(moves):
            pieces = [move] if isinstance(move, int) else self._spelling.shortest(move, without)
            if pieces is None:
                return None
            tokens += pieces
        return tokens


class _Walk:
    """A matcher walked ahead, by bytes or by token ids; it is taken back when the walk ends.

    Attributes:
        moves: taken so far.
        size: bytes of them.
        tries: moves tried so far, those refused included.
    """

    def __init__(self, matcher: xgrammar.GrammarMatcher) -> None:
        self.matcher = matcher
        self.moves: list[bytes | int] = []
        self.size = self.tries = 0

    def __enter__(self) -> "_Walk":
        return self

    def __exit__(self, *_: object) -> None:
        self.pop(len(self.moves))

    def push(self, move: bytes | int) -> bool:
        """Take a move; whether it is legal. One without bytes is not."""
        if move == b"":
            return False
        self.tries += 1
        is_token = isinstance(move, int)
        accept = self.matcher.accept_token if is_token else self.matcher.accept_string
        if not accept(move):
            return False
        self.moves.append(move)
        self.size += 1 if is_token else len(move)
        return True

    def pop(self, n: int = 1) -> None:
        """Take back the last ``n`` moves."""
        if n:
            self.matcher.rollback(n)
            for move in self.moves[-n:]:
                self.size -= 1 if isinstance(move, int) else len(move)
            del self.moves[-n:]

    def legal(self, texts: Iterable[bytes]) -> Iterator[bytes]:
        """Those of the texts that may follow."""
        accept, rollback = self.matcher.accept_string, self.matcher.rollback
        for text in texts:
            self.tries += 1
            if accept(text):
                rollback(1)
                yield text

    def takes(self, token: int) -> bool:
        """Whether a token that the grammar names by its id may follow."""
        if self.push(token):
            self.pop()
            return True
        return False

    def in_text(self) -> bool:
        return all(any(self.legal([text])) for text in _TEXT_PROBES)

    @property
    def tail(self) -> bytes:
        """The last bytes walked."""
        texts = (move for move in self.moves[-_CONTEXT:] if isinstance(move, bytes))
        return b"".join(texts)[-_CONTEXT:]

    @property
    def last(self) -> bytes:
        """The last byte; empty at the start and after a token id."""
        move = self.moves[-1] if self.moves else b""
        return b"" if isinstance(move, int) else move[-1:]


def _leads_out(walk: _Walk, text: bytes) -> bool:
    """Take ``text`` if free text ends with it."""
    if walk.push(text):
        if walk.matcher.is_completed() or not walk.in_text():
            return True
        walk.pop()
    return False


def _fill(walk: _Walk, seen: Counter, again: bool) -> bool:
    """One more character of free text; a different one each time, if ``again``."""
    if not again:
        return any(map(walk.push, _FILLERS))
    order = sorted(_TYPED, key=lambda filler: seen[filler])
    for filler in order:
        if walk.push(filler):
            seen[filler] += 1
            return True
    return False


def _telling(options: list[bytes | int]) -> list[bytes | int]:
    """Options without those that another stands for (of ``0`` to ``9``, ``0``) and without
    whitespace, unless it comes first: there it may end a number."""
    options = [o for n, o in enumerate(options) if not n or isinstance(o, int) or not o.isspace()]
    codes = {option[0] for option in options if isinstance(option, bytes)}
    dropped = set()
    for code in codes:
        if code - 1 not in codes:
            run = 1
            while code + run in codes:
                run += 1
            if run >= _RUN:
                dropped.update(range(code + 1, code + run))
    return [o for o in options if isinstance(o, int) or o[0] not in dropped]


def _joined(moves: Sequence[bytes | int]) -> Iterator[bytes | int]:
    text = b""
    for move in moves:
        if isinstance(move, bytes):
            text += move
            continue
        if text:
            yield text
        text = b""
        yield move
    if text:
        yield text


def _literals(ebnf: str) -> Iterator[bytes]:
    for found in _LITERAL.finditer(ebnf):
        if found[1]:
            yield _ESCAPE.sub(_unescaped, found[1]).encode(errors="replace")


def _unescaped(found: re.Match) -> str:
    code = found[1] or found[2] or found[3]
    return chr(int(code, 16)) if code else _ESCAPED.get(found[4], found[4])


def _is_marker(literal: bytes) -> bool:
    return len(literal) > 1 and not literal.startswith(b'"') and bool(_MARKER.search(literal))


def _likely_first(literal: bytes) -> tuple[bool, int, bytes]:
    """Sorts what looks like an end before what looks like a beginning."""
    return not (b"/" in literal or b"end" in literal), len(literal), literal
