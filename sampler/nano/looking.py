"""Show one attention head where to look: at the topic, among the tools on offer.

An assistant turn starts with a topic; whether the tools have it decides between a call and "is not
among my tools". Left alone, a model of this size does not find that comparison for hours: nothing
rewards finding the topic before the decision uses it, nor the reverse. So the attention of one head
at the topic's last token is supervised: on the token after the same topic in the tools list, or,
where no tool has it, on the first token. Everything else learns what to do with it.
"""

from __future__ import annotations

import math

import torch
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

LAYER, HEAD = 2, 2
NOWHERE = 0


def places(ids: list[int], written: list[bool], colon: int, space: int, call: int):
    """Where a dialogue's turns name their topics, and where each is found among the tools.

    Args:
        ids: token ids of a dialogue; the tools stand before its first turn.
        written: which of them the assistant writes.
        colon, space, call: token ids of ``:``, of a space and of ``<tool_call>``.

    Returns:
        Pairs (position of the topic's last token, position of the token after the same topic in the
        tools list, or `NOWHERE`).
    """
    starts = [i for i, now in enumerate(written) if now and not written[i - 1]]
    found = []
    for start in starts:
        end = start
        while written[end] and ids[end] not in (colon, space, call):
            end += 1
        topic = ids[start:end]
        if not topic:
            continue
        size = len(topic)
        where = (
            j + size
            for j in range(1, starts[0] - size)
            if ids[j + size] == colon and ids[j : j + size] == topic
        )
        found.append((end - 1, next(where, NOWHERE)))
    return found


class Looking:
    """Captures what the head sees during a forward pass and scores where it looks."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model, self.layer = model, model.model.layers[LAYER]
        self.seen: torch.Tensor | None = None
        self.layer.input_layernorm.register_forward_hook(self._keep)

    def _keep(self, module, arguments, output: torch.Tensor) -> None:
        self.seen = output

    def loss(self, points: list[tuple[int, int, int]]) -> torch.Tensor:
        """Mean cross-entropy, nats, of the head's attention at (row, position, target) points."""
        if not points:
            return self.seen.new_zeros(())
        size = self.model.config.head_dim
        part = slice(HEAD * size, (HEAD + 1) * size)
        attention, seen = self.layer.self_attn, self.seen
        row, position, target = (torch.tensor(column) for column in zip(*points, strict=True))
        steps = torch.arange(seen.shape[1])[None]
        cos, sin = self.model.model.rotary_emb(seen, steps)
        query = (seen @ attention.q_proj.weight[part].T)[:, None]
        key = (seen @ attention.k_proj.weight[part].T)[:, None]
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        scores = torch.einsum("nd,ntd->nt", query[row, 0, position], key[row, 0])
        scores = scores / math.sqrt(size)
        scores = scores.masked_fill(steps > position[:, None], -torch.inf)
        return torch.nn.functional.cross_entropy(scores, target)
