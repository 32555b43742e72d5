"""A time by which work must be done, known to everything that the work calls.

A limit on each step (a schema, a pattern, a compilation) says little about a request that has many
of them. Whoever answers for the whole sets one deadline around it; steps look at it now and then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_NAP_S = 0.25


class OutOfTime(TimeoutError):
    """The time is over. It says nothing about what was worked on, so it is never remembered."""


class TooSlow(ValueError):
    """A request that took too long; the message says what was being done, and the remedy."""


class Deadline:
    """An end of so many seconds of the clock from now.

    Attributes:
        seconds: how many.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._expired = False
        self.restart()

    def restart(self) -> None:
        """Count from now; what has expired stays so."""
        self._end = time.monotonic() + self.seconds

    def expire(self) -> None:
        """Let it be over now: nobody waits for the work any more. Any thread may say so."""
        self._expired = True

    def left(self) -> float:
        """Seconds until then; 0 once it is over."""
        return 0.0 if self._expired else max(0.0, self._end - time.monotonic())

    def nap(self) -> float:
        """Seconds to wait for something before the clock is looked at again."""
        return min(_NAP_S, self.left())


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


@contextmanager
def within(deadline: Deadline) -> Iterator[None]:
    """Hold what is done inside, by this thread, to a deadline; in the place of one around it."""
    token = _current.set(deadline)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Deadline | None:
    """The deadline of the work that is being done, or None."""
    return _current.get()


def check() -> None:
    """Look at the clock.

    Raises:
        OutOfTime: the deadline is over.
    """
    deadline = _current.get()
    if deadline is not None and not deadline.left():
        raise OutOfTime(f"it took more than {deadline.seconds:.3g} s")


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Say what was being done when the deadline was over.

    Args:
        what: for the message: ``"the schema of tool 'weather'"``.

    Raises:
        TooSlow: before the work, or within it.
    """
    try:
        check()
        yield
    except OutOfTime:
        deadline = _current.get()
        if deadline is None or deadline.left():
            raise
        raise TooSlow(
            f"{what} was not prepared within the {deadline.seconds:g} s that a request has;"
            " simplify it (patterns and combinations cost most), or send fewer schemas at a time"
        ) from None
