"""Other people's logits processors, as they document them, for `model.generate`.

xgrammar's is given the very grammars that ours is given. llguidance and outlines read a JSON
Schema: they are given that of a call of any of the batch's tools, without the format's markers
around it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

from eval.decoding_work import Item
from sampler.chat import Chat

Factory = Callable[[Sequence[Item]], Any]


def xgrammar(chat: Chat) -> Factory:
    """`xgrammar.contrib.hf`'s; it serves one call of generate, so each batch gets a new one."""
    from xgrammar.contrib.hf import LogitsProcessor as Processor

    return lambda items: Processor([item.prompt.grammar for item in items])


def llguidance(chat: Chat) -> Factory:
    """One made of llguidance's matchers and its functions for torch; it brings none of its own.

    Raises:
        ImportError: it is not installed.
    """
    from llguidance.hf import from_tokenizer

    loaded = chat.loaded
    tokenizer = from_tokenizer(
        loaded.tokenizer, n_vocab=loaded.vocab_size, eos_token=list(loaded.stop_token_ids)
    )
    return lambda items: _Llguidance(tokenizer, call_schema(items), len(items), loaded.vocab_size)


def outlines(chat: Chat) -> Factory:
    """outlines' own, of its default backend.

    Raises:
        ImportError: it is not installed.
    """
    import outlines
    from outlines.backends import get_json_schema_logits_processor

    model = outlines.from_transformers(chat.loaded.model, chat.loaded.tokenizer)
    made: dict[str, Any] = {}

    def factory(items: Sequence[Item]) -> Any:
        schema = json.dumps(call_schema(items))
        if schema not in made:
            # It works out its masks first, which takes it seconds to minutes.
            made[schema] = get_json_schema_logits_processor(None, model, schema)
        made[schema].reset()
        return made[schema]

    return factory


def call_schema(items: Sequence[Item]) -> dict[str, Any]:
    """JSON Schema of a call of any tool of these requests: its name and its arguments."""
    tools = {}
    for item in items:
        for tool in item.body["tools"]:
            tools.setdefault(tool["function"]["name"], tool["function"])
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "name": {"const": name},
                    "arguments": function.get("parameters") or {"type": "object"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for name, function in tools.items()
        ]
    }


class _Llguidance(LogitsProcessor):
    def __init__(self, tokenizer: Any, schema: dict[str, Any], rows: int, vocab_size: int) -> None:
        import llguidance
        import llguidance.torch

        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        self.matchers = [llguidance.LLMatcher(tokenizer, grammar) for _ in range(rows)]
        self.functions = llguidance.torch
        self.bitmask = self.functions.allocate_token_bitmask(rows, vocab_size)
        self.begun = False

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        last = input_ids[:, -1].tolist() if self.begun else ()
        for matcher, token in zip(self.matchers, last, strict=False):
            if not matcher.is_stopped():
                matcher.consume_token(token)
        self.begun = True
        for row, matcher in enumerate(self.matchers):
            if not matcher.is_stopped():
                self.functions.fill_next_token_bitmask(matcher, self.bitmask, row)
        self.functions.apply_token_bitmask_inplace(scores, self.bitmask.to(scores.device))
        return scores


PEERS: dict[str, Callable[[Chat], Factory]] = {
    "xgrammar": xgrammar,
    "llguidance": llguidance,
    "outlines": outlines,
}
