"""Rows of a model and its KV cache: prompts join, tokens are appended, rows leave.

Rows lie side by side in slots. A slot that holds no token of a row (padding on the left of a short
prompt, or of a step in which another row appends more) is masked out for it; positions count
tokens, not slots. So a row is what it would be alone, but for the order of the model's own sums.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from sampler import cache as kv
from sampler.few_rows import FewRows
from sampler.head import Head, to_device

_SHARE_HEADS = "TRANSFORMERS_SDPA_FORCE_GQA"


class CachedBatch:
    """A batch over one cache; it starts without rows.

    Args:
        head: of the model.
        pad_token_id: any id of the vocabulary; padding is masked out.
        share_prefixes: compute what prompts begin with in common once.
        most_shared: tokens of the beginnings that are kept, or None.
        reproducible: multiply by torch's own matmul throughout, the same bits in every process;
            else a few rows are multiplied the way that was measured to be quicker, on a CPU.

    Attributes:
        prompt_tokens, shared_tokens, forwards: so far: tokens of prompts that were computed, those
            that were taken from a prompt with the same beginning, and calls of the model.
    """

    def __init__(
        self,
        head: Head,
        pad_token_id: int | None,
        *,
        share_prefixes: bool = True,
        most_shared: int | None = None,
        reproducible: bool = False,
    ) -> None:
        self.head = head
        self.model = head.model
        body = getattr(self.model, "base_model", self.model)
        self._few_rows = None if reproducible else FewRows(body)
        self.device = self.model.get_input_embeddings().weight.device
        self.prompt_tokens = self.shared_tokens = self.forwards = 0
        # Masked out; but it must be an id, and some tokenizers have one that the model lacks.
        known = pad_token_id is not None and 0 <= pad_token_id < head.vocab_size
        self._pad = pad_token_id if known else 0
        self._cache_argument = kv.argument(self.model)
        self._cache = kv.new_cache(self.model)
        self.can_join, self.can_leave = kv.can_join(self._cache), kv.can_leave(self._cache)
        self._most_shared = most_shared
        self._prefixes = self._no_prefixes() if share_prefixes and self.can_join else None
        self._mask = torch.zeros((0, 0), dtype=torch.long)
        self._tokens: list[int] = []

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def slots(self) -> int:
        """Slots that each row takes."""
        return self._mask.shape[1]

    def slots_of(self, rows: int) -> int:
        """Slots that each of the first so many rows would take without the others."""
        return self.slots if rows == len(self) else self.slots - self._unused(self._mask[:rows])

    def add(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Add rows below those there are.

        Args:
            prompts: token ids, at least one a row.

        Returns:
            The head's input after the last token of each prompt, [len(prompts), ...].

        Raises:
            RuntimeError: there are rows, and the model's cache cannot take others.
        """
        if len(self) and not self.can_join:
            raise RuntimeError("rows cannot join a batch of this model; wait until it is empty")
        prompts = [tuple(prompt) for prompt in prompts]
        cache, shared = self._beginning(prompts)
        rests = [prompt[shared:] for prompt in prompts]
        mask = torch.ones((len(prompts), shared), dtype=torch.long)
        mask, states = self._forward(cache, mask, rests, [shared] * len(prompts))
        self.prompt_tokens += sum(map(len, rests))
        if not len(self):
            self._cache, self._mask = cache, mask
        else:
            kv.join(self._cache, cache)
            slots = max(self._mask.shape[1], mask.shape[1])
            self._mask = torch.cat([_left_padded(self._mask, slots), _left_padded(mask, slots)])
        self._tokens += map(len, prompts)
        return states

    def step(self, tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Append tokens, at least one a row.

        Returns:
            The head's input after the last of each row, [B, ...].
        """
        self._mask, states = self._forward(self._cache, self._mask, tokens, self._tokens)
        self._tokens = [n + len(row) for n, row in zip(self._tokens, tokens, strict=True)]
        return states

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, and the slots that none of them uses on the left."""
        if not rows:
            return self.clear(keep_beginnings=True)
        self._tokens = [self._tokens[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.long)
        self._mask = self._mask[index]
        first = self._unused(self._mask)
        self._mask = self._mask[:, first:]
        kv.select(self._cache, index.to(self.device), first)
        return None

    def _unused(self, mask: torch.Tensor) -> int:
        """Slots on the left that none of these rows uses, and that can be dropped."""
        return int(mask.any(0).to(torch.uint8).argmax()) if self.can_join else 0

    @property
    def holds_beginnings(self) -> bool:
        """Whether shared beginnings are kept: memory that `clear` frees."""
        return self._prefixes is not None and len(self._prefixes) > 0

    def clear(self, *, keep_beginnings: bool = False) -> None:
        """Drop all rows, and what is kept of shared beginnings."""
        self._cache = kv.new_cache(self.model)
        self._mask = torch.zeros((0, 0), dtype=torch.long)
        self._tokens = []
        if self._prefixes is not None and not keep_beginnings:
            self._prefixes = self._no_prefixes()

    def _no_prefixes(self) -> kv.Prefixes:
        return kv.Prefixes(self.model, most=self._most_shared)

    def _beginning(self, prompts: list[tuple[int, ...]]) -> tuple[Any, int]:
        """A cache of what the prompts share, a row each, and how many tokens that is."""
        ids = self._prefixes.shared(prompts) if self._prefixes is not None else ()
        if not ids:
            return kv.new_cache(self.model), 0
        known, cache = self._prefixes.get(ids)
        if known < len(ids):
            own = kv.repeat(cache, self.model, known, 1) if known else kv.new_cache(self.model)
            mask = torch.ones((1, known), dtype=torch.long)
            self._forward(own, mask, [ids[known:]], [known])
            self.prompt_tokens += len(ids) - known
            self._prefixes.put(ids, own)
            cache = own
        self.shared_tokens += len(ids) * len(prompts) - (len(ids) - known)
        return kv.repeat(cache, self.model, len(ids), len(prompts)), len(ids)

    def _forward(
        self, cache: Any, mask: torch.Tensor, tokens: Sequence[Sequence[int]], before: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append `tokens` to rows that have `before` tokens; their mask, and the head's input."""
        width = max(map(len, tokens))
        ids = torch.full((len(tokens), width), self._pad)
        new = torch.zeros((len(tokens), width), dtype=torch.long)
        positions = torch.zeros((len(tokens), width), dtype=torch.long)
        for i, row in enumerate(tokens):
            ids[i, width - len(row) :] = torch.tensor(row)
            new[i, width - len(row) :] = 1
            positions[i, width - len(row) :] = torch.arange(before[i], before[i] + len(row))
        mask = torch.cat([mask, new], 1)
        self.forwards += 1
        with _shared_heads(self.device), self._multiplied(len(tokens) * width):
            states = self.head.states(
                input_ids=to_device(ids, self.device),
                attention_mask=self._attention_mask(mask, width),
                position_ids=to_device(positions, self.device),
                use_cache=True,
                **{self._cache_argument: cache},
            )
        return mask, states

    def _multiplied(self, rows: int) -> AbstractContextManager[None]:
        return nullcontext() if self._few_rows is None else self._few_rows.multiplied(rows)

    def _attention_mask(self, mask: torch.Tensor, width: int) -> torch.Tensor | None:
        """The mask [B, slots] of a forward whose tokens are in the last `width` slots.

        transformers asks the device whether a mask [B, slots] hides anything, and waits for the
        answer. Here it is known, and what hides something is made whole, [B, 1, width, slots].
        """
        if bool(mask.all()):
            return None
        config = self.model.config
        whole = config._attn_implementation == "sdpa" and not getattr(config, "alibi", False)
        if not (self.can_join and whole):
            return to_device(mask, self.device)
        slots = torch.arange(mask.shape[1])
        queries = slots[-width:, None]
        # Padding sees itself: a query that sees nothing would give NaN, and NaN spreads.
        seen = (mask.bool()[:, None] & (slots <= queries)) | (slots == queries)
        return to_device(seen[:, None], self.device)


@contextmanager
def _shared_heads(device: torch.device) -> Iterator[None]:
    """Let query heads share keys and values as they lie in the cache, on a CPU.

    Under a mask, transformers copies keys and values once a query head where more than one token is
    read. On a GPU torch's kernels want that; on a CPU they do not, and with 430 tokens of context,
    8 rows of 4 tokens took SmolLM2-135M 2.2 times as long. The switch is transformers' own.
    """
    if device.type != "cpu" or _SHARE_HEADS in os.environ:
        yield
        return
    os.environ[_SHARE_HEADS] = "1"
    try:
        yield
    finally:
        os.environ.pop(_SHARE_HEADS, None)


def _left_padded(mask: torch.Tensor, slots: int) -> torch.Tensor:
    return torch.nn.functional.pad(mask, (slots - mask.shape[1], 0))
