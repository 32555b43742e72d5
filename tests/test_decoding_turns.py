"""Functions that take turns: order, results, errors."""

import threading
import time

import pytest

from eval.decoding_turns import by_turns


def _steps(name, count, log):
    def run(pause):
        for step in range(count):
            log.append((name, step))
            pause()
        return name * 2

    return run


def test_each_goes_from_pause_to_pause_and_the_order_changes():
    log = []
    results = by_turns({name: _steps(name, n, log) for name, n in (("a", 3), ("b", 1), ("c", 2))})
    assert results == {"a": "aa", "b": "bb", "c": "cc"}
    # The second cycle starts with b, which ends there, and the third with c.
    assert log == [("a", 0), ("b", 0), ("c", 0), ("c", 1), ("a", 1), ("a", 2)]


def test_nothing_runs_beside_anything_else():
    running, most = 0, 0

    def run(pause):
        nonlocal running, most
        for _ in range(10):
            running += 1
            # Long enough for any other to start.
            time.sleep(0.001)
            most = max(most, running)
            running -= 1
            pause()

    by_turns({str(n): run for n in range(4)})
    assert most == 1


def test_an_error_is_raised_and_the_others_end():
    closed = []

    def fails(pause):
        pause()
        raise ValueError("no")

    def endless(pause):
        try:
            while True:
                pause()
        finally:
            closed.append(True)

    before = threading.active_count()
    with pytest.raises(ValueError, match="no"):
        by_turns({"endless": endless, "fails": fails})
    assert closed == [True]
    assert threading.active_count() == before
