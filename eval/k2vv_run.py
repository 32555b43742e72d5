"""One run of ``python -m eval.k2vv``: its input checked, its modes run or resumed, its report."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from eval.endpoint_request import EndpointRequests, public
from eval.engines import Engine, Sampling
from eval.progress import Progress
from eval.provenance import provenance, versions
from eval.records import (
    ResultsFile,
    RowsFile,
    RunMismatch,
    part_of,
    read_results,
    summarise,
)
from eval.report import MODES, compare, print_tables, write_report
from eval.request_lines import RequestLine
from eval.rows import ResultRow
from eval.sharding import Place, Processes
from eval.workloads import limited, load_workload, with_tool_choice

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens")
_MOST_CONNECTIONS = 1000
_LISTED = 10

BAD_INPUT = (
    "ValueError",
    "TypeError",
    "SchemaError",
    "GrammarError",
    "GrammarTooLargeError",
    "TemplateError",
    "TemplateSyntaxError",
)
"""Error types of rows whose request itself is at fault."""


class Run:
    """One invocation. Making it checks its input, before anything heavy is loaded.

    args: of `eval.k2vv.build_parser`.
    argv: what they were parsed from.

    Raises:
        ValueError: an argument or a line of the requests; the message names it.
    """

    def __init__(self, args: argparse.Namespace, argv: Sequence[str]) -> None:
        self.args, self.argv = args, argv
        self.remote = args.engine == "openai" or (args.engine is None and args.base_url is not None)
        self.modes = MODES if args.mode == "both" else (args.mode,)
        self.place = Place.of_environment()
        self.extra_body = _object(args.extra_body)
        self._check_arguments()
        workload = load_workload(args.requests, skip_bad_lines=args.skip_bad_lines)
        self.requests = limited(workload.requests, args.limit, args.per_group)
        if args.tool_choice:
            self.requests = with_tool_choice(self.requests, args.tool_choice)
        self.answers = workload.answers
        self.reference = read_results(args.reference) if args.reference else workload.reference
        self.model = args.model or (_names(self.requests) if self.remote else "nano")
        self.notes: list[str] = list(workload.notes)

    def run(self) -> int:
        """Run what is not done yet, report on all of it; returns the exit code."""
        if not self.remote:
            self._load()
        rows: dict[str, list[ResultRow]] = {}
        seconds: dict[str, float | None] = {}
        with Processes(self.place) as processes:
            for mode in self.modes:
                rows[mode], seconds[mode] = self._mode(mode, processes)
        if not self.place.first:
            return 0
        self._report(rows, seconds)
        return self._failures(rows)

    def _load(self) -> None:
        from eval.engine_hf import fingerprint
        from sampler.model import load

        args = self.args
        device = self.place.device(args.device)
        self.loaded = load(self.model, device=device, dtype=args.dtype, threads=args.threads)
        self.weights = fingerprint(self.loaded)
        self.notes += self.loaded.notes

    def _engine(self, mode: str) -> Engine:
        args, constrained = self.args, mode == "constrained"
        if not self.remote:
            from eval.engine_hf import HfEngine

            return HfEngine(
                self.loaded,
                weights=self.weights,
                constrained=constrained,
                sampling=self._sampling(),
                batch_size=args.batch_size,
                policy=self._policy(),
                finish_in_budget=args.finish_in_budget,
            )
        from eval.engine_openai import OpenAIEngine

        requests = EndpointRequests(
            model=args.model,
            sampling=self._sampling(),
            via=args.constrained_via if constrained else None,
            extra_body=self.extra_body,
            policy=self._policy(),
        )
        return OpenAIEngine(
            args.base_url,
            requests,
            api_key=args.api_key or os.environ.get("OPENAI_API_KEY"),
            concurrency=args.concurrency,
            timeout=args.timeout,
            retries=args.retries,
        )

    def _mode(self, mode: str, processes: Processes) -> tuple[list[ResultRow], float | None]:
        """Run what is not done yet of one mode; all its rows, and the seconds of a whole run.

        Only rank 0 returns rows.
        """
        engine = self._engine(mode)
        try:
            if self.place.first:
                return self._first(mode, engine, processes)
            self._other(mode, engine, processes)
            return [], None
        finally:
            engine.close()

    def _first(
        self, mode: str, engine: Engine, processes: Processes
    ) -> tuple[list[ResultRow], float | None]:
        """The only process, or the one that keeps the results file."""
        started, clock = datetime.now(), time.monotonic()
        described = engine.describe()
        try:
            file = ResultsFile(
                self._results(mode),
                run_key={"mode": mode, **described, "versions": versions()},
                overwrite=self.args.overwrite,
            )
        except (OSError, ValueError) as error:
            processes.told(str(error))
            raise
        with file:
            done = processes.told(file.done(self.requests))
            try:
                if self.place.size == 1:
                    self._answer(mode, engine, done, file, file)
                else:
                    with RowsFile(part_of(file.path, self.place.rank)) as part:
                        self._answer(mode, engine, done, part, file)
                    processes.wait_for_all()
                    file.take_in()
            except BaseException:
                # What went wrong is on its way up: a full disk must not hide it.
                with suppress(OSError):
                    self._summarise(mode, file, described, started)
                raise
            self._summarise(mode, file, described, started)
            self.notes += file.notes
            if done:
                self.notes.append(f"{mode}: {len(done):,} of the rows are from an earlier run.")
            if self.remote:
                self.notes.append(f"{mode}: sent to {described['base_url']}: {described['sent']}.")
            # A resumed run's clock says nothing about the whole.
            seconds = None if done else time.monotonic() - clock
            return file.rows(self.requests), seconds

    def _other(self, mode: str, engine: Engine, processes: Processes) -> None:
        """A process that answers its share."""
        done = processes.told(None)
        if isinstance(done, str):
            raise RunMismatch(f"rank {self.place.rank} stops with rank 0: {done}")
        with RowsFile(part_of(self._results(mode), self.place.rank)) as part:
            self._answer(mode, engine, done, part, part)
        processes.wait_for_all()

    def _answer(
        self, mode: str, engine: Engine, done: set[int], into: RowsFile, earlier: RowsFile
    ) -> None:
        """Answer this process's share of what is not done; rows are on disk as they come."""
        share = self.place.share([r for r in self.requests if r.data_index not in done])
        total = len(done) + len(share)
        with Progress(mode, total, earlier.iter_rows(self.requests)) as progress:
            for row in engine.run(share):
                into.append(row)
                progress.add(row)

    def _results(self, mode: str) -> Path:
        return self.args.output / mode / "results.jsonl"

    def _summarise(
        self, mode: str, file: ResultsFile, described: dict[str, Any], started: datetime
    ) -> None:
        summary = summarise(
            file.iter_rows(self.requests),
            model=self.model,
            started_at=started,
            finished_at=datetime.now(),
            expected={line.data_index for line in self.requests},
        )
        summary["masked_sampling"]["engine"] = described
        _write_json(self._results(mode).with_name("summary.json"), summary)

    def _report(self, rows: dict[str, list[ResultRow]], seconds: dict[str, float | None]) -> None:
        from rich.console import Console

        folder = self.args.output
        comparison = compare(
            self.requests,
            rows.get("free"),
            rows.get("constrained"),
            self.reference,
            model=self.model,
            settings=self._settings(),
            seconds=seconds,
            notes=self.notes,
            answers=self.answers,
        )
        comparison["provenance"] = provenance("eval.k2vv", _without_key(self.argv))
        _write_json(folder / "comparison.json", comparison)
        print_tables(comparison, Console())
        page = write_report(comparison, folder)
        print(f"written to {folder}: comparison.json, {page.name} and its figures")

    def _failures(self, rows: dict[str, list[ResultRow]]) -> int:
        """Say which requests failed; 0 without any, else 1, or 2 where a request itself is bad."""
        failed = [(mode, row) for mode in rows for row in rows[mode] if not row.succeeded]
        for mode, row in failed[:_LISTED]:
            message = (row.response or {}).get("error_message", "unknown error")
            print(f"k2vv: {mode}: request {row.data_index} failed: {message}", file=sys.stderr)
        if len(failed) > _LISTED:
            print(f"k2vv: and {len(failed) - _LISTED} more failed", file=sys.stderr)
        bad = any((row.response or {}).get("error_type") in BAD_INPUT for _, row in failed)
        return (2 if bad else 1) if failed else 0

    def _sampling(self) -> Sampling:
        args = self.args
        given = {name: getattr(args, name) for name in _SAMPLING}
        return Sampling(**given, base_seed=args.seed)

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
        args, settings = self.args, {}
        for name in _SAMPLING:
            values = sorted(self._values(name))
            if values:
                one = len(values) == 1
                settings[name] = values[0] if one else f"{values[0]}..{values[-1]}"
        if self.remote:
            if args.seed is not None:
                settings["seed"] = args.seed
            if "constrained" in self.modes:
                settings["constrained_via"] = args.constrained_via
            if args.constrained_via != "structural-tag":
                return settings
        else:
            settings["seed"] = args.seed or 0
        return {
            **settings,
            "parser": args.tool_call_parser,
            "scope": args.structural_tag_scope,
            "schema_mode": args.structural_tag_schema,
            **({"finish_in_budget": True} if args.finish_in_budget else {}),
        }

    def _values(self, name: str) -> set[float]:
        """A sampling setting's values over the requests; an endpoint's defaults are unknown."""
        sampling, values = self._sampling(), set()
        for line in self.requests:
            try:
                params = sampling.params(line)
            except (TypeError, ValueError):
                continue
            names = ("max_tokens", "max_completion_tokens") if name == "max_tokens" else (name,)
            said = name in sampling.given() or any(n in line.body for n in names)
            if said or not self.remote:
                values.add(getattr(params, name))
        return values

    def _check_arguments(self) -> None:
        args = self.args
        self._sampling().params(RequestLine(data_index=1, body={}))
        for name in ("batch_size", "threads", "concurrency"):
            value = getattr(args, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if args.concurrency > _MOST_CONNECTIONS:
            raise ValueError(
                f"--concurrency must be at most {_MOST_CONNECTIONS:,}, got {args.concurrency:,}"
            )
        if args.retries < 0:
            raise ValueError(f"--retries must be at least 0, got {args.retries}; 0 is none")
        if not 0 < args.timeout < math.inf:
            raise ValueError(f"--timeout must be a number of seconds above 0, got {args.timeout}")
        if not self.remote:
            from grammar.formats import get_format

            get_format(args.tool_call_parser)
        else:
            self._check_endpoint()

    def _check_endpoint(self) -> None:
        args = self.args
        if not (args.base_url or "").startswith(("http://", "https://")):
            raise ValueError(
                "--engine openai needs --base-url, an address such as http://localhost:8000/v1;"
                f" got {args.base_url!r}"
            )
        if args.constrained_via == "structural-tag":
            from grammar.formats import get_format

            get_format(args.tool_call_parser)
        if args.constrained_via == "server" and len(self.modes) > 1:
            raise ValueError(
                "--constrained-via server sends both modes the same; run --mode free against a"
                " server that does not constrain and --mode constrained against one that does"
            )
        if self.place.size > 1:
            raise ValueError(
                "torchrun shares out requests to local models; ask an endpoint from one process,"
                " with --concurrency"
            )


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--extra-body must be a JSON object; {error} in {text!r}") from None
    if not isinstance(value, dict):
        raise ValueError(f"--extra-body must be a JSON object; got {text}")
    return value


def _names(requests: Sequence[RequestLine]) -> str:
    """The models that requests name, for people."""
    unnamed = sum(not line.body.get("model") for line in requests)
    if unnamed:
        raise ValueError(
            f"{unnamed:,} of {len(requests):,} requests name no model, and an endpoint wants to be"
            " told; give --model"
        )
    names = dict.fromkeys(str(line.body["model"]) for line in requests)
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} models"


def _without_key(argv: Sequence[str]) -> list[str]:
    """The arguments, less the key and any password in the address."""
    shown, flag = [], ""
    for word in argv:
        name, equals, value = word.partition("=")
        if flag == "--api-key":
            word = "..."
        elif flag == "--base-url":
            word = public(word)
        elif equals and name == "--api-key":
            word = "--api-key=..."
        elif equals and name == "--base-url":
            word = f"{name}={public(value)}"
        flag = word
        shown.append(word)
    return shown


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)
