"""Worker processes that may hang or die: each job still comes to an end of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

try:
    import resource
except ImportError:  # pragma: no cover - only on Windows
    resource = None

_START_LIMIT_S = 120.0
_START_ATTEMPTS = 3
_PRELOAD = ["xgrammar", "jsonschema", "eval.json_schema_judge"]


@dataclass(frozen=True)
class Failure:
    """A job without a result.

    Attributes:
        kind: ``error`` (it raised), ``timeout``, or ``crash`` (its process died).
        stage: what it was doing, as it last said.
        message: the exception, or how the process ended.
    """

    kind: str
    stage: str
    message: str


class StartError(RuntimeError):
    """Workers cannot be made; the message is that of the exception in the worker."""


def run_jobs(
    make: Callable[[], Callable[[Any, Callable[[str], None]], Any]],
    jobs: Sequence[Any],
    *,
    workers: int,
    timeout_s: float,
    memory_bytes: int | None = None,
) -> Iterator[tuple[int, Any]]:
    """Do jobs in processes of their own; a process that hangs or dies is replaced.

    Args:
        make: called once in each process (so it must pickle); returns the function that does a
            job, given the job and a function to say what stage it is at.
        workers: processes.
        timeout_s: for one job; its process is then killed.
        memory_bytes: address space of a process, None for no limit.

    Yields:
        Number of a job and its result or `Failure`, in the order in which they end.

    Raises:
        StartError: `make` raised, or processes died before they were ready, time and again.
    """
    todo = deque(enumerate(jobs))
    pool = [_Worker(make, timeout_s, memory_bytes) for _ in range(min(workers, len(jobs)))]
    try:
        while todo or any(worker.job is not None for worker in pool):
            for worker in pool:
                if todo and worker.idle:
                    worker.give(*todo.popleft())
            for worker in _awake(pool):
                if ended := worker.hear():
                    yield ended
    finally:
        for worker in pool:
            worker.kill()


def _awake(pool: Sequence[_Worker]) -> list[_Worker]:
    """The workers that have said something, died, or run out of time; waits for one."""
    busy = [worker for worker in pool if not worker.idle]
    nap = min(worker.deadline for worker in busy) - time.monotonic()
    heard = wait([worker.pipe for worker in busy], max(0.0, nap))
    now = time.monotonic()
    return [worker for worker in busy if worker.pipe in heard or worker.deadline <= now]


class _Worker:
    """One process at a time, and the job it has."""

    def __init__(self, make: Any, timeout_s: float, memory_bytes: int | None) -> None:
        self._make, self._timeout_s, self._memory_bytes = make, timeout_s, memory_bytes
        self.job: int | None = None
        self._starts = 0
        self._start()

    @property
    def idle(self) -> bool:
        return self._ready and self.job is None

    def give(self, number: int, job: Any) -> None:
        self.job, self._stage = number, ""
        self.deadline = time.monotonic() + self._timeout_s
        self.pipe.send(job)

    def hear(self) -> tuple[int, Any] | None:
        """Read what the process says; the number and the end of its job, if that has come."""
        try:
            while self.pipe.poll():
                kind, value = self.pipe.recv()
                if kind == "failed":
                    raise StartError(value)
                if kind == "done":
                    return self._end(value)
                if kind == "ready":
                    self._ready, self._starts = True, 0
                self._stage = value
        except (EOFError, ConnectionError):
            self._process.join()
            return self._fail("crash", _ending(self._process.exitcode))
        if self.deadline <= time.monotonic():
            return self._fail("timeout", f"not done within {self._timeout_s:g} s")
        return None

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()

    def _start(self) -> None:
        if self._starts == _START_ATTEMPTS:
            raise StartError(f"no worker starts: {_ending(self._process.exitcode)}")
        self._starts += 1
        context = _context()
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, self._make, self._memory_bytes)
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._ready, self._stage = False, ""
        self.deadline = time.monotonic() + _START_LIMIT_S

    def _end(self, result: Any) -> tuple[int, Any] | None:
        number, self.job = self.job, None
        return None if number is None else (number, result)

    def _fail(self, kind: str, message: str) -> tuple[int, Any] | None:
        self.kill()
        failure = Failure(kind, self._stage, message)
        self._start()
        return self._end(failure)


def described(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def _context() -> Any:
    """Processes are forked from a server that has imported the slow packages once."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with status {code}"


def _work(pipe: Connection, make: Any, memory_bytes: int | None) -> None:
    """The life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Libraries write warnings here, some for each schema.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        do = make()
    except Exception as error:
        pipe.send(("failed", str(error) or type(error).__name__))
        return
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if memory_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    pipe.send(("ready", ""))
    stage = ""

    def say(name: str) -> None:
        nonlocal stage
        stage = name
        pipe.send(("stage", name))

    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            result = do(job, say)
        except Exception as error:
            result = Failure("error", stage, described(error))
        stage = ""
        pipe.send(("done", result))
