"""K2VV's two metrics over result rows, with what it takes to judge a difference between two runs.

*Schema accuracy*: of the responses with finish_reason tool_calls, the share whose calls are all
valid. *Trigger similarity* (``tool_call_f1``): how far the responses with finish_reason tool_calls
are those of a reference run. Both count responses, not calls. Everything else is explanation:
which failures, in which runs, with what certainty.

A row is judged by its own request and response. The stored ``tool_calls_valid`` stands in where a
row carries no request; where it carries both and they disagree, ``inconsistencies`` says so.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eval.calls import CAUSES, Cause, Failure, can_check, check_calls, verdict
from eval.consistency import INCONSISTENCIES, Inconsistency, inconsistencies
from eval.intervals import mcnemar_exact, wilson
from eval.pairing import pair
from eval.rows import ResultRow
from eval.workloads import group_of

__all__ = [
    "CAUSES",
    "INCONSISTENCIES",
    "Cause",
    "Confusion",
    "Failure",
    "Inconsistency",
    "SchemaAccuracy",
    "check_calls",
    "failure_counts",
    "inconsistencies",
    "is_checkable",
    "is_triggered",
    "is_truncated",
    "mcnemar_exact",
    "paired_outcomes",
    "paired_table",
    "rejudged",
    "row_failures",
    "trigger",
    "verdict",
    "wilson",
]


def is_triggered(row: ResultRow) -> bool:
    """Whether a request succeeded with finish_reason tool_calls, whatever the calls are."""
    return row.succeeded and row.finish_reason == "tool_calls"


def is_truncated(row: ResultRow) -> bool:
    """Whether the token limit ended the response."""
    return row.succeeded and row.finish_reason == "length"


def is_checkable(row: ResultRow) -> bool:
    """Whether a row carries what its calls are judged by: the tools, and the calls."""
    return can_check(row.request) and row.response is not None


def rejudged(row: ResultRow) -> ResultRow:
    """The row with our verdict for ``tool_calls_valid``; its own where it cannot be checked."""
    if not row.succeeded or not is_checkable(row):
        return row
    valid, _ = verdict(row.finish_reason, row.message, row.request.get("tools"))
    return row.model_copy(update={"tool_calls_valid": valid})


def row_failures(row: ResultRow) -> list[Failure]:
    """What is wrong with a row's calls: empty for a valid one and for one that made none.

    A truncated response has the one failure ``truncated``; it is in no accuracy.
    """
    if is_truncated(row):
        return [Failure("truncated", None, "the token limit ended the response")]
    if not is_triggered(row):
        return []
    if is_checkable(row):
        return check_calls(row.message, row.request.get("tools"))
    if row.tool_calls_valid:
        return []
    return [Failure("other", None, "not called valid by its file, and nothing there to check")]


_COUNTS = ("successful", "triggered", "truncated")


@dataclass(frozen=True)
class SchemaAccuracy:
    """Valid responses among the triggered ones, with Wilson's 95 % interval.

    truncated: responses that the token limit ended, in neither count.
    by_group: the same for each group, in order of appearance; empty inside a group.
    """

    successful: int
    triggered: int
    truncated: int
    by_group: dict[str, "SchemaAccuracy"] = field(default_factory=dict)

    @classmethod
    def from_rows(
        cls, rows: Iterable[ResultRow], groups: Mapping[int, str] | None = None
    ) -> "SchemaAccuracy":
        """Score rows. groups: data_index to group; None reads it off each row's request."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for row in rows:
            own = counts[_group(row, groups)]
            own["truncated"] += is_truncated(row)
            if is_triggered(row):
                own["triggered"] += 1
                own["successful"] += not row_failures(row)
        whole = sum(counts.values(), Counter())
        parts = {name: cls(*map(own.__getitem__, _COUNTS)) for name, own in counts.items()}
        return cls(*map(whole.__getitem__, _COUNTS), parts)

    @property
    def accuracy(self) -> float | None:
        """successful / triggered, None for 0 / 0."""
        return self.successful / self.triggered if self.triggered else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95 % interval of the accuracy, None for 0 / 0."""
        return wilson(self.successful, self.triggered) if self.triggered else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON; groups under ``by_group``."""
        own = {
            "successful": self.successful,
            "triggered": self.triggered,
            "accuracy": self.accuracy,
            "interval": list(self.interval) if self.interval else None,
            "truncated": self.truncated,
        }
        groups = {name: part.as_dict() for name, part in self.by_group.items()}
        return own | ({"by_group": groups} if groups else {})


