"""Where a result comes from: command, commit, versions, machine, date."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from kernels import records

_PACKAGES = ("masked-sampling", "torch", "transformers", "xgrammar", "numpy")


def versions() -> dict[str, str | None]:
    """Versions of the packages that a result may depend on, None for one that is missing."""
    return records.versions(_PACKAGES)


def provenance(module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """What it takes to make a result again, for ``python -m module arguments``."""
    return {
        "command": shlex.join(["python", "-m", module, *arguments]),
        "commit": records.commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "versions": versions(),
    }
