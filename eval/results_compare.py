"""Two results files of the same requests, paired: one dict."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.intervals import wilson
from eval.pairing import pair
from eval.partings import partings
from eval.results_file import Results
from eval.rows import ResultRow
from eval.scoring import (
    SchemaAccuracy,
    failure_counts,
    is_triggered,
    paired_outcomes,
    paired_table,
)

KEYS = ("a", "b")


def compare(
    first: Results, second: Results, labels: tuple[str, str] | None = None
) -> dict[str, Any]:
    """Everything there is to say about two results files of the same requests, ready for JSON.

    The two are ``a`` and ``b``. ``schema_accuracy`` and ``failures`` are of each file as a whole;
    the rest is over requests in both: ``paired``, validity where both called; ``trigger``, who
    called, with the agreement and its interval; ``responses``, how many are identical and where the
    others part. ``only_in`` and ``other_request`` list the data_index that could not be paired.
    """
    runs = {"a": first, "b": second}
    paired = pair(first.rows, second.rows)
    only_in = {"a": list(paired.only_first), "b": list(paired.only_second)}
    return {
        "labels": dict(zip(KEYS, labels or _labels(first.path, second.path), strict=True)),
        "files": {
            key: {
                "path": str(run.path),
                "model": run.model,
                "rows": len(run.rows),
                "failed": sum(not row.succeeded for row in run.rows),
                "repeated": len(run.repeated),
                "left_out": list(run.left_out),
            }
            for key, run in runs.items()
        },
        "schema_accuracy": {
            key: SchemaAccuracy.from_rows(run.rows).as_dict() for key, run in runs.items()
        },
        "failures": {key: failure_counts(run.rows) for key, run in runs.items()},
        "pairs": len(paired.pairs),
        "paired": paired_table(first.rows, second.rows, KEYS),
        "trigger": _trigger(paired.pairs),
        "responses": partings(paired.pairs),
        "only_in": only_in,
        "other_request": list(paired.other_request),
        "unverified": list(paired.unverified),
        "not_paired": sum(map(len, only_in.values())) + len(paired.other_request),
    }


def _trigger(pairs: Sequence[tuple[ResultRow, ResultRow]]) -> dict[str, Any]:
    """Who called: the agreement of two runs, neither of which is a reference to the other."""
    decided = [
        both
        for both in pairs
        if all(row.succeeded and row.finish_reason is not None for row in both)
    ]
    counts = paired_outcomes((tuple(map(is_triggered, both)) for both in decided), KEYS)
    agree = counts["both"] + counts["neither"]
    called = 2 * counts["both"] + counts["only_a"] + counts["only_b"]
    return counts | {
        "agree": agree,
        "share": agree / len(decided) if decided else None,
        "interval": list(wilson(agree, len(decided))) if decided else None,
        # The same whichever of the two is taken for the reference.
        "f1": 2 * counts["both"] / called if called else None,
        "undecided": len(pairs) - len(decided),
    }


def _labels(first: Path, second: Path) -> tuple[str, str]:
    """The shortest names that tell two files apart: of the file, or with folders."""
    parts = [_parts(path) for path in (first, second)]
    for n in range(1, max(map(len, parts)) + 1):
        one, other = ("/".join(part[-n:]) for part in parts)
        if one != other:
            return one, other
    return "a", "b"


def _parts(path: Path) -> list[str]:
    """Folders and name without endings; a name that says nothing is left out."""
    name = path.name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")
    folders = [part for part in path.absolute().parts[:-1] if part != path.anchor]
    return folders if name == "results" and folders else [*folders, name]
