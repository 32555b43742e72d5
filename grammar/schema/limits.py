"""What preparing a schema may cost, and the error when it would cost more."""

import json
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from grammar import deadline
from grammar.schema.result import Options


class Refused(Exception):
    """The schema cannot be guaranteed; becomes the verdict ``refused``.

    Args:
        pointer: where, as a JSON pointer with ``#`` first.
        keyword: the keyword at fault, or an empty string.
        message: why, and what to do.
    """

    def __init__(self, pointer: str, keyword: str, message: str) -> None:
        super().__init__(message)
        self.pointer, self.keyword, self.message = pointer, keyword, message


class OverBudget(Refused):
    """Rewriting took all that it may; a coarser reading may still do."""


class TooMuch(Exception):
    """One rewriting would outgrow its share; the caller writes something wider instead."""


class OutOfMoves(TooMuch):
    """The patterns of this schema have had their share; the next schema has its own."""


_MOVES = 400_000
"""Moves of automata looked at for all the patterns of one schema: about half a second."""


class Budget:
    """Counts steps of rewriting, so that no schema takes more than its share.

    Steps are counted before time is looked at: the outcome is the same on every machine that is
    not very slow. The deadline of the whole request (see ``grammar.deadline``) is another thing: it
    ends the work without an outcome.

    Args:
        options: its limits.
        share: the part of ``max_seconds`` that this reading may take.
    """

    def __init__(self, options: Options, share: float = 1.0) -> None:
        self.steps_left, self.moves_left = options.max_growth, _MOVES
        self._options = options
        now = time.thread_time()
        self._deadline = now + share * options.max_seconds
        # Patterns alone must not use up the time: without them a guard is still possible.
        self._pattern_deadline = now + share * options.max_seconds / 2
        self._calls = 0

    def __enter__(self) -> "Budget":
        self._token = _current.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)

    def spend(self, steps: int, pointer: str = "#") -> None:
        """Take steps off.

        Raises:
            OverBudget: none are left, or the time is over.
            OutOfTime: that of the whole request is.
        """
        self.steps_left -= max(steps, 1)
        if self.steps_left < 0:
            raise OverBudget(
                pointer,
                "",
                f"rewriting needs more than {self._options.max_growth:,} steps; simplify the"
                " combinations (allOf, anyOf, oneOf, not) or raise max_growth",
            )
        self.tick(pointer)

    def tick(self, pointer: str = "#") -> None:
        """Look at the clock now and then.

        Raises:
            OverBudget: the time is over.
            OutOfTime: that of the whole request is.
        """
        self._calls += 1
        # Reading the clock of a thread takes a while on some systems.
        if self._calls % 64:
            return
        deadline.check()
        if time.thread_time() > self._deadline:
            raise OverBudget(
                pointer,
                "",
                f"rewriting took more than {self._options.max_seconds:g} s of the processor;"
                " simplify the schema or raise max_seconds",
            )

    @property
    def late_for_patterns(self) -> bool:
        """Whether the time for automata is over."""
        return time.thread_time() > self._pattern_deadline


_current: ContextVar["Budget | None"] = ContextVar("budget", default=None)


def spend(moves: int) -> None:
    """Count work on automata, across one call of ``prepare``.

    Raises:
        OutOfMoves: its share is used up.
        OutOfTime: the deadline of the whole request is over.
    """
    budget = _current.get()
    if budget is None:
        return
    before, budget.moves_left = budget.moves_left, budget.moves_left - moves
    # A glance at the clock each ten thousand moves.
    look = before // 10_000 != budget.moves_left // 10_000
    if look:
        deadline.check()
    if budget.moves_left < 0 or (look and budget.late_for_patterns):
        raise OutOfMoves("the intersection of all its patterns")


def check_size(schema: Any, options: Options) -> str:
    """Check that a schema is JSON, and neither too deep nor too large.

    Returns:
        Its text.

    Raises:
        Refused: it is not.
    """
    if not isinstance(schema, Mapping | bool):
        raise Refused(
            "#", "", f"a schema must be an object or a boolean; got {type(schema).__name__}"
        )
    level, depth = [schema], 0
    while level:
        if depth > options.max_depth * 2:
            raise Refused(
                "#", "", f"the schema nests deeper than {options.max_depth} schemas; flatten it"
            )
        level = [
            child
            for value in level
            for child in (
                value.values()
                if isinstance(value, Mapping)
                else value
                if isinstance(value, list | tuple)
                else ()
            )
            if isinstance(child, Mapping | list | tuple)
        ]
        if len(level) > options.max_bytes // 32:
            raise Refused("#", "", f"the schema is larger than {options.max_bytes:,} bytes")
        depth += 1
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused("#", "", f"the schema must be JSON; {error}") from None
    if size > options.max_bytes:
        raise Refused(
            "#",
            "",
            f"the schema has {size:,} bytes of JSON, more than max_bytes = {options.max_bytes:,}",
        )
    return text
