"""What a grammar costs: ``python -m grammar.bench``.

Ours beside bare xgrammar with the same settings, alternately in one run, after the masks of both
have been found equal:

* ``compile cold``, ``compile warm``: a structural tag of 1, 10 and 100 tools, by a new compiler and
  by one that has had it before;
* ``request warm``: from the request's tools to the grammar, that is our plan, remembered
  (``grammar.plan_cache``), beside xgrammar's builder of tags;
* ``fill new``, ``fill known``: the mask of each step along real calls, worked out for the first
  time and after that, per row; in batches, one call a row.

Reported are p50, p99 and p99.9 in microseconds over the steps (of each step the median of its
repeats), and our overhead: the median of the paired differences, in percent and in milliseconds.
Targets: 5 % on ``fill known``, 1 ms on the warm ones. Exit status 2 without the tokenizer.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TOOLS = (1, 10, 100)
PROVIDERS = ("masked-sampling", "xgrammar")
COLUMNS = (
    "measure case rows vocab_size provider samples p50_us p99_us p999_us overhead_percent"
    " overhead_ms"
).split()
_FORMAT = "hermes"
_EXAMPLES = """examples:
  python -m grammar.bench
  python -m grammar.bench --tokenizer qwen3.6 --calls 8 --repeats 3
  python -m grammar.bench --output results/grammar/bench.csv
"""


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults named, examples as they are written."""


def main(arguments: list[str] | None = None) -> int:
    """Time, print, write; returns the exit status: 0, or 2 without the tokenizer."""
    options = _parser().parse_args(arguments)
    from grammar import registry_tokenizers
    from grammar.bench_calls import bfcl, synthetic
    from grammar.tokenizer import tokenizer_info
    from kernels.records import print_table, stamp, write_csv

    try:
        loaded = registry_tokenizers.load(options.tokenizer)
    except (ValueError, ModuleNotFoundError) as error:
        print(f"grammar.bench --tokenizer: {error}", file=sys.stderr)
        return 2
    from grammar.formats import get_format

    info = tokenizer_info(
        loaded.tokenizer,
        vocab_size=loaded.vocab_size,
        stop_token_ids=loaded.stop_token_ids,
        markers=get_format(_FORMAT).markers,
    )
    found = options.bfcl.is_dir()
    samples = bfcl(options.bfcl) if found else synthetic()
    source = "BFCL" if found else "synthetic"
    print(f"{len(samples)} {source} requests, {info.vocab_size:,} tokens", file=sys.stderr)

    rows = []
    for timed in (*_compilations(samples, info, options), *_fills(samples, info, loaded, options)):
        rows += _summarise(*timed, source=source, vocab_size=info.vocab_size)
        for row in rows[-2:]:
            print(*row.values(), file=sys.stderr)
    print_table(rows, COLUMNS)
    if options.output:
        command = " ".join(["python -m grammar.bench", *(arguments or sys.argv[1:])])
        write_csv(options.output, rows, stamp(command))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grammar.bench",
        description=__doc__.split("\n\n")[0],
        epilog=_EXAMPLES,
        formatter_class=_HelpFormatter,
    )
    here = Path(os.environ.get("MASKED_SAMPLING_SHARED", Path(__file__).parents[2] / "shared"))
    parser.add_argument("--output", type=Path, help="CSV file to write")
    parser.add_argument(
        "--bfcl",
        type=Path,
        default=here / "data" / "bfcl",
        help="folder of BFCL v4 files; tools are made up where it is absent",
    )
    parser.add_argument("--tokenizer", default="qwen", help="of grammar.registry_tokenizers")
    parser.add_argument("--calls", type=int, default=32, help="calls to walk along")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 32], help="rows of a fill")
    parser.add_argument("--repeats", type=int, default=5, help="times that each step is timed")
    return parser


