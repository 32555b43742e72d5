"""One request on its way through the decoding loop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from grammar.guard import GuardFailure
from grammar.jump_forward import jump_forward
from grammar.matcher import MatcherBatch
from kernels import checks
from kernels.masked_sample import Status
from sampler.detokenizer import StopTexts
from sampler.params import Completion, Live, Request
from sampler.penalties import Penalties
from sampler.trace import Trace

RETRY_TEMPERATURE = 1.0
"""Of a greedy request, from where its guard has it redone: greedily it would only repeat itself."""


class Row:
    """What a request has been given so far.

    Attributes:
        position: tokens drawn or forced, the stop token included; the noise depends on it.
        unread: tokens that the model has not been fed yet.
        retries: how often the guard has had it decoded again; the stream of its noise.
        penalties: what is done to its logits, or None.
        forced, jumped: positions that were not drawn: the one token that was allowed, and the text
            that was, as the tokenizer splits it.
        hurried: positions that were drawn anew, to end within the budget (`sampler.budget`).
        finish_reason: None while it runs.
    """

    def __init__(self, request: Request, stops: frozenset[int], tokenizer: Any, trace: bool):
        self.request, self.stops, self.tokenizer = request, stops, tokenizer
        self.token_ids: list[int] = []
        self.unread: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[dict[int, float]] = []
        self.position = self.retries = self.redone = 0
        self.forced: list[int] = []
        self.jumped: list[int] = []
        self.hurried: list[int] = []
        self.failures: list[GuardFailure] = []
        self.finish_reason: str | None = None
        self.stop: int | str | None = None
        self.error: str | None = None
        self.text: str | None = None
        self.trace = Trace() if trace else None
        params = request.params
        self.penalties = Penalties(params, request.prompt) if params.penalised else None
        self._stop_texts = StopTexts(params.stop, self._decode) if params.stop else None
        self.began: float | None = None

    @property
    def history(self) -> tuple[int, ...]:
        """All tokens that the model must have read before the next one: prompt and completion."""
        return (*self.request.prompt, *self.token_ids)

    @property
    def length(self) -> int:
        """Tokens of `history`."""
        return len(self.request.prompt) + len(self.token_ids)

    def begin(self) -> None:
        """The prompt is about to be read; again, if the row has been here before."""
        if self.began is None:
            self.began = time.perf_counter()

    def join(self, i: int, matchers: MatcherBatch) -> None:
        """The row has a place in the batch, and the model has read its history."""
        self.unread = []
        for token in self.token_ids:
            matchers.accept(i, token)

    @property
    def budget(self) -> int:
        """Tokens that may still come."""
        return self.request.params.max_tokens - self.position

    def read(self, width: int) -> list[int]:
        """Take up to `width` unread tokens, for the model."""
        now, self.unread = self.unread[:width], self.unread[width:]
        return now

    def take(self, token: int, logprob: float, status: int, i: int, matchers: MatcherBatch) -> None:
        """Take the token drawn for this row, row `i` of the matchers; it may end it."""
        if status == Status.EMPTY and self.request.grammar is not None:
            self.fail(self._dead_end())
        elif status != Status.OK:
            self.fail(f"no token to draw: {Status(status).name}")
        elif not matchers.accept(i, token):
            self.fail(f"the grammar refused token {token}, which its mask allowed")
        else:
            self._append(token, logprob)

    def take_forced(self, token: int, i: int, matchers: MatcherBatch) -> None:
        """Take the one token that is allowed: its probability is 1."""
        self.forced.append(self.position)
        self.take(token, 0.0, Status.OK, i, matchers)

    def jump(self, i: int, matchers: MatcherBatch, pieces: Sequence[bytes]) -> None:
        """Take the text that is forced, as the tokenizer splits it; what has been read stays."""
        jump = jump_forward(
            matchers,
            i,
            self.token_ids,
            self.tokenizer,
            pieces,
            keep=len(self.token_ids) - len(self.unread),
            limit=self.budget,
        )
        if jump.removed:
            del self.unread[-jump.removed :]
            self.cut(self.position - jump.removed)
        for token in jump.added:
            self.jumped.append(self.position)
            self._append(token, 0.0)
            if self.finish_reason:
                return

    @property
    def temperature(self) -> float:
        """That of the next draw."""
        wanted = self.request.params.temperature
        return RETRY_TEMPERATURE if self.retries and wanted < checks.GREEDY_BELOW else wanted

    def redo(self, token_bytes: Sequence[bytes]) -> bool:
        """Ask the guard about a finished row; True if it is to be decoded on from a place before.

        Positions go on from there, and the noise is that of the next stream: the draws are new,
        and they depend on the batch as little as the first ones.
        """
        # Ids beyond the tokenizer's have no bytes.
        pieces = [token_bytes[t] if t < len(token_bytes) else b"" for t in self.token_ids]
        try:
            verdict = self.request.guard.check(
                pieces, retries=self.retries, ended=isinstance(self.stop, int)
            )
        except Exception as error:  # one request's; the others go on
            self.fail(f"the guard failed: {type(error).__name__}: {error}")
            return False
        self.failures += verdict.failures
        if verdict.gives_up:
            self.error = f"{verdict.failures[0]}; given up after {self.retries} retries"
        if verdict.restart_at is None:
            return False
        self.redone += self.position - verdict.restart_at
        self.retries += 1
        self.cut(verdict.restart_at)
        return True

    def cut(self, position: int) -> None:
        """Go on from there, and forget what came after."""
        self.position = position
        if self.penalties:
            self.penalties.take_back(self.token_ids[position:])
        for column in (self.token_ids, self.logprobs, self.top_logprobs):
            del column[position:]
        if self._stop_texts:
            self._stop_texts = StopTexts(self.request.params.stop, self._decode)
            self._stop_texts.reached(self.token_ids)
        for positions in (self.forced, self.jumped, self.hurried):
            positions[:] = [at for at in positions if at < position]
        self.finish_reason = self.stop = self.text = None
        if self.trace:
            self.trace.cut(position)

    def _append(self, token: int, logprob: float) -> None:
        self.position += 1
        if token in self.stops:
            self._end("stop", stop=token)
            return
        self.token_ids.append(token)
        if self.penalties:
            self.penalties.add(token)
        self.unread.append(token)
        self.logprobs.append(logprob)
        reached = self._stop_texts is not None and self._stop_texts.reached([token])
        if reached and self._end_at_stop_text():
            return
        if self.budget <= 0:
            self._end("length")

    def fail(self, error: str) -> None:
        """End with an error."""
        self._end("error", error=error)

    def _end(self, reason: str, *, stop: int | str | None = None, error: str | None = None) -> None:
        self.finish_reason, self.stop, self.error = reason, stop, error

    def _dead_end(self) -> str:
        text = self._decode(self.token_ids)
        return (
            "the grammar dead-ends: it allows no token with a finite logit after"
            f" {text[-80:]!r} (token ids {self.token_ids[-24:]}, of {self.position}); a"
            " sound grammar cannot, so please report it with the grammar"
        )

    def _end_at_stop_text(self) -> bool:
        text = self._decode(self.token_ids)
        found = [(text.find(stop), stop) for stop in self.request.params.stop if stop in text]
        if found:
            at, stop = min(found)
            self.text = text[:at]
            self._end("stop", stop=stop)
        return bool(found)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def live(self) -> Live:
        """What it has so far, without copies."""
        return Live(
            self.request.key, self.token_ids, self.logprobs, self.top_logprobs, self.retries
        )

    def completion(self) -> Completion:
        """What has become of the request."""
        traced = self.trace.result() if self.trace else {}
        return Completion(
            key=self.request.key,
            token_ids=tuple(self.token_ids),
            text=self._decode(self.token_ids) if self.text is None else self.text,
            finish_reason=self.finish_reason,
            prompt_tokens=len(self.request.prompt),
            steps=self.position,
            forced=len(self.forced),
            jumped=len(self.jumped),
            seconds=time.perf_counter() - self.began if self.began else 0.0,
            stop=self.stop,
            logprobs=tuple(self.logprobs),
            top_logprobs=tuple(self.top_logprobs[: len(self.token_ids)]),
            error=self.error,
            retries=self.retries,
            redone=self.redone,
            guard_failures=tuple(self.failures),
            hurried=len(self.hurried),
            **traced,
        )
