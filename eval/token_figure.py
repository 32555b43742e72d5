"""The figure of the tokens that a grammar saves and spends."""

import math
from collections import Counter
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
    """Totals of the two runs; the dotted end of a bar had no alternative and was not sampled."""
    names = ("free", "constrained")
    forced = {"free": 0, "constrained": tokens["forced"] or 0}
    for y, name in enumerate(names):
        total = tokens[name]
        bar = axes.barh(y, total, 0.6, **style.look(name).bar)
        label = f"{total:,}"
        if forced[name]:
            end = style.look(name).bar | {"facecolor": "white", "hatch": "...."}
            axes.barh(y, forced[name], 0.6, total - forced[name], **end)
            label += f"\n{forced[name]:,} forced"
        axes.bar_label(bar, [label], padding=3, fontsize=12, color=style.INK)
    style.rows(axes, names)
    room = 1.35 if any(forced.values()) else 1.2
    axes.set_xlim(0, room * max(1, *(tokens[name] for name in names)))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_title(f"Completion tokens of {tokens['pairs']:,} requests in both runs")


def _changes(axes: Axes, tokens: Mapping[str, Any]) -> None:
    """A histogram of constrained minus free; requests without a difference are a number alone."""
    changed = [(difference, n) for difference, n in tokens["by_difference"] if difference]
    lowest = min((difference for difference, _ in changed), default=0)
    highest = max((difference for difference, _ in changed), default=0)
    width = max(1, math.ceil((highest - lowest + 1) / _BARS))
    bins: Counter[int] = Counter()
    for difference, n in changed:
        side = 1 if difference > 0 else -1
        bins[side * math.ceil(abs(difference) / width)] += n
    for at, n in bins.items():
        look = style.look("constrained" if at < 0 else "free").bar
        centre = (at - 0.5 * (1 if at > 0 else -1)) * width
        axes.bar(centre, n, 0.86 * width, **look)
    axes.axvline(0, color=style.GREY, linewidth=1.2)
    saved, spent = tokens["saved"], tokens["spent"]
    for x, align, text in (
        (0.0, "left", f"saved: {saved['tokens']:,}\nin {saved['requests']:,} requests"),
        (0.5, "center", f"no change\nin {tokens['same']:,} requests"),
        (1.0, "right", f"spent: {spent['tokens']:,}\nin {spent['requests']:,} requests"),
    ):
        axes.text(x, 1.02, text, transform=axes.transAxes, ha=align, va="bottom", fontsize=12)
    axes.set_xlim(min(-5.0, 1.08 * lowest), max(5.0, 1.08 * highest))
    axes.set_ylim(0, 1.08 * max(bins.values(), default=1))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    axes.set_xlabel("constrained minus free (tokens)")
    axes.set_ylabel("requests")
    axes.grid(axis="y")
