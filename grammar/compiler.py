"""Plans to compiled grammars: cached, bounded in time, size and memory, with errors that say where.

The key of the cache is the tag as JSON, which is what xgrammar reads: writing it is the whole price
of a warm request, and xgrammar pays the same.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import xgrammar
from pydantic_core import PydanticSerializationError

from grammar import deadline
from grammar.deadline import Deadline
from grammar.diagnosis import reason, schema_fault
from grammar.formats import Tool
from grammar.policy import Plan, arguments_schema, read_tools

# xgrammar's own errors are RuntimeErrors; pydantic refuses to write what is nested too deeply.
_FAILURES = (RuntimeError, PydanticSerializationError)


class GrammarError(ValueError):
    """A grammar that xgrammar cannot compile; the message names the tool where one is at fault."""


class GrammarTooLargeError(GrammarError):
    """A tag with more tools or more bytes than the compiler takes."""


class _NoRoomError(GrammarError):
    """Others compile, and did not make room in time."""


class Compiler:
    """Compiles plans for one vocabulary. Safe to share between threads.

    Masks are worked out when decoding first needs them. Working out all of them first takes seconds
    a tool on a vocabulary of 130,000 where strings exclude a marker, and most are never needed.

    Threads that ask for the same tag at the same time share one compilation.

    Args:
        info: from ``grammar.tokenizer.tokenizer_info``.
        cache_limit_bytes: memory for grammars (whole ones and shared parts) kept for reuse; the
            whole ones longest unused go first. A grammar grows as its masks are worked out, and is
            weighed again whenever it is asked for.
        max_threads: threads that one compilation may use.
        timeout_s: seconds after which a compilation is given up, or None; a deadline around it
            (``grammar.deadline``) counts where that is earlier. xgrammar has no way to stop one, so
            its thread runs on: the limit protects the caller, not the processor. What the thread
            finds in the end is cached.
        max_compilations: compilations at a time, those given up but still running included; a
            request beyond them waits, within its own time limit.
        max_tag_bytes: size of a tag, written as JSON.
        max_tools: tools in a tag.
    """

    def __init__(
        self,
        info: xgrammar.TokenizerInfo,
        *,
        cache_limit_bytes: int = 256 * 2**20,
        max_threads: int = 4,
        timeout_s: float | None = 60.0,
        max_compilations: int = 4,
        max_tag_bytes: int = 2**20,
        max_tools: int = 512,
    ) -> None:
        self.info = info
        self._timeout_s = timeout_s
        self._max_compilations = max_compilations
        self._max_tag_bytes = max_tag_bytes
        self._max_tools = max_tools
        self._limit = cache_limit_bytes // 2
        self._compiler = xgrammar.GrammarCompiler(
            info,
            max_threads=min(max_threads, os.cpu_count() or 1),
            cache_limit_bytes=self._limit,
            enable_dynamic_compilation=True,
        )
        # xgrammar does not keep a whole grammar that still grows, so they are kept here.
        self._cache = _Cache(self._limit)
        self._running: dict[str, Future[xgrammar.CompiledGrammar]] = {}
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(max_compilations)

    def compile(self, plan: Plan) -> xgrammar.CompiledGrammar | None:
        """The grammar of a plan, or None where the plan leaves decoding free.

        Raises:
            GrammarTooLargeError: more tools or bytes than the limits.
            GrammarError: it cannot be compiled, took too long, or allows no first token.
        """
        if plan.constraint is None:
            return None
        try:
            key = plan.constraint.model_dump_json()
        except PydanticSerializationError as error:
            raise _explained(plan, error) from error
        limit = self._limit_now()
        while True:
            with self._lock:
                cached = self._cache.get(key)
                if cached is not None:
                    return cached
                running = self._running.get(key)
                mine = running is None
                if mine:
                    self._check_size(key, plan)
                    running = self._running[key] = Future()
            if mine:
                self._start(key, plan, running, limit)
            try:
                return _result(running, limit)
            except _NoRoomError:
                # Another may have waited for less than this one can.
                if mine or (limit is not None and not limit.left()):
                    raise

    def _limit_now(self) -> Deadline | None:
        """The deadline of a compilation that is asked for now."""
        around = deadline.current()
        if self._timeout_s is None or (around is not None and around.left() < self._timeout_s):
            return around
        return Deadline(self._timeout_s)

    def _check_size(self, key: str, plan: Plan) -> None:
        if len(plan.constrained) > self._max_tools:
            raise GrammarTooLargeError(
                f"tools must be at most {self._max_tools:,} in one grammar; got"
                f" {len(plan.constrained):,}: offer fewer, or raise max_tools"
            )
        if (size := len(key.encode())) > self._max_tag_bytes:
            raise GrammarTooLargeError(
                f"the structural tag must be at most {self._max_tag_bytes:,} bytes of JSON; got"
                f" {size:,}: offer fewer tools, shorten their schemas, or raise max_tag_bytes"
            )

    def _start(
        self,
        key: str,
        plan: Plan,
        future: Future[xgrammar.CompiledGrammar],
        limit: Deadline | None,
    ) -> None:
        while not self._slots.acquire(timeout=_nap(limit)):
            if limit is None or limit.left():
                continue
            error = _NoRoomError(
                f"{self._max_compilations} other compilations, which may have been given up but"
                f" still run, left no room for this one within {limit.seconds:g} s; try again"
                " later, or raise max_compilations"
            )
            with self._lock:
                del self._running[key]
            future.set_exception(error)
            return

        def work() -> None:
            try:
                compiled = self._compile(plan)
            except BaseException as error:
                with self._lock:
                    del self._running[key]
                future.set_exception(error)
            else:
                with self._lock:
                    del self._running[key]
                    self._cache.put(key, compiled)
                future.set_result(compiled)
            finally:
                self._slots.release()

        threading.Thread(target=work, daemon=True, name="grammar-compile").start()

    def _compile(self, plan: Plan) -> xgrammar.CompiledGrammar:
        try:
            compiled = self._compiler.compile_structural_tag(plan.constraint)
        except _FAILURES as error:
            raise _explained(plan, error) from error
        if not _allows_a_token(compiled):
            raise GrammarError(
                "the grammar allows no first token: the vocabulary cannot spell what it asks for,"
                " or a schema allows no value at all"
            )
        return compiled

    def clear_cache(self) -> None:
        """Drop every cached grammar; those in use stay valid."""
        with self._lock:
            self._cache.clear()
        self._compiler.clear_cache()

    @property
    def cache_bytes(self) -> int:
        """Bytes held by the cache."""
        with self._lock:
            return self._cache.weigh() + self._compiler.get_cache_size_bytes()


def _result(
    running: Future[xgrammar.CompiledGrammar], limit: Deadline | None
) -> xgrammar.CompiledGrammar:
    while True:
        try:
            return running.result(_nap(limit))
        except TimeoutError:
            if limit is None or limit.left():
                continue
        raise GrammarError(
            f"the grammar was not compiled within {limit.seconds:g} s; simplify the tools' schemas"
            " (large bounds and deep nesting cost most) or raise timeout_s"
        )


def _nap(limit: Deadline | None) -> float | None:
    return None if limit is None else limit.nap()


class _Cache:
    """Grammars by key, the longest unused first; the caller holds the lock."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._grammars: OrderedDict[str, xgrammar.CompiledGrammar] = OrderedDict()
        self._bytes: dict[str, int] = {}
        self._total = 0

    def get(self, key: str) -> xgrammar.CompiledGrammar | None:
        compiled = self._grammars.get(key)
        if compiled is not None:
            self.put(key, compiled)
        return compiled

    def put(self, key: str, compiled: xgrammar.CompiledGrammar) -> None:
        self._grammars[key] = compiled
        self._grammars.move_to_end(key)
        size = compiled.memory_size_bytes
        self._total += size - self._bytes.get(key, 0)
        self._bytes[key] = size
        while len(self._grammars) > 1 and self._total > self._limit:
            oldest, _ = self._grammars.popitem(last=False)
            self._total -= self._bytes.pop(oldest)

    def weigh(self) -> int:
        return sum(compiled.memory_size_bytes for compiled in self._grammars.values())

    def clear(self) -> None:
        self._grammars.clear()
        self._bytes.clear()
        self._total = 0


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Check tools before they are used: shape, names, and that each schema compiles.

    Raises:
        ValueError: the shape or a name is wrong.
        GrammarError: a schema cannot be compiled; the message says where in it.
    """
    checked = [
        Tool(t["function"]["name"], arguments_schema(t["function"], "strict"))
        for t in read_tools(tools)
    ]
    if (guilty := _guilty(checked)) is not None:
        raise guilty


def _explained(plan: Plan, error: Exception) -> GrammarError:
    what = plan.answer_field or "the grammar"
    return _guilty(plan.constrained) or GrammarError(f"{what} cannot be compiled: {reason(error)}")


def _guilty(tools: Sequence[Tool]) -> GrammarError | None:
    for tool in tools:
        if (fault := schema_fault(tool.schema)) is not None:
            where = f"at {fault.pointer}" if fault.pointer else "at its root"
            return GrammarError(
                f"the schema of tool {tool.name!r} cannot be compiled, {where}: {fault.reason}"
            )
    return None


def _allows_a_token(compiled: xgrammar.CompiledGrammar) -> bool:
    vocab_size = compiled.tokenizer_info.vocab_size
    mask = xgrammar.allocate_token_bitmask(1, vocab_size)
    xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(mask)
    if spare := -vocab_size % 32:
        mask[0, -1] &= (1 << (32 - spare)) - 1
    return bool(mask.any())
