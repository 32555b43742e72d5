"""Dense heads on the CPU: two ways to multiply a few rows of hidden by the whole weight.

`matmul` is ``hidden @ weight.T`` as BLAS does it, for several rows in pieces of the weight: packing
all of it at once took 1.4 to 1.6 times as long for 8 rows of float32 on one thread, and more on
two. `blocks` turns the product round and cuts the weight into a batch of small matrices. For 16-bit
numbers, whose rows a CPU without instructions of its own multiplies one by one, `blocks` widens
pieces of the weight to float32 in a buffer that stays in cache. Which is quicker is measured: see
`costs`.
"""

from collections.abc import Callable

import torch

from kernels.masked_logits.call import Call

METHODS = ("blocks", "matmul")
BLOCK = 128
"""Tokens of one matrix of the batch; 64 and 256 took as long."""
PIECE = 1 << 20
"""Elements of weight multiplied or widened at once: 4 MiB of float32."""

Method = Callable[[Call, torch.Tensor, torch.Tensor], None]


def methods(call: Call) -> dict[str, Method]:
    """The ways to multiply that keep the contract's precision, by a name of METHODS."""
    if call.hidden.dtype == torch.float32:
        return {"blocks": _blocks, "matmul": _matmul}
    if call.bare and call.out.dtype == call.hidden.dtype:
        return {"blocks": _widened_blocks, "matmul": _matmul}
    # A 16-bit product would be rounded before what follows it.
    return {"blocks": _widened_blocks}


def finish(call: Call, logits: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Turn float32 sums, tokens last, into logits, in place."""
    if bias is not None:
        logits += bias
    if call.scale != 1.0:
        logits *= call.scale
    if call.softcap is not None:
        logits.div_(call.softcap).tanh_().mul_(call.softcap)
    return logits


def _matmul(call: Call, hidden: torch.Tensor, out: torch.Tensor) -> None:
    # One row is read straight through.
    step = out.shape[1] if len(hidden) == 1 else _piece_tokens(hidden.shape[1])
    for start in range(0, out.shape[1], step):
        target = out[:, start : start + step]
        torch.mm(hidden, call.weight[start : start + target.shape[1]].t(), out=target)
    if not call.bare:
        finish(call, out, _bias(call, 0, out.shape[1]))


def _blocks(call: Call, hidden: torch.Tensor, out: torch.Tensor) -> None:
    whole = out.shape[1] // BLOCK * BLOCK
    if whole:
        out[:, :whole].copy_(_block_product(call.weight[:whole], hidden))
    torch.mm(hidden, call.weight[whole : out.shape[1]].t(), out=out[:, whole:])
    if not call.bare:
        finish(call, out, _bias(call, 0, out.shape[1]))


def _widened_blocks(call: Call, hidden: torch.Tensor, out: torch.Tensor) -> None:
    hidden, step, width = hidden.float(), _piece_tokens(hidden.shape[1]), hidden.shape[1]
    buffer = torch.empty(min(step, out.shape[1]), width)
    for start in range(0, out.shape[1], step):
        target = out[:, start : start + step]
        piece = buffer[: target.shape[1]].copy_(call.weight[start : start + target.shape[1]])
        ragged = len(piece) % BLOCK
        logits = hidden @ piece.t() if ragged else _block_product(piece, hidden)
        target.copy_(finish(call, logits, _bias(call, start, start + target.shape[1])))


def _piece_tokens(width: int) -> int:
    """Tokens of a piece: a multiple of BLOCK."""
    return max(PIECE // width // BLOCK, 1) * BLOCK


def _block_product(weight: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """``hidden @ weight.T`` of a multiple of BLOCK tokens, as a view of what was computed."""
    count, width = weight.shape[0] // BLOCK, weight.shape[1]
    blocks = weight.as_strided(
        (count, BLOCK, width), (BLOCK * weight.stride(0), weight.stride(0), 1)
    )
    product = torch.bmm(blocks, hidden.t().expand(count, -1, -1))
    return product.view(count * BLOCK, hidden.shape[0]).t()


def _bias(call: Call, start: int, stop: int) -> torch.Tensor | None:
    return None if call.bias is None else call.bias[start:stop].float()
