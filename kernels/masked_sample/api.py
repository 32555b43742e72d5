"""The public op: checks its arguments and hands them to one implementation."""

import torch

from kernels.masked_sample import reference, torch_impl
from kernels.masked_sample.call import Sample, prepare

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
        workspace: scratch memory of the Triton path; the CPU paths need none and ignore it.
        impl: "triton", "torch" or "reference"; "auto" is triton for logits on a CUDA or ROCm
            device, else torch. A named implementation never gives way to another.

    Returns:
        `Sample`: token int64 [B], logprob float32 [B] in nats, status int8 [B], stats or None.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, device or stride, or a value on the host is
            out of range.
        NotImplementedError: ``impl="triton"`` is not available.
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
    if impl == "triton":
        raise NotImplementedError(
            "impl='triton' has no kernel in this version; move logits to the CPU and use "
            "impl='torch' or impl='reference', which return the same tokens"
        )
    if logits.device.type != "cpu":
        raise ValueError(
            f"impl={impl!r} wants logits on the CPU, got {logits.device}; "
            "move them with .cpu() or use impl='auto'"
        )
    sample = torch_impl.sample_rows(call) if impl == "torch" else reference.sample_rows(call)
    return sample if out is None else _written(sample, out, logits)


def _written(sample: Sample, out: Sample, logits: torch.Tensor) -> Sample:
    for name in ("token", "logprob", "status"):
        source, target = getattr(sample, name), getattr(out, name)
        if target.dtype != source.dtype or target.shape != source.shape:
            raise ValueError(
                f"out.{name} must be {source.dtype} {list(source.shape)}, got {target.dtype} "
                f"{list(target.shape)}; allocate it for {logits.shape[0]} rows"
            )
        target.copy_(source)
    return out._replace(stats=sample.stats)
