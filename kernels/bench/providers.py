"""What is timed: this project's op, and each way to do the same that is installed.

A provider makes a function without arguments from a workload, or returns None where it cannot run.
"""

from collections.abc import Callable
from importlib import util

import torch

from kernels import bitmask as masks
from kernels.bench.workloads import Workload
from kernels.masked_sample import Sample, masked_sample
from kernels.masked_sample.workspace import workspace_words

Step = Callable[[], torch.Tensor]


def ours(work: Workload) -> Step:
    """masked_sample, with outputs and workspace at hand as the decoding loop has them."""
    rows, vocab_size = work.logits.shape
    device = work.logits.device
    out = Sample(
        torch.empty(rows, dtype=torch.int64, device=device),
        torch.empty(rows, dtype=torch.float32, device=device),
        torch.empty(rows, dtype=torch.int8, device=device),
    )
    words = workspace_words(rows, vocab_size) if device.type != "cpu" else 0
    workspace = torch.empty(words, dtype=torch.int64, device=device)

    def step():
        return masked_sample(
            work.logits, work.bitmask, top_p=work.top_p, seed=0, position=work.position,
            out=out, workspace=workspace,
        ).token  # fmt: skip

    return step


def ours_captured(work: Workload) -> Step | None:
    """The same call, replayed from a CUDA graph: what is left without its work on the host."""
    if work.logits.device.type == "cpu":
        return None
    step = ours(work)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # Before the capture, as compiling and loading kernels cannot be part of it.
        token = step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay():
        graph.replay()
        return token

    return replay


def pipeline(work: Workload) -> Step:
    """The usual steps in torch: mask, softmax, sort, cumulative sum, multinomial."""
    forbidden = None
    if work.bitmask is not None:
        forbidden = ~masks.unpack(work.bitmask, work.logits.shape[1])

    def step():
        return _usual(work.logits, forbidden, work.top_p)

    return step


def compiled_pipeline(work: Workload) -> Step | None:
    """The same steps under torch.compile; on a GPU only, where it is used."""
    if work.logits.device.type == "cpu":
        return None
    forbidden = None
    if work.bitmask is not None:
        forbidden = ~masks.unpack(work.bitmask, work.logits.shape[1])
    compiled = torch.compile(_usual, dynamic=False)
    return lambda: compiled(work.logits, forbidden, work.top_p)


def xgrammar_pipeline(work: Workload) -> Step | None:
    """xgrammar's bitmask kernel on the logits, in place, then the usual steps."""
    if work.bitmask is None or work.logits.device.type == "cpu" or not util.find_spec("xgrammar"):
        return None
    mask = _xgrammar_mask(work)
    return lambda: _usual(mask(), None, work.top_p)


def flashinfer(work: Workload) -> Step | None:
    """FlashInfer's top-p sampler on softmax, after xgrammar's kernel where there is a mask."""
    if work.logits.device.type == "cpu" or not util.find_spec("flashinfer"):
        return None
    # It takes probabilities in float32, and since 0.2.3 returns the tokens alone.
    from flashinfer.sampling import top_p_sampling_from_probs

    if work.bitmask is None:
        mask = lambda: work.logits  # noqa: E731
    elif util.find_spec("xgrammar"):
        mask = _xgrammar_mask(work)
    else:
        return None

    def step():
        return top_p_sampling_from_probs(mask().softmax(-1, dtype=torch.float32), work.top_p)

    return step


def _xgrammar_mask(work: Workload) -> Step:
    """Masks a copy of the logits, again and again: as much work as the first time."""
    import xgrammar

    logits = work.logits.clone()

    def mask():
        xgrammar.apply_token_bitmask_inplace(logits, work.bitmask)
        return logits

    return mask


PROVIDERS = {
    "masked_sample": ours,
    "masked_sample captured": ours_captured,
    "pipeline": pipeline,
    "torch.compile": compiled_pipeline,
    "xgrammar": xgrammar_pipeline,
    "flashinfer": flashinfer,
}


def _usual(logits: torch.Tensor, forbidden: torch.Tensor | None, top_p: float) -> torch.Tensor:
    if forbidden is not None:
        logits = logits.masked_fill(forbidden, -torch.inf)
    share, order = logits.softmax(-1, dtype=torch.float32).sort(-1, descending=True)
    share = share.masked_fill(share.cumsum(-1) - share >= top_p, 0.0)
    return order.gather(-1, torch.multinomial(share, 1))[:, 0]
