"""K2 Vendor Verifier's two questions, asked of a model with and without a grammar.

Does it call tools when it should (trigger F1), and do its calls fit their schemas (schema
accuracy)? ``python -m eval.k2vv`` asks the bundled model, on the bundled requests.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

_EXAMPLES = """examples:
  python -m eval.k2vv                                    bundled model, bundled requests
  python -m eval.k2vv --model smollm2-135m --limit 40 --tool-choice required
  python -m eval.k2vv samples.jsonl --model path/to/model --output runs/mine
"""


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.k2vv",
        description="Trigger similarity and schema accuracy, constrained against free.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "requests",
        nargs="?",
        type=Path,
        metavar="REQUESTS",
        help="JSONL of chat-completions bodies, plain or .gz (default: the bundled 300)",
    )
    add(
        "--model",
        default="nano",
        help="nano, smollm2-135m, a folder, a .gguf file or a Hub id (default: %(default)s)",
    )
    add("--mode", choices=("free", "constrained", "both"), default="both")
    add("--output", type=Path, default=Path("runs/k2vv"), help="folder (default: %(default)s)")
    add(
        "--reference",
        type=Path,
        help="results file that says when to call (default: that of the bundled requests)",
    )
    add("--overwrite", action="store_true", help="drop what --output holds instead of resuming")
    add("--limit", type=int, help="only the first N requests")
    add("--tool-choice", choices=("none", "auto", "required"), help="override the requests'")
    sampling = parser.add_argument_group(
        "sampling", "overrides of the requests' own; without either: temperature 1.0, no cut"
    )
    add = sampling.add_argument
    add("--temperature", type=float)
    add("--top-p", type=float)
    add("--top-k", type=int)
    add("--min-p", type=float)
    add("--max-tokens", type=int)
    add(
        "--seed",
        type=int,
        default=0,
        help="noise of requests without a seed of their own, with their number",
    )
    grammar = parser.add_argument_group("grammar")
    add = grammar.add_argument
    add("--tool-call-parser", default="hermes", help="format of the calls (default: %(default)s)")
    add(
        "--structural-tag-scope",
        choices=("auto", "always"),
        default="always",
        help="constrain tool_choice auto only where a tool is strict, or always "
        "(default: %(default)s)",
    )
    add(
        "--structural-tag-schema",
        choices=("auto", "strict", "declared"),
        default="strict",
        help="hold arguments to the schema of strict tools, of all, or of all not declared "
        "otherwise (default: %(default)s)",
    )
    add(
        "--exclude-tools-when-tool-choice-none",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="leave the tools out of the prompt for tool_choice none",
    )
    engine = parser.add_argument_group("engine")
    add = engine.add_argument
    add("--batch-size", type=int, default=16)
    add("--device", default="cpu")
    add("--dtype", default="float32")
    add("--threads", type=int, help="torch's threads")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run; returns the exit code: 0, 1 (some request failed), 2 (bad input), 130 (Ctrl-C)."""
    args = build_parser().parse_args(argv)
    args.argv = sys.argv[1:] if argv is None else argv
    try:
        return _Run(args).run()
    except KeyboardInterrupt:
        print(
            f"\nk2vv: interrupted; what is done stays in {args.output}; to resume, run the same"
            " command" + (" without --overwrite" if args.overwrite else ""),
            file=sys.stderr,
        )
        return 130
    except Exception as error:
        # Nothing that a user typed, and nothing in a model's files, should end in a traceback.
        known = isinstance(error, (ValueError, OSError, RuntimeError))
        print(
            f"k2vv: error: {'' if known else type(error).__name__ + ': '}{error}", file=sys.stderr
        )
        return 2


