"""Argument checks for the masked ops, and the texts of their errors.

Every message names the argument, what was wanted, what came, and what to do about it. Values that
live on the host are checked here, before any work; values on an accelerator cannot be read without
a synchronisation, so the kernels check those and report them as a row status.
"""

import numbers
from dataclasses import dataclass

import torch

from kernels.bitmask import WORD_BITS, words_for

LOGITS_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
GREEDY_BELOW = 1e-5
"""Temperatures under this one mean argmax."""


@dataclass(frozen=True, slots=True)
class Range:
    """Allowed values of one parameter, and how to say them."""

    text: str
    lowest: float
    highest: float
    remedy: str
    integer: bool = False
    open_low: bool = False

    def holds(self, value):
        """Whether a number, or each element of an array, is inside. NaN never is."""
        low = value > self.lowest if self.open_low else value >= self.lowest
        return low & (value <= self.highest)


_FLOAT32_MAX = torch.finfo(torch.float32).max

RANGES = {
    "temperature": Range(
        "a finite number >= 0", 0.0, _FLOAT32_MAX, "use 0 for argmax or 1 for no scaling"
    ),
    "top_k": Range("an integer >= 0", 0, 2**63 - 1, "use 0 for no cut", integer=True),
    "top_p": Range("a number in (0, 1]", 0.0, 1.0, "use 1.0 for no cut", open_low=True),
    "min_p": Range("a number in [0, 1]", 0.0, 1.0, "use 0.0 for no cut"),
    "seed": Range("an int64", -(2**63), 2**63 - 1, "reduce it modulo 2**63", integer=True),
    "position": Range("an int32", -(2**31), 2**31 - 1, "count tokens from 0", integer=True),
    "stream": Range("an int32", -(2**31), 2**31 - 1, "use 0 for the draw", integer=True),
}

_INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_FLOAT_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def check_logits(logits: torch.Tensor, vocab_size: int | None) -> int:
    """Check logits [B, V]; returns the vocabulary size in force."""
    if not isinstance(logits, torch.Tensor):
        raise TypeError(
            f"logits must be a torch.Tensor, got {type(logits).__name__}; convert it first"
        )
    if logits.dtype not in LOGITS_DTYPES:
        raise TypeError(
            f"logits must be float32, float16 or bfloat16, got {logits.dtype}; call .float()"
        )
    if logits.ndim != 2:
        raise ValueError(
            f"logits must be [B, V], got shape {tuple(logits.shape)}; "
            "pass the last position of each sequence only"
        )
    if logits.shape[1] == 0:
        raise ValueError("logits must have at least one column, got 0; pass the model's whole row")
    if logits.shape[1] > 1 and logits.stride(1) != 1:
        raise ValueError(
            f"logits must have unit column stride, got {logits.stride(1)}; call .contiguous()"
        )
    if vocab_size is None:
        return logits.shape[1]
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, numbers.Integral):
        raise TypeError(
            f"vocab_size must be an integer or None, got {vocab_size!r}; "
            "pass the tokenizer's vocabulary size"
        )
    if not 1 <= vocab_size <= logits.shape[1]:
        raise ValueError(
            f"vocab_size must lie in [1, {logits.shape[1]:,}], the width of logits, "
            f"got {vocab_size:,}; pass the tokenizer's vocabulary size"
        )
    return int(vocab_size)


def check_bitmask(bitmask: torch.Tensor, logits: torch.Tensor, vocab_size: int) -> None:
    """Check a packed mask against the logits that it is for."""
    if not isinstance(bitmask, torch.Tensor):
        raise TypeError(
            f"bitmask must be a torch.Tensor or None, got {type(bitmask).__name__}; "
            "allocate it with xgrammar.allocate_token_bitmask"
        )
    if bitmask.dtype != torch.int32:
        raise TypeError(
            f"bitmask must be int32 words of 32 tokens, got {bitmask.dtype}; "
            "pack a bool mask with kernels.bitmask.pack"
        )
    if bitmask.ndim != 2 or bitmask.shape[0] != logits.shape[0]:
        raise ValueError(
            f"bitmask must be [{logits.shape[0]}, words], one row for each row of logits, "
            f"got shape {tuple(bitmask.shape)}; say with `constrained` which rows use theirs"
        )
    if bitmask.shape[1] < words_for(vocab_size):
        raise ValueError(
            f"bitmask covers {bitmask.shape[1] * WORD_BITS:,} tokens but logits have "
            f"{vocab_size:,} columns to sample from; "
            "allocate it with the model's padded vocabulary size"
        )
    if bitmask.shape[1] > 1 and bitmask.stride(1) != 1:
        raise ValueError(
            f"bitmask must have unit word stride, got {bitmask.stride(1)}; call .contiguous()"
        )
    check_device("bitmask", bitmask, logits)


