"""A page of headings, grids and sentences: one description for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eval import markdown

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Heading:
    """A heading of a page."""

    text: str


@dataclass(frozen=True)
class Grid:
    """A table: first column to the left, the others to the right. Lines in ``bold`` stand out."""

    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    bold: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Sentences:
    """Sentences, one an item. quiet: how to read what is above, rather than what was found."""

    texts: Sequence[str]
    quiet: bool = False


Block = Heading | Grid | Sentences


def print_blocks(blocks: Iterable[Block], console: Console) -> None:
    """Print a page on a rich console, 80 columns wide or more."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    for block in blocks:
        console.print()
        match block:
            case Heading(text):
                console.print(Text(text, style="bold"))
            case Grid(head, lines, bold):
                table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
                for i, name in enumerate(head):
                    table.add_column(Text(name), justify="right" if i else "left")
                for i, line in enumerate(lines):
                    table.add_row(*map(Text, line), style="bold" if i in bold else "")
                console.print(table)
            case Sentences(texts, quiet):
                for text in texts:
                    console.print(Text(text, style="dim" if quiet else ""))


def as_markdown(blocks: Iterable[Block]) -> str:
    """The same page as Markdown, the first heading its title."""
    parts, level = [], "#"
    for block in blocks:
        match block:
            case Heading(text):
                parts.append(f"{level} {markdown.escape(text)}")
                level = "##"
            case Grid(head, lines, bold):
                cells = [[markdown.escape(cell) for cell in line] for line in lines]
                for i in bold:
                    cells[i] = [f"**{cell}**" if cell else cell for cell in cells[i]]
                parts.append(markdown.table([markdown.escape(name) for name in head], cells))
            case Sentences(texts):
                parts.append("\n".join(f"* {markdown.escape(text)}" for text in texts))
    return "\n\n".join(parts) + "\n"
