"""Ask an endpoint for a call of every schema of a folder, and hold each answer to its schema.

SCHEMAS holds .jsonl files, a JSON Schema a line. Each becomes the one property of a tool's
arguments, tool_choice is required, and each is asked for twice: streamed and not. Any endpoint that
speaks chat completions will do, such as python -m sampler.serve --structural-tag-schema strict.

Answers are kept as they come, in OUTPUT.part. The same command goes on from there, if it was
stopped, and asks again for what failed.

With --throughput N the bundled requests are timed instead, N at a time, through a server that it
starts and through the library, alternately, once both have been found to answer alike.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

MODES = {
    "plain": {},
    "streamed": {"stream": True, "stream_options": {"include_usage": True}},
}
OUTCOMES = ("valid", "invalid", "truncated", "refused", "failed")
_TOOL = "submit"
_DEEPEST, _STACK_BYTES = 50_000, 2**28
"""Calls within calls, and the stack that so many take: address space, most of it never touched."""

_EXAMPLES = """examples:
  python -m eval.serve_check --base-url http://127.0.0.1:8000/v1 SCHEMAS --output check.json
  python -m eval.serve_check --throughput 32 --model nano --output throughput.json
"""


def build_parser() -> argparse.ArgumentParser:
    """The arguments of a check."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.serve_check",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("schemas", nargs="?", type=Path, metavar="SCHEMAS", help="a folder of .jsonl files")
    add("--base-url", help="the endpoint, with its /v1")
    add("--api-key", help="its key")
    add("--model", help="its model (default: the first that it has)")
    add("--output", type=Path, required=True, help="a JSON file for the results")
    add("--max-tokens", type=int, default=2048, help="of an answer (default: 2048)")
    add("--temperature", type=float, default=1.0)
    add("--seed", type=int, default=0, help="of the first case; the next has the next")
    add("--limit", type=int, help="of the cases, this many, evenly spread")
    add("--concurrency", type=int, default=8, help="requests at a time (default: 8)")
    add("--timeout", type=float, default=1800, help="seconds for a request (default: 1800)")
    add("--throughput", type=int, metavar="N", help="time N requests at a time instead")
    add("--repeats", type=int, default=5, help="of the timing (default: 5)")
    add("--threads", type=int, help="torch's threads, of the timing")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run; returns the exit code: 0, 1 (an answer is wrong or failed), 2 (bad input)."""
    args = build_parser().parse_args(argv)
    args.argv = sys.argv[1:] if argv is None else argv
    try:
        return _throughput(args) if args.throughput is not None else _check(args)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError) as error:
        print(f"serve_check: error: {error}", file=sys.stderr)
        return 2


def _check(args: argparse.Namespace) -> int:
    from eval.provenance import provenance
    from eval.serve_answers import Answers
    from eval.serve_client import Client
    from eval.walle import read_cases

    if args.schemas is None or args.base_url is None:
        raise ValueError("give SCHEMAS and --base-url, or --throughput")
    for name in ("concurrency", "max_tokens"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    cases = _spread(read_cases(args.schemas), args.limit)
    client = Client(args.base_url, args.api_key, args.timeout)
    model = args.model or client.model()
    sampling = {"model": model, "temperature": args.temperature, "max_tokens": args.max_tokens}
    asked = [
        (case, mode, {**sampling, **request_of(case.parameters), **MODES[mode], "seed": seed})
        for seed, case in enumerate(cases, args.seed)
        for mode in MODES
    ]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    answers = Answers(args.output.with_name(f"{args.output.name}.part"), args.base_url)
    if kept := sum(answers.get(body) is not None for *_, body in asked):
        print(f"serve_check: {kept} answers are there from before", file=sys.stderr)

    def judge(job: tuple) -> dict[str, Any]:
        case, mode, body = job
        row = answers.get(body)
        if row is None:
            row = judged(client.ask(body), case.parameters)
            answers.put(body, row)
        return {"case": case.name, "mode": mode, **row}

    # The pool's threads do not keep a process that is told to stop.
    with _room_to_nest(), ThreadPool(args.concurrency) as pool:
        rows = list(_shown(pool.imap(judge, asked), len(asked)))
    report = {
        "summary": {mode: summary([r for r in rows if r["mode"] == mode]) for mode in MODES},
        "differ": _differing(rows),
        "rows": rows,
        "settings": {**sampling, "seed": args.seed, "cases": len(cases)},
        "provenance": provenance("eval.serve_check", args.argv),
    }
    _write(args.output, report)
    if not any(part["failed"] for part in report["summary"].values()):
        answers.remove()
    _print(report)
    bad = sum(part["invalid"] + part["failed"] for part in report["summary"].values())
    return 1 if bad else 0


@contextmanager
def _room_to_nest() -> Iterator[None]:
    """Let threads that start inside judge deep values: recursive schemas have answers that nest
    hundreds deep, and jsonschema makes ten calls a level."""
    limit, size = sys.getrecursionlimit(), threading.stack_size(_STACK_BYTES)
    sys.setrecursionlimit(_DEEPEST)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(size)


def _shown(rows: Iterable[dict[str, Any]], total: int) -> Iterator[dict[str, Any]]:
    """The same, with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import track

    quiet = not sys.stderr.isatty()
    yield from track(rows, "asked", total, console=Console(stderr=True), disable=quiet)


