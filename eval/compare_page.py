"""Two results files side by side as a page, and its figure."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eval.blocks import Block, Grid, Heading, Sentences
from eval.remarks import EXPLANATIONS, p_value, responses
from eval.score_page import share_line
from eval.style import named, percent, plain, said


def page(found: Mapping[str, Any]) -> list[Block]:
    """Blocks of `eval.results_compare.compare`."""
    labels = _labels(found)
    blocks: list[Block] = [
        Heading(f"K2VV, {labels['a']} against {labels['b']}, {found['pairs']:,} paired requests"),
        _both(found),
        Heading("Validity, where both call"),
        _outcomes(found["paired"], labels, ("valid", "invalid")),
        Heading("Who calls"),
        _outcomes(found["trigger"], labels, ("calls", "does not")),
        Heading("What to know"),
        Sentences(list(_sentences(found))),
        Sentences([EXPLANATIONS["schema"], EXPLANATIONS["failures"]], quiet=True),
    ]
    return blocks


def draw(found: Mapping[str, Any], folder: Path) -> Path | None:
    """Write the figure of the two schema accuracies; None where neither run called."""
    from eval.figures import draw_accuracies

    labels = _labels(found)
    return draw_accuracies({labels[key]: found["schema_accuracy"][key] for key in "ab"}, folder)


def _labels(found: Mapping[str, Any]) -> dict[str, str]:
    return {key: plain(label, 24) for key, label in found["labels"].items()}


def _both(found: Mapping[str, Any]) -> Grid:
    labels = _labels(found)
    accuracies = [share_line(found["schema_accuracy"][key]) for key in labels]
    causes = dict.fromkeys(c for part in found["failures"].values() for c in part["by_cause"])
    causes.pop("truncated", None)
    files = found["files"]
    lines = [
        ["Schema accuracy", *(cells[0] for cells in accuracies)],
        ["  95 % interval", *(cells[1] for cells in accuracies)],
        ["  valid / called", *(cells[2] for cells in accuracies)],
        ["Invalid", *(f"{found['failures'][key]['invalid']:,}" for key in labels)],
        *(
            [
                f"  {said(c)}",
                *(f"{found['failures'][key]['by_cause'].get(c, 0):,}" for key in labels),
            ]
            for c in causes
        ),
        [
            "Truncated",
            *(f"{found['schema_accuracy'][key]['truncated']:,}" for key in labels),
        ],
        ["Rows", *(f"{files[key]['rows']:,}" for key in labels)],
        ["  failed", *(f"{files[key]['failed']:,}" for key in labels)],
    ]
    return Grid(["", *labels.values()], lines, frozenset({0}))


def _outcomes(counts: Mapping[str, Any], labels: Mapping[str, str], words: tuple[str, str]) -> Grid:
    return Grid(
        [f"{counts['pairs']:,} requests", *(f"{labels['a']} {word}" for word in words)],
        [
            [f"{labels['b']} {words[0]}", f"{counts['both']:,}", f"{counts['only_b']:,}"],
            [f"{labels['b']} {words[1]}", f"{counts['only_a']:,}", f"{counts['neither']:,}"],
        ],
    )


def _sentences(found: Mapping[str, Any]) -> Iterator[str]:
    labels, paired, trigger = _labels(found), found["paired"], found["trigger"]
    yield (
        "McNemar's exact test, two-sided: "
        f"validity {p_value(paired['p_value'])}, calling {p_value(trigger['p_value'])}."
    )
    if trigger["share"] is not None:
        low, high = (100 * end for end in trigger["interval"])
        f1 = "" if trigger["f1"] is None else f"; F1 of one against the other {trigger['f1']:.3f}"
        yield (
            f"They agree on whether to call in {trigger['agree']:,} of {trigger['pairs']:,}"
            f" requests, {percent(trigger['share'])} ({low:.1f}–{high:.1f}){f1}."
        )
    yield from responses(found["responses"])
    for key, label in labels.items():
        if indices := found["only_in"][key]:
            yield f"In {label} alone: {named(indices)}."
    if indices := found["other_request"]:
        yield (
            "Not paired, the request differs (conversation, tools or tool_choice): "
            f"{named(indices)}."
        )
    if indices := found["unverified"]:
        yield (f"Paired by data_index alone, without a request or hash to check: {named(indices)}.")
    if trigger["undecided"]:
        yield f"Failed or without finish_reason in one of the two: {trigger['undecided']:,}."
    for key, label in labels.items():
        for text in found["files"][key]["left_out"][:5]:
            yield f"{label}: {plain(text, 200)}; left out."
        if more := len(found["files"][key]["left_out"]) - 5:
            yield from [f"{label}: {more:,} more lines left out."] if more > 0 else []
        if repeated := found["files"][key]["repeated"]:
            yield f"{label}: {repeated:,} data_index have several rows; the newest counts."
