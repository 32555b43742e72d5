"""The figures of a comparison, as PNG. Drawn without pyplot: no display, no global state."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from eval import style
from eval.style import said
from eval.token_figure import draw_tokens

_SCHEMA_LABEL = "schema-valid, of responses with a call\n(95 % Wilson interval)"


def draw_all(comparison: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what the comparison has the numbers for; returns the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = (
        _write(partial(draw, comparison), folder / f"{name}.png") for name, draw in _FIGURES.items()
    )
    return [path for path in written if path is not None]


def draw_accuracies(runs: Mapping[str, Mapping[str, Any]], folder: Path) -> Path | None:
    """Write ``schema_accuracy.png`` of any two runs by name; None where neither called."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = dict.fromkeys(name for run in runs.values() for name in run.get("by_group") or ())
    draw = partial(_accuracies, runs, list(groups), "Schema accuracy", _SCHEMA_LABEL)
    return _write(draw, folder / "schema_accuracy.png")


def _write(draw: Callable[[], Figure | None], path: Path) -> Path | None:
    with rc_context(style.SETTINGS):
        if (figure := draw()) is None:
            # One of an earlier run would be taken for this one's.
            path.unlink(missing_ok=True)
            return None
        figure.savefig(path, metadata={"Software": None})
    return path


def _schema_accuracy(comparison: Mapping[str, Any]) -> Figure | None:
    """Accuracy and Wilson interval, a row a group, a mark a mode."""
    return _accuracies(
        {mode: run["schema_accuracy"] for mode, run in comparison["modes"].items()},
        list(comparison["requests"]["by_group"]),
        "Schema accuracy",
        _SCHEMA_LABEL,
    )


def _arguments(comparison: Mapping[str, Any]) -> Figure | None:
    """The same of the arguments, where there is ground truth."""
    if not (answers := comparison.get("answers")):
        return None
    return _accuracies(
        answers,
        list(comparison["requests"]["by_group"]),
        "Argument accuracy",
        "right calls with right arguments, of requests\nwith ground truth (95 % Wilson interval)",
    )


def _accuracies(
    modes: Mapping[str, Mapping[str, Any]], groups: list[str], title: str, label: str
) -> Figure | None:
    if all(whole["accuracy"] is None for whole in modes.values()):
        return None
    names = ["all", *groups] if len(groups) > 1 else ["all"]
    figure, axes = _figure(1.7 + 0.75 * len(names))
    for m, (mode, whole) in enumerate(modes.items()):
        look = style.look(mode, m)
        shift = 0.17 * (2 * m - len(modes) + 1)
        for y, name in enumerate(names):
            part = whole if y == 0 else (whole.get("by_group") or {}).get(name)
            if part is not None and part["accuracy"] is not None:
                share = part["accuracy"]
                # Some counts come without an interval.
                ends = part.get("interval") or (share, share)
                style.interval(axes, y + shift, share, ends, look, style.percent(share))
        axes.plot([], [], label=mode, **look.mark)
    style.rows(axes, names)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_xlabel(label)
    style.legend_above(axes, title)
    return figure


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
        bars = axes.barh(at, widths, 0.84 * height, label=mode, **style.look(mode, m).bar)
        axes.bar_label(bars, padding=3, fontsize=11, color=style.INK)
    style.rows(axes, names)
    axes.set_xlim(0, 1.1 * max(max(counts.values(), default=0) for counts in modes.values()))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("responses that show the cause")
    style.legend_above(axes, "Why calls fail")
    return figure


def _trigger(comparison: Mapping[str, Any]) -> Figure | None:
    """Decisions to call against the reference: a table a mode, shaded by its share."""
    modes = {mode: run["trigger"] for mode, run in comparison["modes"].items()}
    if any(part is None for part in modes.values()):
        return None
    if not any(sum(part[n] for n in ("TP", "FP", "FN", "TN")) for part in modes.values()):
        return None
    figure = Figure(figsize=(style.WIDTH, 3.6))
    figure.suptitle("Trigger against the reference", x=0.02, ha="left", fontsize=14)
    for m, (mode, part) in enumerate(modes.items(), 1):
        axes = figure.add_subplot(1, len(modes), m)
        counts = [[part["TP"], part["FN"]], [part["FP"], part["TN"]]]
        total = sum(map(sum, counts)) or 1
        shares = [[count / total for count in line] for line in counts]
        # Light enough at its darkest to read black on it.
        axes.imshow(shares, cmap="Greys", vmin=0, vmax=1.7, aspect="auto")
        for y, names in enumerate((("TP", "FN"), ("FP", "TN"))):
            for x, name in enumerate(names):
                text = f"{counts[y][x]:,}"
                axes.text(x, y - 0.1, text, ha="center", va="center", fontsize=15, color=style.INK)
                axes.text(x, y + 0.25, name, ha="center", va="center", fontsize=12)
        undefined = "*" if "f1" in part["undefined"] else ""
        axes.set_title(f"{mode}: F1 {part['f1']:.3f}{undefined}", fontsize=12, pad=6)
        axes.set_xticks((0, 1), ("calls", "does not"))
        axes.set_yticks((0, 1), ("call", "no call") if m == 1 else ("", ""))
        axes.set_xlabel("the run")
        axes.set_ylabel("the reference" if m == 1 else "")
        axes.tick_params(length=0)
        axes.set_xticks((-0.5, 0.5, 1.5), minor=True)
        axes.set_yticks((-0.5, 0.5, 1.5), minor=True)
        axes.grid(which="minor", color=style.GREY, linewidth=1)
        axes.tick_params(which="minor", length=0)
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
        colour = style.GROUP_COLOURS[kind]
        axes.scatter(
            [one["position"] for one in own],
            [one["removed"] for one in own],
            s=42,
            facecolors=colour if style.GROUP_FILLED[kind] else "none",
            edgecolors=colour,
            marker=style.GROUP_MARKERS[kind],
            alpha=0.8,
            linewidths=1.7,
            clip_on=False,
            label=said(group) if len(groups) > 1 else None,
        )
    # Room for whole marks on both edges, where most of them lie.
    reach = max(5, max(one["position"] for one in points))
    axes.set_ylim(0, 1.04)
    axes.set_xlim(-0.03 * reach, 1.05 * reach)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_xlabel("position of the first intervention (tokens)")
    axes.set_ylabel("probability removed there")
    axes.grid()
    title = f"The grammar intervened in {style.percent(touched['share'])} of requests"
    style.legend_above(axes, title)
    return figure


def _tokens(comparison: Mapping[str, Any]) -> Figure | None:
    tokens = comparison.get("tokens")
    return draw_tokens(tokens) if tokens and tokens["pairs"] else None


_FIGURES: dict[str, Callable[[Mapping[str, Any]], Figure | None]] = {
    "schema_accuracy": _schema_accuracy,
    "arguments": _arguments,
    "failure_causes": _failure_causes,
    "trigger": _trigger,
    "interventions": _interventions,
    "tokens": _tokens,
}


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(style.WIDTH, height))
    return figure, figure.add_subplot()
