"""Functions that take turns: what slows the machine for a second slows them all.

A whole run of one way after a whole run of another compares two minutes of a machine whose speed
may change between them. So every way is run a step at a time, each in a thread of its own, and of
those threads only one goes on at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from threading import Semaphore, Thread
from typing import Any

import torch

Pause = Callable[[], None]
"""What a function calls between two steps; it returns when it is its turn again."""


class _Stopped(BaseException):
    """Raised in `pause` of the functions that are still at work when another has failed."""


class _Lane:
    """One function, in its thread."""

    def __init__(self, function: Callable[[Pause], Any], threads: int) -> None:
        self.function, self.threads = function, threads
        self.go, self.paused = Semaphore(0), Semaphore(0)
        self.ended = self.stopped = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()

    def turn(self) -> None:
        """Let it go on until it pauses or ends."""
        self.go.release()
        self.paused.acquire()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Let it end where it pauses."""
        self.stopped = True
        while not self.ended:
            self.go.release()
            self.paused.acquire()

    def _run(self) -> None:
        # OpenMP keeps the number of threads by thread.
        torch.set_num_threads(self.threads)
        try:
            with suppress(_Stopped):
                self._wait()
                self.result = self.function(self._pause)
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self.paused.release()

    def _pause(self) -> None:
        self.paused.release()
        self._wait()

    def _wait(self) -> None:
        self.go.acquire()
        if self.stopped:
            raise _Stopped


def by_turns(functions: Mapping[str, Callable[[Pause], Any]]) -> dict[str, Any]:
    """Run functions in turn, from pause to pause; returns what each returns.

    Nothing runs at the same time as anything else. The order is drawn anew for every turn, so that
    what one leaves behind in the caches of the machine is nobody's alone; it is the same in every
    call.

    Raises:
        BaseException: the first error of any of them; the others are ended at their next pause.
    """
    threads = torch.get_num_threads()
    lanes = {name: _Lane(function, threads) for name, function in functions.items()}
    order, random = list(lanes.values()), Random(0)
    try:
        while any(not lane.ended for lane in order):
            random.shuffle(order)
            for lane in order:
                if not lane.ended:
                    lane.turn()
    finally:
        for lane in lanes.values():
            lane.stop()
            lane.thread.join()
    return {name: lane.result for name, lane in lanes.items()}
