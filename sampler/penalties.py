"""Penalties and biases on logits, before temperature and mask: OpenAI's and Hugging Face's.

For a token with logit z and bias b, generated c times so far, "seen" if it is in the prompt or
generated:

    z += b
    z  = z / r if z > 0 else z * r              where it has been seen; r: repetition_penalty
    z -= presence * [c > 0] + frequency * c

In float32, in this order, which is vLLM's. The first and the last line are OpenAI's (presence and
frequency know nothing of the prompt), the second is that of CTRL (arXiv 1909.05858) as in
transformers and vLLM. Generated means kept: what a guard threw away does not count.

Only tokens with a bias, and seen ones, are touched: the update is a list of ids a row, grown token
by token, never a count for the whole vocabulary. A logit that a masked head left undefined stays
undefined, so these rows skip forbidden tokens as the others do. A forced token is the only choice,
whatever was added to it.

`Completion.logprobs` are of the distribution drawn from, so they are after all this;
`Completion.top_logprobs` are the model's own, before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from sampler.head import to_device
from sampler.params import SamplingParams

_ROOM = 64
"""Tokens that a row has room for before its columns grow."""


class Penalties:
    """What is done to the logits of one row; knows the tokens it has been told of.

    Args:
        params: with a penalty or a bias.
        prompt: token ids.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int]) -> None:
        self.params = params
        seen = dict.fromkeys(prompt) if params.repetition_penalty != 1.0 else {}
        ids = [*seen, *(token for token in params.logit_bias if token not in seen)]
        self._place = {token: n for n, token in enumerate(ids)}
        size = len(ids) + _ROOM
        self._ids = np.zeros(size, np.int64)
        self._ids[: len(ids)] = ids
        self._bias = np.zeros(size, np.float32)
        for token, bias in params.logit_bias.items():
            self._bias[self._place[token]] = bias
        self._in_prompt = np.zeros(size, bool)
        self._in_prompt[: len(seen)] = True
        self._counts = np.zeros(size, np.float32)

    def add(self, token: int) -> None:
        """A token has been generated."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            for name in ("_ids", "_bias", "_in_prompt", "_counts"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        self._ids[place] = token
        self._counts[place] += 1

    def take_back(self, tokens: Sequence[int]) -> None:
        """Tokens that had been generated are not kept."""
        for token in tokens:
            self._counts[self._place[token]] -= 1

    def columns(self) -> tuple[np.ndarray, ...]:
        """Of each token that is touched: id int64, and float32 bias, factor of the repetition
        penalty, and what presence and frequency take away; [n] each, ids distinct."""
        n, params = len(self._place), self.params
        counts = self._counts[:n]
        generated = counts > 0
        factor = np.where(
            generated | self._in_prompt[:n], np.float32(params.repetition_penalty), np.float32(1)
        )
        taken = np.float32(params.presence_penalty) * generated
        taken += np.float32(params.frequency_penalty) * counts
        return self._ids[:n], self._bias[:n], factor, taken


def penalised(logits: torch.Tensor, penalties: Sequence[Penalties | None]) -> torch.Tensor:
    """The logits [B, V] with each row's penalties; rows that have None keep every bit.

    Args:
        logits: float32, float16 or bfloat16; left as they are.
        penalties: one a row.

    Returns:
        float32 [B, V], new, or `logits` itself where no row has any: half precision would round
        small penalties away.
    """
    touched = [(row, p.columns()) for row, p in enumerate(penalties) if p is not None]
    if not touched:
        return logits
    rows = np.repeat([row for row, _ in touched], [len(columns[0]) for _, columns in touched])
    ids, bias, factor, taken = (
        to_device(torch.from_numpy(np.concatenate(column)), logits.device)
        for column in zip(*(columns for _, columns in touched), strict=True)
    )
    rows = to_device(torch.from_numpy(rows), logits.device)
    changed = logits.to(torch.float32, copy=True)
    z = changed[rows, ids] + bias
    changed[rows, ids] = torch.where(z > 0, z / factor, z * factor) - taken
    return changed