def _compilations(samples: list, info: Any, options: argparse.Namespace):
    """Yield (measure, case, rows, times of ours, times of xgrammar); seconds, paired."""
    import xgrammar

    from grammar.bench_calls import distinct_tools
    from grammar.compiler import Compiler, GrammarError, check_tools
    from grammar.formats import get_format
    from grammar.formats.base import MAX_WHITESPACE
    from grammar.plan_cache import PlanCache

    tools = []
    for tool in distinct_tools(samples):
        try:
            check_tools([tool])
        except (GrammarError, ValueError):
            continue
        tools.append(tool)
    style = get_format(_FORMAT).style
    for count in TOOLS:
        body = {"tools": tools[:count], "tool_choice": "required"}
        planned = _plan(body)
        tag = planned.structural_tag

        def compilers() -> tuple[Compiler, xgrammar.GrammarCompiler]:
            threads = min(4, os.cpu_count() or 1)
            bare = xgrammar.GrammarCompiler(
                info, max_threads=threads, enable_dynamic_compilation=True
            )
            return Compiler(info, max_threads=threads), bare

        ours, bare = compilers()
        _check_same(ours.compile(planned), bare.compile_structural_tag(tag), info)

        def bare_request(compiler=bare, body=body) -> Any:
            return compiler.compile_structural_tag(
                xgrammar.get_model_structural_tag(
                    style,
                    tools=body["tools"],
                    tool_choice="required",
                    reasoning="disabled",
                    max_whitespace_cnt=MAX_WHITESPACE,
                )
            )

        bare_request()
        case = f"{len(body['tools'])} tools"
        cold = ([], [])
        for repeat in range(options.repeats):
            new, new_bare = compilers()
            steps = (
                lambda c=new, p=planned: c.compile(p),
                lambda c=new_bare, t=tag: c.compile_structural_tag(t),
            )
            _time_pair(steps, cold, repeat)
        yield "compile cold", case, 1, cold
        warm = ([], [])
        steps = (
            lambda c=ours, p=planned: c.compile(p),
            lambda c=bare, t=tag: c.compile_structural_tag(t),
        )
        for repeat in range(20 * options.repeats):
            _time_pair(steps, warm, repeat)
        yield "compile warm", case, 1, warm
        request, plans = ([], []), PlanCache()
        steps = (
            lambda c=ours, b=body, p=plans.plan: c.compile(_plan(b, p)),
            bare_request,
        )
        _plan(body, plans.plan)
        for repeat in range(20 * options.repeats):
            _time_pair(steps, request, repeat)
        yield "request warm", case, 1, request


def _fills(samples: list, info: Any, loaded: Any, options: argparse.Namespace):
    """Yield the same for fills, a value a step, divided by the rows that were filled."""
    calls = _accepted_calls(samples, info, loaded, options.calls)
    for size in options.batch_size:
        new, known = ([], []), ([], [])
        for start in range(0, len(calls), size):
            _walk(calls[start : start + size], info, options.repeats, new, known)
        # Every further size goes the same way through the same grammars.
        if size == options.batch_size[0]:
            yield "fill new", "calls", size, new
        yield "fill known", "calls", size, known