def check_constrained(constrained, bitmask, logits: torch.Tensor) -> None:
    """Check the [B] bool tensor that says which rows use their mask."""
    rows = logits.shape[0]
    if bitmask is None:
        raise ValueError(
            "constrained says which rows use their bitmask, but bitmask is None; "
            "pass both or neither"
        )
    if not isinstance(constrained, torch.Tensor) or constrained.dtype != torch.bool:
        got = getattr(constrained, "dtype", type(constrained).__name__)
        raise TypeError(
            f"constrained must be a bool tensor [{rows}], got {got}; "
            "build it with torch.tensor([...], dtype=torch.bool)"
        )
    if tuple(constrained.shape) != (rows,):
        raise ValueError(
            f"constrained must have shape [{rows}], one flag a row of logits, "
            f"got {tuple(constrained.shape)}; pass one flag a row"
        )
    check_device("constrained", constrained, logits)


def check_device(name: str, tensor: torch.Tensor, logits: torch.Tensor) -> None:
    """Check that a tensor lies where logits lie."""
    if tensor.device != logits.device:
        raise ValueError(
            f"{name} must be on {logits.device}, where logits are, got {tensor.device}; "
            f"move it with .to({str(logits.device)!r}, non_blocking=True)"
        )


def check_parameter(name: str, value, logits: torch.Tensor):
    """Check one sampling parameter: a number, or a tensor [B] (0-dimensional counts as a number).

    Returns:
        A Python number, or the tensor unchanged. It may lie on the host, or beside the logits;
        elements on an accelerator are not read.
    """
    allowed = RANGES[name]
    if not isinstance(value, torch.Tensor):
        return _check_number(name, value, allowed)
    rows = logits.shape[0]
    wanted = _INTEGER_DTYPES if allowed.integer else _FLOAT_DTYPES + _INTEGER_DTYPES
    if value.dtype not in wanted:
        kind = "an integer" if allowed.integer else "a floating-point"
        raise TypeError(
            f"{name} must be a number or {kind} tensor [{rows}], got {value.dtype}; "
            f"convert it with .{'long' if allowed.integer else 'float'}()"
        )
    if value.ndim == 0 and value.device.type == "cpu":
        return _check_number(name, value.item(), allowed)
    if tuple(value.shape) != (rows,):
        raise ValueError(
            f"{name} must be a number or have shape [{rows}], one value a row of logits, "
            f"got shape {tuple(value.shape)}; expand it to the batch"
        )
    if value.device.type != "cpu":
        check_device(name, value, logits)
    else:
        host = (value if allowed.integer else value.double()).numpy()
        inside = allowed.holds(host)
        if not inside.all():
            row = int(inside.argmin())
            raise ValueError(
                f"{name} must be {allowed.text}, got {value[row].item()} in row {row}; "
                f"{allowed.remedy}"
            )
    return value


def _check_number(name: str, value, allowed: Range):
    kind = numbers.Integral if allowed.integer else numbers.Real
    # The exact types first: an abstract base class takes a microsecond to ask.
    exact = type(value) is int or (type(value) is float and not allowed.integer)
    if not exact and (isinstance(value, bool) or not isinstance(value, kind)):
        raise TypeError(
            f"{name} must be {allowed.text}, or a tensor of them, got {value!r}; {allowed.remedy}"
        )
    value = int(value) if allowed.integer else float(value)
    if not allowed.holds(value):
        raise ValueError(f"{name} must be {allowed.text}, got {value}; {allowed.remedy}")
    return value
