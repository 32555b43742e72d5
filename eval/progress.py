"""Progress of a run on stderr: a bar with counts and an ETA; nothing where no terminal is."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import TracebackType

from eval.rows import ResultRow


class Progress:
    """Counts rows as they come; use as a context manager.

    Args:
        title: shown in front.
        total: rows of the whole run.
        rows: those that an earlier run has already made; failed ones are to be made again.
    """

    def __init__(self, title: str, total: int, rows: Iterable[ResultRow] = ()) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        self.calls = self.valid = self.failed = 0
        self.bar = Bar(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self.task = self.bar.add_task(title, total=total, counts="")
        for row in rows:
            if row.succeeded:
                self.add(row)

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def add(self, row: ResultRow) -> None:
        """Count one more row."""
        self.calls += row.finish_reason == "tool_calls"
        self.valid += row.tool_calls_valid is True
        self.failed += not row.succeeded
        if self.bar.disable:
            return
        counts = f"{self.calls} calls, {self.valid} valid"
        if self.failed:
            counts += f", {self.failed} failed"
        self.bar.update(self.task, advance=1, counts=counts)
