"""Completions as OpenAI answers: messages, finish reasons, log-probabilities, usage."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grammar.formats import Parsed
from sampler.params import Completion
from sampler.serve.errors import ApiError, internal, log
from sampler.serve.prepare import Job
from sampler.serve.reader import Reader

# What the parsers call calls whose format writes no ids.
_COUNTED = re.compile(r"call_\d+")


def checked(completion: Completion) -> Completion:
    """The completion, where it may be sent.

    Raises:
        ApiError: 500; it broke, or its guard gave up: an invalid call is never an answer.
    """
    if completion.finish_reason == "error":
        log.error("row %s failed: %s", completion.key, completion.error)
        raise internal()
    if completion.error is not None:
        raise ApiError(500, f"no valid answer was found: {completion.error}", code="guard_gave_up")
    return completion


def finish_reason(completion: Completion, parsed: Parsed) -> str:
    """OpenAI's word: `tool_calls` wherever there are calls, unless the budget ended the text.

    OpenAI itself says `stop` where tool_choice names the tool. vLLM says `tool_calls`, and so do
    we: it is what K2VV and agents go by.
    """
    if completion.finish_reason == "stop" and parsed.tool_calls:
        return "tool_calls"
    return completion.finish_reason


def with_own_id(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call whose id no other answer has; ids that the model wrote stay: Kimi's mean something."""
    if _COUNTED.fullmatch(call["id"]):
        return {**call, "id": f"call_{uuid.uuid4().hex[:24]}"}
    return dict(call)


def choice(index: int, completion: Completion, job: Job, reader: Reader) -> dict[str, Any]:
    """One choice of an answer that is not streamed."""
    parsed = reader.parse(completion.text, job)
    message = dict(parsed.message)
    message["refusal"] = None
    if parsed.tool_calls:
        message["tool_calls"] = [with_own_id(call) for call in parsed.tool_calls]
        message["content"] = message["content"] or None
    logprobs = None
    if job.request.logprobs:
        entries = TokenLogprobs(reader, job).entries(completion.token_ids, completion.top_logprobs)
        logprobs = {"content": entries, "refusal": None}
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason(completion, parsed),
        **endings(completion, parsed),
    }


def endings(completion: Completion, parsed: Parsed) -> dict[str, Any]:
    """What vLLM adds to a choice, and what its parser could not read."""
    problems = [{"kind": p.kind, "detail": p.detail} for p in parsed.problems]
    stop = completion.stop if isinstance(completion.stop, str) else None
    return {"stop_reason": stop, **({"parse_problems": problems} if problems else {})}


def usage(completions: Sequence[Completion]) -> dict[str, int]:
    """Tokens of the prompt, once, and of all choices; stop tokens count."""
    generated = sum(completion.steps for completion in completions)
    return usage_so_far(completions[0].prompt_tokens, generated)


def usage_so_far(prompt: int, generated: int) -> dict[str, int]:
    """Tokens of the prompt, and of what has been generated."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }


def guard_header(job: Job, completions: Sequence[Completion]) -> dict[str, str]:
    """Headers of an answer that is not streamed: what was guarded, how often it was redone."""
    redone = sum(completion.retries for completion in completions)
    if not (job.guarded or redone):
        return {}
    said = filter(None, (f"redone={redone}", job.guard_note))
    return {"x-masked-sampling-guard": "; ".join(said)}


class TokenLogprobs:
    """Log-probabilities as OpenAI writes them, under the model's own distribution."""

    def __init__(self, reader: Reader, job: Job) -> None:
        self._pieces, self._top = reader.token_bytes, job.request.top_logprobs or 0

    def entries(
        self, token_ids: Iterable[int], top_logprobs: Iterable[Mapping[int, float]]
    ) -> list[dict[str, Any]]:
        """One entry a token; `top_logprobs` holds the token itself, and the likeliest first."""
        return [
            {
                **self._entry(token, top[token]),
                "top_logprobs": [
                    self._entry(other, top[other]) for other in list(top)[: self._top]
                ],
            }
            for token, top in zip(token_ids, top_logprobs, strict=True)
        ]

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self._pieces[token] if token < len(self._pieces) else b""
        # JSON has no -inf; OpenAI writes -9999 for what cannot happen.
        return {
            "token": piece.decode(errors="replace"),
            "logprob": max(logprob, -9999.0),
            "bytes": list(piece),
        }
