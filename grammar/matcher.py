"""A batch of matchers over one bitmask: what a decoding loop fills, samples under and advances."""

import os
from collections.abc import Iterable, Sequence

import numpy as np
import torch
import xgrammar

ALL_ALLOWED = -1
"""A mask word with every bit set."""


class MatcherBatch:
    """One matcher a row, or None for a row that decodes freely.

    Args:
        rows: compiled grammars (``grammar.compiler.Compiler.compile``) or None.
        vocab_size: columns of the logits, as given to ``tokenizer_info``.
        max_threads: threads that ``fill`` may use. A mask that has been worked out before takes a
            few microseconds, less than handing it to a thread; more than one pays only while masks
            are new.

    Attributes:
        bitmask: int32, CPU, ``[B, ceil(vocab_size / 32)]``; bit ``t % 32`` of word ``t // 32`` says
            whether token ``t`` is allowed. Rows that are free or finished are all ones. Bits beyond
            ``vocab_size`` mean nothing and may be set.
        constrained: bool, CPU, ``[B]``; whether the row's mask counts: False if free or finished.

    Both tensors are replaced, not resized, by ``append`` and ``keep``: read them anew.
    """

    def __init__(
        self,
        rows: Sequence[xgrammar.CompiledGrammar | None],
        *,
        vocab_size: int,
        max_threads: int = 1,
    ) -> None:
        self.vocab_size = vocab_size
        self._matchers: list[xgrammar.GrammarMatcher | None] = [None] * len(rows)
        self._steps = [0] * len(rows)
        self.bitmask = xgrammar.allocate_token_bitmask(len(rows), vocab_size)
        self.constrained = torch.zeros(len(rows), dtype=torch.bool)
        self._filler = xgrammar.BatchGrammarMatcher(min(max_threads, os.cpu_count() or 1))
        for row, compiled in enumerate(rows):
            self.swap_in(row, compiled)

    def __len__(self) -> int:
        return len(self._matchers)

    def fill(self, active_rows: Iterable[int] | torch.Tensor | None = None) -> torch.Tensor:
        """Write the masks of the next step for the constrained ones among ``active_rows``.

        Args:
            active_rows: row numbers, a bool tensor ``[B]``, or None for all. The masks of other
                rows stay as they are.

        Returns:
            ``bitmask``.
        """
        check_bitmask(self.bitmask, len(self), self.vocab_size)
        if active_rows is None:
            active_rows = range(len(self))
        elif isinstance(active_rows, torch.Tensor):
            mask = active_rows.dtype == torch.bool
            active_rows = (active_rows.nonzero() if mask else active_rows).flatten().tolist()
        live = self.constrained.tolist()
        rows = [row for row in active_rows if live[row]]
        if len(rows) > 1:
            self._filler.batch_fill_next_token_bitmask(
                [self._matchers[row] for row in rows], self.bitmask, rows
            )
        elif rows:
            self._matchers[rows[0]].fill_next_token_bitmask(self.bitmask, rows[0])
        return self.bitmask

    def accept(self, row: int, token_id: int) -> bool:
        """Advance a row by one token.

        Returns:
            Whether the token is legal. An illegal one changes nothing. A free row takes any token
            of the vocabulary, a finished row none.
        """
        matcher = self._matchers[row]
        token_id = int(token_id)
        if not 0 <= token_id < self.vocab_size:
            return False
        if matcher is None:
            return True
        if matcher.is_terminated() or not matcher.accept_token(token_id):
            return False
        self._steps[row] += 1
        if matcher.is_terminated():
            self._release(row)
        return True

    def is_terminated(self, row: int) -> bool:
        """Whether the row has accepted a stop token. A free row never has."""
        matcher = self._matchers[row]
        return matcher is not None and matcher.is_terminated()

    def is_completed(self, row: int) -> bool:
        """Whether the row could stop here: its text is a whole one of the grammar. True if free."""
        matcher = self._matchers[row]
        return matcher is None or matcher.is_completed()

    def rollback(self, row: int, n: int) -> None:
        """Take back the last ``n`` accepted tokens of a row; a free row has no state to take back.

        Raises:
            ValueError: the row has accepted fewer.
        """
        matcher = self._matchers[row]
        if matcher is None or n == 0:
            return
        if not 0 <= n <= self._steps[row]:
            raise ValueError(
                f"n must lie in [0, {self._steps[row]}], the tokens row {row} has accepted; got {n}"
            )
        matcher.rollback(n)
        self._steps[row] -= n
        self.constrained[row] = True

    def forced_run(self, row: int, limit: int = 256) -> list[int]:
        """The tokens that the masks force, one by one, from here: each mask has exactly one bit.

        These are the tokens that sampling would give whatever the logits are, a forced stop token
        included. The row itself does not advance.

        Args:
            limit: tokens after which to stop looking.
        """
        if not self.constrained[row]:
            return []
        matcher = self._matchers[row].fork()
        mask = xgrammar.allocate_token_bitmask(1, self.vocab_size)
        run: list[int] = []
        while len(run) < limit and not matcher.is_terminated():
            matcher.fill_next_token_bitmask(mask)
            token_id = _only_token(mask, self.vocab_size)
            if token_id is None or not matcher.accept_token(token_id):
                break
            run.append(token_id)
        return run

    def swap_in(self, row: int, compiled: xgrammar.CompiledGrammar | None) -> None:
        """Give a row to a new request, at the start of its grammar; None frees it.

        Raises:
            ValueError: the grammar was compiled for another vocabulary size.
        """
        if compiled is None:
            self._matchers[row] = None
        else:
            width = compiled.tokenizer_info.vocab_size
            if width != self.vocab_size:
                raise ValueError(
                    f"the grammar of row {row} covers {width:,} tokens but vocab_size is"
                    f" {self.vocab_size:,}; build its tokenizer_info with the same vocab_size"
                )
            self._matchers[row] = xgrammar.GrammarMatcher(compiled)
        self._steps[row] = 0
        self._release(row)
        self.constrained[row] = compiled is not None

    def append(self, compiled: xgrammar.CompiledGrammar | None) -> int:
        """Add a row for a new request.

        Returns:
            Its number.
        """
        row = len(self)
        self._matchers.append(None)
        self._steps.append(0)
        self.bitmask = torch.cat(
            [self.bitmask, xgrammar.allocate_token_bitmask(1, self.vocab_size)]
        )
        self.constrained = torch.cat([self.constrained, torch.zeros(1, dtype=torch.bool)])
        self.swap_in(row, compiled)
        return row

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order, and drop the others.

        Raises:
            ValueError: a row is named twice; a matcher cannot be shared.
        """
        rows = [int(row) for row in rows]
        if len(set(rows)) < len(rows):
            raise ValueError(f"rows must be distinct; got {rows}")
        self._matchers = [self._matchers[row] for row in rows]
        self._steps = [self._steps[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.long)
        self.bitmask = self.bitmask[index]
        self.constrained = self.constrained[index]

    def _release(self, row: int) -> None:
        self.bitmask[row] = ALL_ALLOWED
        self.constrained[row] = False


def check_bitmask(bitmask: torch.Tensor, batch_size: int, vocab_size: int) -> None:
    """Refuse a bitmask that xgrammar would not fill, or would fill in the wrong place.

    Raises:
        ValueError: not int32, not on the CPU, of another shape, or strided: xgrammar ignores
            strides and writes to memory that the view does not show.
    """
    shape = xgrammar.get_bitmask_shape(batch_size, vocab_size)
    if bitmask.dtype != torch.int32 or bitmask.device.type != "cpu":
        raise ValueError(
            f"bitmask must be int32 on the CPU; got {bitmask.dtype} on {bitmask.device}"
        )
    if tuple(bitmask.shape) != shape:
        raise ValueError(
            f"bitmask must be [{shape[0]}, {shape[1]}] for {batch_size} rows of {vocab_size:,}"
            f" tokens; got {list(bitmask.shape)}"
        )
    if not bitmask.is_contiguous():
        raise ValueError(
            f"bitmask must be contiguous; got strides {bitmask.stride()}: pass a contiguous copy"
        )


def _only_token(mask: torch.Tensor, vocab_size: int) -> int | None:
    words = mask[0].numpy().view(np.uint32)
    if vocab_size % 32:
        words[-1] &= np.uint32((1 << vocab_size % 32) - 1)
    live = np.flatnonzero(words)
    if len(live) != 1:
        return None
    word = int(words[live[0]])
    return None if word & (word - 1) else 32 * int(live[0]) + word.bit_length() - 1
