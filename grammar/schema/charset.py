"""Sets of characters as sorted, disjoint, inclusive ranges of code points."""

import bisect
import functools
import re
import sys
from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]

EMPTY: Ranges = ()
# Surrogates cannot be written in UTF-8, so no text of a grammar holds one.
ANY: Ranges = ((0, 0xD7FF), (0xE000, sys.maxunicode))


def union(parts: Iterable[tuple[int, int]]) -> Ranges:
    """The ranges, merged and sorted."""
    merged: list[list[int]] = []
    for low, high in sorted(parts):
        if merged and low <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    return tuple((low, high) for low, high in merged)


def intersect(a: Ranges, b: Ranges) -> Ranges:
    """The characters in both."""
    found, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low <= high:
            found.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


def complement(a: Ranges) -> Ranges:
    """The characters that are not in ``a``."""
    found, start = [], 0
    for low, high in a:
        if low > start:
            found.append((start, low - 1))
        start = high + 1
    if start <= sys.maxunicode:
        found.append((start, sys.maxunicode))
    return intersect(tuple(found), ANY)


def subtract(a: Ranges, b: Ranges) -> Ranges:
    """The characters in ``a`` and not in ``b``."""
    return intersect(a, complement(b))


def of(text: str) -> Ranges:
    """The characters of a text."""
    return union((ord(c), ord(c)) for c in text)


def has(a: Ranges, code: int) -> bool:
    """Whether a code point is in the set."""
    i = bisect.bisect_right(a, (code, sys.maxunicode)) - 1
    return i >= 0 and code <= a[i][1]


@functools.lru_cache(4000)
def other_than(text: str) -> Ranges:
    """The characters that are not in a text."""
    return complement(of(text))


SPACE = union(
    [
        *((9, 13), (28, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
        *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
    ]
)
"""Python's ``\\s``."""
ASCII_DIGIT = of("0123456789")
ASCII_WORD = union([*ASCII_DIGIT, (65, 90), (97, 122), (95, 95)])
# ECMA 262 takes U+FEFF for a space as well and leaves out 28-31 and U+0085; both agree on these.
COMMON_SPACE = subtract(SPACE, union([(28, 31), (0x85, 0x85)]))


@functools.cache
def unicode_class(escape: str) -> Ranges:
    """Python's ``\\d`` or ``\\w`` over all of Unicode."""
    text = "".join(map(chr, range(sys.maxunicode + 1)))
    return intersect(union((m.start(), m.end() - 1) for m in re.finditer(escape + "+", text)), ANY)


def fold(a: Ranges) -> Ranges:
    """The set with both cases of each ASCII letter in it."""
    letters = [
        chr(c) for low, high in intersect(a, ((65, 90), (97, 122))) for c in range(low, high + 1)
    ]
    return union([*a, *of("".join(c.swapcase() for c in letters))])
