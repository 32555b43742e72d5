"""Figures over several runs of `eval.k2vv` and `eval.decoding`: for notebooks and the README."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from eval import style
from eval.decoding_report import FIGURE_TITLES
from eval.style import said

Runs = Mapping[str, Mapping[str, Any]]
"""What `eval.results` reads, by name."""

_LEAST_LEFT = 1e-8
"""Below it, what float32 leaves of 1 - removed is rounding."""


def accuracy(runs: Runs) -> Figure:
    """`draw_accuracy` on a figure of its own."""
    figure = Figure(figsize=(1.3 * style.WIDTH, 0.5 * accuracy_rows(runs) + 2.0))
    draw_accuracy(figure.add_subplot(), runs)
    return figure


def accuracy_rows(runs: Runs) -> int:
    """How many rows `draw_accuracy` has."""
    return sum(len(_groups(run)) for run in runs.values())


def draw_accuracy(axes: Axes, runs: Runs) -> None:
    """Schema accuracy with its Wilson interval: a row a run and group, a mark a mode.

    Args:
        runs: comparisons of `eval.k2vv`.
    """
    rows = [(name, group) for name, run in runs.items() for group in _groups(run)]
    for y, (name, group) in enumerate(rows):
        for m, (mode, run) in enumerate(runs[name]["modes"].items()):
            whole = run["schema_accuracy"]
            part = whole if group is None else whole["by_group"].get(group)
            if part is not None and part["accuracy"] is not None:
                label = f"{part['successful']} of {part['triggered']}"
                at, look = y + 0.18 * (2 * m - 1), style.look(mode, m)
                style.interval(axes, at, part["accuracy"], part["interval"], look, label)
    for mode in ("free", "constrained"):
        axes.plot([], [], label=mode, **style.look(mode).mark)
    style.rows(axes, [f"{name}: all" if group is None else group for name, group in rows])
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axes.set_xlabel("valid, of responses with a call (95 % Wilson interval)")
    style.legend_above(axes, "Schema accuracy")


def _groups(run: Mapping[str, Any]) -> list[str | None]:
    groups = list(run["requests"]["by_group"])
    return [None, *groups] if len(groups) > 1 else [None]


def token_times(runs: Runs) -> Figure:
    """`draw_token_times` on a figure of its own."""
    figure = Figure(figsize=(1.3 * style.WIDTH, 0.5 * way_count(runs) + 2.2))
    draw_token_times(figure.add_subplot(), runs)
    return figure


def way_count(runs: Runs) -> int:
    """How many rows `draw_token_times` has."""
    return len(_ways(runs))


def draw_token_times(axes: Axes, runs: Runs) -> None:
    """Time a token over that of free decoding: a row a way to decode, a mark a model.

    Args:
        runs: summaries of `eval.decoding`; medians over the rounds, and the range of these.
    """
    ways = _ways(runs)
    looks = zip(style.GROUP_COLOURS, style.GROUP_MARKERS, style.GROUP_FILLED, strict=True)
    for n, (run, (colour, marker, filled)) in enumerate(zip(runs.values(), looks, strict=False)):
        mark = style.Look(colour, marker, "", filled).mark | {"markersize": 7}
        axes.plot([], [], label=run["model"], **mark)
        for way, ratio in run["ratios"].get("token_to_free", {}).items():
            if ratio is not None and way in ways:
                y = ways.index(way) + 0.22 * (n - (len(runs) - 1) / 2)
                axes.hlines(y, ratio["low"], ratio["high"], colors=colour, linewidth=2.4)
                axes.plot(ratio["median"], y, zorder=3, **mark)
    axes.axvline(1, color=style.GREY, linewidth=1)
    style.rows(axes, [FIGURE_TITLES[way] for way in ways])
    axes.set_xlim(left=0)
    axes.set_xlabel("over our loop without a grammar\n(median of rounds; line: range)")
    style.legend_above(axes, "Time a token")


def _ways(runs: Runs) -> list[str]:
    """Ways that some run has a ratio of, but for free decoding itself."""
    timed = {way for run in runs.values() for way in run["ratios"].get("token_to_free", {})}
    return [way for way in FIGURE_TITLES if way in timed and way != "free"]


def interventions(runs: Runs) -> Figure:
    """Where the grammar first objected in each request, and the probability that it left there.

    Args:
        runs: comparisons of `eval.k2vv` that have interventions.
    """
    figure = Figure(figsize=(1.6 * style.WIDTH, 2.9 * len(runs) + 0.5), layout="constrained")
    panels = figure.subplots(len(runs), 1, sharey=True, squeeze=False)[:, 0]
    for axes, (name, run) in zip(panels, runs.items(), strict=True):
        groups = list(run["requests"]["by_group"])
        points = [one for one in run["interventions"]["first"] if one["removed"] is not None]
        looks = zip(style.GROUP_COLOURS, style.GROUP_MARKERS, style.GROUP_FILLED, strict=True)
        for group, (colour, marker, filled) in zip(groups, looks, strict=False):
            own = [one for one in points if one["group"] == group]
            axes.scatter(
                [one["position"] for one in own],
                [max(1 - one["removed"], _LEAST_LEFT) for one in own],
                s=36,
                marker=marker,
                facecolors=colour if filled else "none",
                edgecolors=colour,
                alpha=0.7,
                label=said(group),
            )
        axes.set_yscale("log")
        axes.set_ylabel("probability left")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid()
        axes.set_title(f"{name}: in {style.percent(run['interventions']['share'])} of requests")
        # Beside the points, whose panel is wide and low.
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), handletextpad=0.3)
    panels[-1].set_xlabel("position of the first objection (tokens)")
    return figure
