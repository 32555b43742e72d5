"""The head of a causal model apart from its body, so that forbidden tokens cost no logits.

A head is *plain* when it is one `torch.nn.Linear` over the body's last hidden states, perhaps with
a bias, a scale or a soft-cap that the config declares. That is looked up and then tried: body and
head, put together by hand, must give the model's own logits. Every other head is used as it is, and
computes all of them.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.masked_logits import dense_logits, linear_head, masked_logits

_PROBE = 3
# Largest relative difference between the logits put together here and the model's own, by dtype.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}


class Head:
    """The head of `model`.

    Args:
        model: a Hugging Face causal model.
        masked: skip forbidden tokens where that pays; False computes all logits of every row.

    Attributes:
        plain: whether the head can be computed apart from the body.
        note: why it cannot, one sentence, else None.
        vocab_size: columns of the logits.
    """

    def __init__(self, model: Any, *, masked: bool = True) -> None:
        self.model, self.masked = model, masked
        self.vocab_size = model.get_output_embeddings().weight.shape[0]
        self.scale, self.softcap = 1.0, None
        self.note = self._why_not()
        self.plain = self.note is None

    def states(self, **forward: Any) -> torch.Tensor:
        """Run the body; what `logits` takes, for the last position of each row: hidden states
        [B, D], or the logits [B, V] themselves of a model whose head is not plain."""
        if not self.plain:
            return self.model(**forward, logits_to_keep=1).logits[:, -1]
        return self.model.base_model(**forward).last_hidden_state[:, -1]

    def logits(
        self,
        states: torch.Tensor,
        bitmask: torch.Tensor | None = None,
        constrained: torch.Tensor | None = None,
        *,
        reproducible: bool = False,
    ) -> torch.Tensor:
        """Logits [B, V] of `states`; with a mask, only those it allows are defined.

        Args:
            reproducible: all logits by torch's own matmul, the same bits in every process; else the
                way to multiply is chosen by what it was measured to take.
            bitmask, constrained: beside `states`, see `kernels.masked_logits`; None asks for all.
        """
        if not self.plain:
            return states
        layer = self.model.get_output_embeddings()
        if reproducible:
            logits = layer(states) * self.scale
            return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()
        weight, bias = linear_head(layer)
        arguments = {"bias": bias, "scale": self.scale, "softcap": self.softcap}
        if bitmask is None or not self.masked:
            return dense_logits(states, weight, **arguments)
        return masked_logits(states, weight, bitmask, constrained=constrained, **arguments)

    def _why_not(self) -> str | None:
        name = type(self.model).__name__
        layer = self.model.get_output_embeddings()
        dense = f"the head of {name} is computed whole:"
        try:
            linear_head(layer)
        except TypeError as refusal:
            return f"{dense} {refusal}"
        if getattr(self.model, "base_model", self.model) is self.model:
            return f"{dense} its body cannot be called apart from it"
        self.scale, self.softcap = _scale_and_softcap(self.model.config)
        ids = torch.arange(_PROBE, device=layer.weight.device)[None] % self.vocab_size
        with torch.inference_mode():
            own = self.model(input_ids=ids).logits[0].float()
            self.plain = True
            body = self.model.base_model(input_ids=ids)
            hidden = getattr(body, "last_hidden_state", None)
            if hidden is None or hidden.shape[-1] != layer.weight.shape[1]:
                return f"{dense} its body gives no hidden states of the head's width"
            ours = self.logits(hidden[0]).float()
        off = float((ours - own).abs().max() / own.abs().max().clamp(min=1e-6))
        if not off <= _TOLERANCE.get(layer.weight.dtype, 0.0):
            return (
                f"{dense} put together from body and linear layer, its logits are off by {off:.1e}"
            )
        return None


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy from the CPU without waiting for the device."""
    if device.type == tensor.device.type:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def _scale_and_softcap(config: Any) -> tuple[float, float | None]:
    """Factor on the logits, and their soft-cap, as the config names them.

    Cohere multiplies by `logit_scale`, Granite divides by `logits_scaling`, Gemma caps by
    `final_logit_softcapping`.
    """
    config = config.get_text_config(decoder=True)
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    return scale, getattr(config, "final_logit_softcapping", None)
