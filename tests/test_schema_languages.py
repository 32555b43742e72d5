"""Languages of strings and of numerals in ``grammar.schema``, against ``re`` and arithmetic."""

import gc
import itertools
import json
import random
import re
from fractions import Fraction

import pytest
import xgrammar

from grammar.schema import language, numerals, spelling
from grammar.schema.limits import TooMuch
from grammar.schema.regex import Unsupported
from grammar.schema.shapes import Number
from tests.test_schema_masks import COMPILER, takes

PATTERNS = [
    *("a", "^a", "a$", "^a$", "^$", "", "a|b", "^a|b$", "^(a|b)$|^c", "(^a|b)c", "^(?:a|b$)"),
    *("a*?b+?", "^(ab)*$", "^(a|ab)(c|bcd)$", "^a{2,3}$", "^[a-c]+-?$", "^[^a]$", "^.$", "\\."),
    *("^(?!ab)", "^(?!a$)[a-c]+$", "^(?=.*c)a", "^(?!.*--)[a-c-]+$", "(?i)^AB", "^\\d?\\w\\s*$"),
    *(
        "^\\W$",
        "^\\D$",
        "^\\S+$",
        "[\\d-]",
        "^(?P<n>a)b",
        "^(?<n>a)b",
        "^a\\/b$",
        "^\\u0061$",
        "a^b",
    ),
]
SAMPLES = ["".join(t) for n in range(5) for t in itertools.product("abc-", repeat=n)]
SAMPLES += [
    "A",
    "AB",
    "ab\n",
    "\n",
    "é",
    "٣",
    "1 ",
    "_",
    "\u2003",
    "a/b",
    "a.b",
    "A-b1",
    "\x85",
    "ſ",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_language_holds_what_re_finds(pattern):
    """Nothing more; and nothing less but for classes that ECMA 262 reads more narrowly."""
    found = re.compile(re.sub(r"\(\?<n>", "(?P<n>", pattern))
    held = language.of_pattern(pattern)
    for text in SAMPLES:
        if held.has(text):
            assert found.search(text), text
        elif found.search(text):
            # `$` lets a newline by in Python alone, and so do some letters, digits and spaces.
            assert not text.isascii() or text.endswith("\n"), text


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_negated_language_holds_nothing_that_re_finds(pattern):
    found = re.compile(re.sub(r"\(\?<n>", "(?P<n>", pattern))
    try:
        refused = language.not_pattern(pattern)
    except Unsupported:
        return
    for text in SAMPLES:
        held = any(part.has(text) for part in refused)
        if held:
            assert not found.search(text), text
        elif not found.search(text):
            assert not text.isascii() or "\n" in text or text in "\x85", text


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("low", "high"), [(0, 2), (2, None), (1, 3)])
def test_a_pattern_and_a_length_are_held_together(pattern, low, high):
    held = language.of_pattern(pattern) & language.Language(low=low, high=high)
    written = spelling.pattern(language.tree_of(held))
    whole = re.compile(written) if written is not None else None
    for text in SAMPLES:
        fits = low <= len(text) <= (high or 9) and language.of_pattern(pattern).has(text)
        if re.search('["\\\\\x00-\x1f]', text):
            continue
        assert bool(whole and whole.fullmatch(text)) == fits, (written, text)


def test_a_written_pattern_means_the_same_to_xgrammar():
    for pattern in PATTERNS:
        written = spelling.pattern(language.tree_of(language.of_pattern(pattern)))
        if written is None:
            continue
        schema = json.dumps({"type": "string", "pattern": written})
        grammar = COMPILER.compile_json_schema(schema)
        for text in SAMPLES[::9] + SAMPLES[-14:]:
            if not re.search('["\\\\\x00-\x1f]', text):
                assert takes(grammar, json.dumps(text, ensure_ascii=False)) == bool(
                    re.fullmatch(written, text)
                ), (written, text)


def test_excluded_texts_are_all_that_is_missing():
    texts = ["a", "ab", "abc", "b-", ""]
    held = language.without_texts(texts)
    pattern = re.compile(spelling.pattern(language.tree_of(held)))
    for text in SAMPLES:
        if "\n" not in text:
            assert bool(pattern.fullmatch(text)) == (text not in texts) == held.has(text)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a)\\1", "groupref"),
        ("\\bword", "boundary"),
        ("(?<=a)b", "behind"),
        ("a(?!b)c", "in the middle"),
        ("(", "does not parse"),
    ],
)
def test_what_is_no_regular_language_of_ours_says_why(pattern, why):
    with pytest.raises(Unsupported, match=why):
        language.of_pattern(pattern)


def test_an_automaton_that_grows_is_given_up():
    held = language.of_pattern("a.{40}b.{40}$") & language.of_pattern("(a|b)*c.{30}")
    with pytest.raises(TooMuch):
        language.tree_of(held)


def test_what_is_given_up_is_not_kept():
    """That it was is remembered; an error would keep the frames that it came through."""
    held = language.of_pattern("a.{40}b.{40}$") & language.of_pattern("(a|b)*c.{31}")
    for _ in range(3):
        with pytest.raises(TooMuch, match="intersection of patterns"):
            language.tree_of(held)
    gc.collect()
    kept = [thing.__traceback__ for thing in gc.get_objects() if issubclass(type(thing), TooMuch)]
    assert not any(kept)


def grammar_of(body):
    return COMPILER.compile_grammar(xgrammar.Grammar.from_ebnf(f"root ::= {body}"))


def test_integers_between_bounds():
    rng = random.Random(0)
    for _ in range(40):
        size = rng.choice([3, 30, 1000, 10**6])
        low, high = (rng.choice([None, rng.randint(-size, size)]) for _ in range(2))
        if low is not None and high is not None:
            low, high = sorted((low, high))
        grammar = grammar_of(numerals.integers(low, high))
        edges = {b + d for b in (low or 0, high or 0, 0) for d in (-11, -1, 0, 1, 9)}
        for value in edges | {rng.randint(-2 * size, 2 * size) for _ in range(8)}:
            fits = (low is None or low <= value) and (high is None or value <= high)
            assert takes(grammar, str(value)) == fits, (low, high, value)


def test_decimals_between_bounds():
    rng = random.Random(1)

    def bound():
        return rng.choice([None, Fraction(rng.randint(-300, 300), rng.choice([1, 10, 100, 8]))])

    for _ in range(60):
        low, high = bound(), bound()
        if low is not None and high is not None:
            low, high = sorted((low, high))
        shape = Number(low, high, low is not None and rng.random() < 0.4, rng.random() < 0.4)
        if shape.high is None:
            shape = Number(low, None, shape.low_open)
        if shape.empty:
            continue
        grammar = grammar_of(numerals.decimals(shape))
        for base in (low, high, Fraction(0), bound()):
            for step in (0, Fraction(1, 10), Fraction(-1, 1000), 1, -10, Fraction(99, 100)):
                text = repr(float((base or 0) + step))
                if "e" not in text:
                    fits = shape.has(float(text))
                    assert takes(grammar, text) == fits, (shape, text)
                    assert takes(grammar, text + "0") == fits, (shape, text)
