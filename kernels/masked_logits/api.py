"""The public ops: they check their arguments and hand them to one implementation."""

import torch

from kernels.masked_logits import reference, torch_impl
from kernels.masked_logits.call import Call, prepare
from kernels.masked_logits.costs import Costs

IMPLEMENTATIONS = ("auto", "triton", "torch", "reference")


@torch.no_grad()
def masked_logits(
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
    costs: Costs | None = None,
    impl: str = "auto",
) -> torch.Tensor:
    """Logits of the tokens that each row's mask allows; the rest of a row is undefined.

    Args:
        hidden: [B, D] float32, float16 or bfloat16, after the final norm; unit column stride, any
            row stride.
        weight: [V, D] of the same dtype, one row a token, as torch.nn.Linear holds it; unit column
            stride, any row stride. Tied or not, but plain: not quantised, no tensor subclass.
        bitmask: int32 [B, >= ceil(vocab_size / 32)], beside hidden; see `masked_sample`. None
            defines every column of every row.
        constrained: bool [B], the rows that use their mask; the others are free. None: all rows.
        bias: [V], added first.
        scale: multiplies the sum and its bias; Granite divides, so pass ``1 / logits_scaling``.
        softcap: > 0; the result becomes ``softcap * tanh(result / softcap)``. None is no cap.
        vocab_size: columns from here on are not computed. None: V.
        out: [B, V] to write and return, of hidden's dtype or float32; unit column stride, any row
            stride. None: allocated anew, in hidden's dtype.
        costs: on the CPU, what decides which rows are gathered; measured once for each device,
            dtype and shape if None. The Triton path has no such choice and ignores it.
        impl: "triton", "torch" or "reference"; "auto" is triton for a CUDA or ROCm device, else
            torch. A named implementation never gives way to another.

    Returns:
        ``out``.

    Raises:
        TypeError: an argument has the wrong type or dtype, or is not a plain tensor.
        ValueError: an argument has the wrong shape, device, stride or value.
        RuntimeError: ``impl="triton"`` where triton is not installed.
    """
    if impl not in IMPLEMENTATIONS:
        raise ValueError(
            f"impl must be one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}; use 'auto'"
        )
    call = prepare(
        hidden,
        weight,
        bitmask,
        constrained=constrained,
        bias=bias,
        scale=scale,
        softcap=softcap,
        vocab_size=vocab_size,
        out=out,
    )
    if impl == "auto":
        impl = "triton" if hidden.is_cuda else "torch"
    if impl == "triton":
        return _triton_impl(call).fill(call)
    if hidden.device.type != "cpu":
        raise ValueError(
            f"impl={impl!r} wants hidden on the CPU, got {hidden.device}; "
            "move it with .cpu() or use impl='auto'"
        )
    return torch_impl.fill(call, costs) if impl == "torch" else reference.fill(call)


def dense_logits(hidden: torch.Tensor, weight: torch.Tensor, **arguments) -> torch.Tensor:
    """All logits of all rows, [B, V]: `masked_logits` without a mask, by the quickest matmul."""
    return masked_logits(hidden, weight, None, **arguments)


def _triton_impl(call: Call):
    """The Triton path; imported here, as a CPU has no use for triton."""
    try:
        from triton import knobs

        from kernels.masked_logits import triton_impl
    except ImportError as error:
        raise RuntimeError(
            "impl='triton' needs triton 3.6 or newer, which is not installed; "
            "move hidden and weight to the CPU and use impl='torch'"
        ) from error
    if call.hidden.device.type == "cpu" and not knobs.runtime.interpret:
        raise ValueError(
            "impl='triton' wants hidden on a CUDA or ROCm device, got cpu; move it with "
            ".cuda(), use impl='torch', or set TRITON_INTERPRET=1 before triton is imported"
        )
    return triton_impl
