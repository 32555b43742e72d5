"""How the figures look: one set of colours and matplotlib settings for all of them.

Nothing is told by colour alone: a figure says the same in black and white.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

# Okabe and Ito, "Color Universal Design" (2008): told apart under every colour-vision deficiency.
BLUE = "#0072B2"
VERMILLION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREY = "#6B6B6B"
INK = "#222222"

GROUP_COLOURS = (BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION)
GROUP_MARKERS = ("o", "^", "D", "s", "v", "P")
GROUP_FILLED = (True, False, True, False, True, False)


@dataclass(frozen=True)
class Look:
    """How one of two runs is drawn: apart by shape, by fill and by hatch, and by colour too."""

    colour: str
    marker: str
    hatch: str
    filled: bool

    @property
    def mark(self) -> dict[str, Any]:
        """Arguments of `Axes.plot` for a single mark."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "markerfacecolor": self.colour if self.filled else "white",
            "markeredgewidth": 2,
            "linestyle": "none",
        }

    @property
    def bar(self) -> dict[str, Any]:
        """Arguments of `Axes.bar` and its kin."""
        return {
            "facecolor": self.colour if self.filled else "white",
            "edgecolor": self.colour,
            "hatch": self.hatch,
            "linewidth": 1.2,
        }


_FREE = Look(VERMILLION, "o", "////", filled=False)
_CONSTRAINED = Look(BLUE, "s", "", filled=True)


def look(name: str, order: int = 0) -> Look:
    """The look of a mode by its name, of any other run by its place (0 or 1)."""
    known = {"free": _FREE, "constrained": _CONSTRAINED}
    return known.get(name, (_FREE, _CONSTRAINED)[order % 2])


WIDTH = 6.0
"""Inches. Type is sized to be read when a figure is shown at half of it."""

SETTINGS = {
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelsize": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.8,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "legend.frameon": False,
    "legend.fontsize": 12,
    "lines.markersize": 8,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "savefig.facecolor": "white",
}


def said(name: str) -> str:
    """A key as it is said: ``bad_json`` is ``bad JSON``."""
    return " ".join("JSON" if word == "json" else word for word in name.split("_"))


def plain(text: object, limit: int = 60) -> str:
    """A text from a model or a file, fit to print: in one line, escaped where it is no UTF-8."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def spans(indices: Iterable[int]) -> list[tuple[int, int]]:
    """Sorted numbers as (first, last) of each run of neighbours."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        joins = runs and index == runs[-1][1] + 1
        runs[-1:] = [(runs[-1][0], index)] if joins else [*runs[-1:], (index, index)]
    return runs


def ranges(runs: Sequence[tuple[int, int]], limit: int = 8) -> str:
    """`spans` in words, ``3, 7–9``; after `limit` of them a count of the numbers in the rest."""
    shown = [f"{low}" if low == high else f"{low}–{high}" for low, high in runs[:limit]]
    rest = sum(high - low + 1 for low, high in runs[limit:])
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")


def named(indices: Sequence[int]) -> str:
    """How many, and which: ``3 (1, 7–8)``."""
    return f"{len(indices):,} ({ranges(spans(indices))})"


def percent(share: float) -> str:
    """A share in [0, 1] with one decimal; nothing reads 0 or 100 % that is not."""
    shown = 100 * share
    if 0 < shown < 0.05:
        return "<0.1 %"
    if 99.95 <= shown < 100:
        return ">99.9 %"
    return f"{shown:.1f} %"


def rows(axes: Any, names: Sequence[str]) -> None:
    """Give a chart a row a name, the first on top."""
    axes.set_yticks(range(len(names)), [said(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def interval(
    axes: Any, y: float, share: float, ends: tuple[float, float], look: Look, label: str
) -> None:
    """Draw a share in [0, 1] and the interval about it in a row of a chart, and a label beside."""
    low, high = ends
    axes.hlines(y, low, high, colors=look.colour, linewidth=2.4)
    axes.plot(share, y, clip_on=False, zorder=3, **look.mark)
    # Whichever side of the interval has room, and above its mark where neither has.
    if high < 0.72:
        place = {"xy": (high, y), "xytext": (8, 0), "ha": "left", "va": "center"}
    elif low > 0.28:
        place = {"xy": (low, y), "xytext": (-8, 0), "ha": "right", "va": "center"}
    else:
        middle = min(max(share, 0.12), 0.88)
        place = {"xy": (middle, y), "xytext": (0, 6), "ha": "center", "va": "bottom"}
    axes.annotate(
        label,
        **place,
        textcoords="offset points",
        fontsize=12,
        color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
    )


def legend_above(axes: Any, title: str) -> None:
    """Title, and a legend of what has labels under it, in as many lines as it needs.

    It is out of the way of the data: the figure grows by what is more than one line.
    """
    labels = axes.get_legend_handles_labels()[1]
    if not labels:
        axes.set_title(title)
        return
    longest = max(map(len, labels))
    columns = max(1, min(len(labels), 4, _LEGEND_CHARACTERS // (longest + 4)))
    more = -(-len(labels) // columns) - 1
    width, height = axes.figure.get_size_inches()
    axes.figure.set_size_inches(width, height + _LEGEND_LINE / 72 * more)
    axes.set_title(title, pad=32 + _LEGEND_LINE * more)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        ncols=columns,
        borderaxespad=0.2,
        handletextpad=0.3,
        columnspacing=1.2,
    )


# What fits beside the labels of an axis in a figure of `WIDTH`, and points a line.
_LEGEND_CHARACTERS, _LEGEND_LINE = 44, 20
