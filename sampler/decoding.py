"""The decoding loop: prefill, fill masks, sample, accept, stop.

Free and constrained requests share a batch. A request's tokens depend on its prompt, its grammar
and its seed, never on the batch around it, but for one thing: the model's own arithmetic may differ
with the batch's shape (about 5e-5 in a float32 logit on a CPU). A draw whose two best scores lie
closer than `TIE_MARGIN` could fall either way; traced runs list those.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from grammar.matcher import MatcherBatch
from kernels.masked_sample import Sample, Status, masked_sample
from sampler.batch import CachedBatch
from sampler.params import Completion, Request
from sampler.trace import Trace


@torch.inference_mode()
def generate(
    model: Any,
    requests: Iterable[Request],
    *,
    tokenizer: Any,
    stop_token_ids: Iterable[int],
    batch_size: int = 16,
    trace: bool = False,
    impl: str = "auto",
) -> Iterator[Completion]:
    """Complete requests, `batch_size` at a time; each is yielded as soon as it ends.

    Args:
        model: a Hugging Face causal model. Its logits' width is the vocabulary's.
        requests: prompts of similar length, put side by side, waste least.
        tokenizer: decodes the tokens; its ids must fit the model.
        stop_token_ids: ids that end a completion (the grammar must be compiled with the same).
        batch_size: rows that are decoded together.
        trace: also record interventions, near-ties and the probability removed; this draws three
            times instead of once.
        impl: of `kernels.masked_sample`.

    Yields:
        `Completion`s in the order in which they end. A row whose logits or grammar fail ends with
        finish_reason "error"; the others go on.

    Raises:
        ValueError: a request's prompt or grammar does not fit the model.
    """
    queue = list(requests)
    stops = frozenset(stop_token_ids)
    width = model.get_output_embeddings().weight.shape[0]
    _check(queue, width, stops)
    for start in range(0, len(queue), batch_size):
        rows = [
            _Row(request, stops, tokenizer, trace) for request in queue[start : start + batch_size]
        ]
        batch = CachedBatch(model, [row.request.prompt for row in rows], tokenizer.pad_token_id)
        matchers = MatcherBatch([row.request.grammar for row in rows], vocab_size=width)
        logits = batch.prefill()
        while rows:
            matchers.fill()
            sample = _draw(rows, logits, matchers, impl, trace)
            for i, row in enumerate(rows):
                row.take(i, sample, matchers)
            done = [row.completion() for row in rows if row.finish_reason]
            keep = [i for i, row in enumerate(rows) if not row.finish_reason]
            yield from done
            if done:
                rows = [rows[i] for i in keep]
                matchers.keep(keep)
                batch.keep(keep)
            if rows:
                logits = batch.step([row.token_ids[-1] for row in rows])


def _draw(
    rows: list[_Row], logits: torch.Tensor, matchers: MatcherBatch, impl: str, trace: bool
) -> Sample:
    """One token a row; with `trace`, each row also learns what the mask did to its draw."""
    mask, constrained = matchers.bitmask, matchers.constrained
    params = [row.request.params for row in rows]
    arguments = {
        "temperature": torch.tensor([p.temperature for p in params], dtype=torch.float32),
        "top_k": torch.tensor([p.top_k for p in params], dtype=torch.int32),
        "top_p": torch.tensor([p.top_p for p in params], dtype=torch.float32),
        "min_p": torch.tensor([p.min_p for p in params], dtype=torch.float32),
        "seed": torch.tensor([p.seed for p in params], dtype=torch.int64),
        "position": torch.tensor([row.position for row in rows], dtype=torch.int32),
    }
    if logits.device.type != "cpu":
        mask, constrained = mask.to(logits.device), constrained.to(logits.device)
        arguments = {name: value.to(logits.device) for name, value in arguments.items()}
    sample = masked_sample(
        logits, mask, constrained=constrained, return_stats=trace, impl=impl, **arguments
    )
    if trace:
        Trace.record(
            [row.trace for row in rows], logits, mask, constrained, sample, arguments, impl
        )
    return sample


class _Row:
    """One request on its way."""

    def __init__(self, request: Request, stops: frozenset[int], tokenizer: Any, trace: bool):
        self.request, self.stops, self.tokenizer = request, stops, tokenizer
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.position = 0
        self.finish_reason: str | None = None
        self.stop: int | str | None = None
        self.error: str | None = None
        self.text: str | None = None
        self.trace = Trace() if trace else None
        self.began = time.perf_counter()

    def take(self, i: int, sample: Sample, matchers: MatcherBatch) -> None:
        """Take the token drawn for this row, row `i` of the batch, and see whether that ends it."""
        token, status = int(sample.token[i]), int(sample.status[i])
        if status != Status.OK:
            return self._end("error", error=f"no token to draw: {Status(status).name}")
        if not matchers.accept(i, token):
            return self._end(
                "error", error=f"the grammar refused token {token}, which its mask allowed"
            )
        self.position += 1
        if token in self.stops:
            return self._end("stop", stop=token)
        self.token_ids.append(token)
        self.logprobs.append(float(sample.logprob[i]))
        if self.request.params.stop and self._reached_stop_text():
            return None
        if self.position >= self.request.params.max_tokens:
            self._end("length")
        return None

    def _end(self, reason: str, *, stop: int | str | None = None, error: str | None = None) -> None:
        self.finish_reason, self.stop, self.error = reason, stop, error

    def _reached_stop_text(self) -> bool:
        text = self._decode()
        found = [(text.find(stop), stop) for stop in self.request.params.stop if stop in text]
        if found:
            at, stop = min(found)
            self.text = text[:at]
            self._end("stop", stop=stop)
        return bool(found)

    def _decode(self) -> str:
        return self.tokenizer.decode(
            self.token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def completion(self) -> Completion:
        traced = self.trace.result() if self.trace else {}
        return Completion(
            key=self.request.key,
            token_ids=tuple(self.token_ids),
            text=self._decode() if self.text is None else self.text,
            finish_reason=self.finish_reason,
            prompt_tokens=len(self.request.prompt),
            steps=self.position,
            seconds=time.perf_counter() - self.began,
            stop=self.stop,
            logprobs=tuple(self.logprobs),
            error=self.error,
            **traced,
        )


def _check(queue: list[Request], width: int, stops: frozenset[int]) -> None:
    if not stops:
        raise ValueError("stop_token_ids must name at least one id, got none")
    for n, request in enumerate(queue):
        if max(request.prompt) >= width or min(request.prompt) < 0:
            raise ValueError(
                f"prompt of request {n} has ids outside [0, {width:,}), the width of the model's"
                " logits; tokenize it with the model's own tokenizer"
            )
        if request.grammar is None:
            continue
        info = request.grammar.tokenizer_info
        if info.vocab_size != width:
            raise ValueError(
                f"grammar of request {n} covers {info.vocab_size:,} tokens but the model's logits"
                f" have {width:,}; compile it with vocab_size={width}"
            )
        if not stops >= set(info.stop_token_ids):
            raise ValueError(
                f"grammar of request {n} ends with tokens {sorted(info.stop_token_ids)} but the"
                f" loop stops at {sorted(stops)}; give both the same stop_token_ids"
            )
