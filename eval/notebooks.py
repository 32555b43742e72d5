"""Strip executed notebooks of what differs from machine to machine: ``python -m eval.notebooks``.

Times of execution, the kernel's name and version, and details of how an image is shown. What is
left is prose, code and outputs, so that a notebook that was run again without a change is the same
file. ``make notebooks`` runs them first.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""All that a notebook says about where it runs."""

_EXAMPLES = """examples:
  python -m eval.notebooks notebooks/*.ipynb
"""


def clean(notebook: Any) -> Any:
    """The same notebook (`nbformat`'s), changed in place, without what its machine left in it."""
    notebook.metadata = type(notebook)(METADATA)
    for cell in notebook.cells:
        cell.metadata = type(notebook)()
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                output.metadata = type(notebook)()
    return notebook


def main(argv: list[str] | None = None) -> int:
    """Clean files; returns the exit code: 0, or 2 for a file that is no notebook."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.notebooks",
        description="Strip executed notebooks of what differs from machine to machine.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="NOTEBOOK")
    args = parser.parse_args(argv)
    import nbformat

    for path in args.paths:
        try:
            notebook = nbformat.read(path, as_version=4)
        except (OSError, ValueError) as error:
            print(f"notebooks: error: {path} is no notebook: {error}", file=sys.stderr)
            return 2
        nbformat.write(clean(notebook), path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
