"""Rows of a model and its KV cache: prefill once, step, drop rows that are done."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache


class CachedBatch:
    """A left-padded batch over one cache.

    Args:
        model: a Hugging Face causal model.
        prompts: token ids, at least one a row.
        pad_token_id: any id of the vocabulary; padding is masked out.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], pad_token_id: int | None):
        self.model = model
        device = model.get_input_embeddings().weight.device
        longest = max(map(len, prompts))
        pad = pad_token_id or 0
        self._prompts = torch.tensor(
            [[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device
        )
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self._mask = (torch.arange(longest, device=device) >= longest - lengths[:, None]).long()
        # transformers 5.24 renamed the argument.
        forward = inspect.signature(model.forward).parameters
        names = [name for name in ("cache", "past_key_values") if name in forward]
        if not names:
            raise ValueError(
                f"{type(model).__name__} takes no KV cache that the loop knows (neither cache nor"
                " past_key_values); use an attention model"
            )
        self._cache_argument = names[0]
        self._cache = DynamicCache(config=model.config)

    def prefill(self) -> torch.Tensor:
        """Logits [B, V] after each prompt."""
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)
        return self._forward(self._prompts, positions)

    def step(self, tokens: Sequence[int]) -> torch.Tensor:
        """Append one token a row; logits [B, V] after it."""
        ids = torch.tensor(tokens, device=self._mask.device)[:, None]
        self._mask = torch.cat([self._mask, torch.ones_like(ids)], 1)
        return self._forward(ids, self._mask.sum(1, keepdim=True) - 1)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these."""
        index = torch.tensor(rows, dtype=torch.long, device=self._mask.device)
        self._mask = self._mask[index]
        if rows:
            self._cache.batch_select_indices(index)

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        output = self.model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self._cache},
        )
        return output.logits[:, -1]
