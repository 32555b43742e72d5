"""Figures of results/kernels: bytes over the floor, times over ours. For notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eval import style
from eval.style import said

if TYPE_CHECKING:
    import pandas as pd


def traffic(table: pd.DataFrame) -> Figure:
    """Bytes of a step over the floor, a mark a vocabulary, dtype and cut; ours and the baseline.

    Args:
        table: of `kernels.traffic`.
    """
    figure = Figure(figsize=(1.9 * style.WIDTH, 5.0))
    panels = figure.subplots(1, 2, sharey=True, width_ratios=(1.6, 1))
    for axes, shape in zip(panels, dict.fromkeys(table["shape"]), strict=True):
        own = table[table["shape"] == shape]
        masks = list(dict.fromkeys(own["mask"]))
        x = own["mask"].map(masks.index).to_numpy()
        # The floor plus 512 bytes a row, as the table's own ratio has it.
        floor = own["bytes"] / own["ratio"]
        for label, y, mode, shift in (
            ("mask kernel, then top-p", own["baseline_bytes"] / floor, "free", 0.15),
            ("masked_sample", own["ratio"], "constrained", -0.15),
        ):
            mark = style.look(mode).mark | {"markersize": 5, "markeredgewidth": 1, "alpha": 0.7}
            axes.plot(x + shift, y, label=label, **mark)
        axes.set_yscale("log")
        axes.axhline(1, color=style.GREY, linewidth=1)
        _masks(axes, masks)
        style.legend_above(axes, f"{shape} rows")
    panels[0].set_ylabel("bytes, over the floor (log scale)")
    return figure


def cpu_ratios(sampling: pd.DataFrame, heads: pd.DataFrame) -> Figure:
    """How much longer than ours the others take, on one CPU: a step's sampling, and its head.

    Args:
        sampling: of `kernels.bench`; heads: of `kernels.bench --op masked_logits`.
    """
    figure = Figure(figsize=(1.9 * style.WIDTH, 5.0))
    left, right = figure.subplots(1, 2)
    others = sampling[sampling["provider"] == "pipeline"]
    workloads = others["workload"].str.split()
    others = others.assign(shape=workloads.str[0], mask=workloads.str[1])
    _ratios(left, {f"{shape} rows": own for shape, own in others.groupby("shape", sort=False)})
    left.set_title("torch pipeline / masked_sample")
    plain = heads[heads["provider"] == "matmul"].rename(columns={"allowed": "mask"})
    shapes = plain.groupby(["vocab_size", "rows"], sort=False)
    _ratios(right, {f"{v:,} tokens, {rows} rows": own for (v, rows), own in shapes})
    right.set_title("matmul / masked_logits")
    left.set_ylabel("time, over ours (log scale)")
    return figure


def _ratios(axes: Axes, tables: Mapping[str, pd.DataFrame]) -> None:
    """One mark a row: its mask, and its ratio; tables of ``mask`` and ``ratio``, by label."""
    masks = list(dict.fromkeys(mask for table in tables.values() for mask in table["mask"]))
    looks = zip(style.GROUP_COLOURS, style.GROUP_MARKERS, style.GROUP_FILLED, strict=True)
    for (label, table), (colour, marker, filled) in zip(tables.items(), looks, strict=False):
        mark = style.Look(colour, marker, "", filled).mark | {"markersize": 7}
        axes.plot(table["mask"].map(masks.index), table["ratio"], label=label, **mark)
    axes.set_yscale("log")
    axes.axhline(1, color=style.GREY, linewidth=1)
    axes.legend(loc="upper right", fontsize=11, handletextpad=0.3)
    _masks(axes, masks)


def gpu_times(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Microseconds a step on a GPU, a row a workload; an empty panel that says so without any.

    Args:
        tables: of `kernels.bench`, by file name.
    """
    timed = [
        (f"{row['op']}: {row['workload'] if 'workload' in row else row['allowed']}", row)
        for table in tables.values()
        for _, row in table[table["device"] != "cpu"].iterrows()
    ]
    names = list(dict.fromkeys(name for name, _ in timed))
    figure = Figure(figsize=(1.3 * style.WIDTH, 0.45 * len(names) + 2.0))
    axes = figure.add_subplot()
    if not timed:
        centre = {"ha": "center", "va": "center", "transform": axes.transAxes}
        axes.text(0.5, 0.5, "No GPU has timed these kernels.", color=style.GREY, **centre)
        axes.set(xticks=[], yticks=[], xlabel="microseconds a step", ylabel="workload")
        return figure
    providers = dict.fromkeys(row["provider"] for _, row in timed)
    looks = zip(providers, style.GROUP_COLOURS, style.GROUP_MARKERS, strict=False)
    for provider, colour, marker in looks:
        own = [(names.index(name), row["median_us"]) for name, row in timed
               if row["provider"] == provider]  # fmt: skip
        y, x = zip(*own, strict=True)
        axes.plot(x, y, marker, color=colour, label=provider)
    axes.set_xscale("log")
    axes.set_xlabel("microseconds a step")
    style.rows(axes, names)
    style.legend_above(axes, "Median times on a GPU")
    return figure


def _masks(axes: Axes, masks: Sequence[str]) -> None:
    axes.set_xticks(range(len(masks)), map(_mask_name, masks), rotation=50, ha="right")
    axes.grid(axis="y")


def _mask_name(mask: str) -> str:
    named = {"free": "no mask", "half": "half allowed", "call-between": "between calls"}
    if mask in named:
        return named[mask]
    if mask.startswith("call-"):
        return f"at {said(mask.removeprefix('call-'))}"
    return f"{int(mask):,} allowed"
