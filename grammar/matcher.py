"""A batch of matchers over one bitmask: what a decoding loop fills, samples under and advances."""

import os
from collections.abc import Iterable, Sequence

import numpy as np
import torch
import tvm_ffi
import xgrammar

from kernels import bitmask as masks

ALL_ALLOWED = -1
"""A mask word with every bit set."""


class MatcherBatch:
    """One matcher a row, or None for a row that decodes freely.

    A free or finished row costs nothing: it is neither filled nor looked at.

    Args:
        rows: compiled grammars (``grammar.compiler.Compiler.compile``) or None.
        vocab_size: columns of the logits, as given to ``tokenizer_info``.
        max_threads: threads that ``fill`` may use. A mask that has been worked out before takes a
            few microseconds, less than handing it to a thread; more than one pays only while masks
            are new.

    Attributes:
        bitmask: int32, CPU, ``[B, ceil(vocab_size / 32)]``, in pinned memory where CUDA is there;
            bit ``t % 32`` of word ``t // 32`` says whether token ``t`` is allowed. Rows that are
            free or finished are all ones. Bits beyond ``vocab_size`` mean nothing and may be set.
            A buffer of the caller's own may be assigned.
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
        self._filler = xgrammar.BatchGrammarMatcher(min(max_threads, os.cpu_count() or 1))
        self._probe = xgrammar.allocate_token_bitmask(1, vocab_size)
        self.bitmask = _allocate(len(rows), vocab_size)
        self.constrained = torch.zeros(len(rows), dtype=torch.bool)
        for row, compiled in enumerate(rows):
            self._start(row, compiled)
        self._find_live()

    def __len__(self) -> int:
        return len(self._matchers)

    @property
    def bitmask(self) -> torch.Tensor:
        """The masks of the next step, as the attributes have it."""
        return self._bitmask

    @bitmask.setter
    def bitmask(self, bitmask: torch.Tensor) -> None:
        check_bitmask(bitmask, len(self), self.vocab_size)
        self._bitmask = bitmask
        # The same memory in the form that xgrammar would convert it to, at every fill.
        self._view = tvm_ffi.from_dlpack(bitmask)

    def fill(self, active_rows: Iterable[int] | torch.Tensor | None = None) -> torch.Tensor:
        """Write the masks of the next step for the constrained ones among ``active_rows``.

        Args:
            active_rows: row numbers, a bool tensor ``[B]``, or None for all. The masks of other
                rows stay as they are.

        Returns:
            ``bitmask``.
        """
        rows, matchers = self._live_rows, self._live_matchers
        if active_rows is not None:
            if isinstance(active_rows, torch.Tensor):
                mask = active_rows.dtype == torch.bool
                active_rows = (active_rows.nonzero() if mask else active_rows).flatten().tolist()
            rows = [row for row in active_rows if self._live[row]]
            matchers = [self._matchers[row] for row in rows]
        if len(rows) == 1:
            matchers[0].fill_next_token_bitmask(self._view, rows[0])
        elif rows:
            self._filler.batch_fill_next_token_bitmask(matchers, self._view, rows)
        return self._bitmask

    def accept(self, row: int, token_id: int) -> bool:
        """Advance a row by one token.

        Returns:
            Whether the token is legal. An illegal one changes nothing. A free row takes any token
            of the vocabulary, a finished row none.
        """
        token_id = int(token_id)
        if not 0 <= token_id < self.vocab_size:
            return False
        matcher = self._matchers[row]
        if matcher is None:
            return True
        if not self._live[row] or not matcher.accept_token(token_id):
            return False
        self._steps[row] += 1
        if matcher.is_terminated():
            self._release(row)
            self._find_live()
        return True

    def is_terminated(self, row: int) -> bool:
        """Whether the row has accepted a stop token. A free row never has."""
        return self._matchers[row] is not None and not self._live[row]

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
        if not self._live[row]:
            self.constrained[row] = True
            self._find_live()

    def reset(self, row: int, n: int = 0) -> None:
        """Take a row back to its first ``n`` accepted tokens; 0 is the start of its grammar.

        For a request that starts over, or whose text was cut back to what had been committed.

        Raises:
            ValueError: the row has accepted fewer.
        """
        if self._matchers[row] is None:
            return
        if not 0 <= n <= self._steps[row]:
            raise ValueError(
                f"n must lie in [0, {self._steps[row]}], the tokens row {row} has accepted; got {n}"
            )
        self.rollback(row, self._steps[row] - n)

    def forced_run(self, row: int, limit: int = 256) -> list[int]:
        """The tokens that the masks force, one by one, from here: each mask has exactly one bit.

        These are the tokens that sampling would give whatever the logits are, a forced stop token
        included. The row itself does not advance.

        Args:
            limit: tokens after which to stop looking.
        """
        run: list[int] = []
        if not self._live[row]:
            return run
        matcher = self._matchers[row]
        while len(run) < limit and not matcher.is_terminated():
            matcher.fill_next_token_bitmask(self._probe)
            token_id = _only_token(self._probe, self.vocab_size)
            if token_id is None or not matcher.accept_token(token_id):
                break
            run.append(token_id)
        if run:
            matcher.rollback(len(run))
        return run

    def jump_string(self, row: int) -> str:
        """The text that every continuation of a row starts with; empty if free or finished.

        More than ``forced_run`` finds, since the same text can be split into tokens in many ways.
        To take one of them for the model changes what is produced: see ``grammar.jump_forward``.
        """
        return self._matchers[row].find_jump_forward_string() if self._live[row] else ""

    def matcher(self, row: int) -> xgrammar.GrammarMatcher | None:
        """The matcher of a row, to look ahead with (``grammar.finish``); None if free.

        What is accepted on it must be taken back on it: the row does not know of it.
        """
        return self._matchers[row]

    def density(self) -> torch.Tensor:
        """Share of the vocabulary that each row's mask allows, float64 ``[B]``; 1 where free."""
        share = torch.ones(len(self), dtype=torch.float64)
        if self._live_rows:
            share[self._live_rows] = masks.density(self._live_masks(), self.vocab_size)
        return share

    def live_words(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Row and word number (int64, by row) of the mask words with a bit set.

        Only of rows whose mask counts: the words of a free row all have.
        """
        rows, words = masks.live_words(self._live_masks(), self.vocab_size)
        return torch.tensor(self._live_rows, dtype=torch.int64)[rows], words

    def swap_in(self, row: int, compiled: xgrammar.CompiledGrammar | None) -> None:
        """Give a row to a new request, at the start of its grammar; None frees it.

        Raises:
            ValueError: the grammar was compiled for another vocabulary size.
        """
        self._start(row, compiled)
        self._find_live()

    def append(self, compiled: xgrammar.CompiledGrammar | None) -> int:
        """Add a row for a new request.

        Returns:
            Its number.

        Raises:
            ValueError: the grammar was compiled for another vocabulary size.
        """
        self._check_width(len(self), compiled)
        row = len(self)
        self._matchers.append(None)
        self._steps.append(0)
        grown = _allocate(len(self), self.vocab_size)
        grown[:row] = self._bitmask
        self.bitmask = grown
        self.constrained = torch.cat([self.constrained, torch.zeros(1, dtype=torch.bool)])
        self.swap_in(row, compiled)
        return row

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order, and drop the others.

        A row that is named again is copied, with a state of its own: what a beam search needs when
        one beam becomes the parent of several.
        """
        rows = [int(row) for row in rows]
        old, seen = self._matchers, set()
        self._matchers = []
        for row in rows:
            copied = row in seen and old[row] is not None
            self._matchers.append(old[row].fork() if copied else old[row])
            seen.add(row)
        self._steps = [self._steps[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.long)
        kept = _allocate(len(rows), self.vocab_size)
        torch.index_select(self._bitmask, 0, index, out=kept)
        self.bitmask = kept
        self.constrained = self.constrained[index]
        self._find_live()

    def _start(self, row: int, compiled: xgrammar.CompiledGrammar | None) -> None:
        self._check_width(row, compiled)
        self._matchers[row] = None if compiled is None else xgrammar.GrammarMatcher(compiled)
        self._steps[row] = 0
        self._release(row)
        self.constrained[row] = compiled is not None

    def _check_width(self, row: int, compiled: xgrammar.CompiledGrammar | None) -> None:
        width = self.vocab_size if compiled is None else compiled.tokenizer_info.vocab_size
        if width != self.vocab_size:
            raise ValueError(
                f"the grammar of row {row} covers {width:,} tokens but vocab_size is"
                f" {self.vocab_size:,}; build its tokenizer_info with the same vocab_size"
            )

    def _release(self, row: int) -> None:
        self._bitmask[row] = ALL_ALLOWED
        self.constrained[row] = False

    def _find_live(self) -> None:
        # Worked out when a row starts or ends, not at every fill.
        self._live = self.constrained.tolist()
        self._live_rows = [row for row, live in enumerate(self._live) if live]
        self._live_matchers = [self._matchers[row] for row in self._live_rows]

    def _live_masks(self) -> torch.Tensor:
        every = len(self._live_rows) == len(self)
        return self._bitmask if every else self._bitmask[self._live_rows]


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


def _allocate(batch_size: int, vocab_size: int) -> torch.Tensor:
    bitmask = xgrammar.allocate_token_bitmask(batch_size, vocab_size)
    # Copies to the device need not wait then; xgrammar fills pinned memory too (its #242).
    return bitmask.pin_memory() if torch.cuda.is_available() else bitmask


def _only_token(mask: torch.Tensor, vocab_size: int) -> int | None:
    words = mask[0].numpy().view(np.uint32)
    if vocab_size % 32:
        words[-1] &= np.uint32((1 << vocab_size % 32) - 1)
    live = np.flatnonzero(words)
    if len(live) != 1:
        return None
    word = int(words[live[0]])
    return None if word & (word - 1) else 32 * int(live[0]) + word.bit_length() - 1
