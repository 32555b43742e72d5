"""The thread that owns the decoder: requests of all clients join one running batch.

Everything it learns comes through a queue, everything it tells goes through `post`; nobody else
touches the decoder. It outlives whatever a request does to it: should a step fail, every row that
was in the batch is decoded anew and alone, so that the fault meets the request that brings it, and
no other. Tokens depend on the request only, so the others are answered as if nothing had happened.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from sampler.decoding import Decoder
from sampler.params import Completion, Request
from sampler.serve.metrics import Metrics

log = logging.getLogger("sampler.serve")


@dataclass(frozen=True)
class Progress:
    """Tokens that a running row was given since the last of these.

    Attributes:
        token_ids: of those tokens.
        top_logprobs: one mapping a token, or empty: see `sampler.params.Completion`.
    """

    token_ids: tuple[int, ...]
    top_logprobs: tuple[Mapping[int, float], ...] = ()


Listener = Callable[[Progress | Completion], None]


@dataclass
class _Row:
    request: Request
    listener: Listener
    follow: bool
    told: int = 0


class Worker:
    """A decoder and its thread.

    Args:
        make_decoder: makes the decoder; again, should a step fail.
        metrics: what happens is counted there.
    """

    def __init__(self, make_decoder: Callable[[], Decoder], metrics: Metrics) -> None:
        self._make_decoder, self._metrics = make_decoder, metrics
        self._decoder = make_decoder()
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._rows: dict[Any, _Row] = {}
        # After a step has failed: rows to decode alone, and those that come meanwhile.
        self._suspects: deque[Any] = deque()
        self._held: list[Any] = []
        self._mail: list[tuple[Listener, Progress | Completion]] = []
        self._post: Callable[[Callable[[], None]], Any] | None = None
        self._stopping = False
        self._thread = Thread(target=self._run, name="decoder", daemon=True)

    def start(self, post: Callable[[Callable[[], None]], Any]) -> None:
        """Begin; listeners are called by what `post` is given, such as a loop's thread."""
        self._post = post
        self._thread.start()

    def stop(self) -> None:
        """End; rows that are left end with an error."""
        self._inbox.put(self._stop)
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def submit(self, request: Request, listener: Listener, *, follow: bool = False) -> None:
        """Let a request join; its key must be its own.

        Args:
            listener: is told of the end: a `Completion`, for errors as well.
            follow: and of all tokens as they come.
        """
        self._inbox.put(partial(self._join, _Row(request, listener, follow)))

    def cancel(self, key: Any) -> None:
        """Drop a request, wherever it is; its listener hears no more."""
        self._inbox.put(partial(self._leave, key))

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._read_inbox()
                self._round()
            except Exception:
                log.exception("the worker goes on after")
            self._deliver()

    def _read_inbox(self) -> None:
        """Do what was asked; wait for it where there is nothing else to do."""
        idle = not (self._decoder.busy or self._suspects or self._held)
        while True:
            try:
                command = self._inbox.get(block=idle)
            except Empty:
                return
            idle = False
            command()

    def _round(self) -> None:
        if not self._decoder.busy and (self._suspects or self._held):
            self._next_suspect()
        if self._decoder.busy and not self._stopping:
            before = self._decoder.counts.preempted
            try:
                done = self._decoder.step()
                live = list(self._decoder.live())
            except Exception:
                log.exception("a step of the decoder failed; its rows are decoded alone")
                self._quarantine()
                return
            self._metrics.preempted.inc(self._decoder.counts.preempted - before)
            for completion in done:
                self._end(completion)
            for row in live:
                self._tell(row)
            self._metrics.running.set(len(live))
        else:
            self._metrics.running.set(0)
            live = ()
        self._metrics.waiting.set(len(self._rows) - len(live))

    def _join(self, row: _Row) -> None:
        key = row.request.key
        self._rows[key] = row
        if self._suspects or self._held:
            self._held.append(key)
        else:
            self._hand_over(key)

    def _hand_over(self, key: Any) -> None:
        try:
            self._decoder.submit(self._rows[key].request)
        except Exception as error:
            self._fail(key, error)

    def _leave(self, key: Any) -> None:
        if self._rows.pop(key, None) is not None:
            self._metrics.rows.labels("cancelled").inc()
            self._decoder.cancel(key)

    def _stop(self) -> None:
        self._stopping = True
        for key in list(self._rows):
            self._fail(key, "the server stops")

    def _quarantine(self) -> None:
        """A step has failed: one of the rows did it, or none."""
        self._metrics.restarts.inc()
        waiting = {*self._suspects, *self._held}
        suspects = [key for key in self._rows if key not in waiting]
        self._decoder = self._make_decoder()
        if len(suspects) == 1:
            self._fail(suspects[0], "a step of the decoder failed")
        else:
            self._suspects.extend(suspects)

    def _next_suspect(self) -> None:
        """One suspect gets the decoder for itself; after the last of them, all others join."""
        while self._suspects:
            key = self._suspects.popleft()
            if key in self._rows:
                self._hand_over(key)
                return
        held, self._held = self._held, []
        for key in held:
            if key in self._rows:
                self._hand_over(key)

    def _tell(self, live: Any) -> None:
        row = self._rows.get(live.key)
        if row is None or not row.follow or len(live.token_ids) <= row.told:
            return
        news = Progress(tuple(live.token_ids[row.told :]), tuple(live.top_logprobs[row.told :]))
        row.told = len(live.token_ids)
        self._mail.append((row.listener, news))

    def _end(self, completion: Completion) -> None:
        row = self._rows.pop(completion.key, None)
        if row is not None:
            self._metrics.ended(completion)
            self._mail.append((row.listener, completion))

    def _fail(self, key: Any, error: Exception | str) -> None:
        prompt = len(self._rows[key].request.prompt)
        self._end(
            Completion(
                key=key,
                token_ids=(),
                text="",
                finish_reason="error",
                prompt_tokens=prompt,
                steps=0,
                seconds=0.0,
                error=str(error),
            )
        )

    def _deliver(self) -> None:
        mail, self._mail = self._mail, []
        if not mail:
            return
        try:
            self._post(partial(_hand_out, mail))
        except RuntimeError:
            # The loop has closed; nobody listens any more.
            self._stopping = True


def _hand_out(mail: list[tuple[Listener, Progress | Completion]]) -> None:
    for listener, news in mail:
        listener(news)
