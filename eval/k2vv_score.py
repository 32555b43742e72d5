"""Score anybody's K2VV results file, offline: ``python -m eval.k2vv score RESULTS.jsonl``.

K2VV's own tool counts and computes neither metric. This computes both, from its files or any
vendor's, judging every call again, and names what is missing, odd or contradictory in the file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from eval.command import ended

_EXAMPLES = """examples:
  python -m eval.k2vv score results.jsonl --reference kimi-k2-thinking_results.jsonl
  python -m eval.k2vv score runs/k2vv/free --output scores/free
  python -m eval.k2vv score vendor.jsonl.gz --json | jq .schema_accuracy.accuracy
"""


def build_parser() -> argparse.ArgumentParser:
    """The arguments of ``score``."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.k2vv score",
        description="Both K2VV metrics of a results file, ours or any vendor's, offline.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("results", type=Path, metavar="RESULTS", help="results.jsonl, plain or .gz, or its folder")
    add("--reference", type=Path, help="results of the official API: when to call")
    add("--answers", type=Path, metavar="BFCL", help="BFCL's answers to the requests, or their set")
    add("--expected", type=int, metavar="N", help="how many requests there were")
    add("--output", type=Path, help="folder for score.json, score.md and K2VV's summary.json")
    add("--json", action="store_true", help="print the score as JSON, and no tables")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Score; returns the exit code.

    0; 1 where a line, a request or an answer is missing from the score (a line that is no row, a
    failed request, an answer without finish_reason, fewer rows than --expected); 2 for bad input.
    """
    args = build_parser().parse_args(argv)
    given = sys.argv[1:] if argv is None else list(argv)
    return ended("k2vv score", lambda: _run(args, given))


def _run(args: argparse.Namespace, argv: Sequence[str]) -> int:
    from eval.json_files import dumped, write_json
    from eval.results_file import open_results
    from eval.results_score import score

    if args.expected is not None and args.expected < 1:
        raise ValueError(f"--expected must be at least 1, got {args.expected}")
    results = open_results(args.results)
    reference = open_results(args.reference) if args.reference else None
    answers, unmatched = None, []
    if args.answers:
        from eval.answer_files import answers_for

        answers, unmatched = answers_for(args.answers, results.rows)
    found = score(results, reference, answers=answers, expected=args.expected)
    found["incomplete"] += unmatched
    if args.output:
        from eval.blocks import as_markdown
        from eval.provenance import provenance
        from eval.score_page import page

        made = {"provenance": provenance("eval.k2vv", ["score", *argv])}
        write_json(args.output / "score.json", found | made)
        write_json(args.output / "summary.json", found["summary"])
        (args.output / "score.md").write_text(as_markdown(page(found)), encoding="utf-8")
    if args.json:
        print(dumped(found, ascii_only=True))
    else:
        from rich.console import Console

        from eval.blocks import print_blocks
        from eval.score_page import page

        print_blocks(page(found), Console())
    return 1 if found["incomplete"] else 0
