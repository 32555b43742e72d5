"""Where a result comes from: command, commit, versions, machine, date."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("masked-sampling", "torch", "transformers", "xgrammar", "numpy")


def versions() -> dict[str, str | None]:
    """Versions of the packages that a result may depend on, None for one that is missing."""
    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def provenance(module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """What it takes to make a result again, for ``python -m module arguments``."""
    return {
        "command": shlex.join(["python", "-m", module, *arguments]),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "versions": versions(),
    }


def _commit() -> str | None:
    """The checkout's commit, with "+" if tracked files differ from it; None outside a checkout."""
    commands = (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "-uno"])
    try:
        commit, changes = (
            subprocess.run(
                ["git", "-C", str(_ROOT), *command], capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if changes else "")
