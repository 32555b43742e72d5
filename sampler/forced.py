"""How many unread tokens a batch reads in one forward.

Tokens that a grammar forces can go through the model together. A row reads its run in one forward
only if the other rows are padded up to it, so a long run of one row is not worth it, and the run
that all rows begin a call with is. A forward of n slots in all costs about `fixed + n` (in units of
one slot's share); the width is chosen that reads most tokens for that.
"""

from __future__ import annotations

from collections.abc import Sequence

FIXED_COST = {"cpu": 16, "cuda": 512}
"""Slots that the fixed cost of a forward, which is reading the weights, would pay for. On two CPU
cores SmolLM2-135M takes 61 ms for one token, 100 for eight rows of one and 190 for 32, which makes
10 to 14; with 430 tokens of context, 8 rows of 1, 4 and 12 tokens made 20. Replaying tool calls,
16 cost least or within 1 % of that for any of those, and 32 up to 6 % more.
On a GPU it is the ratio of arithmetic to bandwidth: some hundred operations a byte."""


def step_width(unread: Sequence[int], *, device: str, can_pad: bool) -> int:
    """Tokens that each row may read in the next forward.

    Args:
        unread: how many each row has, at least 1.
        device: "cpu" or "cuda".
        can_pad: rows may stand still beside others; else all read the same number.
    """
    if not can_pad:
        return min(unread)
    fixed = FIXED_COST.get(device, FIXED_COST["cuda"])

    def tokens_for_cost(width: int) -> float:
        return sum(min(n, width) for n in unread) / (fixed + width * len(unread))

    # The best width is some row's own: between two of them both terms are linear.
    return max(sorted(set(unread)), key=tokens_for_cost) if max(unread) > 1 else 1
