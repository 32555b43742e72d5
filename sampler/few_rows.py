"""Linear layers of a decode step on a CPU: a few rows, multiplied the quicker way round.

A step reads every weight for a row or so a request. BLAS takes ``x @ weight.T`` as a product whose
rows are worth preparing the whole weight for, and with few rows that preparation is what costs:
on two cores the body of Qwen2.5-0.5B took 1.4 times as long for 8 rows of float32, and over twice
as long for 4, as with the same product turned round, ``weight @ x.T``, cut into a matrix a thread.
Which way is quicker is timed on the model's own layers, for 1, 2, 4, ... rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle

import numpy as np
import torch
from torch.nn.functional import linear

MOST = 32
"""Rows up to which a product may be turned: with more, reading the weight is no longer the cost."""
TURNS = 6
"""Timings of each way, taken in turn; the first warms up, and the median of the others counts."""
LAYERS = 4
"""Layers of a shape that a timing goes through, so that none is in cache when it is read."""
BETTER = 0.95
"""A product is turned where that takes no more than this share of the time."""

_CHOSEN: dict[tuple, bool] = {}


class FewRows:
    """The linear layers of a body, and how each is to multiply a few rows.

    Only plain `torch.nn.Linear` layers with float32 weights on the CPU take part; no other is
    touched. Sums are added up in another order, so results differ as they do between batch sizes.

    Args:
        body: any module.
    """

    def __init__(self, body: torch.nn.Module) -> None:
        self._layers = [layer for layer in body.modules() if _takes_part(layer)]
        self._turned: dict[int, list[tuple[torch.nn.Linear, Callable]]] = {}

    @contextmanager
    def multiplied(self, rows: int) -> Iterator[None]:
        """Inside, layers that are quicker so multiply `rows` rows turned round.

        A layer is lent a `forward` of its own, and hooks stay what they are.
        """
        layers = self._chosen(rows) if rows <= MOST else []
        for layer, forward in layers:
            layer.__dict__["forward"] = forward
        try:
            yield
        finally:
            for layer, _ in layers:
                layer.__dict__.pop("forward", None)

    def _chosen(self, rows: int) -> list[tuple[torch.nn.Linear, Callable]]:
        rows = 1 << (rows - 1).bit_length()
        if rows not in self._turned:
            alike: dict[torch.Size, list[torch.nn.Linear]] = {}
            for layer in self._layers:
                alike.setdefault(layer.weight.shape, []).append(layer)
            self._turned[rows] = [
                (layer, partial(turned, layer))
                for shape, layers in alike.items()
                if _pays(shape, layers, rows)
                for layer in layers
            ]
        return self._turned[rows]


def turned(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """What the layer makes of `x` [..., in], as ``weight @ x.T`` turned back: [..., out]."""
    weight, bias = layer.weight, layer.bias
    size, width = weight.shape
    flat = x.reshape(-1, width)
    if len(flat) > MOST:
        return linear(x, weight, bias)
    # One matrix a thread: MKL shares a batch out evenly, and a tall matrix not as well.
    threads = torch.get_num_threads()
    parts = threads if size % threads == 0 else 1
    product = torch.bmm(
        weight.view(parts, size // parts, width), flat.t().expand(parts, -1, -1)
    ).view(size, -1)
    if bias is not None:
        product += bias[:, None]
    return product.t().contiguous().view(*x.shape[:-1], size)


def _takes_part(layer: torch.nn.Module) -> bool:
    if type(layer) is not torch.nn.Linear or "forward" in layer.__dict__:
        return False
    weight = layer.weight
    plain = type(weight) is torch.nn.Parameter and weight.is_contiguous()
    return plain and weight.device.type == "cpu" and weight.dtype == torch.float32


def _pays(shape: torch.Size, layers: list[torch.nn.Linear], rows: int) -> bool:
    """Whether layers of this shape are quicker turned."""
    key = (*shape, rows, torch.get_num_threads())
    if key not in _CHOSEN:
        x, turn = layers[0].weight.new_ones(rows, shape[1]), cycle(layers[:LAYERS])
        taken: tuple[list[float], list[float]] = ([], [])
        for _ in range(TURNS):
            for times, way in zip(taken, (_plain, turned), strict=True):
                began = time.perf_counter()
                for _ in range(LAYERS):
                    way(next(turn), x)
                times.append(time.perf_counter() - began)
        plain, other = (float(np.median(times[1:])) for times in taken)
        _CHOSEN[key] = other <= BETTER * plain
    return _CHOSEN[key]


def _plain(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return linear(x, layer.weight, layer.bias)
