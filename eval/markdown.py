"""Markdown whose cells and words may hold anything."""

from collections.abc import Iterable, Sequence
from typing import Any

from eval.style import plain

_LONGEST = 2000


def table(head: Sequence[Any], lines: Iterable[Sequence[Any]]) -> str:
    """A table of cells that are mark-up; the first column to the left, the others to the right."""
    align = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join([_line(head), f"| {' | '.join(align)} |", *map(_line, lines)])


def code(text: Any) -> str:
    """Text as it is, in code style and safe inside a table."""
    shown = plain(text, _LONGEST).strip().replace("`", "'") or " "
    return f"`{shown}`"


def escape(text: Any) -> str:
    """Text that no mark-up is read into."""
    return "".join(f"\\{mark}" if mark in "\\`*_[]<>#|" else mark for mark in plain(text, _LONGEST))


def _line(cells: Sequence[Any]) -> str:
    # A bar ends a cell even inside code, and there it takes an entity: the backslash would show.
    return f"| {' | '.join(_cell(str(cell)) for cell in cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "&#124;") if text.startswith("`") else text
