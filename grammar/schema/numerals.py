"""Decimal numerals between bounds, as EBNF: comparing numbers is comparing their digits."""

import math
from fractions import Fraction

from grammar.schema.shapes import Number

_FREE_INTEGER = '"-"? ("0" | [1-9] [0-9]*)'
# Two digits of exponent: 1e999 would be read as infinity, which JSON does not have.
_EXPONENT = "([eE] [+-]? [0-9]{1,2})?"
_PRECISION = 15
"""Decimal digits that a float keeps apart."""


def integers(low: int | None, high: int | None) -> str | None:
    """The integers between two bounds, or None where there are none."""
    if low is None and high is None:
        return _FREE_INTEGER
    found = []
    if low is None or low < 0:
        top = -1 if high is None else min(high, -1)
        found.append(_signed(_natural(-top, None if low is None else -low)))
    if high is None or high >= 0:
        found.append(_natural(max(low or 0, 0), high))
    return _either([f for f in found if f])


def _signed(natural: str | None) -> str | None:
    return f'"-" ({natural})' if natural else None


def _either(parts: list[str]) -> str | None:
    return " | ".join(parts) if parts else None


def _natural(low: int, high: int | None) -> str | None:
    """Numerals without a leading zero."""
    if high is None:
        size = len(str(low))
        same = _between(str(low), "9" * size)
        return f"{same} | [1-9] [0-9]{{{size},}}"
    if low > high:
        return None
    found = []
    for size in range(len(str(low)), len(str(high)) + 1):
        least = max(low, 10 ** (size - 1) if size > 1 else 0)
        found.append(_between(str(least), str(min(high, 10**size - 1))))
    return _either(found)


def _between(low: str, high: str) -> str:
    """Digit strings of one length between two of that length."""
    if not low:
        return '""'
    if low == "0" * len(low) and high == "9" * len(high):
        return f"[0-9]{{{len(low)}}}" if len(low) > 1 else "[0-9]"
    a, b = low[0], high[0]
    if a == b:
        rest = _between(low[1:], high[1:])
        return f'"{a}"' if rest == '""' else f'"{a}" ({rest})'
    if len(low) == 1:
        return f"[{a}-{b}]"
    rest = len(low) - 1
    found = []
    start, stop = int(a), int(b)
    if low[1:] != "0" * rest:
        found.append(f'"{a}" ({_between(low[1:], "9" * rest)})')
        start += 1
    if high[1:] != "9" * rest:
        stop -= 1
    if start <= stop:
        found.append(f"[{start}-{stop}] [0-9]{{{rest}}}")
    if high[1:] != "9" * rest:
        found.append(f'"{b}" ({_between("0" * rest, high[1:])})')
    return " | ".join(found)


def decimals(shape: Number) -> str | None:
    """The numbers between the bounds of a shape, without exponent once there is a bound.

    Returns:
        EBNF, or None where the bounds have more digits than a float keeps apart.
    """
    if shape.low is None and shape.high is None:
        return f'{_FREE_INTEGER} ("." [0-9]+)? {_EXPONENT}'
    bounds = [b for b in (shape.low, shape.high) if b is not None]
    texts = [_digits(b) for b in bounds]
    if any(t is None or len(t[0]) + len(t[1]) > _PRECISION for t in texts):
        return None
    places = _PRECISION - max(len(t[0]) for t in texts if t)
    zero = Fraction(0)
    found = []
    if shape.low is None or shape.low < 0:
        upper_end = shape.high is not None and shape.high <= 0
        found.append(
            _signed(
                _positive(
                    -shape.high if upper_end else zero,
                    upper_end and shape.high_open,
                    None if shape.low is None else -shape.low,
                    shape.low_open,
                    places,
                )
            )
        )
    if shape.high is None or shape.high > 0 or (shape.high == 0 and not shape.high_open):
        lower_end = shape.low is not None and shape.low >= 0
        found.append(
            _positive(
                shape.low if lower_end else zero,
                lower_end and shape.low_open,
                shape.high,
                shape.high_open,
                places,
            )
        )
    return _either([f for f in found if f])


def _digits(number: Fraction) -> tuple[str, str] | None:
    """Integer and fractional digits, or None where the fraction does not end."""
    whole, rest = divmod(abs(number), 1)
    digits = ""
    while rest:
        if len(digits) > 30:
            return None
        digit, rest = divmod(rest * 10, 1)
        digits += str(digit)
    return str(whole), digits


