"""What the server costs: the same requests through it and through the library, alternately."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import Any

from eval.request_lines import read_requests
from eval.serve_client import Client
from eval.workloads import bundled_requests

_READY = re.compile(r"serving \S+ on (http://\S+)")
_POLICY = {"scope": "always", "schema_mode": "strict"}


def compare(
    model: str,
    *,
    concurrency: int,
    repeats: int,
    max_tokens: int,
    limit: int,
    threads: int | None = None,
) -> dict[str, Any]:
    """Time both ways, after a run of each that warms them up and is held against the other.

    Args:
        model: for both.
        concurrency: requests at a time; also the rows of a batch.
        repeats: timed runs of each.
        limit: requests of a run.

    Returns:
        seconds, tokens a second and their medians, of each way, and the ratio of the medians:
        the library's over the server's time.

    Raises:
        ValueError: the server did not start.
        RuntimeError: the two answer differently, by more than near-ties can explain.
    """
    bodies = _bodies(limit, max_tokens)
    library = _Library(model, concurrency, threads)
    with _server(model, concurrency, threads) as url:
        client = Client(url)

        def served() -> list[tuple]:
            with ThreadPoolExecutor(concurrency) as pool:
                answers = list(pool.map(client.ask, bodies))
            failed = [answer.error for answer in answers if answer.error]
            if failed:
                raise RuntimeError(f"{len(failed)} requests failed, the first: {failed[0]}")
            return [
                (_said(answer.choices[0]["message"]), answer.usage["completion_tokens"])
                for answer in answers
            ]

        ways = {"library": lambda: library.run(bodies), "server": served}
        same = _agreement(*(way() for way in ways.values()))
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, way in ways.items():
                start = time.perf_counter()
                tokens = sum(tokens for _, tokens in way())
                seconds = time.perf_counter() - start
                runs[name].append({"seconds": seconds, "tokens_per_s": tokens / seconds})
    medians = {
        name: {key: median(run[key] for run in each) for key in each[0]}
        for name, each in runs.items()
    }
    return {
        "requests": len(bodies),
        "concurrency": concurrency,
        "repeats": repeats,
        "model": model,
        "same_answers": same,
        "runs": runs,
        "medians": medians,
        "ratio": medians["server"]["tokens_per_s"] / medians["library"]["tokens_per_s"],
    }


def print_table(report: Mapping[str, Any]) -> None:
    """The medians, for a terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("", "seconds", "tokens/s", box=box.SIMPLE_HEAD)
    for name, values in report["medians"].items():
        table.add_row(name, f"{values['seconds']:.2f}", f"{values['tokens_per_s']:.0f}")
    console = Console()
    console.print(table)
    console.print(
        f"{report['requests']} requests, {report['concurrency']} at a time, medians of"
        f" {report['repeats']}; the server has {report['ratio']:.2f} of the library's tokens/s;"
        f" {report['same_answers']} of the answers are the same"
    )


def _bodies(limit: int, max_tokens: int) -> list[dict[str, Any]]:
    lines = read_requests(bundled_requests())
    bodies = [lines[i % len(lines)].body for i in range(limit)]
    dropped = ("model", "metadata", "stream")
    return [
        {
            **{key: value for key, value in body.items() if key not in dropped},
            "seed": n,
            "max_tokens": min(max_tokens, body.get("max_tokens") or max_tokens),
        }
        for n, body in enumerate(bodies)
    ]


class _Library:
    """The decoding loop, with what a server does for a request besides."""

    def __init__(self, model: str, batch_size: int, threads: int | None) -> None:
        from sampler.chat import Chat
        from sampler.model import load
        from sampler.serve.detect import guess_format

        loaded = load(model, threads=threads)
        self._chat = Chat(loaded, format=guess_format(loaded.tokenizer)[0], **_POLICY)
        self._batch_size = batch_size

    def run(self, bodies: Sequence[Mapping[str, Any]]) -> list[tuple]:
        from sampler.decoding import generate
        from sampler.params import SamplingParams

        chat, loaded = self._chat, self._chat.loaded
        prompts = [chat.prepare(body) for body in bodies]
        requests = [
            prompt.request(
                SamplingParams(
                    temperature=body.get("temperature", 1.0),
                    seed=body["seed"],
                    max_tokens=body["max_tokens"],
                    finish_in_budget=True,
                ),
                n,
            )
            for n, (prompt, body) in enumerate(zip(prompts, bodies, strict=True))
        ]
        done = generate(
            loaded.model,
            requests,
            tokenizer=loaded.tokenizer,
            stop_token_ids=loaded.stop_token_ids,
            batch_size=self._batch_size,
        )
        found: dict[int, tuple] = {}
        for completion in done:
            n = completion.key
            parsed = chat.parse(completion.text, prompts[n], bodies[n].get("tools") or [])
            found[n] = (_said(parsed.message), completion.steps)
        return [found[n] for n in range(len(bodies))]


@contextmanager
def _server(model: str, batch_size: int, threads: int | None) -> Iterator[str]:
    command = [sys.executable, "-m", "sampler.serve", "--model", model, "--port", "0"]
    command += ["--max-batch-size", str(batch_size)]
    command += ["--structural-tag-scope", "always", "--structural-tag-schema", "strict"]
    command += ["--threads", str(threads)] if threads else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        found = _READY.search(process.stdout.readline())
        if not found:
            raise ValueError("the server did not start; see above")
        yield found[1]
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def _said(message: Mapping[str, Any]) -> tuple:
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or []
    ]
    return message.get("content") or "", calls


def _agreement(library: list[tuple], server: list[tuple]) -> float:
    """The share of answers that are the same; the rest must be few enough for near-ties."""
    same = sum(one == other for one, other in zip(library, server, strict=True)) / len(library)
    if same < 0.9:
        raise RuntimeError(f"only {same:.0%} of the server's answers are the library's")
    return same