class _Run:
    """One invocation: its input checked before anything heavy is loaded."""

    def __init__(self, args: argparse.Namespace) -> None:
        from eval.records import read_requests, read_results
        from eval.report import MODES
        from eval.workloads import bundled_reference, bundled_requests, limited, with_tool_choice
        from grammar.formats import get_format

        self.args = args
        self.modes = MODES if args.mode == "both" else (args.mode,)
        _check_numbers(args)
        get_format(args.tool_call_parser)
        self.requests = limited(read_requests(args.requests or bundled_requests()), args.limit)
        if args.tool_choice:
            self.requests = with_tool_choice(self.requests, args.tool_choice)
        path = args.reference or (None if args.requests else bundled_reference())
        self.reference = read_results(path) if path else None
        self.notes: list[str] = []

    def run(self) -> int:
        from rich.console import Console

        from eval.provenance import provenance
        from eval.report import compare, draw, print_tables
        from sampler.model import load

        args = self.args
        self.loaded = load(args.model, device=args.device, dtype=args.dtype, threads=args.threads)
        self.weights = _fingerprint(self.loaded)
        self.notes += self.loaded.notes
        rows, seconds = {}, {}
        for mode in self.modes:
            rows[mode], seconds[mode] = self._mode(mode)
        comparison = compare(
            self.requests,
            rows.get("free"),
            rows.get("constrained"),
            self.reference,
            model=args.model,
            settings=self._settings(),
            seconds=seconds,
            notes=self.notes,
        )
        comparison["provenance"] = provenance("eval.k2vv", args.argv)
        _write_json(args.output / "comparison.json", comparison)
        print_tables(comparison, Console())
        figures = draw(comparison, args.output)
        print(f"written to {args.output}: comparison.json, {', '.join(f.name for f in figures)}")
        return self._failures(rows)

    def _mode(self, mode: str) -> tuple[list, float | None]:
        """Run what is not done yet of one mode; all its rows, and the seconds of a whole run."""
        from eval.engines import HfEngine
        from eval.progress import Progress
        from eval.records import ResultsFile, summarise

        args, folder = self.args, self.args.output / mode
        started, clock = datetime.now(), time.monotonic()
        key = self._run_key(mode)
        with ResultsFile(folder / "results.jsonl", run_key=key, overwrite=args.overwrite) as file:
            self.notes += file.notes
            done = file.done(self.requests)
            if done:
                self.notes.append(f"{mode}: {len(done):,} of the rows are from an earlier run.")
            todo = [line for line in self.requests if line.data_index not in done]
            engine = HfEngine(
                self.loaded,
                constrained=mode == "constrained",
                sampling=self._sampling(),
                batch_size=args.batch_size,
                policy=self._policy(),
            )
            try:
                with Progress(mode, len(self.requests), file.rows(self.requests)) as progress:
                    for row in engine.run(todo):
                        file.append(row)
                        progress.add(row)
            finally:
                rows = file.rows(self.requests)
                summary = summarise(
                    rows,
                    model=args.model,
                    started_at=started,
                    finished_at=datetime.now(),
                    expected={line.data_index for line in self.requests},
                )
                _write_json(folder / "summary.json", summary)
        # A resumed run's clock says nothing about the whole.
        return rows, None if done else time.monotonic() - clock

    def _sampling(self):
        from eval.engines import Sampling

        args = self.args
        return Sampling(
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            min_p=args.min_p,
            max_tokens=args.max_tokens,
            base_seed=args.seed,
        )

    def _policy(self) -> dict[str, Any]:
        args = self.args
        return {
            "format": args.tool_call_parser,
            "scope": args.structural_tag_scope,
            "schema_mode": args.structural_tag_schema,
            "exclude_tools_when_tool_choice_none": args.exclude_tools_when_tool_choice_none,
        }

    def _settings(self) -> dict[str, Any]:
        """What is stated with the numbers: a setting of the requests' own is shown as a range."""
        sampling = self._sampling()
        params = []
        for line in self.requests:
            try:
                params.append(sampling.params(line))
            except (TypeError, ValueError):
                continue
        settings: dict[str, Any] = {}
        for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens"):
            values = sorted({getattr(p, name) for p in params})
            if values:
                one = len(values) == 1
                settings[name] = values[0] if one else f"{values[0]}..{values[-1]}"
        return {
            **settings,
            "seed": self.args.seed,
            "parser": self.args.tool_call_parser,
            "scope": self.args.structural_tag_scope,
            "schema_mode": self.args.structural_tag_schema,
        }

    def _run_key(self, mode: str) -> dict[str, Any]:
        """What two rows must share to be of one run."""
        from eval.provenance import versions

        args = self.args
        names = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "dtype")
        key = {"model": args.model, "weights": self.weights, "mode": mode}
        key |= {name: getattr(args, name) for name in names}
        if mode == "constrained":
            key |= self._policy()
        else:
            key |= {"format": args.tool_call_parser}
        return key | {"versions": versions()}

    def _failures(self, rows: dict[str, list]) -> int:
        """Say which requests failed; 0 without any, else 1, or 2 where a request itself is bad."""
        failed = [(mode, row) for mode in rows for row in rows[mode] if not row.succeeded]
        for mode, row in failed[:10]:
            message = (row.response or {}).get("error_message", "unknown error")
            print(f"k2vv: {mode}: request {row.data_index} failed: {message}", file=sys.stderr)
        if len(failed) > 10:
            print(f"k2vv: and {len(failed) - 10} more failed", file=sys.stderr)
        bad = any((row.response or {}).get("error_type") in _BAD_INPUT for _, row in failed)
        return (2 if bad else 1) if failed else 0


_BAD_INPUT = (
    "ValueError",
    "TypeError",
    "SchemaError",
    "GrammarError",
    "GrammarTooLargeError",
    "TemplateError",
    "TemplateSyntaxError",
)


def _check_numbers(args: argparse.Namespace) -> None:
    from eval.engines import Sampling
    from eval.request_lines import RequestLine

    given = {n: getattr(args, n) for n in ("temperature", "top_p", "top_k", "min_p", "max_tokens")}
    Sampling(**given).params(RequestLine(data_index=1, body={}))
    for name in ("batch_size", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")


def _fingerprint(loaded: Any) -> str:
    """A digest of the chat template, and of every tensor's name, shape and sum."""
    import hashlib

    digest = hashlib.sha256(str(loaded.tokenizer.chat_template).encode())
    for name, tensor in loaded.model.state_dict().items():
        total = tensor.double().sum().item() if tensor.numel() < 2**27 else tensor[0].sum().item()
        digest.update(f"{name} {tuple(tensor.shape)} {total!r}".encode())
    return digest.hexdigest()[:16]


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
