"""One run shared by the processes that ``torchrun`` starts, for local models.

Rank r of n answers every n-th of the requests that are left, from the r-th on, into a results file
of its own; rank 0 moves the rows together when all have ended. Who answers a request makes no
difference to its noise, so the rows are those of one process, but for near ties.

Nothing of this is needed to resume: rank 0 first moves what an earlier run left in the parts, then
tells the others what is done, so the number of processes may change in between.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

Item = TypeVar("Item")

# The wait at the end is for the slowest rank's share, which may take a day; if a rank dies,
# torchrun ends the others.
_PATIENCE = timedelta(days=30)


@dataclass(frozen=True)
class Place:
    """This process among those of a run: `rank` of `size`, and its number on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Place:
        """What torchrun says in RANK, WORLD_SIZE and LOCAL_RANK; without it, the only process.

        Raises:
            ValueError: a variable is no number, or the rank is not below the size.
        """
        if "WORLD_SIZE" not in environment or "RANK" not in environment:
            return cls()
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        values = [environment.get(name, "0") for name in names]
        try:
            rank, size, local_rank = map(int, values)
        except ValueError:
            said = ", ".join(f"{n}={v}" for n, v in zip(names, values, strict=True))
            raise ValueError(
                f"{', '.join(names)} must be integers, as torchrun sets them; got {said}"
            ) from None
        if not 0 <= rank < size:
            raise ValueError(f"RANK must be below WORLD_SIZE; got RANK={rank}, WORLD_SIZE={size}")
        return cls(rank, size, local_rank)

    @property
    def first(self) -> bool:
        """Whether this process reads, merges and reports."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """The items that fall to this process."""
        return items[self.rank :: self.size]

    def device(self, name: str) -> str:
        """``cuda`` as this process's own GPU; any other device as it is named."""
        return f"cuda:{self.local_rank}" if name == "cuda" and self.size > 1 else name


class Processes:
    """What the processes of a run say to each other; nothing, where there is one.

    Over gloo, so it works without a GPU. Use as a context manager.
    """

    def __init__(self, place: Place) -> None:
        self.place = place

    def __enter__(self) -> Processes:
        if self.place.size > 1:
            from torch import distributed

            distributed.init_process_group("gloo", timeout=_PATIENCE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.place.size > 1 and kind is None:
            from torch import distributed

            distributed.destroy_process_group()

    def told(self, message: Any) -> Any:
        """The message of rank 0, to every process; the others' own are ignored."""
        if self.place.size == 1:
            return message
        from torch import distributed

        box = [message]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def wait_for_all(self) -> None:
        """Return once every process has come this far."""
        if self.place.size > 1:
            from torch import distributed

            distributed.barrier()
