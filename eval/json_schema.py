"""Is what a grammar accepts valid JSON of its schema? Asked of many schemas, in worker processes.

``python -m eval.json_schema PATH`` reads MaskBench files, JSON-Schema-Test-Suite's, tools, or bare
schemas, and counts, for each engine, the schemas that pass: every valid instance accepted, every
invalid one rejected. Bare schemas have no instances; random walks under the mask are judged by
jsonschema instead.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from eval.command import ended

_EXAMPLES = """examples:
  python -m eval.json_schema maskbench.jsonl.gz --engine ours --engine xgrammar
  python -m eval.json_schema JSON-Schema-Test-Suite/tests/draft2020-12
  python -m eval.json_schema tools.json --walks 100

exit status: 0; 1 if invalid text came through (past the guard, or past the mask of a schema said
to be exact or rewritten) or a schema ended in an error, a timeout or a crash; 2 for bad input
"""


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.json_schema",
        description="Soundness of JSON Schema engines: passing, valid rejected, invalid accepted.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="file or folder: MaskBench, JSON-Schema-Test-Suite, tools, or bare schemas;"
        " .json or .jsonl, plain or .gz",
    )
    add(
        "--engine",
        action="append",
        choices=("ours", "xgrammar", "llguidance"),
        help="may be given more than once (default: ours)",
    )
    add(
        "--undeclared-keys",
        choices=("allow", "forbid"),
        help="keys that a schema neither declares nor mentions (default: forbid for tools, else"
        " allow); forbid is xgrammar's strict_mode, its own default",
    )
    add(
        "--aliases",
        action="store_true",
        help="read dict, float, tuple and any as types, as tools of BFCL need",
    )
    add(
        "--target",
        choices=("schema", "grammar"),
        default="grammar",
        help="what ours makes of a schema: another schema, as xgrammar's styles of tool calls that"
        " are not JSON need, or rules for JSON text (default: %(default)s)",
    )
    add(
        "--key-order",
        choices=("declared", "any"),
        default="any",
        help="of ours with --target grammar (default: %(default)s)",
    )
    add("--limit", type=int, help="only the first N schemas")
    add(
        "--output",
        type=Path,
        default=Path("runs/json_schema"),
        help="folder for rows.jsonl and summary.json (default: %(default)s)",
    )
    add("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)")
    add("--timeout", type=float, default=15.0, help="seconds a schema (default: %(default)s)")
    add("--memory", type=float, default=4.0, help="GiB a worker (default: %(default)s)")
    add("--walks", type=int, default=20, help="random walks a bare schema (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the walks (default: %(default)s)")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run; returns the exit code: 0, 1 (unsound, or broken), 2 (bad input), 130 (Ctrl-C)."""
    args = build_parser().parse_args(argv)
    argv = sys.argv[1:] if argv is None else argv
    return ended("json_schema", lambda: _run(args, argv), f"rows so far are in {args.output}")


def _run(args: argparse.Namespace, argv: list[str]) -> int:
    from rich.console import Console

    from eval.json_schema_cases import read_cases
    from eval.json_schema_report import print_tables, summarise
    from eval.provenance import provenance
    from kernels.records import versions

    for name in ("limit", "workers", "timeout", "memory", "walks"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise ValueError(f"--{name} must be above 0, got {value}")
    cases, notes = read_cases(args.paths)
    cases = cases[: args.limit]
    for note in notes:
        print(f"json_schema: {note}", file=sys.stderr)
    args.output.mkdir(parents=True, exist_ok=True)
    summaries, rows = {}, []
    with (args.output / "rows.jsonl").open("w", encoding="utf-8") as file:
        for engine in dict.fromkeys(args.engine or ["ours"]):
            mine = []
            for row in _rows(args, engine, cases):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                mine.append(row)
            summaries[engine] = summarise(mine)
            rows += mine
    made = provenance("eval.json_schema", argv)
    made["versions"] |= versions(("jsonschema", "llguidance"))
    summary = {"engines": summaries, "provenance": made}
    _write_json(args.output / "summary.json", summary)
    print_tables(summaries, Console())
    print(f"written to {args.output}: rows.jsonl, summary.json")
    return _verdict(rows)


def _rows(args: argparse.Namespace, engine: str, cases: list[Any]) -> Iterator[dict[str, Any]]:
    """One row a case, in their order, each as soon as those before it are there."""
    from rich.console import Console
    from rich.progress import Progress

    from eval.json_schema_pool import Failure, run_jobs

    done: dict[int, dict[str, Any]] = {}
    ended = 0
    console = Console(stderr=True)
    with Progress(console=console, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(engine, total=len(cases))
        for number, result in run_jobs(
            partial(_worker, engine, args),
            cases,
            workers=args.workers,
            timeout_s=args.timeout,
            memory_bytes=int(args.memory * 2**30),
        ):
            if isinstance(result, Failure):
                result = {
                    "verdict": None,
                    "outcome": result.kind,
                    "stage": result.stage,
                    "error": result.message,
                }
            done[number] = {"name": cases[number].name, "engine": engine, **result}
            bar.advance(task)
            while ended in done:
                yield done.pop(ended)
                ended += 1


def _worker(
    name: str, args: argparse.Namespace
) -> Callable[[Any, Callable[[str], None]], dict[str, Any]]:
    """In a worker process: the function that makes the row of one case."""
    from eval.json_schema_engines import make_engine
    from eval.json_schema_judge import ask

    engines = {
        keys: make_engine(
            name,
            undeclared_keys=keys,
            aliases=args.aliases,
            target=args.target,
            key_order=args.key_order if args.target == "grammar" else "declared",
        )
        for keys in ([args.undeclared_keys] if args.undeclared_keys else _DEFAULT_KEYS[name])
    }

    def do(case: Any, stage: Callable[[str], None]) -> dict[str, Any]:
        wanted = args.undeclared_keys or ("forbid" if case.tool else "allow")
        engine = engines.get(wanted) or engines["allow"]
        return ask(
            engine, case, walks=args.walks, seed=args.seed, aliases=args.aliases, stage=stage
        )

    return do


# llguidance cannot forbid them.
_DEFAULT_KEYS = {
    "ours": ("allow", "forbid"),
    "xgrammar": ("allow", "forbid"),
    "llguidance": ("allow",),
}


def _verdict(rows: list[dict[str, Any]]) -> int:
    """Name what must not be; 1 if there is any, else 0."""
    from eval.json_schema_report import unsound

    bad = [row for row in rows if row["outcome"] in ("error", "timeout", "crash") or unsound(row)]
    for row in bad[:10]:
        what = f"{row['outcome']} ({row['stage']}): {row['error']}" if "error" in row else ""
        said = what or f"accepts invalid text{_example(row)}"
        print(f"json_schema: {row['engine']}: {row['name']}: {said}", file=sys.stderr)
    if len(bad) > 10:
        print(f"json_schema: and {len(bad) - 10:,} more; see the rows", file=sys.stderr)
    return 1 if bad else 0


def _example(row: dict[str, Any]) -> str:
    if row.get("texts"):
        return f", such as {row['texts'][0]}"
    found = row["guard"]["invalid_accepted"] or row["mask"]["invalid_accepted"]
    return f": test {found[0]}" if found else f": test {row['respelled'][0]}, spelled otherwise"


def _write_json(path: Path, value: dict[str, Any]) -> None:
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
