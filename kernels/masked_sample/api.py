"""The public op: checks its arguments and hands them to one implementation."""

import torch

from kernels.masked_sample import reference, torch_impl
from kernels.masked_sample.call import Call, Sample, prepare
from kernels.masked_sample.workspace import check_workspace

IMPLEMENTATIONS = ("auto", "triton", "torch", "reference")


@torch.no_grad()
def masked_sample(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None = None,
    *,
    constrained: torch.Tensor | None = None,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    seed,
    position,
    stream=0,
    vocab_size: int | None = None,
    return_stats: bool = False,
    out: Sample | None = None,
    workspace: torch.Tensor | None = None,
    impl: str = "auto",
) -> Sample:
    """Draw one token for each row of logits, under a packed mask.

    Every parameter from ``temperature`` to ``stream`` is a number or a tensor [B].

    Args:
        logits: [B, V] float32, float16 or bfloat16; unit column stride, any row stride.
        bitmask: int32 [B, >= ceil(vocab_size / 32)], unit word stride; bit ``i % 32`` of word
            ``i // 32`` allows token i. None allows everything.
        constrained: bool [B], the rows that use their mask; the others are free. None: all rows.
        temperature: >= 0; under 1e-5 is argmax.
        top_k: >= 0; 0, or more than the vocabulary, is no cut.
        top_p: in (0, 1]; 1 is no cut.
        min_p: in [0, 1]; 0 is no cut.
        seed: int64, one a request.
        position: int32, the index of the token to draw within its request.
        stream: int32; 0 is the draw, r the r-th retry of a guarded call.
        vocab_size: columns from here on are never allowed. None: V.
        return_stats: also return `Stats`; reads every logit of the row, forbidden ones too.
        out: a `Sample` whose token, logprob and status are written and returned.
        workspace: scratch memory of the Triton path, int64 [`workspace_words`] beside the logits,
            allocated anew without one; the CPU paths need none and ignore it.
        impl: "triton", "torch" or "reference"; "auto" is triton for logits on a CUDA or ROCm
            device, else torch. A named implementation never gives way to another.

    Returns:
        `Sample`: token int64 [B], logprob float32 [B] in nats, status int8 [B], stats or None.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, device or stride, or a value on the host is
            out of range.
        RuntimeError: ``impl="triton"`` where triton is not installed.
    """
    if impl not in IMPLEMENTATIONS:
        raise ValueError(
            f"impl must be one of {', '.join(IMPLEMENTATIONS)}, got {impl!r}; use 'auto'"
        )
    call = prepare(
        logits,
        bitmask,
        constrained=constrained,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        position=position,
        stream=stream,
        vocab_size=vocab_size,
        return_stats=return_stats,
    )
    if impl == "auto":
        impl = "triton" if logits.is_cuda else "torch"
    if out is not None:
        _check_out(out, logits)
    if impl == "triton":
        if workspace is not None:
            check_workspace(workspace, logits, call.vocab_size)
        return _triton_impl(call).sample_rows(call, out, workspace)
    if logits.device.type != "cpu":
        raise ValueError(
            f"impl={impl!r} wants logits on the CPU, got {logits.device}; "
            "move them with .cpu() or use impl='auto'"
        )
    sample = torch_impl.sample_rows(call) if impl == "torch" else reference.sample_rows(call)
    if out is None:
        return sample
    for target, source in zip(out[:3], sample[:3], strict=True):
        target.copy_(source)
    return out._replace(stats=sample.stats)


def _triton_impl(call: Call):
    """The Triton path; imported here, as a CPU has no use for triton."""
    try:
        from triton import knobs

        from kernels.masked_sample import triton_impl
    except ImportError as error:
        raise RuntimeError(
            "impl='triton' needs triton 3.6 or newer, which is not installed; "
            "move logits to the CPU and use impl='torch', which returns the same tokens"
        ) from error
    if call.logits.device.type == "cpu" and not knobs.runtime.interpret:
        raise ValueError(
            "impl='triton' wants logits on a CUDA or ROCm device, got cpu; move them with "
            ".cuda(), use impl='torch', or set TRITON_INTERPRET=1 before triton is imported"
        )
    return triton_impl


_OUT_DTYPES = {"token": torch.int64, "logprob": torch.float32, "status": torch.int8}


def _check_out(out: Sample, logits: torch.Tensor) -> None:
    rows = logits.shape[0]
    for name, dtype in _OUT_DTYPES.items():
        target = getattr(out, name)
        if target.dtype != dtype or tuple(target.shape) != (rows,):
            raise ValueError(
                f"out.{name} must be {dtype} [{rows}], got {target.dtype} "
                f"{list(target.shape)}; allocate it for {rows} rows"
            )
        if target.device != logits.device or not target.is_contiguous():
            raise ValueError(
                f"out.{name} must be contiguous on {logits.device}, where logits are, got "
                f"{target.device}; allocate it there"
            )
