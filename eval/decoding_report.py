"""The comparison as tables for a terminal of 80 columns, and as a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval import style
from eval.decoding_summary import PARTS

_TITLES = {
    "free": "free",
    "dense": "constrained, dense",
    "masked": "  masked head",
    "forced": "  and forced runs",
    "jump": "  and forced text",
    "mixed": "half free, half so",
    "generate": "generate, free",
    "generate_ours": "  our processor",
    "generate_xgrammar": "  xgrammar's",
    "generate_llguidance": "  llguidance",
    "generate_outlines": "  outlines",
}
FIGURE_TITLES = {
    **_TITLES,
    "dense": "constrained, dense head",
    "mixed": "half free, half constrained",
    "masked": "constrained, masked head",
    "forced": "masked head, forced runs",
    "jump": "... and forced text",
    **{
        f"generate_{name}": f"generate, {said}"
        for name, said in (
            ("ours", "our processor"),
            ("xgrammar", "xgrammar's"),
            ("llguidance", "llguidance"),
            ("outlines", "outlines"),
        )
    },
}
"""What a way of `eval.decoding_summary.WAYS` is called in figures."""

_PARTS_SHORT = ("fwd%", "head", "draw", "gram")
_COLOURS = dict(zip(PARTS, (style.BLUE, style.VERMILLION, style.GREEN, style.ORANGE), strict=True))


def print_tables(summary: Mapping[str, Any], console: Console) -> None:
    """Print times, ratios and shares; then what was checked, and the notes."""
    console.print()
    console.print(_times(summary))
    console.print()
    console.print(_shares(summary))
    console.print()
    for line in _remarks(summary):
        console.print(Text(line))


def _times(summary: Mapping[str, Any]) -> Table:
    table = _table("", "ms/step", "/free", "ms/token", "/free", "tokens/s", "/xgrammar")
    ratios = summary["ratios"]
    for name, way in summary["ways"].items():
        # A step that reads a forced run is another thing than a step.
        step = None if way["forced"] or way["jumped"] else way["ms_step"]
        table.add_row(
            _TITLES[name],
            _number(step, 1),
            _number(None if step is None else _ratio(ratios, "step_to_free", name), 2),
            _number(way["ms_token"], 1),
            _number(_ratio(ratios, "token_to_free", name), 2),
            _number(way["tokens_per_s"], 1),
            _number(_ratio(ratios, "rate_to_xgrammar", name), 2),
        )
    return table


def _shares(summary: Mapping[str, Any]) -> Table:
    table = _table("", "tokens", "forced", "text", "reads", *_PARTS_SHORT, "prompt")
    for name, way in summary["ways"].items():
        table.add_row(
            _TITLES[name],
            f"{way['tokens']:,}",
            *(f"{way[kind]:,}" if way[kind] else "–" for kind in ("forced", "jumped")),
            f"{way['forwards']:,}",
            *(_percent(way[f"{part}_share"]) for part in PARTS),
            _number(way["prompt_s"], 1),
        )
    return table


def _remarks(summary: Mapping[str, Any]) -> list[str]:
    checks = summary["checks"]
    lines = [
        f"Medians of {summary['rounds']} rounds; ratios are taken within a round, in which all take"
        " turns a step at a time, and those of steps step by step. Text: tokens"
        " of forced text, put in. Reads: forwards after the prompts. Shares of decoding: forward,"
        " head, drawing, grammar. Prompt: seconds.",
        f"Checked first: {checks['same']} of {checks['compared']} constrained completions have the"
        f" tokens of the traced loop, {checks['near_ties']} part from it at a near-tie;"
        f" {checks['valid']} of {checks['ended']} that ended are valid calls,"
        f" {checks['cut']} were cut by --tokens; free: {checks['free_valid']} of"
        f" {checks['free_ended']}.",
    ]
    if jump := checks.get("jump"):
        lines.append(
            f"String jump-forward changes what is produced: {jump['jumped']} of {jump['tokens']}"
            f" tokens put in, {jump['same_tokens']} completions with the same"
            f" tokens, {jump['same_text']} with the same text; {jump['valid']} of {jump['ended']}"
            " that ended are valid calls."
        )
    if prefixes := summary.get("prefixes"):
        lines.append("Prompt tokens computed, for tool_choice none, auto and required in turn:")
        lines += [
            f"  {row['what']}: {row['computed']:,} of {row['prompt_tokens']:,}"
            f" in {row['seconds']:.1f} s"
            for row in prefixes
        ]
    return lines + list(summary["notes"])


def draw(summary: Mapping[str, Any], path: Path) -> Path:
    """Milliseconds a token of each way, by part, with the range over the rounds."""
    ways = summary["ways"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context(style.SETTINGS):
        figure = Figure(figsize=(style.WIDTH * 1.3, 2.2 + 0.42 * len(ways)))
        axes = figure.add_subplot()
        used = set()
        for y, way in enumerate(ways.values()):
            used |= _bar(axes, y, way)
        for y, name in enumerate(ways):
            _label(axes, y, ways[name], _ratio(summary["ratios"], "token_to_free", name))
        axes.set_yticks(range(len(ways)), [FIGURE_TITLES[name] for name in ways])
        axes.set_ylim(len(ways) - 0.4, -0.6)
        axes.set_xlim(0, 1.36 * max(way["ms_token"]["high"] for way in ways.values()))
        axes.set_xlabel("ms a token, prompts left out\n(median; line: range)")
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0)
        axes.set_title(summary["title"], pad=54)
        handles = [axes.barh(0, 0, color=colour, label=part) for part, colour in used_parts(used)]
        axes.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(-0.02, 1.0),
            ncols=3,
            borderaxespad=0.2,
            handlelength=1.0,
            handletextpad=0.4,
            columnspacing=1.2,
        )
        figure.savefig(path, metadata={"Software": None})
    return path


def used_parts(used: set[str]) -> list[tuple[str, str]]:
    """Parts that a figure shows, and their colours, in order."""
    named = [*_COLOURS.items(), ("rest", style.GREY), ("not split", style.SKY)]
    return [(part, colour) for part, colour in named if part in used]


def _bar(axes: Any, y: int, way: Mapping[str, Any]) -> set[str]:
    whole, left, used = way["ms_token"]["median"], 0.0, set()
    shares = {part: way[f"{part}_share"] for part in PARTS}
    for part, share in shares.items():
        if share is not None and share["median"] > 0:
            width = share["median"] * whole
            axes.barh(y, width, 0.62, left=left, color=_COLOURS[part])
            left += width
            used.add(part)
    rest = "rest" if shares["forward"] is not None else "not split"
    colour = style.GREY if rest == "rest" else style.SKY
    axes.barh(y, max(whole - left, 0.0), 0.62, left=left, color=colour)
    axes.hlines(y, way["ms_token"]["low"], way["ms_token"]["high"], colors="black", linewidth=1.2)
    return used | {rest}


def _label(axes: Any, y: int, way: Mapping[str, Any], ratio: Mapping[str, float] | None) -> None:
    text = f"{way['ms_token']['median']:.1f}"
    if ratio is not None and ratio["median"] != 1.0:
        text += f"  (× {ratio['median']:.2f})"
    axes.annotate(
        text,
        (way["ms_token"]["high"], y),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=12,
    )


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for n, name in enumerate(names):
        table.add_column(name, justify="right" if n else "left", no_wrap=True)
    return table


def _number(value: Mapping[str, float] | None, digits: int) -> str:
    return "–" if value is None else f"{value['median']:,.{digits}f}"


def _percent(share: Mapping[str, float] | None) -> str:
    return "–" if share is None else f"{100 * share['median']:.1f}"


def _ratio(ratios: Mapping[str, Any], name: str, way: str) -> Mapping[str, float] | None:
    return ratios.get(name, {}).get(way)
