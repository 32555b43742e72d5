"""Is constrained decoding slower than free decoding? Ways to decode, timed on the same tokens.

``python -m eval.decoding`` times our loop, free and constrained, and ``model.generate`` with our
logits processor and with others', alternately: on the same prompts, and with every row told the
same tokens, after it has drawn its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eval.command import ended
from eval.decoding_summary import WAYS

_EXAMPLES = """examples:
  python -m eval.decoding                                  bundled model, bundled tools
  python -m eval.decoding --model smollm2-135m --output results/decoding/smollm2-135m
  python -m eval.decoding --shape qwen2.5-0.5b --ways free masked forced generate_xgrammar
"""


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.decoding",
        description="Time free and constrained decoding on the same prompts and tokens.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "requests",
        nargs="?",
        type=Path,
        metavar="REQUESTS",
        help="JSONL of chat-completions bodies with tools (default: bundled ones, same tools all)",
    )
    models = parser.add_mutually_exclusive_group()
    models.add_argument(
        "--model",
        default="nano",
        help="nano, smollm2-135m, a folder, a .gguf file or a Hub id (default: %(default)s)",
    )
    models.add_argument("--shape", help="instead: random weights of this shape (qwen2.5-0.5b)")
    add("--output", type=Path, default=Path("runs/decoding"), help="folder (default: %(default)s)")
    add("--ways", nargs="+", choices=WAYS, default=WAYS, metavar="WAY", help=" ".join(WAYS))
    add("--rounds", type=int, default=5, help="turns of every way (default: %(default)s)")
    add("--batch-size", type=int, default=8, help="rows (default: %(default)s)")
    add("--limit", type=int, help="requests (default: as many as rows)")
    add("--tools", type=int, default=3, help="of the bundled, shown to all (default: %(default)s)")
    add("--tokens", type=int, default=128, help="most tokens a row (default: %(default)s)")
    add(
        "--script",
        choices=("sampled", "answers"),
        help="tokens that all ways are told: those that the constrained loop samples, or those of"
        " the bundled requests' answers (default: answers with --shape, whose noise hardly ever"
        " closes a string, else sampled)",
    )
    add(
        "--prefixes",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also count what shared beginnings of prompts save",
    )
    sampling = parser.add_argument_group("sampling")
    add = sampling.add_argument
    add("--temperature", type=float, default=1.0)
    add("--top-p", type=float, default=1.0)
    add("--top-k", type=int, default=0)
    add("--min-p", type=float, default=0.0)
    add("--seed", type=int, default=0)
    engine = parser.add_argument_group("engine")
    add = engine.add_argument
    add("--tool-call-parser", default="hermes", help="format of the calls (default: %(default)s)")
    add("--device", default="cpu")
    add("--dtype", default="float32")
    add("--threads", type=int, help="torch's threads")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run; returns the exit code: 0, 1 (a check failed), 2 (bad input), 130 (Ctrl-C)."""
    args = build_parser().parse_args(argv)
    args.argv = sys.argv[1:] if argv is None else argv

    def run() -> int:
        try:
            return _Run(args).run()
        except AssertionError as error:
            print(f"decoding: check failed: {error}", file=sys.stderr)
            return 1

    return ended("decoding", run, f"the rounds that are done stay in {args.output}")


