"""Finish in budget: as `max_tokens` runs out, only tokens from which the text can still be ended.

For a row that asks for it (`SamplingParams.finish_in_budget`) and has a grammar, a way to finish is
known that fits what is left: tokens, the stop token last, that the grammar has accepted
(`grammar.finish`). A token is drawn as ever. If, after it, a way is known that fits what is left
then, it is taken. If not, it is forbidden and the row drawn anew with the same noise: over the
smaller mask, as though it had been the grammar's, cuts included. The token that the known way goes
on with always passes; after `REDRAWS` draws it is the only one left in the mask. So:

* a completion with which nothing interfered is the one that the flag off gives;
* one that once had a way to finish that fits ends with a stop token;
* a token is forbidden if no way *that was found* fits after it. The search is short, not complete,
  so it may hurry a row that would just have made it.

Where budget is plentiful, rows are not looked at: with `s` tokens more than are needed, and `s`
more than twice the longest finish seen so far (and than `NEAR`), the next look is a quarter of the
excess later. Until then what is needed would have to grow by three tokens a token, and by that
much besides, to be lost. A row that is lost, or cannot finish from the start, goes on as without
the flag, and is looked at again now and then: a shorter way may open.

A row's results depend on the row alone: what the search learns of a grammar it learns for that row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
import xgrammar

from grammar.finish import Finish, Finisher, Spelling
from grammar.matcher import MatcherBatch
from kernels.masked_sample import Sample, Status
from sampler.row import Row

REDRAWS = 16
"""Draws of one token, after the first."""
NEAR = 128
"""Tokens to spare below which every draw is looked at."""
_GRAMMARS = 64
"""Grammars remembered."""


@dataclass
class _Watch:
    """What is known of one row.

    Attributes:
        finish: a way to finish from position `at`; later, one to try first.
        next: the position from which the row is to be looked at again.
        retries: the row's, when this was found.
        longest: tokens of the longest finish so far.
        lost: at the last look no finish that fits was known.
    """

    finisher: Finisher
    finish: Finish | None
    at: int = 0
    next: int = 0
    retries: int = 0
    longest: int = 0
    lost: bool = False

    def current(self, row: Row) -> Finish | None:
        """What is left of the finish, if the row has kept to it."""
        if self.finish is None or self.retries != row.retries or self.at > row.position:
            return None
        taken = tuple(row.token_ids[self.at :])
        if taken != self.finish.token_ids[: len(taken)]:
            return None
        return self.finish.after(len(taken))

    def know(self, finish: Finish, at: int, row: Row) -> None:
        self.finish, self.at, self.retries = finish, at, row.retries
        self.lost = False
        self.longest = max(self.longest, len(finish))


class Budget:
    """Keeps the rows of a batch that ask for it within their budgets.

    Args:
        pieces: gives the bytes of each token, when they are first needed.

    Attributes:
        lost: rows that at some time had no way to finish that is known and fits.
    """

    def __init__(self, pieces: Callable[[], Sequence[bytes]]) -> None:
        self.lost = 0
        self._pieces = pieces
        self._spelling: Spelling | None = None
        self._finishers: OrderedDict[int, tuple[xgrammar.CompiledGrammar, Finisher]] = OrderedDict()
        self._watches: WeakKeyDictionary[Row, _Watch] = WeakKeyDictionary()

    def settle(
        self,
        rows: Sequence[Row],
        numbers: Sequence[int],
        matchers: MatcherBatch,
        sample: Sample,
        redraw: Callable[[list[int], torch.Tensor], Sample],
    ) -> tuple[Sample, dict[int, torch.Tensor]]:
        """A step's draws, with those drawn anew that leave no way to finish.

        Args:
            rows: the rows that were drawn for, [B].
            numbers: which rows of ``matchers`` they are; their bitmasks are those drawn under.
            sample: the draws.
            redraw: draws some of the rows (numbers in [0, B)) again with the same noise, under the
                masks, int32 [rows, words] on the CPU.

        Returns:
            The sample to take, and for each row drawn anew the mask that it was drawn under.
        """
        watched = [n for n, row in enumerate(rows) if self._is_close(row, matchers, numbers[n])]
        if not watched:
            return sample, {}
        tokens, statuses = sample.token.tolist(), sample.status.tolist()

        def admits(n: int, token: int, status: int) -> bool:
            matcher = matchers.matcher(numbers[n])
            return status != Status.OK or self._admits(rows[n], matcher, token)

        refused = [n for n in watched if not admits(n, tokens[n], statuses[n])]
        if not refused:
            return sample, {}
        settled = Sample(*(column.clone() for column in sample[:3]), sample.stats)
        masks = {n: matchers.bitmask[numbers[n]].clone() for n in refused}
        for left in reversed(range(REDRAWS)):
            for n in refused:
                if left:
                    _forbid(masks[n], tokens[n])
                else:
                    _allow_only(masks[n], self._watches[rows[n]].finish.token_ids[0])
            again = redraw(refused, torch.stack([masks[n] for n in refused]))
            settled = _with(settled, refused, again)
            pending = []
            for k, n in enumerate(refused):
                tokens[n], status = int(again.token[k]), int(again.status[k])
                if status != Status.OK:
                    # A bias of -inf on the way out, say: better cut off than failed.
                    settled = _with(settled, [n], _row(sample, n))
                    del masks[n]
                elif not admits(n, tokens[n], status):
                    pending.append(n)
            refused = pending
            if not refused:
                break
        for n in masks:
            rows[n].hurried.append(rows[n].position)
        return settled, masks

    def _is_close(self, row: Row, matchers: MatcherBatch, number: int) -> bool:
        """Whether this draw of a row is to be looked at; a way to finish is known then."""
        if not row.request.params.finish_in_budget or row.request.grammar is None:
            return False
        watch = self._watches.get(row)
        if watch is None:
            finisher = self._finisher(row.request.grammar).copy()
            watch = self._watches[row] = _Watch(finisher, finisher.start)
        if row.position < watch.next and row.retries == watch.retries:
            return False
        finish = watch.current(row) or watch.finisher.find(
            matchers.matcher(number), known=watch.finish, enough=row.budget // 2
        )
        if finish is None or len(finish) > row.budget:
            self.lost += not watch.lost
            watch.lost, watch.retries = True, row.retries
            watch.next = row.position + 1 + row.budget // 8
            return False
        watch.know(finish, row.position, row)
        spare = row.budget - len(finish)
        excess = spare - max(NEAR, 2 * watch.longest)
        watch.next = row.position + 1 + excess // 4 if excess > 0 else row.position
        return excess <= 0

    def _admits(self, row: Row, matcher: xgrammar.GrammarMatcher, token: int) -> bool:
        """Whether a way to finish is known after the token that fits what is left then."""
        watch, left = self._watches[row], row.budget - 1
        if token == watch.finish.token_ids[0]:
            watch.know(watch.finish.after(1), row.position + 1, row)
            return True
        # Where the mask and the matcher disagree, the row says so.
        if token in row.stops or not matcher.accept_token(token):
            return True
        try:
            finish = watch.finisher.find(matcher, known=watch.finish, enough=left)
        finally:
            matcher.rollback(1)
        if finish is None or len(finish) > left:
            return False
        watch.know(finish, row.position + 1, row)
        return True

    def _finisher(self, compiled: xgrammar.CompiledGrammar) -> Finisher:
        if self._spelling is None:
            self._spelling = Spelling(self._pieces())
        key = id(compiled)
        if key not in self._finishers:
            # The grammar is kept with it: while it is, no other has its id.
            self._finishers[key] = compiled, Finisher(compiled, self._spelling)
        self._finishers.move_to_end(key)
        while len(self._finishers) > _GRAMMARS:
            self._finishers.popitem(last=False)
        return self._finishers[key][1]


def _forbid(mask: torch.Tensor, token: int) -> None:
    """Clear a token's bit in one row's mask, int32 [words] on the CPU."""
    words = mask.numpy().view(np.uint32)
    words[token // 32] &= ~np.uint32(1 << token % 32)


def _allow_only(mask: torch.Tensor, token: int) -> None:
    words = mask.numpy().view(np.uint32)
    words[:] = 0
    words[token // 32] = 1 << token % 32


def _row(sample: Sample, n: int) -> Sample:
    stats = sample.stats and type(sample.stats)(*(column[n : n + 1] for column in sample.stats))
    return Sample(*(column[n : n + 1] for column in sample[:3]), stats)


def _with(sample: Sample, numbers: Sequence[int], other: Sample) -> Sample:
    """A sample whose rows of these numbers are those of another."""
    index = torch.tensor(numbers, device=sample.token.device)

    def replaced(ours, theirs):
        return [a.index_copy(0, index, b.to(a)) for a, b in zip(ours, theirs, strict=True)]

    stats = sample.stats and type(sample.stats)(*replaced(sample.stats, other.stats))
    return Sample(*replaced(sample[:3], other[:3]), stats)
