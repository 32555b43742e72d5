"""Which rows to gather and how to multiply the rest: decided by what the machine takes for each.

A dense row costs little once another is dense, as they share the reading of the weight; a gathered
row costs by its tokens. Both are timed once for each device, dtype and shape, on pieces of the
weight that are not in cache, and the split of a batch is the cheapest that they allow.
"""

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kernels.masked_logits import torch_dense, torch_gather
from kernels.masked_logits.call import Call, prepare

SAMPLE = 1 << 20
"""Elements of weight that a timing multiplies: a millisecond or so."""
TURNS = 6
"""Timings of each way, taken in turn; the first warms up, and the median of the others counts."""
ROWS_LOWEST, ROWS_HIGHEST = 8, 64
"""Dense rows up to which costs are measured at least, so that small batches share them, and at
most: more are costed in proportion."""
BETTER = 0.9
"""A plain matmul is used where it takes no more than this share of the time of the blocks."""
GATHERED = 512
"""Tokens gathered by a timing."""


@dataclass(frozen=True)
class Costs:
    """What one head costs, in microseconds."""

    dense: tuple[float, ...]
    """A dense product of 1, 2, 4, ... rows."""
    methods: tuple[str, ...]
    """The quickest way to multiply as many rows: of `torch_dense.METHODS`. Where that would round
    twice, it is "blocks" all the same."""
    gather: float
    """A gathered row, whatever its size."""
    token: float
    """Each token of a gathered row."""

    def __post_init__(self):
        if len(self.dense) != len(self.methods) or not self.dense:
            raise ValueError(
                f"dense and methods must be of one length, at least 1, got {len(self.dense)} and "
                f"{len(self.methods)}; give both for 1, 2, 4, ... rows"
            )
        for method in self.methods:
            if method not in torch_dense.METHODS:
                raise ValueError(
                    f"methods must be of {', '.join(torch_dense.METHODS)}, got {method!r}; "
                    "use 'blocks'"
                )

    def method(self, rows: int) -> str:
        """How to multiply so many rows."""
        return self.methods[min((rows - 1).bit_length(), len(self.methods) - 1)]

    def gathered(self, counts: np.ndarray, masked: np.ndarray) -> np.ndarray:
        """The rows to gather, int64, ascending: the split that costs least.

        Args:
            counts: int64 [B], tokens that each row's mask allows.
            masked: bool [B], the rows that use theirs.
        """
        rows = np.flatnonzero(masked)
        rows = rows[np.argsort(counts[rows], kind="stable")]
        gathering = np.cumsum(self.gather + self.token * counts[rows])
        totals = _dense_costs(self.dense, len(counts))[::-1][: len(rows) + 1].copy()
        totals[1:] += gathering
        return np.sort(rows[: int(totals.argmin())])


@functools.lru_cache(maxsize=64)
def _dense_costs(known: tuple[float, ...], rows: int) -> np.ndarray:
    """Of dense products of 0 rows, which cost nothing, to ``rows``, float64 [rows + 1]."""
    wanted, sizes = np.arange(rows + 1), 2 ** np.arange(len(known))
    costs = np.interp(wanted, [0, *sizes], [0.0, *known])
    return costs * np.maximum(wanted / sizes[-1], 1.0)


def crossover(weight: torch.Tensor, batch: int = 1, costs: Costs | None = None) -> float:
    """The share of the vocabulary above which a dense head is cheaper than gathering, in [0, 1].

    For a batch of rows alike, on the CPU that runs this; measured for ``weight`` [V, D] unless
    ``costs`` are given. The Triton path has no switch-over: it reads no weight that a
    dense head would not.

    Raises:
        ValueError: the weight is not on the CPU.
    """
    if weight.device.type != "cpu":
        raise ValueError(
            f"weight must be on the CPU, whose path alone switches over, got {weight.device}; "
            "there every row takes the same kernel, whatever its mask allows"
        )
    if costs is None:
        hidden = torch.zeros(batch, weight.shape[1], dtype=weight.dtype)
        costs = costs_for(prepare(hidden, weight, None))
    spare = float(_dense_costs(costs.dense, batch)[-1]) / batch - costs.gather
    return min(max(spare / costs.token / weight.shape[0], 0.0), 1.0)


_MEASURED: dict[tuple, Costs] = {}


def costs_for(call: Call) -> Costs:
    """The costs of a call's head, measured the first time that one like it comes."""
    rows = min(max(call.hidden.shape[0], ROWS_LOWEST), ROWS_HIGHEST)
    sizes = (rows - 1).bit_length() + 1
    kind = (call.hidden.dtype, call.out.dtype, *call.weight.shape, tuple(torch_dense.methods(call)))
    key = (*kind, sizes, torch.get_num_threads())
    if key not in _MEASURED:
        _MEASURED[key] = measure(call, sizes)
    return _MEASURED[key]


def measure(call: Call, sizes: int) -> Costs:
    """Time the dense products of 1, 2, 4, ... rows, ``sizes`` of them, and the gather."""
    vocab_size, width = call.weight.shape
    step = min(max(SAMPLE // width // torch_dense.BLOCK, 1) * torch_dense.BLOCK, vocab_size)
    turn = _turns(vocab_size, step)
    dense, chosen = [], []
    for rows in 2 ** np.arange(sizes):
        hidden = torch.ones(int(rows), width, dtype=call.hidden.dtype)
        out = torch.empty(int(rows), step, dtype=call.out.dtype)
        taken = _medians(
            {
                name: lambda way=way, hidden=hidden, out=out: way(
                    _slice(call, next(turn), step), hidden, out
                )
                for name, way in torch_dense.methods(call).items()
            }
        )
        blocks, matmul = taken["blocks"], taken.get("matmul", math.inf)
        chosen.append("matmul" if matmul <= BETTER * blocks else "blocks")
        dense.append(taken[chosen[-1]] * vocab_size / step)
    rng, first = np.random.default_rng(0), np.zeros(1, np.int64)
    trial = replace(call, out=torch.empty_like(call.out[:1]))

    def gather(count: int):
        draws = rng.integers(vocab_size, size=(TURNS, count))
        turns = iter(torch.from_numpy(np.sort(draws, axis=1)))
        return lambda: torch_gather.gather(trial, first, next(turns))

    one, many = _medians({count: gather(count) for count in (1, GATHERED)}).values()
    token = max(many - one, 0.1) / (GATHERED - 1)
    # Fewer rows never cost more: what says so was disturbed.
    dense = np.minimum.accumulate(dense[::-1])[::-1].tolist()
    return Costs(tuple(dense), tuple(chosen), one, token)


def _turns(vocab_size: int, step: int):
    """Starts of slices, round and round, so that none is still in cache when it comes again."""
    while True:
        yield from range(0, vocab_size - step + 1, step)


def _slice(call: Call, start: int, step: int) -> Call:
    bias = None if call.bias is None else call.bias[start : start + step]
    return replace(call, weight=call.weight[start : start + step], bias=bias)


def clock() -> Callable[[], float]:
    """What to time with, in seconds: on one thread its own time, which no other process disturbs;
    on several the wall clock, as waiting for each other counts."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def _medians(steps: dict[Any, Callable[[], None]]) -> dict[Any, float]:
    """The median time of each in the turns after the first, in microseconds."""
    taken, now = {name: [] for name in steps}, clock()
    for _ in range(TURNS):
        for name, step in steps.items():
            start = now()
            step()
            taken[name].append((now() - start) * 1e6)
    return {name: float(np.median(times[1:])) for name, times in taken.items()}
