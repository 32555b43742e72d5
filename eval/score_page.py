"""A score as a page: headline, table, causes, tools, and what is odd."""

from collections.abc import Iterator, Mapping
from typing import Any

from eval.blocks import Block, Grid, Heading, Sentences
from eval.consistency import INCONSISTENCIES
from eval.remarks import EXPLANATIONS, LEFT_OUT
from eval.style import named, percent, plain, ranges, said, spans

_TOOLS_LISTED = 15
_LINES_LISTED = 10


def page(score: Mapping[str, Any]) -> list[Block]:
    """Blocks of `eval.results_score.score`."""
    blocks: list[Block] = [Heading(_title(score)), _metrics(score)]
    if score["failures"]["by_tool"]:
        blocks += [Heading("Failures by the tool called"), _tools(score["failures"])]
    if odd := list(_odd(score)):
        blocks += [Heading("What to know about the file"), Sentences(odd)]
    blocks.append(Sentences(list(_how_to_read(score)), quiet=True))
    return blocks


def share_line(part: Mapping[str, Any] | None) -> list[str]:
    """Share, Wilson's interval and counts of an accuracy, three cells."""
    if part is None or part["accuracy"] is None:
        return ["–", "", "0/0"]
    low, high = (100 * end for end in part["interval"])
    counts = f"{part['successful']:,}/{part['triggered']:,}"
    return [percent(part["accuracy"]), f"{low:.1f}–{high:.1f}", counts]


def _title(score: Mapping[str, Any]) -> str:
    model = f", {plain(score['model'])}" if score["model"] else ""
    return f"K2VV score of {plain(score['file']['path'], 200)}{model}"


def _metrics(score: Mapping[str, Any]) -> Grid:
    lines = [["Schema accuracy", *share_line(score["schema_accuracy"])]]
    groups = score["schema_accuracy"].get("by_group") or {}
    for name, part in groups.items() if len(groups) > 1 else ():
        lines.append([f"  {plain(said(name))}", *share_line(part)])
    bold = {0}
    if (trigger := score["trigger"]) is not None:
        bold.add(len(lines))
        lines += _trigger_lines("Trigger F1", trigger)
        if trigger["auto"] is not None:
            lines += _trigger_lines("  tool_choice auto alone", trigger["auto"])
    if (answers := score["answers"]) is not None:
        bold.add(len(lines))
        counts = answers | {"successful": answers["correct"], "triggered": answers["asked"]}
        lines.append(["Arguments right", *share_line(counts)])
    bold.add(len(lines))
    failures = score["failures"]
    lines.append(["Invalid", f"{failures['invalid']:,}", "", ""])
    for cause, n in failures["by_cause"].items():
        if cause == "truncated":
            # Among the finish reasons, and not among the invalid.
            continue
        lines.append([f"  {said(cause)}", f"{n:,}", "", ""])
    summary = score["summary"]
    lines += [
        ["Finish reason tool_calls", f"{summary['finish_tool_calls']:,}", "", ""],
        ["  stop", f"{summary['finish_stop']:,}", "", ""],
    ]
    for reason, n in summary["finish_others_detail"].items():
        lines.append([f"  {plain(reason)}", f"{n:,}", "", ""])
    lines.append(["Failed requests", f"{summary['failure_count']:,}", "", ""])
    if tokens := summary["usage"]["completion_tokens"]:
        lines.append(["Completion tokens", f"{tokens:,}", "", ""])
    return Grid(["", "", "95 %", "counts"], lines, frozenset(bold))


def _trigger_lines(name: str, part: Mapping[str, Any]) -> list[list[str]]:
    def shown(key: str) -> str:
        return f"{percent(part[key])}{'*' if key in part['undefined'] else ''}"

    counts = " / ".join(f"{part[key]:,}" for key in ("TP", "FP", "FN", "TN"))
    return [
        [name, shown("f1"), "", ""],
        ["  precision, recall", shown("precision"), shown("recall"), ""],
        ["  TP / FP / FN / TN", "", "", counts],
    ]


def _tools(failures: Mapping[str, Any]) -> Grid:
    listed = list(failures["by_tool"].items())
    lines = [
        [plain(tool, 40), ", ".join(f"{said(cause)} {n:,}" for cause, n in counts.items())]
        for tool, counts in listed[:_TOOLS_LISTED]
    ]
    if len(listed) > _TOOLS_LISTED:
        lines.append([f"and {len(listed) - _TOOLS_LISTED:,} more tools", ""])
    return Grid(["tool", "responses by cause"], lines)


def _odd(score: Mapping[str, Any]) -> Iterator[str]:
    incomplete = score["incomplete"]
    yield from (f"{plain(line, 200)}." for line in incomplete[:_LINES_LISTED])
    if len(incomplete) > _LINES_LISTED:
        yield f"And {len(incomplete) - _LINES_LISTED:,} more like these."
    for name, start in (("file", ""), ("reference", "Reference: ")):
        if (file := score[name]) is None:
            continue
        if file["repeated"]:
            yield (
                f"{start}{len(file['repeated']):,} data_index have several rows, of which the"
                " newest counts: "
                f"{ranges(spans(map(int, file['repeated'])))}."
            )
        if file["gaps"]:
            n = sum(high - low + 1 for low, high in file["gaps"])
            yield (
                f"{start}{n:,} data_index have no row, lost or blank lines of the requests: "
                f"{ranges(file['gaps'])}."
            )
    yield from _disagreements(score["verdicts"])
    for kind, indices in score["inconsistencies"].items():
        if kind != "verdict_differs":
            yield f"Inconsistent, {INCONSISTENCIES[kind]}: {named(indices)}."
    if (same := score["same_request"])["requests"]:
        yield (
            f"{same['rows']:,} rows share {same['requests']:,} hashes: the same request, asked"
            " several times, each counted."
        )
    for key, why in LEFT_OUT.items():
        if score["trigger"] is not None and (indices := score["trigger"][key]):
            yield f"Not in the trigger counts, {why}: {named(indices)}."


def _disagreements(verdicts: Mapping[str, Any]) -> Iterator[str]:
    for key, text in (
        ("file_says_valid", "The file calls valid what is not"),
        ("file_says_invalid", "The file calls invalid what is valid"),
    ):
        if indices := verdicts[key]:
            yield f"{text}: {named(indices)}."
    if n := verdicts["taken_over"]:
        yield (
            f"{n:,} responses could not be judged again, for want of tools or calls; the file's"
            " verdict stands in."
        )


def _how_to_read(score: Mapping[str, Any]) -> Iterator[str]:
    yield EXPLANATIONS["schema"]
    if (trigger := score["trigger"]) is not None:
        star = " * undefined, 0 / 0." if trigger["undefined"] else ""
        yield (
            "Trigger: finish_reason tool_calls against the reference, over "
            f"{trigger['over']}.{star}"
        )
        for rerun in trigger["accepted"]:
            met = "met" if rerun["accepted"] else "not met"
            yield (
                f"K2VV accepts an F1 from {percent(rerun['accepted_from'])} for {rerun['model']},"
                f" whose official API reaches {percent(rerun['average'])} against itself (lowest"
                f" {100 * rerun['lowest']:.2f} %): {met} here."
            )
    if score["answers"] is not None:
        yield EXPLANATIONS["answers"]
