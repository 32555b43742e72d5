"""The decoding loop: admit, advance, fill masks, sample, accept, retire.

Free and constrained requests share a batch. A request's tokens depend on its prompt, its grammar
and its seed, never on the batch around it, but for one thing: the model's own arithmetic may differ
with the batch's shape (about 5e-5 in a float32 logit on a CPU). A draw whose two best scores lie
closer than `TIE_MARGIN` could fall either way; traced runs list those.

What a grammar allows is known before the model has said anything. So logits are computed for
allowed tokens only (`sampler.head`), and where one token alone is allowed nothing is sampled: it
joins the tokens that the model still has to read (`sampler.forced`).
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch

from grammar.matcher import MatcherBatch
from grammar.tokenizer import token_bytes
from kernels.masked_sample import Sample, masked_sample
from sampler.batch import CachedBatch
from sampler.budget import Budget
from sampler.columns import Columns
from sampler.fits import check_fits
from sampler.forced import step_width
from sampler.head import Head, to_device
from sampler.params import Completion, Live, Request
from sampler.penalties import penalised
from sampler.room import joining, staying
from sampler.row import Row
from sampler.trace import Trace


def generate(
    model: Any,
    requests: Iterable[Request],
    *,
    tokenizer: Any,
    stop_token_ids: Iterable[int],
    batch_size: int = 16,
    **options: Any,
) -> Iterator[Completion]:
    """Complete requests, up to `batch_size` at a time; each is yielded as soon as it ends.

    Args:
        model, tokenizer, stop_token_ids, batch_size, options: see `Decoder`.
        requests: in the order in which they join.

    Yields:
        `Completion`s in the order in which they end. A row whose logits or grammar fail ends with
        finish_reason "error"; the others go on. One whose guard objects is decoded on from where
        that went wrong.

    Raises:
        ValueError: a request's prompt or grammar does not fit the model; before anything runs.
    """
    decoder = Decoder(
        model,
        tokenizer=tokenizer,
        stop_token_ids=stop_token_ids,
        batch_size=batch_size,
        **options,
    )
    for n, request in enumerate(requests):
        decoder.submit(request, name=f"request {n}")
    while decoder.busy:
        yield from decoder.step()


@dataclass
class Counts:
    """What a decoder has done so far.

    Attributes:
        steps: calls of `Decoder.step` that sampled.
        sampled, forced: tokens that were drawn, and that the grammar left no choice about.
        jumped: tokens of forced text that were put in, also in place of one that had been drawn.
        hurried: of those drawn, how many anew, to end within the budget.
        lost: rows that were to end within it, and at some time had no way known that fits.
        preempted: times that a row had to wait again for room in the cache.
        seconds: spent in "prompt" (the body, over prompts of rows that join), "forward" (the body,
            over what rows append), "head", "sampling" and "grammar". On a GPU these are the times
            it takes to launch the work, all but the last wait, in "sampling".
    """

    steps: int = 0
    sampled: int = 0
    forced: int = 0
    jumped: int = 0
    hurried: int = 0
    lost: int = 0
    preempted: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("prompt", "forward", "head", "sampling", "grammar"), 0.0
        )
    )

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count what happens inside towards a part of `seconds`."""
        began = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - began


