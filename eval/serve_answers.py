"""Answers of a check that has not ended, so that it can go on where it stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any


class Answers:
    """Judged answers on disk, a line each, by what was asked. Safe to share between threads.

    Those that failed are not kept: they are to be asked for again.

    Args:
        path: of the file; one that is there is read, but for lines that are cut off.
        endpoint: that is asked; answers of another do not count.
    """

    def __init__(self, path: Path, endpoint: str) -> None:
        self._path, self._endpoint, self._lock = path, endpoint, Lock()
        self._rows: dict[str, dict[str, Any]] = {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for line in text.splitlines():
            try:
                kept = json.loads(line)
                self._rows[kept["asked"]] = kept["row"]
            except (ValueError, KeyError, TypeError):
                continue
        # A line that was cut off must not run into the next.
        self._open = bool(text) and not text.endswith("\n")

    def get(self, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """What came of this request before, or None."""
        return self._rows.get(self._key(body))

    def put(self, body: Mapping[str, Any], row: dict[str, Any]) -> None:
        """Keep what came of a request, unless it failed."""
        if row["outcome"] == "failed":
            return
        line = json.dumps({"asked": self._key(body), "row": row}) + "\n"
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write("\n" + line if self._open else line)
            self._open = False

    def remove(self) -> None:
        """The check has ended: its report has them all."""
        self._path.unlink(missing_ok=True)

    def _key(self, body: Mapping[str, Any]) -> str:
        asked = json.dumps([self._endpoint, body], sort_keys=True)
        return hashlib.sha256(asked.encode()).hexdigest()
