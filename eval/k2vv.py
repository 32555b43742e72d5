"""K2 Vendor Verifier's two questions, asked of a model with and without a grammar.

Does it call tools when it should (trigger F1), and do its calls fit their schemas (schema
accuracy)? ``python -m eval.k2vv`` asks the bundled model, on the bundled requests.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from eval.command import ended

_EXAMPLES = """examples:
  python -m eval.k2vv                                    bundled model, bundled requests
  python -m eval.k2vv --model smollm2-135m --limit 40 --tool-choice required
  python -m eval.k2vv samples.jsonl --model path/to/model --output runs/mine
  python -m eval.k2vv samples.jsonl --base-url http://localhost:8000/v1 --concurrency 64
  torchrun --nproc-per-node 8 -m eval.k2vv samples.jsonl --model path/to/model --device cuda

also:
  python -m eval.k2vv score ...      score anybody's results file; --help says how
  python -m eval.k2vv compare ...    set results files side by side; --help says how

A run that was interrupted goes on where it was when the same command is given again. Requests that
failed are tried again. Exit code: 0, 1 (some request failed), 2 (bad input), 130 (Ctrl-C).
"""


def build_parser() -> argparse.ArgumentParser:
    """The arguments of a run."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.k2vv",
        description="Trigger similarity and schema accuracy, constrained against free.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # The key is kept out of what is written by looking for its flag, spelled out.
        allow_abbrev=False,
    )
    _add_run(parser)
    _add_sampling(
        parser.add_argument_group(
            "sampling",
            "overrides of the requests' own; without either a local model has temperature"
            " 1.0, no cut and 256 tokens, and an endpoint its own defaults",
        )
    )
    _add_grammar(parser.add_argument_group("grammar"))
    _add_local(parser.add_argument_group("local model"))
    _add_endpoint(parser.add_argument_group("endpoint"))
    return parser


def _add_run(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "requests",
        nargs="?",
        metavar="REQUESTS",
        help="JSONL of chat-completions bodies, or BFCL's questions, plain or .gz; a folder of "
        "either; or a dataset id of the Hub (default: the bundled 300)",
    )
    add(
        "--engine",
        choices=("hf", "openai"),
        help="a local model, or an OpenAI-compatible endpoint (default: openai with --base-url, "
        "else hf)",
    )
    add(
        "--model",
        help="local: nano, smollm2-135m, a folder, a .gguf file or a Hub id (default: nano); "
        "endpoint: the name it serves (default: the requests' own)",
    )
    add("--mode", choices=("free", "constrained", "both"), default="both")
    add("--output", type=Path, default=Path("runs/k2vv"), help="folder (default: %(default)s)")
    add(
        "--reference",
        type=Path,
        help="results file that says when to call (default: the requests' own, if they have one)",
    )
    again = parser.add_mutually_exclusive_group()
    again.add_argument(
        "--overwrite", action="store_true", help="drop what --output holds instead of resuming"
    )
    again.add_argument(
        "--incremental",
        action="store_true",
        help="run only what failed or is missing in --output: what happens anyway, spelled as K2VV "
        "does",
    )
    add("--limit", type=int, help="only the first N requests")
    add("--per-group", type=int, help="only N requests of each group, evenly spaced in it")
    add("--skip-bad-lines", action="store_true", help="leave out lines that are no requests")
    add("--tool-choice", choices=("none", "auto", "required"), help="override the requests'")


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--temperature", type=float)
    add("--top-p", type=float)
    add("--top-k", type=int, help="an endpoint gets it in extra_body: vLLM's and SGLang's")
    add("--min-p", type=float, help="likewise")
    add("--max-tokens", type=int)
    add(
        "--seed",
        type=int,
        help="noise of requests without a seed of their own, with their number "
        "(default: local 0, endpoint none)",
    )


def _add_grammar(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
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


def _add_local(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--batch-size", type=int, default=16, help="(default: %(default)s)")
    add(
        "--finish-in-budget",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="as max_tokens runs out, draw only what a constrained response can still be finished "
        "after; of local models (default: off)",
    )
    add("--device", default="cpu", help="(default: %(default)s)")
    add("--dtype", default="float32", help="(default: %(default)s)")
    add("--threads", type=int, help="torch's threads")


def _add_endpoint(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--base-url", help="with the /v1, such as http://localhost:8000/v1")
    add("--api-key", help="(default: the environment's OPENAI_API_KEY); it is written nowhere")
    add(
        "--constrained-via",
        choices=("strict", "structural-tag", "server"),
        default="strict",
        help="what a constrained request carries: strict: true on every tool, vLLM's "
        "structured_outputs with a structural tag, or nothing, the server having been started to "
        "constrain. A free one goes without strict (default: %(default)s)",
    )
    add("--concurrency", type=int, default=16, help="requests in flight (default: %(default)s)")
    add("--timeout", type=float, default=600.0, help="seconds an attempt (default: %(default)g)")
    add(
        "--retries",
        type=int,
        default=3,
        help="further attempts after HTTP 429 or 5xx, a broken connection or a time-out "
        "(default: %(default)s)",
    )
    add(
        "--extra-body",
        default="{}",
        metavar="JSON",
        help="object whose keys go over every request's; null takes a key away",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit code: 0, 1 (some request failed), 2 (bad input), 130 (Ctrl-C)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["score"]:
        from eval.k2vv_score import main as score

        return score(argv[1:])
    if argv[:1] == ["compare"]:
        from eval.k2vv_compare import main as compare

        return compare(argv[1:])
    args = build_parser().parse_args(argv)

    def run() -> int:
        from eval.k2vv_run import Run

        return Run(args, argv).run()

    again = "the same command" + (" without --overwrite" if args.overwrite else "")
    kept = f"what is done stays in {args.output}; to resume, run {again}"
    return ended("k2vv", run, kept)


if __name__ == "__main__":
    sys.exit(main())
