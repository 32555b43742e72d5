"""The CPU path: sparse rows gather the weight of their tokens, dense rows share one matmul."""

import numpy as np
import torch

from kernels.masked_logits import torch_dense
from kernels.masked_logits.call import Call
from kernels.masked_logits.costs import Costs, costs_for
from kernels.masked_logits.torch_gather import allowed_words, gather, groups


def fill(call: Call, costs: Costs | None) -> torch.Tensor:
    """Write and return ``out`` of a call whose arguments are checked."""
    batch = call.hidden.shape[0]
    if not batch:
        return call.out
    costs = costs or costs_for(call)
    dense = np.arange(batch)
    if call.bitmask is not None:
        masked = np.ones(batch, bool) if call.constrained is None else call.constrained.numpy()
        words = allowed_words(call)
        sparse = costs.gathered(np.bitwise_count(words).sum(1, dtype=np.int64), masked)
        dense = np.delete(dense, sparse)
        for rows, ids in groups(words, sparse):
            gather(call, rows, ids)
    if len(dense):
        _fill_dense(call, dense, costs)
    return call.out


def _fill_dense(call: Call, rows: np.ndarray, costs: Costs) -> None:
    ways = torch_dense.methods(call)
    way = ways.get(costs.method(len(rows)), ways["blocks"])
    first, count = int(rows[0]), len(rows)
    if int(rows[-1]) - first + 1 == count:
        chosen = slice(first, first + count)
        way(call, call.hidden[chosen], call.out[chosen, : call.vocab_size])
        return
    index = torch.from_numpy(rows)
    logits = call.out.new_empty(count, call.vocab_size)
    way(call, call.hidden[index], logits)
    call.out[:, : call.vocab_size].index_copy_(0, index, logits)
