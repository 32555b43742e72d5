"""One call of `masked_logits`: its arguments checked and brought to one form."""

import math
import numbers
from dataclasses import dataclass

import torch

from kernels import checks
from kernels.masked_logits.head import check_plain


@dataclass(frozen=True, slots=True)
class Call:
    """Checked arguments of `masked_logits`."""

    hidden: torch.Tensor
    """[B, D]"""
    weight: torch.Tensor
    """[V, D], the dtype of hidden."""
    bitmask: torch.Tensor | None
    constrained: torch.Tensor | None
    bias: torch.Tensor | None
    """[V]"""
    scale: float
    softcap: float | None
    vocab_size: int
    out: torch.Tensor
    """[B, V], the dtype of hidden or float32."""

    @property
    def bare(self) -> bool:
        """Whether the sum is the logit: no bias, scale or soft-cap follows it."""
        return self.bias is None and self.scale == 1.0 and self.softcap is None


def prepare(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bitmask: torch.Tensor | None,
    *,
    constrained: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    vocab_size: int | None = None,
    out: torch.Tensor | None = None,
) -> Call:
    """Check every argument, and allocate ``out`` if it is None.

    Raises:
        TypeError: an argument has the wrong type or dtype, or the weight is not a plain tensor.
        ValueError: an argument has the wrong shape, device, stride or value.
    """
    _check_hidden(hidden)
    _check_weight(weight, hidden)
    if bias is not None:
        _check_bias(bias, weight)
    scale = _check_number("scale", scale, "use 1.0 for none")
    if softcap is not None:
        softcap = _check_number("softcap", softcap, "use None for no soft-cap")
        if softcap <= 0:
            raise ValueError(f"softcap must be > 0 or None, got {softcap}; use None for none")
    shape = (hidden.shape[0], weight.shape[0])
    if out is None:
        out = torch.empty(shape, dtype=hidden.dtype, device=hidden.device)
    else:
        _check_out(out, shape, hidden)
    # From here on the logits are at hand, and the checks are those of `masked_sample`.
    vocab_size = checks.check_logits(out, vocab_size)
    if bitmask is not None:
        checks.check_bitmask(bitmask, out, vocab_size)
    if constrained is not None:
        checks.check_constrained(constrained, bitmask, out)
    return Call(hidden, weight, bitmask, constrained, bias, scale, softcap, vocab_size, out)


def _check_hidden(hidden: torch.Tensor) -> None:
    check_plain("hidden", hidden)
    if hidden.dtype not in checks.LOGITS_DTYPES:
        raise TypeError(
            f"hidden must be float32, float16 or bfloat16, got {hidden.dtype}; call .float()"
        )
    if hidden.ndim != 2 or hidden.shape[1] == 0:
        raise ValueError(
            f"hidden must be [B, D], got shape {tuple(hidden.shape)}; "
            "pass the last position of each sequence, after the final norm"
        )
    _check_unit_stride("hidden", hidden)


def _check_weight(weight: torch.Tensor, hidden: torch.Tensor) -> None:
    check_plain("weight", weight)
    if weight.dtype != hidden.dtype:
        remedy = f"pass hidden.to({weight.dtype})"
        if weight.dtype not in checks.LOGITS_DTYPES:
            remedy = "a quantised head must be dequantised, or called itself"
        raise TypeError(
            f"weight must be {hidden.dtype}, the dtype of hidden, got {weight.dtype}; {remedy}"
        )
    if weight.ndim != 2 or weight.shape[0] == 0 or weight.shape[1] != hidden.shape[1]:
        raise ValueError(
            f"weight must be [V, {hidden.shape[1]}], one row a token, got shape "
            f"{tuple(weight.shape)}; pass the head's weight as torch.nn.Linear holds it"
        )
    _check_unit_stride("weight", weight)
    _check_device("weight", weight, hidden)


def _check_bias(bias: torch.Tensor, weight: torch.Tensor) -> None:
    check_plain("bias", bias)
    if bias.dtype not in checks.LOGITS_DTYPES:
        raise TypeError(
            f"bias must be float32, float16 or bfloat16, got {bias.dtype}; call .float()"
        )
    if tuple(bias.shape) != (weight.shape[0],) or not bias.is_contiguous():
        raise ValueError(
            f"bias must be contiguous [{weight.shape[0]:,}], one number a row of weight, "
            f"got shape {tuple(bias.shape)}; pass the head's bias"
        )
    _check_device("bias", bias, weight)


def _check_out(out: torch.Tensor, shape: tuple[int, int], hidden: torch.Tensor) -> None:
    check_plain("out", out)
    if out.dtype not in (hidden.dtype, torch.float32):
        raise TypeError(
            f"out must be {hidden.dtype}, the dtype of hidden, or float32, got {out.dtype}; "
            "allocate it as one of them"
        )
    if tuple(out.shape) != shape:
        raise ValueError(
            f"out must be {list(shape)}, a row of logits for each row of hidden, "
            f"got shape {tuple(out.shape)}; allocate it so"
        )
    _check_unit_stride("out", out)
    _check_device("out", out, hidden)


def _check_unit_stride(name: str, tensor: torch.Tensor) -> None:
    if tensor.shape[1] > 1 and tensor.stride(1) != 1:
        raise ValueError(
            f"{name} must have unit column stride, got {tensor.stride(1)}; call .contiguous()"
        )


def _check_device(name: str, tensor: torch.Tensor, hidden: torch.Tensor) -> None:
    if tensor.device != hidden.device:
        raise ValueError(
            f"{name} must be on {hidden.device}, where hidden is, got {tensor.device}; "
            f"move it with .to({str(hidden.device)!r})"
        )


def _check_number(name: str, value, remedy: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}; {remedy}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}; {remedy}")
    return float(value)
