"""Functions that take turns: order, results, errors."""

import threading
import time
from collections import Counter
from itertools import pairwise

import pytest

from eval.decoding_turns import by_turns


def _steps(name, count, log):
    def run(pause):
        for step in range(count):
            log.append((name, step))
            pause()
        return name * 2

    return run


def test_each_goes_from_pause_to_pause():
    log = []
    results = by_turns({name: _steps(name, n, log) for name, n in (("a", 3), ("b", 1), ("c", 2))})
    assert results == {"a": "aa", "b": "bb", "c": "cc"}
    assert [step for _, step in log] == [0, 0, 0, 1, 1, 2]
    assert sorted(log) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1)]


def test_each_follows_each_of_the_others_and_the_order_is_always_the_same():
    logs = []
    for _ in range(2):
        logs.append([])
        by_turns({name: _steps(name, 60, logs[-1]) for name in "abcd"})
    assert logs[0] == logs[1]
    names = [name for name, _ in logs[0]]
    followed = Counter(pair for pair in pairwise(names) if pair[0] != pair[1])
    # Twelve pairs, some 18 of each: a rotation would have four of them nearly always.
    assert len(followed) == 12
    assert min(followed.values()) >= 8


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
