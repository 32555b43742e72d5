"""Requests in, results out: the files of the K2 Vendor Verifier (K2VV), read and written.

Field names, their order and their meaning are those of MoonshotAI/K2-Vendor-Verifier, so that its
tool reads our files and ours reads any vendor's. Three things differ on purpose. A request is
known by its ``data_index`` and its hash together: theirs resumes by hash alone and loses requests
that are alike. What we record beyond their fields sits in one key, ``masked_sampling``. And a bad
request line stops the run before it starts, where theirs skips it.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from eval.request_lines import RequestError, RequestLine, read_requests
from eval.rows import ResultRow, ResultsError, parse_rows, read_results
from eval.summary import summarise

try:
    import fcntl
except ImportError:  # pragma: no cover - only on Windows
    fcntl = None

__all__ = [
    "RequestError",
    "RequestLine",
    "ResultRow",
    "ResultsError",
    "ResultsFile",
    "RunMismatch",
    "read_requests",
    "read_results",
    "summarise",
]

RUN_FILE = "run.json"
_REMEDY = "use another output folder, or --overwrite to start afresh"


class RunMismatch(ValueError):
    """The results there belong to another run, or another process is writing them."""


class ResultsFile:
    """The results of one run, appended a line at a time; survives a kill at any moment.

    ``append`` returns once the line is on disk. What a kill can leave is the beginning of one
    line at the end: opening the file cuts that off, or gives it its newline if only that is
    missing. The newest row of a request is the last one in the file.

    Beside the file, ``run.json`` keeps the run key: whatever must be equal for two rows to be of
    one run (model, mode, sampling parameters, versions).

    Args:
        path: the results file; it and its folder are made if they are not there.
        run_key: a JSON object.
        overwrite: drop what is there instead of resuming it.

    Attributes:
        notes: sentences about what was mended or left out on opening.

    Raises:
        RunMismatch: the run key differs (the fields are named), rows lie there without a
            ``run.json``, or another process has the file open.
    """

    def __init__(
        self, path: str | Path, *, run_key: Mapping[str, Any], overwrite: bool = False
    ) -> None:
        self.path = Path(path)
        self.notes: list[str] = []
        self._rows: dict[tuple[int, str], ResultRow] = {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b", buffering=0)
        try:
            self._lock()
            if overwrite:
                self._file.truncate(0)
            self._file.seek(0)
            data = self._file.read()
            self._enter_run(_as_json(run_key), data)
            self._load(data)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and let other processes have it."""
        self._file.close()

    def append(self, row: ResultRow) -> None:
        """Write one row; returns when it is on disk.

        Raises:
            OSError: the disk refuses, for instance because it is full; nothing of the row stays.
        """
        try:
            self._write(row.to_line())
        except OSError:
            # Half a line must not stay: the next row would be glued to it.
            self._file.truncate(self._size)
            raise
        self._remember(row)

    def done(self, requests: Iterable[RequestLine]) -> set[int]:
        """data_index of the requests whose newest row, under the same hash, is a success."""
        rows = ((request.data_index, self._row_of(request)) for request in requests)
        return {index for index, row in rows if row is not None and row.succeeded}

    def rows(self, requests: Iterable[RequestLine] | None = None) -> list[ResultRow]:
        """The newest row of each data_index, in order.

        requests: only rows of these requests, hash included. Without it a row may be of a request
            that has since changed, or that is no longer in the workload.
        """
        if requests is not None:
            found = (self._row_of(request) for request in requests)
            rows = [row for row in found if row is not None]
        else:
            rows = list({row.data_index: row for row in self._rows.values()}.values())
        return sorted(rows, key=lambda row: row.data_index)

    def _row_of(self, request: RequestLine) -> ResultRow | None:
        return self._rows.get((request.data_index, request.hash))

    def _remember(self, row: ResultRow) -> None:
        # Popped first, so that the order of the dict is the order of the newest rows.
        self._rows.pop((row.data_index, row.hash), None)
        self._rows[row.data_index, row.hash] = row

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        os.fsync(self._file.fileno())
        self._size += len(data)

    def _lock(self) -> None:
        if fcntl is None:  # pragma: no cover - only on Windows
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunMismatch(
                f"{self.path} is being written by another process; wait for it to end, or {_REMEDY}"
            ) from None

    def _enter_run(self, run_key: dict[str, Any], data: bytes) -> None:
        """Refuse the rows of another run before anything there is touched; else sign as ours."""
        path = self.path.with_name(RUN_FILE)
        rows, _ = parse_rows(data)
        if not rows:
            _write_whole(path, json.dumps(run_key, indent=2, ensure_ascii=False) + "\n")
        elif not path.exists():
            raise RunMismatch(
                f"{self.path} holds {len(rows)} rows, but no {RUN_FILE} beside it says of which "
                f"run; {_REMEDY}"
            )
        elif differing := _differences(_read_run(path), run_key):
            raise RunMismatch(
                f"{self.path} holds results of another run: {'; '.join(differing)}; {_REMEDY}"
            )

    def _load(self, data: bytes) -> None:
        self._size = len(data)
        whole = data.rfind(b"\n") + 1
        if tail := data[whole:]:
            if parse_rows(tail)[0]:
                self._write(b"\n")
            else:
                self._file.truncate(whole)
                os.fsync(self._file.fileno())
                self._size = whole
                data = data[:whole]
                self.notes.append(
                    f"{self.path}: cut off a torn last line of {len(tail)} bytes; "
                    "its request runs again"
                )
        rows, bad = parse_rows(data)
        self.notes.extend(f"{self.path}: {text}; left out, its request runs again" for text in bad)
        for row in rows:
            self._remember(row)


def _as_json(run_key: Mapping[str, Any]) -> dict[str, Any]:
    """The run key as it will be read back: tuples as lists, keys as strings."""
    return json.loads(json.dumps(dict(run_key), allow_nan=False))


def _read_run(path: Path) -> dict[str, Any]:
    try:
        run_key = json.loads(path.read_bytes())
    except ValueError:
        run_key = None
    if not isinstance(run_key, dict):
        raise RunMismatch(f"{path} does not say of which run the results are; {_REMEDY}")
    return run_key


def _differences(there: dict[str, Any], here: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key in dict.fromkeys([*there, *here]):
        old, new = there.get(key), here.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differences(old, new, f"{prefix}{key}.")
        elif key not in there or key not in here or old != new:
            was = json.dumps(old) if key in there else "absent"
            now = json.dumps(new) if key in here else "absent"
            found.append(f"{prefix}{key} was {was}, is {now}")
    return found


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that a kill leaves all of it or nothing."""
    draft = path.with_name(f"{path.name}.new")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
