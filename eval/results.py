"""What results/ holds, read back for figures and notebooks.

Nothing here measures anything. A folder that a command has not filled yet is empty, not an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path(__file__).resolve().parent.parent / "results"
"""Of the checkout, wherever the process runs; an installed wheel has none."""


def table(name: str, folder: Path = FOLDER) -> pd.DataFrame:
    """A CSV of results/, such as ``kernels/audit.csv``.

    Raises:
        FileNotFoundError: it is not there; the message says where commands are listed.
    """
    import pandas as pd

    path = folder / name
    if not path.is_file():
        raise FileNotFoundError(
            f"results/{name} does not exist; results/README.md lists the command that writes it"
        )
    return pd.read_csv(path)


def k2vv(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """``comparison.json`` of every run of `eval.k2vv` that is kept, by its folder's name."""
    return _by_folder(folder / "k2vv", "comparison.json")


def decoding(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """``summary.json`` of every run of `eval.decoding` that is kept, by its folder's name."""
    return _by_folder(folder / "decoding", "summary.json")


def _by_folder(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    paths = sorted(folder.glob(f"*/{name}"))
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}
