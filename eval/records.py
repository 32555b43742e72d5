"""Requests in, results out: the files of the K2 Vendor Verifier (K2VV), read and written.

Field names, their order and their meaning are those of MoonshotAI/K2-Vendor-Verifier, so that its
tool reads our files and ours reads any vendor's. Three things differ on purpose. A request is
known by its ``data_index`` and its hash together: theirs resumes by hash alone and loses requests
that are alike. What we record beyond their fields sits in one key, ``masked_sampling``. And a bad
request line stops the run before it starts, where theirs skips it.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

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
    "RowsFile",
    "RunMismatch",
    "part_of",
    "read_requests",
    "read_results",
    "summarise",
]

RUN_FILE = "run.json"
_REMEDY = "use another output folder, or --overwrite to start afresh"


class RunMismatch(ValueError):
    """The results there belong to another run, or another process is writing them."""


def part_of(path: Path, rank: int | str) -> Path:
    """Where a process writes its rows while several share the run of a results file."""
    return path.with_suffix(f".rank{rank}{path.suffix}")


class _Place(NamedTuple):
    """Where in the file a row is, in bytes."""

    start: int
    length: int
    succeeded: bool


class RowsFile:
    """Result rows, appended a line at a time; survives a kill at any moment.

    ``append`` returns once the line is on disk. What a kill can leave is the beginning of one
    line at the end: opening the file cuts that off, or gives it its newline if only that is
    missing. The newest row of a request is the last one in the file.

    In memory is where the rows are, not what they hold.

    Args:
        path: it and its folder are made if they are not there.
        overwrite: drop what is there instead of resuming it.

    Attributes:
        notes: sentences about what was mended or left out on opening.

    Raises:
        RunMismatch: another process has the file open.
    """

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self.notes: list[str] = []
        self._places: dict[tuple[int, str], _Place] = {}
        self._size = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b", buffering=0)
        try:
            self._lock()
            if overwrite:
                self._clear()
            tail = self._scan()
            self._admit()
            self._mend(tail)
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
        self.extend([row])

    def extend(self, rows: Iterable[ResultRow]) -> None:
        """Write some rows; returns when all of them are on disk.

        Raises:
            OSError: as for `append`; none of these rows stays.
        """
        places, lines, size = {}, [], self._size
        for row in rows:
            line = row.to_line()
            places[row.data_index, row.hash] = _Place(size, len(line), row.succeeded)
            lines.append(line)
            size += len(line)
        before = self._size
        try:
            self._write(b"".join(lines))
            self._remember_all(places)
        except KeyboardInterrupt:
            # It may come when the lines are whole and only not known to be.
            if os.fstat(self._file.fileno()).st_size == size:
                self._size = size
                self._remember_all(places)
            raise
        except OSError as error:
            # Half a line must not stay: the next row would be glued to it.
            self._file.truncate(before)
            self._size = before
            raise OSError(
                error.errno,
                f"a row cannot be written to {self.path}: {error.strerror}; the rows before it are"
                " whole: make room, and the same command goes on from there",
            ) from error

    def done(self, requests: Iterable[RequestLine]) -> set[int]:
        """data_index of the requests whose newest row, under the same hash, is a success."""
        places = ((r.data_index, self._places.get((r.data_index, r.hash))) for r in requests)
        return {index for index, place in places if place is not None and place.succeeded}

    def rows(self, requests: Iterable[RequestLine] | None = None) -> list[ResultRow]:
        """The newest row of each data_index, in order.

        requests: only rows of these requests, hash included. Without it a row may be of a request
            that has since changed, or that is no longer in the workload.
        """
        return list(self.iter_rows(requests))

    def iter_rows(self, requests: Iterable[RequestLine] | None = None) -> Iterator[ResultRow]:
        """What `rows` returns, read one by one."""
        if requests is None:
            newest = {key[0]: place for key, place in self._places.items()}
        else:
            keys = ((request.data_index, request.hash) for request in requests)
            newest = {key[0]: self._places[key] for key in keys if key in self._places}
        for _, place in sorted(newest.items()):
            yield self._read(place)

    def holds(self, row: ResultRow) -> bool:
        """Whether the newest row of that request is this one."""
        place = self._places.get((row.data_index, row.hash))
        return place is not None and self._read(place) == row

    def _read(self, place: _Place) -> ResultRow:
        self._file.seek(place.start)
        row, flaw = _parsed(self._file.read(place.length))
        if row is None:
            where = f"{self.path}, at byte {place.start}"
            raise OSError(f"{where}: the row {flaw}; the file was changed while it was open")
        return row

    def _remember(self, key: tuple[int, str], place: _Place) -> None:
        # Popped first, so that the order of the dict is the order of the newest rows.
        self._places.pop(key, None)
        self._places[key] = place

    def _remember_all(self, places: Mapping[tuple[int, str], _Place]) -> None:
        for key, place in places.items():
            self._remember(key, place)

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

    def _clear(self) -> None:
        self._file.truncate(0)

    def _admit(self) -> None:
        """Called when the rows are known, and before anything there is touched."""

    def _scan(self) -> bytes:
        """Find the rows; returns what follows the last newline."""
        line = b""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                start = self._size
                self._size += len(line)
                if not line.endswith(b"\n"):
                    return line
                if not line.strip():
                    continue
                row, flaw = _parsed(line)
                if row is None:
                    said = f"line {number} {flaw}; left out, its request runs again"
                    self.notes.append(f"{self.path}: {said}")
                else:
                    place = _Place(start, len(line), row.succeeded)
                    self._remember((row.data_index, row.hash), place)
        return b""

    def _mend(self, tail: bytes) -> None:
        """Make the file end in a newline: that of its last row, or that before a torn one."""
        if not tail:
            return
        start = self._size - len(tail)
        row, _ = _parsed(tail)
        if row is None:
            self._file.truncate(start)
            os.fsync(self._file.fileno())
            self._size = start
            self.notes.append(
                f"{self.path}: cut off a torn last line of {len(tail)} bytes; "
                "its request runs again"
            )
        else:
            self._write(b"\n")
            place = _Place(start, len(tail), row.succeeded)
            self._remember((row.data_index, row.hash), place)


class ResultsFile(RowsFile):
    """The results of one run.

    Beside the file, ``run.json`` keeps the run key: whatever must be equal for two rows to be of
    one run (model, mode, sampling parameters, versions). And beside it lie, while processes share
    a run, the parts they write: ``take_in`` moves their rows over, and so does opening the file.

    Args:
        path, overwrite: as for `RowsFile`; the parts are overwritten as well.
        run_key: a JSON object.

    Raises:
        RunMismatch: the run key differs (the fields are named), rows lie there without a
            ``run.json``, or another process has the file open.
    """

    def __init__(
        self, path: str | Path, *, run_key: Mapping[str, Any], overwrite: bool = False
    ) -> None:
        self._run_key = _as_json(run_key)
        super().__init__(path, overwrite=overwrite)
        try:
            self.take_in()
        except BaseException:
            self.close()
            raise

    def take_in(self) -> None:
        """Move the rows of all parts here. A kill in between loses none and doubles none."""
        for path in self._parts():
            with RowsFile(path) as part:
                self.notes += part.notes
                self.extend(row for row in part.iter_rows() if not self.holds(row))
                path.unlink()

    def _parts(self) -> list[Path]:
        return sorted(self.path.parent.glob(part_of(self.path, "*").name))

    def _clear(self) -> None:
        super()._clear()
        for path in self._parts():
            path.unlink()

    def _admit(self) -> None:
        """Refuse the rows of another run; sign what is empty as ours."""
        path = self.path.with_name(RUN_FILE)
        in_parts = (len(parse_rows(part.read_bytes())[0]) for part in self._parts())
        rows = len(self._places) or sum(in_parts)
        if not rows:
            _write_whole(path, json.dumps(self._run_key, indent=2, ensure_ascii=False) + "\n")
        elif not path.exists():
            raise RunMismatch(
                f"{self.path} holds {rows} rows, but no {RUN_FILE} beside it says of which "
                f"run; {_REMEDY}"
            )
        elif differing := _differences(_read_run(path), self._run_key):
            raise RunMismatch(
                f"{self.path} holds results of another run: {'; '.join(differing)}; {_REMEDY}"
            )


def _parsed(line: bytes) -> tuple[ResultRow | None, str]:
    """The row that a line holds, or None and what is wrong with it."""
    rows, bad = parse_rows(line)
    return (rows[0], "") if rows else (None, bad[0].removeprefix("line 1 ") if bad else "is empty")


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
