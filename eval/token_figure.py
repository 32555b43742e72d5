"""The figure of the tokens that a grammar saves and spends."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from eval import style

_BARS = 41
"""Most bars of the histogram."""


def draw_tokens(tokens: Mapping[str, Any]) -> Figure:
    """`eval.token_counts`: totals of the two runs, and what each request gained or lost."""
    figure = Figure(figsize=(style.WIDTH, 5.0))
    totals, changes = figure.subplots(2, 1, height_ratios=(1, 1.5))
    _totals(totals, tokens)
    _changes(changes, tokens)
    return figure


def _totals(axes: Axes, tokens: Mapping[str, Any]) -> None:
    names = ("free", "constrained")
    for y, name in enumerate(names):
        bar = axes.barh(y, tokens[name], 0.6, **style.look(name).bar)
        axes.bar_label(bar, [f"{tokens[name]:,}"], padding=3, fontsize=12, color=style.INK)
    if tokens["forced"]:
        drawn = tokens["constrained"] - tokens["forced"]
        axes.barh(
            1, tokens["forced"], 0.6, drawn, facecolor="white", edgecolor=style.BLUE, hatch="...."
        )
        axes.annotate(
            f"{tokens['forced']:,} not sampled",
            (tokens["constrained"], 1.3),
            (0, -3),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=10,
        )
    style.rows(axes, names)
    axes.set_xlim(0, 1.2 * max(1, tokens["free"], tokens["constrained"]))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_title(f"Completion tokens of {tokens['pairs']:,} requests in both runs")


def _changes(axes: Axes, tokens: Mapping[str, Any]) -> None:
    """A histogram of constrained minus free, a bar a bin of whole tokens."""
    differences = tokens["by_difference"]
    widest = max(abs(difference) for difference, _ in differences)
    width = max(1, -(-(2 * widest + 1) // _BARS))
    bins: dict[int, int] = {}
    for difference, requests in differences:
        # Symmetric around the bin of no difference, so that it holds nothing else.
        side = (difference > 0) - (difference < 0)
        at = side * -(-abs(difference) // width)
        bins[at] = bins.get(at, 0) + requests
    for at, requests in bins.items():
        centre = at * width if width == 1 else (at - 0.5 * ((at > 0) - (at < 0))) * width
        look = {"facecolor": style.GREY, "edgecolor": style.GREY}
        if at:
            look = style.look("constrained" if at < 0 else "free").bar
        axes.bar(centre, requests, 0.9 * width if at else max(0.9, 0.4 * width), **look)
    saved, spent = tokens["saved"], tokens["spent"]
    for x, part, word in ((0.02, saved, "saved"), (0.98, spent, "spent")):
        axes.text(
            x,
            0.97,
            f"{part['tokens']:,} tokens {word}\nin {part['requests']:,} requests",
            transform=axes.transAxes,
            ha="left" if x < 0.5 else "right",
            va="top",
            fontsize=12,
        )
    reach = max(5.0, 1.08 * widest)
    axes.set_xlim(-reach, reach)
    # Zero is the tallest bar nearly always; the others are what the figure is about.
    others = [n for at, n in bins.items() if at]
    top = 1.9 * max(others, default=max(bins.values()))
    axes.set_ylim(0, top)
    if tokens["same"] > top:
        axes.annotate(
            f"{tokens['same']:,} the same",
            (0, top),
            (0, -2),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=11,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    axes.set_xlabel("constrained minus free (tokens)")
    axes.set_ylabel("requests")
    axes.grid(axis="y")