class Decoder:
    """A running batch: requests join when there is room, and leave when they end.

    Args:
        model: a Hugging Face causal model. Its logits' width is the vocabulary's.
        tokenizer: decodes the tokens; its ids must fit the model.
        stop_token_ids: ids that end a completion (grammars must be compiled with the same).
        batch_size: rows that are decoded together.
        trace: also record interventions, near-ties and the probability removed; this draws three
            times instead of once, and needs every logit of every row.
        impl: of `kernels.masked_sample`.
        masked_head: compute logits of allowed tokens only, where that pays.
        forced_runs: do not sample where the grammar allows one token only.
        jump_forward: also take text that the grammar forces without sampling its tokens, as the
            tokenizer would split it. **This changes what is produced**: the model might have split
            it otherwise, and what follows is drawn after other tokens, at other positions. Not for
            rows with top_logprobs, stop texts or finish_in_budget, which are decoded as ever: the
            tokenizer's split may be longer than the one with which a row would just have ended.
        share_prefixes: compute what prompts begin with in common once.
        max_cache_tokens: slots of the KV cache that the rows may take together, or None. Rows are
            as long as the longest; those that joined last wait while there is no room, and are
            then decoded on. Not counted are up to 128 slots a row into which it grows, and
            beginnings that are kept, which have half as many; slots beyond a window are.

    Attributes:
        head, batch, counts: the model's head, its rows (with counts of their own), what was done.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any,
        stop_token_ids: Iterable[int],
        batch_size: int = 16,
        trace: bool = False,
        impl: str = "auto",
        masked_head: bool = True,
        forced_runs: bool = True,
        jump_forward: bool = False,
        share_prefixes: bool = True,
        max_cache_tokens: int | None = None,
    ) -> None:
        if jump_forward and (trace or not forced_runs):
            raise ValueError(
                "jump_forward wants forced_runs and no trace, whose draws are to be the model's own"
            )
        self.tokenizer, self.stops = tokenizer, frozenset(stop_token_ids)
        if not self.stops:
            raise ValueError("stop_token_ids must name at least one id, got none")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if max_cache_tokens is not None and max_cache_tokens < 1:
            raise ValueError(f"max_cache_tokens must be at least 1, got {max_cache_tokens}")
        self.max_cache_tokens = max_cache_tokens
        self.batch_size, self.trace, self.impl = batch_size, trace, impl
        self.forced_runs, self.jump_forward = forced_runs and not trace, jump_forward
        self.head = Head(model, masked=masked_head)
        if masked_head and self.head.note:
            warnings.warn(self.head.note, stacklevel=2)
        self.batch = CachedBatch(
            self.head,
            tokenizer.pad_token_id,
            share_prefixes=share_prefixes,
            most_shared=None if max_cache_tokens is None else max_cache_tokens // 2,
            reproducible=trace,
        )
        if batch_size > 1 and not self.batch.can_leave:
            warnings.warn(
                f"rows of {type(model).__name__} are decoded one by one: its cache holds states"
                " that cannot be taken apart",
                stacklevel=2,
            )
            self.batch_size = 1
        self._most_rows = self.batch_size
        self.matchers = MatcherBatch([], vocab_size=self.head.vocab_size)
        self.counts = Counts()
        self._waiting: deque[Row] = deque()
        self._rows: list[Row] = []
        self._states: torch.Tensor | None = None
        # Rows of the forward that runs.
        self._tried = 0
        self._columns = Columns()
        self._budget = Budget(lambda: self._token_bytes)

    @property
    def busy(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._waiting or self._rows)

    def submit(self, request: Request, *, name: str = "the request") -> None:
        """Let a request wait for a place in the batch.

        Raises:
            ValueError: its prompt or grammar does not fit the model, or the cache not all of it;
                `name` is what it is called.
        """
        check_fits(request, name, self.head.vocab_size, self.stops, self.max_cache_tokens)
        if not self.busy:
            # Where memory ran out: what did not fit is gone.
            self.batch_size = self._most_rows
        self._waiting.append(Row(request, self.stops, self.tokenizer, self.trace))

    @torch.inference_mode()
    def cancel(self, key: Any) -> bool:
        """Drop the requests of this key, waiting or running, with what they hold; between steps.

        The others go on as they would have: their tokens do not depend on who was beside them.

        Returns:
            Whether there was one.
        """
        waiting = [row for row in self._waiting if row.request.key != key]
        running = [row for row in self._rows if row.request.key != key]
        found = len(waiting) + len(running) < len(self._waiting) + len(self._rows)
        self._waiting = deque(waiting)
        if len(running) == len(self._rows):
            return found
        try:
            self._keep([i for i, row in enumerate(self._rows) if row.request.key != key])
            return found
        except (RuntimeError, MemoryError) as error:
            trouble = _memory_trouble(error)
        self._rows = running
        self._shrink(trouble)
        return found

    def live(self) -> Iterator[Live]:
        """What the running requests have so far, without copies; between steps.

        A request that waits is not among them, though it may have run before: where its guard has
        it decoded again, the cache had no room for it, or memory ran out.
        """
        return (row.live() for row in self._rows)

    def step(self) -> list[Completion]:
        """Give every row its next token, if the model has read all before it.

        Where memory runs out, all rows wait again, and go on in batches of half the size; a row
        that does not fit alone ends with an error.

        Returns:
            The requests that this ended.
        """
        try:
            return self._step()
        except (RuntimeError, MemoryError) as error:
            trouble = _memory_trouble(error)
        return self._shrink(trouble)

    @torch.inference_mode()
    def _step(self) -> list[Completion]:
        with self.counts.timed("forward"):
            self._advance()
        with self.counts.timed("prompt"):
            self._admit()
        ready = [i for i, row in enumerate(self._rows) if not row.unread]
        if ready:
            with self.counts.timed("grammar"):
                self.matchers.fill(ready)
            drawn = self._draw(ready)
            self.counts.steps += 1
            with self.counts.timed("grammar"):
                for i, draw in zip(ready, drawn, strict=True):
                    self._take(i, *draw)
        return self._retire()

    def _advance(self) -> None:
        """Feed the rows what they have not read; those with much of it may keep some."""
        self._make_room()
        self._tried = len(self._rows)
        if self._rows:
            width = self._width()
            self._states = self.batch.step([row.read(width) for row in self._rows])

    def _width(self) -> int:
        """Tokens that each row may read in the next forward."""
        width = step_width(
            [len(row.unread) for row in self._rows],
            device=self.batch.device.type,
            can_pad=self.batch.can_join,
        )
        if self.max_cache_tokens is None:
            return width
        return min(width, self.max_cache_tokens // len(self._rows) - self.batch.slots)

    def _make_room(self) -> None:
        """Let rows wait again that the cache has no room for, the last to have joined first."""
        stay = staying(self.max_cache_tokens, len(self._rows), self.batch.slots_of)
        out = self._rows[stay:]
        if not out:
            return
        for row in out:
            row.cut(row.position)
        self._keep(list(range(stay)))
        self._waiting.extendleft(reversed(out))
        self.counts.preempted += len(out)

    def _admit(self) -> None:
        """Let waiting requests join while there is room."""
        room = self.batch_size - len(self._rows)
        if not self._waiting or room <= 0 or (self._rows and not self.batch.can_join):
            return
        new = list(islice(self._waiting, room))
        lengths = [row.length for row in new]
        slots = self.batch.slots if self._rows else 0
        new = new[: joining(self.max_cache_tokens, len(self._rows), slots, lengths)]
        if not new:
            return
        # Rows that are to join count too: it may be they that do not fit.
        self._tried = len(self._rows) + len(new)
        for row in new:
            row.begin()
        states = self.batch.add([row.history for row in new])
        self._states = torch.cat([self._states, states]) if self._rows else states
        for row in new:
            row.join(self.matchers.append(row.request.grammar), self.matchers)
            self._rows.append(self._waiting.popleft())

    def _shrink(self, trouble: str) -> list[Completion]:
        """Start all rows anew from their tokens so far, fewer at a time."""
        ended = [row for row in self._rows if row.finish_reason]
        rows = [row for row in self._rows if not row.finish_reason]
        done = self._completions(ended)
        for row in rows:
            row.cut(row.position)
        self._rows, self._states = [], None
        held = self.batch.holds_beginnings
        self.batch.clear()
        self.matchers.keep([])
        self._waiting.extendleft(reversed(rows))
        if self.batch_size == 1 and held:
            return done
        if self.batch_size == 1:
            row = self._waiting.popleft()
            row.fail(f"out of memory with one row of {len(row.history)} tokens: {trouble}")
            return [*done, row.completion()]
        tried = min(self._tried, len(self._waiting))
        self.batch_size = max(1, tried // 2)
        warnings.warn(
            f"out of memory with {tried} rows; going on with {self.batch_size} ({trouble})",
            stacklevel=3,
        )
        return done

    def _draw(self, ready: list[int]) -> list[tuple[int, float, int]]:
        """Token, logprob and status for each ready row; with `trace`, each row also learns what the
        mask did to its draw."""
        rows = [self._rows[i] for i in ready]
        states, device = self._states, self._states.device
        mask, constrained = self.matchers.bitmask, self.matchers.constrained
        if len(ready) < len(self._rows):
            index = torch.tensor(ready)
            states = states[to_device(index, device)]
            mask, constrained = mask[index], constrained[index]
        with self.counts.timed("head"):
            whole = [row.request.params.top_logprobs > 0 for row in rows]
            skipping = constrained & ~torch.tensor(whole)
            skips = not self.trace and bool(skipping.any())
            mask, constrained, skipping = (
                to_device(x, device) for x in (mask, constrained, skipping)
            )
            masked = (mask, skipping) if skips else ()
            logits = self.head.logits(states, *masked, reproducible=self.trace)
        with self.counts.timed("sampling"):
            # No copy waits for the device; the sample's ids are what is waited for.
            position = torch.tensor([row.position for row in rows], dtype=torch.int32)
            arguments = {**self._columns.of(rows, device), "position": to_device(position, device)}
            drawn_from = penalised(logits, [row.penalties for row in rows])
            draw = partial(masked_sample, return_stats=self.trace, impl=self.impl)
            sample = draw(drawn_from, mask, constrained=constrained, **arguments)
            sample, mask = self._in_budget(ready, sample, mask, draw, drawn_from, arguments)
            if self.trace:
                Trace.record(
                    [row.trace for row in rows],
                    drawn_from,
                    mask,
                    constrained,
                    sample,
                    arguments,
                    self.impl,
                )
            drawn = list(zip(*(column.tolist() for column in sample[:3]), strict=True))
            for n, row in enumerate(rows):
                if row.request.params.top_logprobs:
                    row.top_logprobs.append(top_logprobs(logits[n], row.request, drawn[n][0]))
            return drawn

    def _in_budget(
        self,
        ready: list[int],
        sample: Sample,
        mask: torch.Tensor,
        draw: Callable[..., Sample],
        logits: torch.Tensor,
        arguments: dict[str, torch.Tensor],
    ) -> tuple[Sample, torch.Tensor]:
        """The sample and its mask; rows that would not end within their budgets are drawn anew."""

        def redraw(chosen: list[int], masks: torch.Tensor) -> Sample:
            index = to_device(torch.tensor(chosen), logits.device)
            own = {name: column[index] for name, column in arguments.items()}
            return draw(logits[index], to_device(masks, logits.device), **own)

        rows = [self._rows[i] for i in ready]
        settled, masks = self._budget.settle(rows, ready, self.matchers, sample, redraw)
        self.counts.hurried += len(masks)
        self.counts.lost = self._budget.lost
        if masks:
            mask = mask.clone()
            for n, anew in masks.items():
                mask[n] = to_device(anew, mask.device)
        return settled, mask

    def _take(self, i: int, token: int, logprob: float, status: int) -> None:
        """Row `i` takes a draw, and the tokens that it then has no choice about."""
        row = self._rows[i]
        row.take(token, logprob, status, i, self.matchers)
        self.counts.sampled += 1
        if not self.forced_runs or row.finish_reason or row.request.params.top_logprobs:
            return
        for token in self.matchers.forced_run(i, limit=row.budget):
            row.take_forced(token, i, self.matchers)
            self.counts.forced += 1
            if row.finish_reason:
                return
        params = row.request.params
        if self.jump_forward and not (params.stop or params.finish_in_budget):
            before = len(row.jumped)
            row.jump(i, self.matchers, self._token_bytes)
            self.counts.jumped += len(row.jumped) - before

    def _retire(self) -> list[Completion]:
        done = [row for row in self._rows if row.finish_reason]
        if done:
            keep = [i for i, row in enumerate(self._rows) if not row.finish_reason]
            self._keep(keep)
        return self._completions(done)

    def _keep(self, keep: list[int]) -> None:
        """Drop all rows but these."""
        self.batch.keep(keep)
        self.matchers.keep(keep)
        self._rows = [self._rows[i] for i in keep]

    def _completions(self, done: list[Row]) -> list[Completion]:
        """Of rows that have ended; those whose guard objects go on first, with what they keep."""
        for row in done:
            guarded = row.request.guard is not None and row.finish_reason != "error"
            if guarded and row.redo(self._token_bytes):
                self._waiting.appendleft(row)
        return [row.completion() for row in done if row.finish_reason]

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        return token_bytes(self.tokenizer)


def top_logprobs(logits: torch.Tensor, request: Request, token: int) -> dict[int, float]:
    """Id to nats of the most likely tokens of one row, [V], and of `token`."""
    logprobs = logits.float().log_softmax(-1)
    values, ids = logprobs.topk(min(request.params.top_logprobs, len(logprobs)))
    top = dict(zip(ids.tolist(), values.tolist(), strict=True))
    return top if token in top else top | {token: float(logprobs[token])}


def _memory_trouble(error: BaseException) -> str:
    """What an error says, in a line, if it is that memory ran out; any other is raised again."""
    if not is_out_of_memory(error):
        raise error
    return str(error).strip().partition("\n")[0]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on a GPU or on the CPU (torch raises a bare RuntimeError there)."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        "can't allocate memory" in str(error)
    )