def _accepted_calls(
    samples: list, info: Any, loaded: Any, count: int
) -> list[tuple[Any, Any, list]]:
    """Two grammars of their own, ours and bare, and the tokens of a call that both allow."""
    import xgrammar

    from grammar.compiler import Compiler, GrammarError
    from grammar.formats import get_format

    ours = Compiler(info)
    bare = xgrammar.GrammarCompiler(info, max_threads=1, enable_dynamic_compilation=True)
    calls, refused = [], 0
    # Spread over all files, not the first ones only.
    for sample in samples[:: max(1, len(samples) // (2 * count))]:
        if len(calls) == count:
            break
        call = {"name": sample.name, "arguments": json.dumps(sample.arguments, ensure_ascii=False)}
        text = get_format(_FORMAT).render([{"type": "function", "function": call}])
        ids = [*loaded.tokenizer.encode(text, add_special_tokens=False), loaded.stop_token_ids[0]]
        try:
            planned = _plan({"tools": list(sample.tools), "tool_choice": "required"})
            compiled = ours.compile(planned)
        except (GrammarError, ValueError):
            refused += 1
            continue
        matcher = xgrammar.GrammarMatcher(compiled)
        if all(matcher.accept_token(i) for i in ids):
            calls.append((compiled, bare.compile_structural_tag(planned.structural_tag), ids))
        else:
            refused += 1
    print(f"{len(calls)} calls; {refused} more do not fit their own schema", file=sys.stderr)
    return calls


def _walk(
    calls: Sequence[tuple[Any, Any, list]],
    info: Any,
    repeats: int,
    new: tuple[list, list],
    known: tuple[list, list],
) -> None:
    """Along some calls at once, a row each; rows whose call has ended drop out."""
    import xgrammar

    from grammar.matcher import MatcherBatch

    batch = MatcherBatch([ours for ours, _, _ in calls], vocab_size=info.vocab_size)
    matchers = [xgrammar.GrammarMatcher(bare) for _, bare, _ in calls]
    mask = xgrammar.allocate_token_bitmask(len(calls), info.vocab_size)
    filler = xgrammar.BatchGrammarMatcher(1)
    for step in range(max(len(ids) for _, _, ids in calls)):
        rows = [row for row, (_, _, ids) in enumerate(calls) if step < len(ids)]
        live = [matchers[row] for row in rows]
        if len(calls) == 1:
            bare_fill = _of(matchers[0].fill_next_token_bitmask, mask)
        else:
            bare_fill = _of(filler.batch_fill_next_token_bitmask, live, mask, rows)
        steps = (batch.fill, bare_fill)
        _time_pair(steps, new, step, len(rows))
        if not batch.bitmask[rows].equal(mask[rows]):
            raise SystemExit("grammar.bench: the two masks differ; nothing is timed")
        times = ([], [])
        for repeat in range(repeats):
            _time_pair(steps, times, repeat, len(rows))
        for all_times, these in zip(known, times, strict=True):
            all_times.append(sorted(these)[repeats // 2])
        for row in rows:
            token = calls[row][2][step]
            if not (batch.accept(row, token) and matchers[row].accept_token(token)):
                raise SystemExit("grammar.bench: a call was accepted before and is no more")


def _of(function: Callable, *arguments: Any) -> Callable[[], Any]:
    return lambda: function(*arguments)


def _time_pair(
    steps: tuple[Callable, Callable], times: tuple[list, list], turn: int, per: int = 1
) -> None:
    """Time two steps, who goes first by turns; append seconds, divided by ``per``."""
    for which in (0, 1) if turn % 2 == 0 else (1, 0):
        start = time.perf_counter()
        steps[which]()
        times[which].append((time.perf_counter() - start) / per)


def _plan(body: dict, plan: Callable | None = None) -> Any:
    from grammar import policy

    return (plan or policy.plan)(body, format=_FORMAT, schema_mode="strict")


def _check_same(ours: Any, bare: Any, info: Any) -> None:
    """Compare the masks of two grammars along what they force from the start."""
    import xgrammar

    one, two = xgrammar.GrammarMatcher(ours), xgrammar.GrammarMatcher(bare)
    masks = xgrammar.allocate_token_bitmask(2, info.vocab_size)
    for token in [*one.find_jump_forward_tokens(), None]:
        one.fill_next_token_bitmask(masks, 0)
        two.fill_next_token_bitmask(masks, 1)
        if not masks[0].equal(masks[1]):
            raise SystemExit("grammar.bench: the two grammars differ; nothing is timed")
        if token is not None:
            one.accept_token(token)
            two.accept_token(token)


def _summarise(
    measure: str, case: str, rows: int, times: tuple[list, list], *, source: str, vocab_size: int
) -> list[dict[str, Any]]:
    import numpy as np

    ours, bare = (np.asarray(t) for t in times)
    overhead = (
        f"{100 * np.median(ours / bare - 1):.1f}",
        f"{1e3 * np.median(ours - bare):.4f}",
    )
    summary = []
    for provider, seconds in zip(PROVIDERS, (ours, bare), strict=True):
        p50, p99, p999 = (f"{q:.2f}" for q in 1e6 * np.quantile(seconds, (0.5, 0.99, 0.999)))
        percent, ms = overhead if provider == PROVIDERS[0] else ("", "")
        values = (
            measure,
            f"{source} {case}",
            rows,
            vocab_size,
            provider,
            len(seconds),
            p50,
            p99,
            p999,
            percent,
            ms,
        )
        summary.append(dict(zip(COLUMNS, values, strict=True)))
    return summary


if __name__ == "__main__":
    sys.exit(main())
