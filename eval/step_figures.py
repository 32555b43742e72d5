"""Figures of single steps: what a draw does, how draws deviate, what each token was chosen from.

For notebooks, which have called `eval.drawing.use_style`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from eval import style

_ROW = 0.27
"""Inches that a row of text takes."""


def step(
    names: Sequence[str],
    free: np.ndarray,
    masked: np.ndarray,
    kept: np.ndarray,
    score: np.ndarray,
    drawn: int,
) -> Figure:
    """One draw, from left to right: the free distribution, the masked one, its nucleus, the winner.

    Args:
        names: of the tokens shown, from the top.
        free, masked: probabilities of these tokens; a masked probability of 0 is a forbidden token.
        kept: bool, inside the nucleus.
        score: z plus noise, nats.
        drawn: index of the token with the greatest score.
    """
    allowed, y = masked > 0, np.arange(len(names))
    nucleus = np.where(kept, masked, 0)
    figure = Figure(figsize=(2 * style.WIDTH, _ROW * len(names) + 1.7))
    panels = figure.subplots(1, 4, sharey=True)
    shown = (("free", free), ("mask, temperature", masked), ("top_p", nucleus / nucleus.sum()))
    for axes, (title, x) in zip(panels, shown, strict=False):
        for group, mode in ((~allowed, "free"), (allowed, "constrained")):
            axes.barh(y[group], x[group], 0.7, **style.look(mode).bar)
        axes.set_xlim(0, 1.05 * max(x))
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        axes.set_title(title)
        axes.set_xlabel("probability")
    last = panels[3]
    last.plot(score[drawn], y[drawn], "*", color=style.ORANGE, markersize=22)
    last.plot(score[kept], y[kept], **style.look("constrained").mark)
    last.set_title("draw")
    last.set_xlabel("logit / T + noise (nats)")
    last.margins(x=0.15)
    _texts(panels[0], names)
    for axes in panels:
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
    for name, legal in zip(panels[0].get_yticklabels(), allowed, strict=True):
        name.set_color(style.INK if legal else style.VERMILLION)
    return figure


def deviations(expected: np.ndarray, observed: Mapping[str, np.ndarray]) -> Figure:
    """Counts over what was expected, token by token, and the band in which 95 % of them belong.

    Args:
        expected: of each token, above 0.
        observed: names of two samplers to their counts of the same tokens.
    """
    figure = Figure(figsize=(1.3 * style.WIDTH, 4.2))
    axes = figure.add_subplot()
    x = np.geomspace(expected.min(), expected.max(), 200)
    band = 1.96 / np.sqrt(x)
    axes.fill_between(x, -band, band, color="#DDDDDD", linewidth=0, label="95 % of true draws")
    for (name, counts), mode in zip(observed.items(), ("constrained", "free"), strict=True):
        mark = style.look(mode).mark | {"markersize": 6, "markeredgewidth": 1.4}
        axes.plot(expected, counts / expected - 1, **mark, label=name)
    axes.set_xscale("log")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axes.set_xlabel("expected draws of a token")
    axes.set_ylabel("observed beyond expected")
    axes.grid(axis="y")
    style.legend_above(axes, "Draws of each token")
    return figure


def walk(pieces: Sequence[str], allowed: Sequence[int], vocab_size: int) -> Figure:
    """How many tokens the grammar allows before each token of a text; read from the top.

    Args:
        pieces: the tokens' text.
        allowed: tokens that the mask allows where each of them comes.
    """
    allowed, y = np.asarray(allowed), np.arange(len(pieces))
    forced = allowed == 1
    figure = Figure(figsize=(1.2 * style.WIDTH, _ROW * len(pieces) + 1.8))
    axes = figure.add_subplot()
    axes.hlines(y[~forced], 1, allowed[~forced], color=style.SKY, linewidth=2)
    for group, mode, label in ((~forced, "constrained", "a choice"), (forced, "free", "none")):
        mark = style.look(mode).mark | {"markersize": 6, "markeredgewidth": 1.4}
        axes.plot(allowed[group], y[group], **mark, label=label)
    axes.set_xscale("log")
    axes.set_xlim(0.7, 2 * vocab_size)
    axes.axvline(vocab_size, color=style.GREY, linewidth=1, linestyle=":")
    _texts(axes, pieces)
    axes.set_xlabel(f"tokens allowed, of {vocab_size:,} (log scale)")
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    style.legend_above(axes, "What is left to choose from")
    return figure


def _texts(axes: Axes, texts: Sequence[str]) -> None:
    axes.set_yticks(range(len(texts)), texts, fontfamily="monospace", fontsize=11)
    axes.set_ylim(len(texts) - 0.4, -0.6)
