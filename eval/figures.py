"""The figures of a comparison, as PNG. Drawn without pyplot: no display, no global state."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from eval import style
from eval.style import said


def draw_all(comparison: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what the comparison has the numbers for; returns the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, draw in (
        ("schema_accuracy", _schema_accuracy),
        ("failure_causes", _failure_causes),
        ("interventions", _interventions),
    ):
        path = folder / f"{name}.png"
        with rc_context(style.SETTINGS):
            if (figure := draw(comparison)) is not None:
                figure.savefig(path, metadata={"Software": None})
                drawn.append(path)
            else:
                # One of an earlier run would be taken for this one's.
                path.unlink(missing_ok=True)
    return drawn


def _schema_accuracy(comparison: Mapping[str, Any]) -> Figure | None:
    """Accuracy and Wilson interval, a row a group, a mark a mode."""
    modes = {mode: run["schema_accuracy"] for mode, run in comparison["modes"].items()}
    if not any(whole["triggered"] for whole in modes.values()):
        return None
    groups = list(comparison["requests"]["by_group"])
    names = ["all", *groups] if len(groups) > 1 else ["all"]
    figure, axes = _figure(1.7 + 0.75 * len(names))
    for m, (mode, whole) in enumerate(modes.items()):
        shift = 0.17 * (2 * m - len(modes) + 1)
        for y, name in enumerate(names):
            part = whole if y == 0 else whole.get("by_group", {}).get(name)
            if part is not None and part["accuracy"] is not None:
                _interval(axes, y + shift, part, mode)
        axes.plot([], [], label=mode, **_mark(mode))
    axes.set_yticks(range(len(names)), [said(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_xlabel("schema-valid, of responses with a call\n(95 % Wilson interval)")
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    _legend_above(axes, "Schema accuracy", len(modes))
    return figure


def _interval(axes: Axes, y: float, part: Mapping[str, Any], mode: str) -> None:
    low, high = part["interval"]
    axes.hlines(y, low, high, colors=style.MODE_COLOURS[mode], linewidth=2.4)
    axes.plot(part["accuracy"], y, clip_on=False, zorder=3, **_mark(mode))
    # Whichever side of the interval has room, and above its mark where neither has.
    if high < 0.72:
        place = {"xy": (high, y), "xytext": (8, 0), "ha": "left", "va": "center"}
    elif low > 0.28:
        place = {"xy": (low, y), "xytext": (-8, 0), "ha": "right", "va": "center"}
    else:
        middle = min(max(part["accuracy"], 0.12), 0.88)
        place = {"xy": (middle, y), "xytext": (0, 6), "ha": "center", "va": "bottom"}
    axes.annotate(
        style.percent(part["accuracy"]),
        **place,
        textcoords="offset points",
        fontsize=12,
        color=style.MODE_COLOURS[mode],
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
    )


def _failure_causes(comparison: Mapping[str, Any]) -> Figure | None:
    """Responses by cause, the most frequent first, a bar a mode."""
    modes = {mode: run["failures"]["by_cause"] for mode, run in comparison["modes"].items()}
    causes = {cause for counts in modes.values() for cause in counts}
    if not causes:
        return None
    totals = {cause: sum(counts.get(cause, 0) for counts in modes.values()) for cause in causes}
    names = sorted(causes, key=lambda cause: (-totals[cause], cause))
    figure, axes = _figure(1.7 + (0.2 * len(modes) + 0.1) * len(names))
    height = 0.8 / len(modes)
    for m, (mode, counts) in enumerate(modes.items()):
        at = [y + height * (m - (len(modes) - 1) / 2) for y in range(len(names))]
        widths = [counts.get(name, 0) for name in names]
        bars = axes.barh(at, widths, 0.88 * height, color=style.MODE_COLOURS[mode], label=mode)
        axes.bar_label(bars, padding=3, fontsize=11, color=style.MODE_COLOURS[mode])
    axes.set_yticks(range(len(names)), [said(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 1.1 * max(max(counts.values(), default=0) for counts in modes.values()))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("responses that show the cause")
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    _legend_above(axes, "Why calls fail", len(modes))
    return figure


def _interventions(comparison: Mapping[str, Any]) -> Figure | None:
    """First intervention of each request: where, against the probability removed there."""
    touched = comparison["interventions"]
    points = [one for one in (touched or {}).get("first", []) if one["removed"] is not None]
    if not points:
        return None
    figure, axes = _figure(4.2)
    groups = list(comparison["requests"]["by_group"])
    for g, group in enumerate(groups):
        own = [one for one in points if one["group"] == group]
        kind = g % len(style.GROUP_COLOURS)
        axes.scatter(
            [one["position"] for one in own],
            [one["removed"] for one in own],
            s=38,
            color=style.GROUP_COLOURS[kind],
            marker=style.GROUP_MARKERS[kind],
            alpha=0.6,
            linewidths=0,
            clip_on=False,
            label=said(group),
        )
    axes.set_ylim(0, 1)
    axes.set_xlim(0, max(5, 1.05 * max(one["position"] for one in points)))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_xlabel("position of the first intervention (tokens)")
    axes.set_ylabel("probability removed there")
    axes.grid()
    title = f"The grammar intervened in {style.percent(touched['share'])} of requests"
    _legend_above(axes, title, len(groups) if len(groups) > 1 else 0)
    return figure


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(style.WIDTH, height))
    return figure, figure.add_subplot()


def _mark(mode: str) -> dict[str, Any]:
    return {
        "color": style.MODE_COLOURS[mode],
        "marker": style.MODE_MARKERS[mode],
        "linestyle": "none",
    }


def _legend_above(axes: Axes, title: str, entries: int) -> None:
    """Title, and a legend in a line of its own under it, out of the way of the data."""
    if not entries:
        axes.set_title(title)
        return
    axes.set_title(title, pad=32)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        ncols=min(entries, 4),
        borderaxespad=0.2,
        handletextpad=0.3,
        columnspacing=1.2,
    )
