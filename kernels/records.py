"""Result files: long CSV, each line with the command, commit, versions, machine and date."""

import csv
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path


def stamp(command: str, device: str = "") -> dict[str, str]:
    """Columns that say where a result comes from; ``device`` names an accelerator if one ran."""
    found = versions(("masked-sampling", "torch", "triton", "xgrammar"))
    named = [f"{name} {version}" for name, version in found.items() if version]
    return {
        "command": command,
        "commit": commit() or "",
        "versions": "; ".join([f"python {platform.python_version()}", *named]),
        "hardware": device or f"{platform.machine()} CPU",
        "date": datetime.now(UTC).date().isoformat(),
    }


def write_csv(path: str | Path, rows: list[dict], provenance: dict[str, str]) -> None:
    """Write rows, all of the same keys, each followed by its provenance."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], *provenance], lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | provenance for row in rows)


def print_table(rows: list[dict], columns: list[str]) -> None:
    """Print some columns, aligned."""
    table = [columns, *([str(row[column]) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print(text.rstrip(), file=sys.stdout)


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Installed versions of distributions, None for one that is missing."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str | None:
    """The checkout's commit, "-dirty" if tracked files differ from it; None outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
