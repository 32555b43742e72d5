"""One call of `masked_sample`: its arguments checked and brought to one form, and its result."""

import functools
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch

from kernels import checks

TOP_P_LOWEST = np.float32(2.0**-126)
"""A positive top_p that float32 would flush to zero still keeps the most likely tokens."""


class Status(IntEnum):
    """What became of a row; of several, the greatest value is reported."""

    OK = 0
    EMPTY = 1
    """No token is allowed, or all allowed logits are -inf."""
    NAN = 2
    """An allowed logit is NaN."""
    POSINF = 3
    """An allowed logit is +inf once divided by the temperature."""
    BAD_PARAM = 4
    """A parameter that lives on the device is out of range."""


class Stats(NamedTuple):
    """What the mask did to each row, at the temperature of the draw (1 when that is 0)."""

    log_removed: torch.Tensor
    """float32 [B], nats: log of the probability of all forbidden tokens in the free distribution
    over the vocabulary. -inf when nothing was removed; ``log(-expm1(x))`` is that of the rest."""
    allowed: torch.Tensor
    """int64 [B]: number of tokens that the mask allows."""
    entropy: torch.Tensor
    """float32 [B], nats: entropy of the masked distribution, before the cuts."""


class Sample(NamedTuple):
    """One token a row."""

    token: torch.Tensor
    """int64 [B]. Inside the vocabulary whatever the status; to be used only when that is OK."""
    logprob: torch.Tensor
    """float32 [B], nats: under the masked, temperature-scaled distribution, before the cuts."""
    status: torch.Tensor
    """int8 [B]: a `Status`."""
    stats: Stats | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """Checked arguments of `masked_sample`; every parameter is a number or a tensor [B]."""

    logits: torch.Tensor
    bitmask: torch.Tensor | None
    constrained: torch.Tensor | None
    vocab_size: int
    temperature: float | torch.Tensor
    top_k: int | torch.Tensor
    top_p: float | torch.Tensor
    min_p: float | torch.Tensor
    seed: int | torch.Tensor
    position: int | torch.Tensor
    stream: int | torch.Tensor
    return_stats: bool


def prepare(
    logits: torch.Tensor,
    bitmask: torch.Tensor | None,
    *,
    constrained: torch.Tensor | None,
    vocab_size: int | None,
    return_stats: bool,
    **parameters,
) -> Call:
    """Check every argument of `masked_sample`.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: an argument has the wrong shape, device or stride, or a value on the host is
            out of range.
    """
    vocab_size = checks.check_logits(logits, vocab_size)
    if bitmask is not None:
        checks.check_bitmask(bitmask, logits, vocab_size)
    if constrained is not None:
        checks.check_constrained(constrained, bitmask, logits)
    for name, value in parameters.items():
        parameters[name] = checks.check_parameter(name, value, logits)
    return Call(logits, bitmask, constrained, vocab_size, return_stats=return_stats, **parameters)


class Parameters(NamedTuple):
    """Parameters of the rows of a call or of a block of them, as numpy arrays [B]."""

    greedy: np.ndarray
    """bool: the temperature is under 1e-5."""
    inverse_temperature: np.ndarray
    """float32; 1 for greedy rows."""
    top_k: np.ndarray
    """int64; 0 is no cut."""
    top_p: np.ndarray
    """float64 of a float32; 1 is no cut."""
    log_min_p: np.ndarray
    """float32, nats; -inf is no cut."""
    seed: np.ndarray
    """int64"""
    position: np.ndarray
    """int64 inside int32"""
    stream: np.ndarray
    """int64 inside int32"""

    @classmethod
    def of(cls, call: Call) -> "Parameters":
        """Those of all rows of a call."""
        rows = call.logits.shape[0]
        shape = (call.temperature, call.top_k, call.top_p, call.min_p)
        vary = any(isinstance(value, torch.Tensor) for value in shape)
        columns = _columns(*shape, rows) if vary else _cached_columns(*shape, rows)
        key = (call.seed, call.position, call.stream)
        return cls(*columns, *(_column(value, torch.int64, rows) for value in key))

    def take(self, rows: np.ndarray) -> "Parameters":
        """The parameters of some rows, by index or by a bool array."""
        return Parameters(*(column[rows] for column in self))


_NUMPY_DTYPE = {torch.float32: np.float32, torch.int64: np.int64}


def _column(value, dtype: torch.dtype, rows: int) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        return value.to(dtype).numpy()
    return np.full(rows, value, _NUMPY_DTYPE[dtype])


def _columns(temperature, top_k, top_p, min_p, rows: int) -> tuple[np.ndarray, ...]:
    """The columns of `Parameters` that shape the distribution."""
    temperature = _column(temperature, torch.float32, rows)
    greedy = temperature < np.float32(checks.GREEDY_BELOW)
    with np.errstate(divide="ignore"):
        log_min_p = np.log(_column(min_p, torch.float32, rows), dtype=np.float64)
    return (
        greedy,
        1 / np.where(greedy, np.float32(1.0), temperature),
        _column(top_k, torch.int64, rows),
        np.maximum(_column(top_p, torch.float32, rows), TOP_P_LOWEST).astype(np.float64),
        log_min_p.astype(np.float32),
    )


@functools.lru_cache(maxsize=64)
def _cached_columns(temperature, top_k, top_p, min_p, rows: int) -> tuple[np.ndarray, ...]:
    # Numbers come again step after step of a decoding loop, and dozens of small arrays take time.
    columns = _columns(temperature, top_k, top_p, min_p, rows)
    for column in columns:
        column.flags.writeable = False
    return columns