@dataclass(frozen=True)
class Confusion:
    """Trigger decisions against a reference: positive is finish_reason tool_calls.

    precision, recall and f1 are 0 where their denominator is, and ``undefined`` names them.

    only_in_results, only_in_reference: data_index that one of the two files lacks.
    undecided: in both, but without a finish reason in one of them: failed, or broken off.
    other_request: in both, but not the same request (`eval.pairing.same_request`).

    None of the four is counted.
    """

    tp: int
    fp: int
    fn: int
    tn: int
    only_in_results: tuple[int, ...] = ()
    only_in_reference: tuple[int, ...] = ()
    undecided: tuple[int, ...] = ()
    other_request: tuple[int, ...] = ()

    @property
    def precision(self) -> float:
        """TP / (TP + FP)."""
        return _ratio(self.tp, self.tp + self.fp)

    @property
    def recall(self) -> float:
        """TP / (TP + FN)."""
        return _ratio(self.tp, self.tp + self.fn)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, 2 TP / (2 TP + FP + FN)."""
        return _ratio(2 * self.tp, 2 * self.tp + self.fp + self.fn)

    @property
    def undefined(self) -> tuple[str, ...]:
        """Those of precision, recall and f1 that are 0 / 0, or the mean of one that is."""
        precision, recall = not self.tp + self.fp, not self.tp + self.fn
        named = {"precision": precision, "recall": recall, "f1": precision or recall}
        return tuple(name for name, holds in named.items() if holds)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "TP": self.tp,
            "FP": self.fp,
            "FN": self.fn,
            "TN": self.tn,
            "precision": self.precision,
            "recall": self.recall,
            "f1": self.f1,
            "undefined": list(self.undefined),
            "only_in_results": list(self.only_in_results),
            "only_in_reference": list(self.only_in_reference),
            "undecided": list(self.undecided),
            "other_request": list(self.other_request),
        }


def trigger(
    rows: Iterable[ResultRow],
    reference_rows: Iterable[ResultRow],
    only: Collection[int] | None = None,
) -> Confusion:
    """Pair two runs by data_index and count their trigger decisions.

    only: data_index to look at, None for all. Where a request forces or forbids a call the
        decision is not the model's, so the harness passes those with tool_choice auto.
    """
    runs = (
        [row for row in run if only is None or row.data_index in only]
        for run in (rows, reference_rows)
    )
    paired = pair(*runs)
    counts, undecided = Counter(), []
    for both in paired.pairs:
        if any(not row.succeeded or row.finish_reason is None for row in both):
            undecided.append(both[0].data_index)
        else:
            counts[tuple(map(is_triggered, both))] += 1
    return Confusion(
        tp=counts[True, True],
        fp=counts[True, False],
        fn=counts[False, True],
        tn=counts[False, False],
        only_in_results=paired.only_first,
        only_in_reference=paired.only_second,
        undecided=tuple(undecided),
        other_request=paired.other_request,
    )


def paired_table(
    first_rows: Iterable[ResultRow],
    second_rows: Iterable[ResultRow],
    names: tuple[str, str] = ("free", "constrained"),
) -> dict[str, Any]:
    """Validity of the same requests in two runs, and McNemar's exact test.

    Over the requests where *both* runs triggered (finish_reason tool_calls): the pairs behind the
    two schema accuracies, as `paired_outcomes` counts them. The other requests are counted apart,
    so that a call which one run alone made cannot hide: ``triggered_only_`` and a name,
    ``triggered_by_none``, and ``unpaired`` for those that are missing or failed in one run, or not
    the same request in both. Together with the pairs they add up to the requests.
    """
    paired = pair(first_rows, second_rows)
    valid, triggered = [], Counter()
    unpaired = len(paired.only_first) + len(paired.only_second) + len(paired.other_request)
    for both in paired.pairs:
        if not all(row.succeeded for row in both):
            unpaired += 1
            continue
        decisions = tuple(map(is_triggered, both))
        triggered[decisions] += 1
        if all(decisions):
            valid.append(tuple(not row_failures(row) for row in both))
    return {
        "over": "requests where both runs end with finish_reason tool_calls",
        **paired_outcomes(valid, names),
        f"triggered_only_{names[0]}": triggered[True, False],
        f"triggered_only_{names[1]}": triggered[False, True],
        "triggered_by_none": triggered[False, False],
        "unpaired": unpaired,
    }


def paired_outcomes(
    outcomes: Iterable[tuple[bool, bool]], names: tuple[str, str] = ("free", "constrained")
) -> dict[str, Any]:
    """Successes of two runs on the same requests, and McNemar's exact test.

    ``both``, ``only_`` and a name, and ``neither`` count which of the two succeeded, and add up to
    ``pairs``; ``p_value`` is the two-sided exact test of the two in the middle.
    """
    counts = Counter(outcomes)
    return {
        "pairs": counts.total(),
        "both": counts[True, True],
        f"only_{names[0]}": counts[True, False],
        f"only_{names[1]}": counts[False, True],
        "neither": counts[False, False],
        "p_value": mcnemar_exact(counts[True, False], counts[False, True]),
    }


def failure_counts(
    rows: Iterable[ResultRow], groups: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """How many *responses* show each cause, over all, by the tool called, and by group.

    ``invalid`` is the number of triggered responses that are not valid. One with several causes
    counts once under each, so the causes may add up to more. Truncated responses are under a
    cause of their own, and not among the invalid.
    """
    by_cause, by_tool, by_group = Counter(), defaultdict(Counter), defaultdict(Counter)
    invalid = 0
    for row in rows:
        failures = row_failures(row)
        invalid += bool(failures) and is_triggered(row)
        by_cause.update({failure.cause for failure in failures})
        by_group[_group(row, groups)].update({failure.cause for failure in failures})
        for tool, cause in {(f.tool, f.cause) for f in failures if f.tool is not None}:
            by_tool[tool][cause] += 1
    return {
        "invalid": invalid,
        "by_cause": _ordered(by_cause),
        "by_tool": {
            tool: _ordered(counts)
            for tool, counts in sorted(by_tool.items(), key=lambda kv: (-kv[1].total(), kv[0]))
        },
        "by_group": {group: _ordered(counts) for group, counts in by_group.items() if counts},
    }


def _group(row: ResultRow, groups: Mapping[int, str] | None) -> str:
    known = groups.get(row.data_index) if groups is not None else None
    return known if known is not None else group_of(row.request)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _ordered(counts: Counter) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], CAUSES.index(item[0]))))