def _positive(
    low: Fraction, low_open: bool, high: Fraction | None, high_open: bool, places: int
) -> str | None:
    """Numerals from 0 up, between bounds."""
    if high is not None and (low > high or (low == high and (low_open or high_open))):
        return None
    any_fraction = f'("." [0-9]{{1,{places}}})?'
    first, (_, low_digits) = math.floor(low), _digits(low)
    last, high_digits = (None, "") if high is None else (math.floor(high), _digits(high)[1])
    found = []
    if first == last:
        fraction = _fraction_between(low_digits, low_open, high_digits, high_open, places)
        return f'"{first}" ({fraction})' if fraction else None
    above = _fraction_above(low_digits, low_open, places)
    dot = f'"." ({above})'
    found.append(f'"{first}" ({dot})' if low_digits or low_open else f'"{first}" {any_fraction}')
    between = _natural(first + 1, None if last is None else last - 1)
    if between:
        found.append(f"({between}) {any_fraction}")
    if last is not None:
        below = _fraction_below(high_digits, high_open, places)
        if not (high_open and not high_digits):
            found.append(f'"{last}" ("." ({below}))?' if below else f'"{last}"')
    return _either(found)


def _fraction_above(digits: str, strict: bool, places: int) -> str:
    """Digit strings after the point that are at least (or above) ``0.digits``."""
    if not digits:
        if not strict:
            return f"[0-9]{{0,{max(places, 0)}}}"
        return " | ".join(f'"{"0" * z}" [1-9] [0-9]{{0,{places - z - 1}}}' for z in range(places))
    head, rest = int(digits[0]), digits[1:]
    found = [f'"{head}" ({_fraction_above(rest, strict, places - 1)})']
    if not rest and not strict:
        found = [f'"{head}" [0-9]{{0,{places - 1}}}']
    if head < 9:
        found.append(f"[{head + 1}-9] [0-9]{{0,{places - 1}}}")
    return " | ".join(found)


def _fraction_below(digits: str, strict: bool, places: int) -> str | None:
    """Digit strings after the point, one digit at least, that are at most ``0.digits``."""
    if not digits:
        return None if strict else f'"0"{{1,{max(places, 1)}}}'
    head, rest = int(digits[0]), digits[1:]
    found = []
    if head > 0:
        found.append(f"[0-{head - 1}] [0-9]{{0,{places - 1}}}")
    deeper = _fraction_below(rest, strict, places - 1)
    if rest:
        found.append(f'"{head}" ({deeper})?' if deeper else f'"{head}"')
    elif not strict:
        found.append(f'"{head}" "0"{{0,{max(places - 1, 0)}}}')
    return _either(found)


def _fraction_between(
    low: str, low_open: bool, high: str, high_open: bool, places: int
) -> str | None:
    """The whole fraction, point included, between two fractions of the same integer."""
    found, empty = _digits_between(low, low_open, high, high_open, places)
    options = [f'"." ({_either(found)})'] if found else []
    return _either([*options, '""'] if empty else options)


def _digits_between(
    low: str, low_open: bool, high: str, high_open: bool, places: int
) -> tuple[list[str], bool]:
    """Digit strings, one digit at least, and whether the empty one lies between as well."""
    if not low and not high:
        equal = not (low_open or high_open)
        return ([f'"0"{{1,{max(places, 1)}}}'] if equal else []), equal
    a, b = int(low[:1] or 0), int(high[:1] or 0)
    if a == b:
        inner, empty = _digits_between(low[1:], low_open, high[1:], high_open, places - 1)
        options = _either([*inner, '""'] if empty else inner)
        return ([f'"{a}" ({options})'] if options else []), empty and a == 0
    found = [f'"{a}" ({_fraction_above(low[1:], low_open, places - 1)})']
    if a + 1 < b:
        found.append(f"[{a + 1}-{b - 1}] [0-9]{{0,{places - 1}}}")
    below = _fraction_below(high[1:], high_open, places - 1)
    if not (high_open and not high[1:].strip("0")):
        found.append(f'"{b}" ({below})?' if below else f'"{b}"')
    return found, not low.strip("0") and not low_open
