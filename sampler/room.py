"""How much of the KV cache a running batch takes, and which rows wait until there is room.

Rows lie side by side in slots: B rows of which the longest has T take B x T of them. A bound on
that is a bound on memory, whatever the prompts and however long the answers grow. Rows wait, none
is lost: those that joined last are decoded on later, from the tokens they have by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sampler import cache as kv

HEADROOM = 128
"""Slots a row must be able to grow by before it joins, so that it does not soon wait again."""
AT_ONCE = 16_384
"""Slots of prompts that are read in one forward, beyond the first: what a forward needs besides the
cache grows with them, and a mask with their length as well."""

_CGROUP = Path("/sys/fs/cgroup")


def joining(most: int | None, rows: int, slots: int, waiting: Sequence[int]) -> int:
    """How many may join of the rows that wait, in their order.

    Args:
        most: slots that the batch may take, or None.
        rows, slots: of the batch.
        waiting: tokens that each of them has so far; a beginning that they share counts too.

    Returns:
        At least 1 where the batch is empty: a row alone is checked when it is submitted.
    """
    longest = 0
    for n, length in enumerate(waiting):
        longest, slots = max(longest, length), max(slots, length)
        # A forward that many rows share is one of their longest.
        if n and (n + 1) * longest > AT_ONCE:
            return n
        full = most is not None and (rows + n + 1) * (slots + HEADROOM) > most
        if full and rows + n > 0:
            return n
    return len(waiting)


def staying(most: int | None, rows: int, slots: Callable[[int], int]) -> int:
    """How many rows may each take one more slot; the others are the last to have joined.

    Args:
        slots: that the first so many rows take each, without the others.

    Returns:
        0 where even the first does not fit: padding keeps it long, and it must join anew.
    """
    if most is None:
        return rows
    return next((n for n in range(rows, 0, -1) if n * (slots(n) + 1) <= most), 0)


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a GPU, or available to this process: a container may have less."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    left = [_left_in_group(*names) for names in _GROUPS]
    return min([psutil.virtual_memory().available, *(n for n in left if n is not None)])


_GROUPS = [
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
]
"""Where version 2 of Linux's control groups has its numbers, and version 1."""


def _left_in_group(most: str, used: str, stat: str, reclaimable: str) -> int | None:
    """Bytes that a control group has left, None where there is none or it has no bound.

    What was read from files and can be read again counts as free, as Kubernetes counts it.
    """
    try:
        limit, now = (int((_CGROUP / name).read_text()) for name in (most, used))
        lines = (_CGROUP / stat).read_text().splitlines()
        found = dict(line.split() for line in lines)
        return max(0, limit - now + int(found[reclaimable]))
    except (OSError, ValueError, KeyError):
        return None


@torch.inference_mode()
def token_bytes(model: Any) -> int:
    """Bytes of the KV cache that one token of one row takes: measured, with a token."""
    cache = kv.new_cache(model)
    ids = torch.zeros((1, 1), dtype=torch.long, device=model.get_input_embeddings().weight.device)
    model(input_ids=ids, use_cache=True, **{kv.argument(model): cache})
    held = [(layer.keys, layer.values) for layer in cache.layers if hasattr(layer, "keys")]
    return sum(part.nbytes for pair in held for part in pair if torch.is_tensor(part))
