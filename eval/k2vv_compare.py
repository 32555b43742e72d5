"""Two results files of the same requests, paired: ``python -m eval.k2vv compare A B``.

Two vendors, two releases, free and constrained, before and after: any two files in K2VV's format.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from eval.command import ended

_EXAMPLES = """examples:
  python -m eval.k2vv compare runs/k2vv/free runs/k2vv/constrained
  python -m eval.k2vv compare vllm.jsonl sglang.jsonl.gz --labels vllm sglang --output compared
"""


def build_parser() -> argparse.ArgumentParser:
    """The arguments of ``compare``."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.k2vv compare",
        description="The paired table of two results files, and where their responses part.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("first", type=Path, metavar="A", help="results.jsonl, plain or .gz, or its folder")
    add("second", type=Path, metavar="B", help="another of the same requests")
    add("--labels", nargs=2, metavar=("A", "B"), help="what to call them (default: by their paths)")
    add("--output", type=Path, help="folder for compare.json, compare.md and a figure")
    add("--json", action="store_true", help="print the comparison as JSON, and no tables")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Compare; returns the exit code.

    0; 1 where a line or a request of one file is not compared with the other's; 2 for bad input.
    """
    args = build_parser().parse_args(argv)
    given = sys.argv[1:] if argv is None else list(argv)
    return ended("k2vv compare", lambda: _run(args, given))


def _run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    from eval.json_files import dumped, write_json
    from eval.results_compare import compare
    from eval.results_file import open_results

    if args.labels and args.labels[0] == args.labels[1]:
        raise ValueError(f"--labels must be two different names, got {args.labels[0]!r} twice")
    first, second = map(open_results, (args.first, args.second))
    found = compare(first, second, labels=tuple(args.labels) if args.labels else None)
    if args.output:
        from eval.blocks import as_markdown
        from eval.compare_page import draw, page
        from eval.provenance import provenance

        made = {"provenance": provenance("eval.k2vv", ["compare", *argv])}
        write_json(args.output / "compare.json", found | made)
        text = as_markdown(page(found))
        if (figure := draw(found, args.output)) is not None:
            text += f"\n![Schema accuracy with Wilson intervals]({figure.name})\n"
        (args.output / "compare.md").write_text(text, encoding="utf-8")
    if args.json:
        print(dumped(found, ascii_only=True))
    else:
        from rich.console import Console

        from eval.blocks import print_blocks
        from eval.compare_page import page

        print_blocks(page(found), Console())
    left_out = any(file["left_out"] for file in found["files"].values())
    return 1 if left_out or found["not_paired"] else 0
