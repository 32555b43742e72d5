"""Before anything is timed: do the ways of the loop give the same tokens, and valid calls?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eval.decoding_runs import Work, decoder
from eval.decoding_work import script_from_completion, valid_call
from sampler.params import Completion

_WAYS: dict[str, dict[str, Any]] = {
    "dense": {"masked_head": False, "forced_runs": False},
    "masked": {"forced_runs": False},
    "forced": {},
}


@dataclass
class Checks:
    """What was found.

    Attributes:
        compared: completions, of all ways, that were held against the traced loop's.
        same, near_ties: those with the same tokens, and those that part at a recorded near-tie.
        wrong: those that part anywhere else, one sentence each.
        ended, valid, cut: of the traced completions: ended by themselves, of these those that are
            valid calls, and cut by max_tokens.
        free_ended, free_valid: the same of free ones.
        jump: what string jump-forward makes of the same requests: ``tokens`` in all, how many of
            them it ``jumped``, completions that keep the traced ones' ``same_tokens`` and
            ``same_text``, that ``ended``, and that are then ``valid``.
    """

    compared: int = 0
    same: int = 0
    near_ties: int = 0
    wrong: list[str] = field(default_factory=list)
    ended: int = 0
    valid: int = 0
    cut: int = 0
    free_ended: int = 0
    free_valid: int = 0
    jump: dict[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Nothing parted but at near-ties, and all calls that ended are valid."""
        jump = self.jump.get("valid") == self.jump.get("ended")
        return not self.wrong and self.valid == self.ended and jump


def check(work: Work) -> tuple[Checks, list[Completion]]:
    """Run the loop free, traced, and in each of its ways, on tokens that it draws itself.

    Returns:
        What was found, and the traced completions in the order of the items.
    """
    checks = Checks()
    traced = _complete(work, trace=True)
    for name, options in _WAYS.items():
        for n, completion in enumerate(_complete(work, **options)):
            _compare(checks, name, n, traced[n], completion)
    for item, completion in zip(work.items, traced, strict=True):
        checks.cut += completion.finish_reason == "length"
        if completion.finish_reason == "stop":
            checks.ended += 1
            checks.valid += valid_call(work.chat, item, completion)
    for item, completion in zip(work.items, _complete(work, constrained=False), strict=True):
        if completion.finish_reason == "stop":
            checks.free_ended += 1
            checks.free_valid += valid_call(work.chat, item, completion)
    checks.jump = _jump(work, traced)
    return checks, traced


def _jump(work: Work, traced: list[Completion]) -> dict[str, int]:
    found = dict.fromkeys(("tokens", "jumped", "same_tokens", "same_text", "ended", "valid"), 0)
    jumped = _complete(work, jump_forward=True)
    for item, before, after in zip(work.items, traced, jumped, strict=True):
        found["tokens"] += after.steps
        found["jumped"] += after.jumped
        found["same_tokens"] += script_from_completion(before) == script_from_completion(after)
        found["same_text"] += before.text == after.text
        if after.finish_reason == "stop":
            found["ended"] += 1
            found["valid"] += valid_call(work.chat, item, after)
    return found


def _complete(work: Work, *, constrained: bool = True, **options: Any) -> list[Completion]:
    loop = decoder(work, **options)
    for n, item in enumerate(work.items):
        loop.submit(item.request(n, constrained=constrained))
    done: dict[int, Completion] = {}
    while loop.busy:
        done.update((completion.key, completion) for completion in loop.step())
    return [done[n] for n in range(len(work.items))]


def _compare(checks: Checks, name: str, n: int, traced: Completion, other: Completion) -> None:
    checks.compared += 1
    ours, theirs = script_from_completion(traced), script_from_completion(other)
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if at is None and len(ours) == len(theirs):
        checks.same += 1
    elif at is not None and at in {tie.position for tie in traced.near_ties}:
        checks.near_ties += 1
    else:
        checks.wrong.append(
            f"{name}: request {n + 1} parts from the traced loop at token {at}, not at a near-tie"
        )
