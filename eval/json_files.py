"""JSON to files and to the terminal, of values that models and vendors have had a hand in."""

import json
from pathlib import Path
from typing import Any


def dumped(value: Any, *, ascii_only: bool = False) -> str:
    """Indented JSON; a lone surrogate, which UTF-8 cannot hold, makes all of it ASCII.

    Raises:
        ValueError: a number that is not finite.
    """
    text = json.dumps(value, indent=2, ensure_ascii=ascii_only, allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return dumped(value, ascii_only=True)
    return text


def write_json(path: Path, value: Any) -> None:
    """Write a file so that a kill leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(f"{dumped(value)}\n", encoding="utf-8")
    part.replace(path)
