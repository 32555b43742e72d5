"""Engines: requests in, result rows out. Here the local one, around the decoding loop."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from eval.request_lines import RequestLine
from eval.rows import ResultRow
from eval.scoring import verdict
from grammar.formats import Parsed
from sampler.chat import Chat
from sampler.decoding import generate
from sampler.model import LoadedModel
from sampler.params import Completion, Request, SamplingParams

_FIELDS = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "stop")
# Spreads neighbouring requests over the seeds, so that no two share their noise.
_SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of a run: what is not None goes before the request's own.

    Where neither says anything: temperature 1.0, no cut, 256 tokens, and a seed made from
    `base_seed` and the request's data_index.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    base_seed: int = 0

    def params(self, line: RequestLine) -> SamplingParams:
        """The parameters of one request.

        Raises:
            ValueError, TypeError: the request's own are out of range or of a wrong type.
        """
        body = line.body
        own = {name: body[name] for name in _FIELDS if body.get(name) is not None}
        if body.get("max_completion_tokens") is not None:
            own["max_tokens"] = body["max_completion_tokens"]
        given = {k: v for k, v in asdict(self).items() if k in _FIELDS and v is not None}
        seed = {"seed": (self.base_seed * _SEED_STRIDE + line.data_index) % 2**63}
        return SamplingParams(**{**seed, **own, **given})


class HfEngine:
    """A local Hugging Face model behind the decoding loop.

    Args:
        loaded: the model.
        constrained: under the grammar, or free.
        sampling: overrides of the requests' own settings.
        batch_size: rows decoded together.
        policy: keyword arguments of `sampler.chat.Chat` (format, scope, schema_mode, ...).
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        constrained: bool,
        sampling: Sampling,
        batch_size: int,
        policy: Mapping[str, Any],
    ) -> None:
        self.loaded, self.sampling, self.batch_size = loaded, sampling, batch_size
        self.chat = Chat(loaded, constrained=constrained, **policy)

    def run(self, lines: Iterable[RequestLine]) -> Iterator[ResultRow]:
        """Answer requests; a row comes as soon as its request ends, failed ones first."""
        requests: list[Request] = []
        for line in lines:
            try:
                params = self.sampling.params(line)
                requests.append(self.chat.request(line.body, params, line))
            except Exception as error:
                # Whatever a request breaks (a schema, a template), it breaks for itself alone.
                yield _failed(line, error)
        requests.sort(key=lambda request: len(request.prompt))
        completions = generate(
            self.loaded.model,
            requests,
            tokenizer=self.loaded.tokenizer,
            stop_token_ids=self.loaded.stop_token_ids,
            batch_size=self.batch_size,
            trace=True,
        )
        for completion in completions:
            yield self._row(completion)

    def _row(self, completion: Completion) -> ResultRow:
        line: RequestLine = completion.key
        if completion.finish_reason == "error":
            return _failed(line, RuntimeError(completion.error), completion.seconds)
        # Without the tools, a call of a tool that the request does not have is still a call: it is
        # the schema check, not the parser, that must find it.
        parsed = self.chat.parse(completion, None, reasoning=self._opened_thinking(line))
        finish_reason = _finish_reason(completion, parsed)
        valid, failures = verdict(finish_reason, parsed.message, line.body.get("tools"))
        malformed = [p for p in parsed.problems if p.kind == "malformed"]
        if finish_reason == "tool_calls" and malformed:
            valid = False
        return ResultRow(
            data_index=line.data_index,
            request=line.body,
            response=self._response(line, completion, parsed, finish_reason),
            status="success",
            finish_reason=finish_reason,
            tool_calls_valid=valid,
            last_run_at=datetime.now().isoformat(),
            duration_ms=round(completion.seconds * 1000),
            hash=line.hash,
            masked_sampling={
                "token_ids": list(completion.token_ids),
                "text": completion.text,
                "interventions": [asdict(i) for i in completion.interventions],
                "near_ties": [asdict(tie) for tie in completion.near_ties],
                "problems": [asdict(problem) for problem in parsed.problems],
                "failures": [asdict(failure) for failure in failures],
            },
        )

    def _opened_thinking(self, line: RequestLine) -> bool:
        planned = self.chat.plan(line.body)
        return self.chat.opens_thinking(self.chat.render(line.body["messages"], planned.tools))

    def _response(
        self, line: RequestLine, completion: Completion, parsed: Parsed, finish_reason: str
    ) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{line.data_index}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.loaded.name,
            "choices": [{"index": 0, "message": parsed.message, "finish_reason": finish_reason}],
            "usage": {
                "prompt_tokens": completion.prompt_tokens,
                "completion_tokens": completion.steps,
                "total_tokens": completion.prompt_tokens + completion.steps,
            },
        }


def _finish_reason(completion: Completion, parsed: Parsed) -> str:
    """OpenAI's finish_reason. A call that cannot be read is an attempt to call all the same."""
    if completion.finish_reason == "length":
        return "length"
    attempted = any(problem.kind in ("malformed", "incomplete") for problem in parsed.problems)
    return "tool_calls" if parsed.tool_calls or attempted else "stop"


def _failed(line: RequestLine, error: BaseException, seconds: float = 0.0) -> ResultRow:
    return ResultRow(
        data_index=line.data_index,
        request=line.body,
        response={
            "error_type": type(error).__name__,
            "error_message": str(error),
            "error": f"{type(error).__name__}: {error}",
        },
        status="failed",
        last_run_at=datetime.now().isoformat(),
        duration_ms=round(seconds * 1000),
        hash=line.hash,
    )