class _Run:
    """One invocation: its input checked before anything heavy is loaded."""

    def __init__(self, args: argparse.Namespace) -> None:
        from eval.decoding_work import bundled_bodies
        from eval.records import read_requests
        from eval.workloads import limited
        from grammar.formats import get_format

        for name in ("rounds", "batch_size", "limit", "tools", "tokens", "threads"):
            value = getattr(args, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        get_format(args.tool_call_parser)
        limit = args.limit or args.batch_size
        if args.requests:
            lines = limited(read_requests(args.requests), limit)
            self.bodies = [(line.body, None) for line in lines]
        else:
            self.bodies = bundled_bodies(limit, args.tools)
        self.script = args.script or ("answers" if args.shape else "sampled")
        if self.script == "answers" and args.requests:
            raise ValueError(
                "--script answers wants the bundled requests; use --script sampled with REQUESTS"
            )
        self.args = args

    def run(self) -> int:
        from rich.console import Console

        from eval.decoding_checks import check
        from eval.decoding_prefixes import prefixes
        from eval.decoding_report import draw, print_tables
        from eval.decoding_runs import Work
        from eval.decoding_summary import summarise
        from eval.decoding_work import items_of
        from eval.provenance import provenance
        from sampler.chat import Chat

        args = self.args
        loaded = self._load()
        chat = Chat(loaded, format=args.tool_call_parser, scope="always", schema_mode="strict")
        params = {
            "temperature": args.temperature,
            "top_p": args.top_p,
            "top_k": args.top_k,
            "min_p": args.min_p,
            "max_tokens": args.tokens,
        }
        items = items_of(chat, self.bodies, params=params, seed=args.seed)
        self._say("checking")
        checks, traced = check(Work(chat, items, [()] * len(items), args.batch_size))
        if not checks.passed:
            raise AssertionError(
                "; ".join(checks.wrong)
                or f"only {checks.valid} of {checks.ended} calls that ended are valid"
            )
        work = Work(chat, items, self._scripts(chat, items, traced), args.batch_size)
        self.notes = [*loaded.notes]
        rows = self._rows(work)
        summary = {
            "title": f"{loaded.name}, {min(args.batch_size, len(items))} rows",
            "model": loaded.name,
            "settings": self._settings(items),
            "checks": asdict(checks),
            **summarise(rows),
            "notes": self.notes,
            "provenance": provenance("eval.decoding", args.argv),
        }
        if args.prefixes:
            self._say("prefixes")
            bodies = [body for body, _ in self.bodies]
            summary["prefixes"] = prefixes(
                loaded, bodies, format=args.tool_call_parser, batch_size=args.batch_size
            )
        path = args.output / "summary.json"
        path.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        figure = draw(summary, args.output / "decoding.png")
        print_tables(summary, Console())
        print(f"written to {args.output}: rows.csv, steps.csv, summary.json, {figure.name}")
        return 0

    def _load(self) -> Any:
        args = self.args
        options = {"device": args.device, "dtype": args.dtype, "threads": args.threads}
        if args.shape:
            from eval.shapes import load_shape

            return load_shape(args.shape, **options)
        from sampler.model import load

        return load(args.model, **options)

    def _scripts(self, chat: Any, items: list, traced: list) -> list[tuple[int, ...]]:
        from eval.decoding_work import script_from_answer, script_from_completion

        if self.script == "answers":
            return [script_from_answer(chat, item) for item in items]
        return [script_from_completion(completion) for completion in traced]

    def _rows(self, work: Any) -> list[dict[str, Any]]:
        """Run every way in every round; the rounds that are done are on disk."""
        from dataclasses import replace
        from functools import partial

        from eval.decoding_runs import OWN_TOKENS, ways
        from eval.decoding_summary import row_of, steps_of
        from eval.decoding_turns import by_turns
        from eval.provenance import provenance
        from kernels.records import stamp, write_csv

        args = self.args
        ready, notes = ways(work.chat, args.ways)
        self.notes += notes
        stops = work.chat.loaded.stop_token_ids
        if "jump" in ready and any(script[-1] not in stops for script in work.scripts):
            del ready["jump"]
            self.notes.append("jump was left out: it wants whole texts; give more --tokens.")
        one = replace(work, items=work.items[:1], scripts=work.scripts[:1])
        few = replace(one, scripts=[work.scripts[0][:3]])
        for name in list(ready):
            self._say(f"warming up: {name}")
            try:
                ready[name](one if name == "jump" else few)
            except Exception as error:
                if name not in OWN_TOKENS:
                    raise
                # Somebody else's code; what it cannot do here is no reason to time nothing.
                self.notes.append(f"{name} was left out: {type(error).__name__}: {error}")
                del ready[name]
        if not ready:
            raise ValueError(f"none of --ways can run here: {' '.join(self.notes)}")
        command = provenance("eval.decoding", args.argv)["command"]
        rows: list[dict[str, Any]] = []
        for round in range(1, args.rounds + 1):
            self._say(f"round {round} of {args.rounds}")
            timings = by_turns({name: partial(_paused, way, work) for name, way in ready.items()})
            load = {"load_average": os.getloadavg()[0]}
            rows += [row_of(round, name, timing) | load for name, timing in timings.items()]
            plain = [{k: v for k, v in row.items() if k != "steps_ms"} for row in rows]
            write_csv(args.output / "rows.csv", plain, stamp(command))
            write_csv(args.output / "steps.csv", steps_of(rows), {})
        return rows

    def _settings(self, items: list) -> dict[str, Any]:
        args = self.args
        names = ("temperature", "top_p", "top_k", "min_p", "seed", "dtype", "device", "batch_size")
        import torch

        return {
            **{name: getattr(args, name) for name in names},
            "requests": len(items),
            "most_tokens": args.tokens,
            "script": self.script,
            "parser": args.tool_call_parser,
            "threads": torch.get_num_threads(),
        }

    def _say(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _paused(way: Any, work: Any, pause: Any) -> Any:
    return way(work, pause=pause)


if __name__ == "__main__":
    sys.exit(main())
