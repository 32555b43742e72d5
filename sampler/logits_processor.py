"""The same masks for transformers' own loop: `model.generate(logits_processor=[...])`.

>>> import json
>>> from sampler.logits_processor import GrammarLogitsProcessor
>>> tool = {
...     "type": "function",
...     "function": {
...         "name": "set_light",
...         "parameters": {
...             "type": "object",
...             "properties": {"on": {"type": "boolean"}},
...             "required": ["on"],
...             "additionalProperties": False,
...         },
...     },
... }
>>> body = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
>>> processor = GrammarLogitsProcessor.for_requests(model, tokenizer, body)
>>> prompt = tokenizer.apply_chat_template(
...     [{"role": "user", "content": "Turn the light off."}],
...     tools=[tool],
...     add_generation_prompt=True,
...     return_tensors="pt",
... )
>>> out = model.generate(**prompt, logits_processor=[processor], max_new_tokens=60)
>>> text = tokenizer.decode(out[0, prompt.input_ids.shape[1] :], skip_special_tokens=True)
>>> json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
{'name': 'set_light', 'arguments': {'on': False}}

A processor may serve any number of `generate` calls. It goes by the ids: those of its last call and
one token more go on with that call, all others begin a new one and are taken for prompts, whatever
they hold. So a text that max_new_tokens has cut can be handed to `generate` again and goes on where
it was.

Rows of different lengths are padded on the left, as `generate` wants it. Decoding that reorders its
rows or takes tokens back is refused: beam search, assisted decoding, prompt lookup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import LogitsProcessor

from grammar.compiler import Compiler
from grammar.formats import Format, get_format
from grammar.matcher import MatcherBatch
from grammar.policy import plan
from grammar.tokenizer import tokenizer_info
from kernels import bitmask as masks
from sampler.model import stop_token_ids


class GrammarLogitsProcessor(LogitsProcessor):
    """Forbids, row by row, what a grammar does.

    Args:
        grammars: compiled (`grammar.compiler.Compiler.compile`, or any of xgrammar's), one a
            prompt, None for a prompt that decodes freely; or one for all prompts, however many.
        sequences_per_prompt: num_return_sequences of `generate`.

    Raises:
        ValueError: no grammar, or grammars that were compiled for different vocabulary sizes.
    """

    supports_continuous_batching = False

    def __init__(
        self, grammars: Any | Sequence[Any | None], *, sequences_per_prompt: int = 1
    ) -> None:
        self._for_all = not isinstance(grammars, Sequence)
        self._grammars = [grammars] if self._for_all else list(grammars)
        self._repeats = sequences_per_prompt
        widths = {g.tokenizer_info.vocab_size for g in self._grammars if g is not None}
        if len(widths) != 1:
            raise ValueError(
                "grammars must hold at least one, all compiled for the width of the model's"
                f" logits; got vocabulary sizes {sorted(widths)}"
            )
        self._width = widths.pop()
        self.reset()

    @classmethod
    def for_requests(
        cls,
        model: Any,
        tokenizer: Any,
        bodies: Mapping[str, Any] | Sequence[Mapping[str, Any] | None],
        *,
        format: str | Format = "hermes",
        sequences_per_prompt: int = 1,
        **policy: Any,
    ) -> GrammarLogitsProcessor:
        """The processor of OpenAI chat-completions bodies.

        Args:
            model, tokenizer: what `generate` is called on, and what reads its ids.
            bodies: their `tools`, `tool_choice` and `parallel_tool_calls` count; one a prompt, None
                for a free one, or one for all prompts.
            format: how the model writes its calls.
            policy: see `grammar.policy.plan`. Here all tools are strict unless told otherwise.

        Raises:
            ValueError: a body that cannot be meant, a grammar that does not compile, or a tokenizer
                that does not fit the model.
        """
        format = get_format(format)
        policy = {"scope": "always", "schema_mode": "strict", **policy}
        info = tokenizer_info(
            tokenizer,
            vocab_size=model.get_output_embeddings().weight.shape[0],
            stop_token_ids=stop_token_ids(model, tokenizer),
            markers=format.markers,
        )
        compiler = Compiler(info)

        def grammar(body: Mapping[str, Any] | None) -> Any | None:
            return None if body is None else compiler.compile(plan(body, format=format, **policy))

        one = isinstance(bodies, Mapping)
        return cls(
            grammar(bodies) if one else [grammar(body) for body in bodies],
            sequences_per_prompt=sequences_per_prompt,
        )

    def reset(self) -> None:
        """Forget the last call: the next ids are prompts, whatever they are."""
        self._ids: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores [B, V] of what follows input_ids [B, T], -inf where the grammar forbids it.

        Raises:
            ValueError: scores or batch do not fit the grammars.
            NotImplementedError: rows were reordered or tokens taken back.
            RuntimeError: a token came that the mask forbade, a grammar dead-ends, or `generate`
                goes on although every row has ended.
        """
        if scores.shape[1] != self._width:
            raise ValueError(
                f"grammars cover {self._width:,} tokens but scores have {scores.shape[1]:,}"
                f" columns; compile them with vocab_size={scores.shape[1]}"
            )
        try:
            self._follow(input_ids)
            return self._masked(scores)
        except Exception:
            self.reset()
            raise

    def _follow(self, ids: torch.Tensor) -> None:
        last = self._ids
        if last is None or ids.shape[0] != last.shape[0]:
            self._begin(ids)
        elif ids.shape[1] == last.shape[1] + 1 and torch.equal(ids[:, :-1], last):
            self._accept(ids[:, -1].tolist())
        elif self._same_prompts(ids) and self._prompt < ids.shape[1] <= last.shape[1] + 1:
            raise NotImplementedError(
                "the rows have the prompts of the last call but another continuation: beam search,"
                " assisted decoding and prompt lookup are not supported; if these are new prompts"
                " that extend the last ones, call reset() before generate"
            )
        else:
            self._begin(ids)
        self._ids = ids.clone()

    def _same_prompts(self, ids: torch.Tensor) -> bool:
        return torch.equal(ids[:, : self._prompt], self._ids[:, : self._prompt])

    def _begin(self, ids: torch.Tensor) -> None:
        self._prompt = ids.shape[1]
        grammars = self._grammars * (ids.shape[0] if self._for_all else 1)
        if not self._for_all:
            grammars = [g for g in grammars for _ in range(self._repeats)]
        if len(grammars) != ids.shape[0]:
            raise ValueError(
                f"{len(self._grammars)} grammars were given, with sequences_per_prompt="
                f"{self._repeats}, but input_ids has {ids.shape[0]} rows; give one a prompt, and"
                " sequences_per_prompt=n for num_return_sequences=n"
            )
        self._rows = [row for row, grammar in enumerate(grammars) if grammar is not None]
        self._running = set(self._rows)
        self._matchers = MatcherBatch(grammars, vocab_size=self._width)
        self._stops = {row: grammars[row].tokenizer_info.stop_token_ids for row in self._rows}

    def _accept(self, tokens: list[int]) -> None:
        for row in sorted(self._running):
            if not self._matchers.accept(row, tokens[row]):
                raise RuntimeError(
                    f"row {row} was given token {tokens[row]}, which its mask forbade: another"
                    " logits processor lifted its score, or something else than the scores chose"
                    " it (beam search, assisted decoding)"
                )
            if self._matchers.is_terminated(row):
                # What follows is padding. Whoever does not pad can only repeat the end.
                self._running.remove(row)
                allowed = torch.zeros((1, self._width), dtype=torch.bool)
                allowed[0, list(self._stops[row])] = True
                self._matchers.bitmask[row] = masks.pack(allowed)[0]
        if not self._running and len(self._rows) == len(tokens):
            stops = sorted({stop for row in self._rows for stop in self._stops[row]})
            raise RuntimeError(
                "every row has ended, yet generate goes on: pass it every stop token of the"
                f" grammars, eos_token_id={stops}; or, if this is a new prompt that extends the"
                " last, call reset() before generate"
            )

    def _masked(self, scores: torch.Tensor) -> torch.Tensor:
        self._matchers.fill(self._running)
        mask = self._matchers.bitmask[self._rows]
        if spare := -self._width % masks.WORD_BITS:
            mask[:, -1] &= (1 << (masks.WORD_BITS - spare)) - 1
        live = mask.any(1).tolist()
        if not all(live):
            row = self._rows[live.index(False)]
            made = self._ids[row, self._prompt :].tolist()
            raise RuntimeError(
                f"the grammar of row {row} dead-ends: it allows no token after {made[-24:]}, of"
                f" {len(made)}; a sound grammar cannot, so please report it with the grammar"
            )
        forbidden = masks.unpack(mask.to(scores.device), self._width).logical_not_()
        if len(self._rows) == len(scores):
            return scores.masked_fill(forbidden, -torch.inf)
        scores = scores.clone()
        scores[self._rows] = scores[self._rows].masked_fill(forbidden, -torch.inf)
        return scores
