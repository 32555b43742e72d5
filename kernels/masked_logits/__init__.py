"""Logits of the tokens that a mask allows, and of no others: the head of a model, in part.

The mathematics. With h a row of hidden states and w_i row i of the head's weight,

    x_i = scale * (h . w_i + bias_i)
    logit_i = x_i,  or with a soft-cap  softcap * tanh(x_i / softcap)

which is Llama's head (scale 1), Cohere's (scale = logit_scale), Granite's (scale = 1 /
logits_scaling) and Gemma's (softcap = final_logit_softcapping). A tied head is the embedding
matrix itself: pass that.

The contract.

* Defined. A row that uses its mask has its allowed tokens' logits; a free row (`constrained` False,
  or no bitmask) has every column below ``vocab_size``. All else in ``out`` is undefined: it keeps
  what it held, or holds a logit too. `masked_sample` given the same mask, `constrained` and
  `vocab_size` reads nothing else, unless it is asked for statistics: those want a free row.
* Precision. Products are summed in float32; bias, scale and soft-cap follow in float32, in that
  order; the result is rounded once, to the dtype of ``out``. The sum is within ``D * 2^-24 * sum
  |h_j w_ij|`` of exact, and in practice a hundredth of that.
* Neighbours. A row's logits are functions of that row alone up to the rounding of the sum: NaN or
  infinity in one row of hidden stays there. The order of adding may change with the number of
  dense rows and with the path a row takes. On Triton it does not change within one row block size
  (batches of up to 16, and more): there a logit is the same bits whatever the mask, slot and batch.
* Forbidden tokens. What the weight holds for a token that no row allows does not matter.
* Spare bits, and bits from ``vocab_size`` on, allow nothing.
* Determinism. On the CPU the way to multiply is chosen from measured costs, so two processes may
  round differently; ``costs`` fixes the choice.

Bytes moved: the mask; D elements of weight for each token that a row allows, which rows that allow
it share (Triton: a block of rows; CPU: a group of gathered rows, and as many bytes written and read
again in cache); hidden; the logits written. A dense head moves all V * D elements.
"""

from kernels.masked_logits.api import dense_logits, masked_logits
from kernels.masked_logits.costs import Costs, crossover
from kernels.masked_logits.head import linear_head
from kernels.masked_logits.reference import masked_logits_reference

__all__ = [
    "Costs",
    "crossover",
    "dense_logits",
    "linear_head",
    "masked_logits",
    "masked_logits_reference",
]
