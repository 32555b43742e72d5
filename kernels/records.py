"""Result files: long CSV, each line with the command, commit, versions, machine and date."""

import csv
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path


def stamp(command: str, device: str = "") -> dict[str, str]:
    """Columns that say where a result comes from; ``device`` names an accelerator if one ran."""
    versions = []
    for name in ("masked-sampling", "torch", "triton", "xgrammar"):
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return {
        "command": command,
        "commit": _commit(),
        "versions": "; ".join([f"python {platform.python_version()}", *versions]),
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


def _commit() -> str:
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
        return ""
    return done.stdout.strip()
