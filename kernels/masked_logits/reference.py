"""The specification of `masked_logits`, in plain torch."""

import torch

from kernels import bitmask as masks
from kernels.masked_logits.call import Call, prepare


@torch.no_grad()
def masked_logits_reference(
    hidden: torch.Tensor, weight: torch.Tensor, bitmask: torch.Tensor | None, **arguments
) -> torch.Tensor:
    """`kernels.masked_logits.masked_logits` as it is specified, same arguments, on the CPU.

    Sums are float64, and what is undefined is NaN.
    """
    return fill(prepare(hidden, weight, bitmask, **arguments))


def fill(call: Call) -> torch.Tensor:
    """The specification, for a call whose arguments are checked; writes and returns its ``out``."""
    logits = call.hidden.double() @ call.weight.double().T
    if call.bias is not None:
        logits += call.bias.double()
    logits *= call.scale
    if call.softcap is not None:
        logits = call.softcap * torch.tanh(logits / call.softcap)
    return call.out.copy_(logits.masked_fill_(~defined(call), torch.nan))


def defined(call: Call) -> torch.Tensor:
    """bool [B, V]: the columns that the contract defines."""
    columns = torch.zeros(call.out.shape, dtype=torch.bool)
    inside = columns[:, : call.vocab_size]
    if call.bitmask is None:
        inside.fill_(True)
    else:
        inside.copy_(masks.unpack(call.bitmask, call.vocab_size))
        if call.constrained is not None:
            inside |= ~call.constrained[:, None]
    return columns
