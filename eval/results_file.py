"""Anybody's results file, and what is odd about it as a file."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.plain_or_gzip import read_bytes
from eval.rows import ResultRow, ResultsError, newest_rows, parse_rows

_NAMES = ("results.jsonl", "results.jsonl.gz")


@dataclass(frozen=True)
class Results:
    """A results file as it was read.

    path: the file; given a folder, the results.jsonl in it.
    rows: the newest of each data_index, in order.
    repeated: data_index to its number of rows, where there are several.
    left_out: what is wrong with each line that is no result row.
    """

    path: Path
    rows: list[ResultRow]
    repeated: dict[int, int]
    left_out: tuple[str, ...] = ()

    @property
    def indices(self) -> list[int]:
        """data_index of each row, in order of the rows."""
        return [row.data_index for row in self.rows]

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """(first, last) of each run of data_index, from 1 to the highest, that no row has.

        Rows that were lost, or blank lines of the requests, which count.
        """
        found, last = [], 0
        for index in self.indices:
            if index > last + 1:
                found.append((last + 1, index - 1))
            last = max(last, index)
        return found

    @property
    def model(self) -> str | None:
        """The model that most rows name, in the request or else in the response."""
        named = Counter()
        for row in self.rows:
            for body in (row.request, row.response or {}):
                if isinstance(name := body.get("model"), str) and name:
                    named[name] += 1
                    break
        return named.most_common(1)[0][0] if named else None


def open_results(path: str | Path) -> Results:
    """Read a results file, plain or gzip, or the one in a folder.

    Raises:
        ResultsError: it cannot be read, or holds no result row; the message says what it seems to
            be instead.
    """
    path = Path(path)
    if path.is_dir():
        inside = [path / name for name in _NAMES if (path / name).is_file()]
        if not inside:
            raise ResultsError(f"{path} is a folder without {_NAMES[0]}; give a results file")
        path = inside[0]
    try:
        data = read_bytes(path)
    except OSError as error:
        raise ResultsError(f"cannot read results from {path}: {error.strerror}") from None
    if not data.strip():
        raise ResultsError(f"{path} is empty; give a results file, one row a request")
    rows, bad = parse_rows(data)
    if not rows:
        raise ResultsError(f"{path} is not a results file: {_seems(path, data) or bad[0]}")
    counts = Counter(row.data_index for row in rows)
    return Results(
        path=path,
        rows=newest_rows(rows),
        repeated={index: n for index, n in sorted(counts.items()) if n > 1},
        left_out=tuple(bad),
    )


def _seems(path: Path, data: bytes) -> str | None:
    """What a file without a single result row may be, by its first object."""
    first = _first_object(data)
    if "messages" in first or "prompt" in first:
        return (
            "it holds requests (messages, but no data_index and no response); "
            f"ask them first: python -m eval.k2vv {path}"
        )
    if "question" in first or "ground_truth" in first:
        return "it holds questions or answers of BFCL"
    if "schema_validation_error_count" in first:
        return "it is a summary: counts without rows; give the results.jsonl that it sums up"
    if "modes" in first:
        return "it is a comparison; give the results.jsonl of one of its runs"
    return None


def _first_object(data: bytes) -> dict[str, Any]:
    for text in (data, next(line for line in data.split(b"\n") if line.strip())):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return {}
