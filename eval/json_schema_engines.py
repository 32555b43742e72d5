"""Three engines behind one interface: a schema in, a mask over bytes out.

The vocabulary is the 256 bytes and an end token: what a grammar accepts does not depend on the
tokenizer, and with bytes every text can be spelled in one way only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

END = 256
"""The end token."""

WIDTH = 257
"""The 256 bytes and the end token."""

ENGINES = ("ours", "xgrammar", "llguidance")


@dataclass(frozen=True)
class Prepared:
    """A schema as an engine takes it.

    Attributes:
        schema: what is compiled, a schema or the text of a grammar; None where it is refused.
        verdict: ``exact``, ``rewritten``, ``guarded`` or ``refused``; None from an engine that
            has no verdicts.
        reasons: of the verdict, as JSON.
        is_valid: the guard behind the mask, instance to bool; None where the mask stands alone.
        reads: the schema's own validator as the engine reads it, or None.
    """

    schema: Any
    verdict: str | None = None
    reasons: tuple[dict[str, Any], ...] = ()
    is_valid: Any = None
    reads: Any = None


def make_engine(name: str, *, undeclared_keys: str, **options: Any) -> Any:
    """An engine by name; ``options`` are those of ours.

    Raises:
        ValueError: it is not installed, or cannot do what is asked.
    """
    if name == "ours":
        return Ours(undeclared_keys=undeclared_keys, **options)
    if name == "xgrammar":
        return Xgrammar(undeclared_keys=undeclared_keys)
    return Llguidance(undeclared_keys=undeclared_keys)


class Xgrammar:
    """xgrammar alone, one thread, no cache; forbidden undeclared keys are its ``strict_mode``."""

    def __init__(self, *, undeclared_keys: str) -> None:
        import xgrammar

        self._strict = undeclared_keys == "forbid"
        self._compiler = xgrammar.GrammarCompiler(_info(), max_threads=1, cache_enabled=False)

    def prepare(self, schema: Any) -> Prepared:
        """The schema as this engine compiles it, with its verdict if it has any."""
        return Prepared(schema)

    def compile(self, schema: Any) -> XgrammarMatcher:
        """A matcher at the start of what `prepare` made of a schema."""
        return XgrammarMatcher(
            self._compiler.compile_json_schema(json.dumps(schema), strict_mode=self._strict)
        )


class Ours:
    """`grammar.schema.prepare`, and the compiler that serves requests.

    Args:
        options: of `grammar.schema.Options`.
    """

    def __init__(self, **options: Any) -> None:
        from grammar.compiler import Compiler

        # The time is kept by whoever runs us, and a thread that cannot be stopped would outlive it.
        self._compiler = Compiler(_info(), max_threads=1, timeout_s=None, max_tag_bytes=16 * 2**20)

        from grammar.schema import Options, prepare

        self._prepare, self._options = prepare, Options(**options)

    def prepare(self, schema: Any) -> Prepared:
        prepared = self._prepare(schema, options=self._options)
        reasons = tuple(
            {"pointer": r.pointer, "keyword": r.keyword, "kind": r.kind, "message": r.message}
            for r in prepared.reasons
        )
        guard = prepared.is_valid if prepared.verdict == "guarded" else None
        compiled = prepared.schema if prepared.grammar is None else prepared.grammar
        return Prepared(compiled, prepared.verdict, reasons, guard, prepared.is_valid)

    def compile(self, schema: Any) -> XgrammarMatcher:
        from xgrammar.structural_tag import GrammarFormat, JSONSchemaFormat, StructuralTag

        from grammar.formats.base import MAX_WHITESPACE
        from grammar.policy import Plan

        if isinstance(schema, str):
            content = GrammarFormat(grammar=schema)
        else:
            content = JSONSchemaFormat(json_schema=schema, max_whitespace_cnt=MAX_WHITESPACE)
        self._compiler.clear_cache()
        tag = StructuralTag(format=content)
        return XgrammarMatcher(self._compiler.compile(Plan(tag, None, (), None, (), "none")))


class XgrammarMatcher:
    """A matcher over bytes, at its start."""

    def __init__(self, compiled: Any) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self._mask = xgrammar.allocate_token_bitmask(1, WIDTH)

    def reset(self) -> None:
        """Go back to the start."""
        self._matcher.reset()

    def allowed(self) -> np.ndarray:
        """bool [WIDTH]."""
        self._matcher.fill_next_token_bitmask(self._mask)
        return _unpack(self._mask.numpy())

    def accept(self, token: int) -> bool:
        """Advance by a byte or the end token; False, and no change, where it is not allowed."""
        return self._matcher.accept_token(token)


class Llguidance:
    """llguidance alone, with its own options for JSON Schema."""

    def __init__(self, *, undeclared_keys: str) -> None:
        if undeclared_keys == "forbid":
            raise ValueError(
                "llguidance cannot forbid undeclared keys; use --undeclared-keys allow with it"
            )
        try:
            import llguidance
        except ImportError:
            raise ValueError(
                "llguidance is not installed; install masked-sampling[llguidance]"
            ) from None
        self._tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))

    def prepare(self, schema: Any) -> Prepared:
        return Prepared(schema)

    def compile(self, schema: Any) -> LlguidanceMatcher:
        return LlguidanceMatcher(self._tokenizer, schema)


class LlguidanceMatcher:
    """The same over llguidance.

    Raises:
        RuntimeError: llguidance refuses the schema.
    """

    def __init__(self, tokenizer: Any, schema: Any) -> None:
        from llguidance import LLMatcher

        grammar = LLMatcher.grammar_from_json_schema(schema)
        self._matcher = LLMatcher(tokenizer, grammar, log_level=0)
        if self._matcher.is_error():
            raise RuntimeError(self._matcher.get_error())

    def reset(self) -> None:
        self._matcher.reset()

    def allowed(self) -> np.ndarray:
        return _unpack(np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8))

    def accept(self, token: int) -> bool:
        if token == END:
            return self._matcher.is_accepting()
        return self._matcher.try_consume_tokens([token]) == 1


def _unpack(mask: np.ndarray) -> np.ndarray:
    return np.unpackbits(mask.view(np.uint8).ravel(), bitorder="little")[:WIDTH].astype(bool)


def _info() -> Any:
    from grammar.tokenizer import info_from_bytes

    return info_from_bytes(_Bytes().tokens, vocab_size=WIDTH, stop_token_ids=[END])


class _Bytes:
    """The vocabulary, as llguidance's ``TokenizerWrapper`` wants it."""

    eos_token_id = END
    bos_token_id = None
    special_token_ids = (END,)

    @cached_property
    def tokens(self) -> list[bytes]:
        return [bytes([byte]) for byte in range(256)] + [b"</s>"]

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)
