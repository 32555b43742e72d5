"""Plans to compiled grammars: cached, bounded, and with errors that name the tool."""

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import xgrammar
from pydantic_core import PydanticSerializationError
from xgrammar.structural_tag import JSONSchemaFormat, StructuralTag

from grammar.formats import Tool
from grammar.formats.base import MAX_WHITESPACE
from grammar.policy import Plan, arguments_schema, read_tools

# xgrammar's own errors are RuntimeErrors; pydantic refuses to write what is nested too deeply.
_FAILURES = (RuntimeError, PydanticSerializationError)


class GrammarError(ValueError):
    """A grammar that xgrammar cannot compile; the message names the tool where one is at fault."""


class Compiler:
    """Compiles plans for one vocabulary. Safe to share between threads.

    Masks are worked out when decoding first needs them. Working out all of them first takes seconds
    a tool on a vocabulary of 130,000 where strings exclude a marker, and most are never needed.

    Args:
        info: from ``grammar.tokenizer.tokenizer_info``.
        cache_limit_bytes: memory for grammars (whole ones and shared parts) kept for reuse; the
            whole ones longest unused go first.
        max_threads: threads that one compilation may use.
        timeout_s: seconds after which a compilation is given up, or None. xgrammar has no way to
            stop one, so its thread runs on: the limit protects the caller, not the processor.
    """

    def __init__(
        self,
        info: xgrammar.TokenizerInfo,
        *,
        cache_limit_bytes: int = 256 * 2**20,
        max_threads: int = 4,
        timeout_s: float | None = 60.0,
    ) -> None:
        self.info = info
        self._timeout_s = timeout_s
        self._limit = cache_limit_bytes // 2
        self._compiler = xgrammar.GrammarCompiler(
            info,
            max_threads=min(max_threads, os.cpu_count() or 1),
            cache_limit_bytes=self._limit,
            enable_dynamic_compilation=True,
        )
        # xgrammar does not keep a whole grammar that still grows, so they are kept here.
        self._cache: OrderedDict[str, xgrammar.CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, plan: Plan) -> xgrammar.CompiledGrammar | None:
        """The grammar of a plan, or None where the plan leaves decoding free.

        Raises:
            GrammarError: it cannot be compiled, took too long, or allows no first token.
        """
        if plan.constraint is None:
            return None
        try:
            key = plan.constraint.model_dump_json()
            with self._lock:
                if key in self._cache:
                    self._cache.move_to_end(key)
                    return self._cache[key]
            compiled = self._compile(plan.constraint)
        except _FAILURES as error:
            _raise_guilty(plan.constrained)
            raise GrammarError(f"the grammar cannot be compiled: {_reason(error)}") from error
        if not _allows_a_token(compiled):
            raise GrammarError(
                "the grammar allows no first token: the vocabulary cannot spell what it asks for,"
                " or a schema allows no value at all"
            )
        with self._lock:
            self._cache[key] = compiled
            while len(self._cache) > 1 and self._held() > self._limit:
                self._cache.popitem(last=False)
        return compiled

    def _compile(self, tag: StructuralTag) -> xgrammar.CompiledGrammar:
        if self._timeout_s is None:
            return self._compiler.compile_structural_tag(tag)
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append(self._compiler.compile_structural_tag(tag))
            except BaseException as error:
                outcome.append(error)

        thread = threading.Thread(target=work, daemon=True, name="grammar-compile")
        thread.start()
        thread.join(self._timeout_s)
        if not outcome:
            raise GrammarError(
                f"the grammar was not compiled within {self._timeout_s:g} s; simplify the tools'"
                " schemas (large bounds and deep nesting cost most) or raise timeout_s"
            )
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    def clear_cache(self) -> None:
        """Drop every cached grammar; those in use stay valid."""
        with self._lock:
            self._cache.clear()
        self._compiler.clear_cache()

    @property
    def cache_bytes(self) -> int:
        """Bytes held by the cache."""
        with self._lock:
            return self._held() + self._compiler.get_cache_size_bytes()

    def _held(self) -> int:
        return sum(compiled.memory_size_bytes for compiled in self._cache.values())


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Check tools before they are used: shape, names, and that each schema compiles.

    Raises:
        ValueError: the shape or a name is wrong.
        GrammarError: a schema cannot be compiled.
    """
    _raise_guilty(
        [
            Tool(t["function"]["name"], arguments_schema(t["function"], "strict"))
            for t in read_tools(tools)
        ]
    )


def _raise_guilty(tools: Sequence[Tool]) -> None:
    for tool in tools:
        content = JSONSchemaFormat(json_schema=dict(tool.schema), max_whitespace_cnt=MAX_WHITESPACE)
        try:
            xgrammar.Grammar.from_structural_tag(StructuralTag(format=content))
        except _FAILURES as error:
            raise GrammarError(
                f"the schema of tool {tool.name!r} cannot be compiled: {_reason(error)}"
            ) from error


def _reason(error: Exception) -> str:
    # xgrammar puts a time and a source line before the sentence.
    text = re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", str(error).strip())
    return " ".join(text.split())


def _allows_a_token(compiled: xgrammar.CompiledGrammar) -> bool:
    vocab_size = compiled.tokenizer_info.vocab_size
    mask = xgrammar.allocate_token_bitmask(1, vocab_size)
    xgrammar.GrammarMatcher(compiled).fill_next_token_bitmask(mask)
    if spare := -vocab_size % 32:
        mask[0, -1] &= (1 << (32 - spare)) - 1
    return bool(mask.any())