def request_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A body that must be answered by a call with such arguments."""
    function = {
        "name": _TOOL,
        "description": "Submit a value.",
        "parameters": parameters,
        "strict": True,
    }
    return {
        "messages": [{"role": "user", "content": "Submit a value that fits the schema."}],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
    }


def judged(answer: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer is worth: its outcome, and why.

    `refused` is a 400: the endpoint says that it cannot. `truncated` ends at max_tokens. Every call
    that is whole must be valid, in a truncated answer as well.
    """
    guard = answer.headers.get("x-masked-sampling-guard", "")
    row: dict[str, Any] = {"guard": guard, "usage": dict(answer.usage)}
    if answer.status == 400:
        return {**row, "outcome": "refused", "detail": answer.error}
    if answer.error is not None or len(answer.choices) != 1:
        detail = answer.error or f"{len(answer.choices)} choices"
        return {**row, "outcome": "failed", "detail": f"{answer.status}: {detail}"}
    (choice,) = answer.choices
    calls = choice["message"].get("tool_calls") or []
    row["arguments"] = [call["function"]["arguments"] for call in calls]
    fault = next(filter(None, (_fault(call, parameters) for call in calls)), None)
    if fault:
        return {**row, "outcome": "invalid", "detail": fault}
    if choice["finish_reason"] == "length":
        return {**row, "outcome": "truncated", "detail": None}
    if not calls or choice["finish_reason"] != "tool_calls":
        detail = f"{len(calls)} calls, finish_reason {choice['finish_reason']}"
        return {**row, "outcome": "invalid", "detail": detail}
    return {**row, "outcome": "valid", "detail": None}


def _fault(call: Mapping[str, Any], parameters: Mapping[str, Any]) -> str | None:
    from grammar.schema.judge import Patience, validator_of

    if call["function"]["name"] != _TOOL:
        return f"a call of {call['function']['name']!r}"
    try:
        value = json.loads(call["function"]["arguments"])
    except ValueError as error:
        return f"the arguments are not JSON: {error}"
    with Patience().spent():
        error = next(validator_of(parameters, "2020-12").iter_errors(value), None)
    return None if error is None else f"{error.json_path}: {error.message[:200]}"


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts of one mode."""
    counts = Counter(row["outcome"] for row in rows)
    refusals = Counter(row["detail"] for row in rows if row["outcome"] == "refused")
    return {
        "asked": len(rows),
        **{outcome: counts[outcome] for outcome in OUTCOMES},
        "guarded": sum("guarded=" in row["guard"] for row in rows),
        "redone": sum(_redone(row["guard"]) for row in rows),
        "tokens": sum(row["usage"].get("completion_tokens", 0) for row in rows),
        "refusals": dict(refusals.most_common()),
    }


def _redone(guard: str) -> int:
    parts = (part.strip() for part in guard.split(";"))
    found = [part.removeprefix("redone=") for part in parts if part.startswith("redone=")]
    return int(found[0]) if found else 0


def _differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Cases whose two answers are not the same, though their seeds are."""
    seen: dict[str, list] = {}
    for row in rows:
        seen.setdefault(row["case"], []).append((row["outcome"], row.get("arguments")))
    return [case for case, answers in seen.items() if any(a != answers[0] for a in answers)]


def _spread(cases: list, limit: int | None) -> list:
    if limit is None or limit >= len(cases):
        return cases
    if limit < 1:
        raise ValueError(f"--limit must be at least 1, got {limit}")
    return [cases[i * len(cases) // limit] for i in range(limit)]


def _write(path: Path, report: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _print(report: Mapping[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console, parts = Console(), report["summary"]
    table = Table("", *parts, box=box.SIMPLE_HEAD)
    for name in ("asked", *OUTCOMES, "guarded", "redone", "tokens"):
        table.add_row(name, *(f"{part[name]:,}" for part in parts.values()))
    console.print(table)
    for reason, count in parts["plain"]["refusals"].items():
        console.print(f"refused, {count}: {reason}", markup=False)
    for row in report["rows"]:
        if row["outcome"] in ("invalid", "failed"):
            line = f"{row['outcome']}, {row['case']}, {row['mode']}: {row['detail']}"
            console.print(line, markup=False)
    if report["differ"]:
        console.print(f"answered otherwise when streamed: {', '.join(report['differ'])}")


def _throughput(args: argparse.Namespace) -> int:
    from eval.provenance import provenance
    from eval.serve_throughput import compare, print_table

    for name in ("throughput", "repeats"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    report = compare(
        args.model or "nano",
        concurrency=args.throughput,
        repeats=args.repeats,
        max_tokens=min(args.max_tokens, 256),
        limit=args.limit or 4 * args.throughput,
        threads=args.threads,
    )
    report["provenance"] = provenance("eval.serve_check", args.argv)
    _write(args.output, report)
    print_table(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
