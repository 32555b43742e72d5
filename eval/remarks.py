"""What a comparison says in sentences, for the terminal and for the page alike."""

from collections.abc import Mapping
from typing import Any

from eval.style import percent, said

EXPLANATIONS = {
    "schema": "Schema accuracy: responses whose calls are all valid, of those with finish_reason "
    "tool_calls; 95 % Wilson interval.",
    "trigger": "Trigger: finish_reason tool_calls against the reference, over requests with "
    "tool_choice auto; F1, then precision / recall.",
    "failures": "Invalid: responses that show the cause; one may show several.",
    "answers": "Arguments: requests with ground truth that were answered with the right calls and "
    "right arguments.",
}

LEFT_OUT = {
    "only_in_results": "without a row in the reference",
    "only_in_reference": "with a row in the reference alone",
    "undecided": "without a finish reason in one of the two",
    "other_request": "that ask something else in the reference",
}
"""Why data_index are in no cell of a trigger table, by key of `Confusion.as_dict`."""


def remarks(comparison: Mapping[str, Any]) -> list[str]:
    """Sentences about the grammar, the coupling, the tokens and what is odd; then the notes."""
    lines = [
        *_interventions(comparison.get("interventions")),
        *_coupling(comparison.get("coupling")),
        *responses(comparison.get("responses")),
        *_tokens(comparison.get("tokens")),
    ]
    ties = {mode: len(run["near_ties"]) for mode, run in comparison["modes"].items()}
    if any(ties.values()):
        counts = ", ".join(f"{n:,} {mode}" for mode, n in ties.items())
        lines.append(f"Draws that another batch may decide otherwise (near ties): {counts}.")
    for mode, run in comparison["modes"].items():
        for kind, n in run["inconsistencies"]["by_kind"].items():
            lines.append(f"Inconsistent, {mode}: {said(kind)} ({n:,}).")
        if run["trigger"] is not None:
            lines += [f"Not in the trigger counts, {mode}: {text}" for text in left_out(run)]
    return lines + list(comparison["notes"])


def left_out(run: Mapping[str, Any]) -> list[str]:
    """What the trigger counts of a run leave out, a sentence fragment a reason."""
    return [
        f"{len(indices):,} {why}."
        for key, why in LEFT_OUT.items()
        if (indices := run["trigger"].get(key))
    ]


def footnotes(comparison: Mapping[str, Any]) -> list[str]:
    """How to read the numbers that a comparison shows."""
    runs = comparison["modes"].values()
    lines = [EXPLANATIONS["schema"]]
    if all(run["trigger"] is not None for run in runs):
        undefined = any(
            part["undefined"]
            for run in runs
            for part in (run["trigger"], *run["trigger"]["by_group"].values())
        )
        lines.append(EXPLANATIONS["trigger"] + (" * undefined, 0 / 0." if undefined else ""))
    if any(run["failures"]["invalid"] for run in runs):
        lines.append(EXPLANATIONS["failures"])
    if comparison.get("answers"):
        lines.append(EXPLANATIONS["answers"])
    return lines


def p_value(p: float) -> str:
    """A p-value as it is said: ``p = 0.031``, ``p < 1e-6``."""
    return "p < 1e-6" if p < 1e-6 else f"p = {p:.2g}"


def mcnemar(paired: Mapping[str, Any]) -> str:
    """The sentence under a paired table."""
    return f"McNemar's exact test, two-sided: {p_value(paired['p_value'])}."


def responses(part: Mapping[str, Any] | None) -> list[str]:
    """Sentences about `eval.partings.partings`, none where nothing was compared."""
    if not part or not part["compared"]:
        return []
    low, high = (100 * end for end in part["interval"])
    lines = [
        f"{part['identical']:,} of {part['compared']:,} responses are identical, "
        f"{percent(part['share'])} ({low:.1f}–{high:.1f})."
    ]
    for unit, position in part["median_position"].items():
        line = f"{part['by_unit'][unit]:,} differ, first at {unit} {position:g} (median)"
        if unit == "token" and part["recorded"]:
            line += f"; {part['at_intervention']:,} of them at a recorded intervention of a mask"
            if part["median_removed"] is not None:
                line += f", which removed {percent(part['median_removed'])} there (median)"
        lines.append(f"{line}.")
    return lines


def _interventions(touched: Mapping[str, Any] | None) -> list[str]:
    if not touched or not touched["requests"]:
        return []
    line = (
        f"The grammar intervened in {touched['with_intervention']:,} of "
        f"{touched['requests']:,} requests ({percent(touched['share'])})"
    )
    if touched["mean_removed_at_first"] is not None:
        line += (
            f", first at token {touched['median_position_of_first']:g} (median), where it "
            f"removed {percent(touched['mean_removed_at_first'])} of the probability (mean)"
        )
    return [f"{line}."]


def _coupling(coupled: Mapping[str, Any] | None) -> list[str]:
    lines = []
    if not coupled:
        return lines
    if coupled["prefix"]["checked"]:
        lines.append(
            "Both runs are token for token the same up to the first intervention in "
            f"{_agreement(coupled['prefix'])}."
        )
    parted = coupled.get("first_difference")
    if parted and parted["checked"]:
        ended = f"; in {parted['ended']:,} it ends there" if parted["ended"] else ""
        lines.append(
            "Where they part, the free run has the very token that the grammar took away in "
            f"{_agreement(parted)}{ended}."
        )
    if coupled["trigger"]["checked"]:
        lines.append(
            "Where the grammar did not intervene, the trigger decision is the same in "
            f"{_agreement(coupled['trigger'])}."
        )
    return lines


def _tokens(part: Mapping[str, Any] | None) -> list[str]:
    if not part or not part["pairs"]:
        return []
    saved, spent = part["saved"], part["spent"]
    line = (
        f"Completion tokens of {part['pairs']:,} requests: {part['free']:,} free, "
        f"{part['constrained']:,} constrained. Constrained, {saved['requests']:,} responses are "
        f"shorter by {saved['tokens']:,} tokens, {spent['requests']:,} longer by "
        f"{spent['tokens']:,}."
    )
    if part["forced"]:
        line += f" {part['forced']:,} constrained tokens had no alternative."
    return [line]


def _agreement(part: Mapping[str, Any]) -> str:
    text = f"{part['agree']:,} of {part['checked']:,} requests"
    if not (exceptions := part["exceptions"]):
        return text
    explained = sum(one["explained"] for one in exceptions)
    return f"{text} (exceptions: {len(exceptions)}, at a recorded near tie: {explained})"
