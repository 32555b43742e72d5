"""The local engine: a Hugging Face model behind the decoding loop."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from eval.engines import Sampling, failed_row
from eval.request_lines import RequestLine
from eval.rows import ResultRow
from eval.scoring import verdict
from grammar.formats import Parsed
from sampler.chat import Chat
from sampler.decoding import generate
from sampler.model import LoadedModel
from sampler.params import Completion, Request

# Where the formats write a call's name: as a JSON member, or in an id of kimi_k2's.
_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"|functions\.([\w.-]+):\d')
# More values than this are not summed up for a fingerprint: their first row stands for them.
_SUMMED = 2**27


class HfEngine:
    """A local Hugging Face model behind the decoding loop.

    Args:
        loaded: the model.
        weights: its `fingerprint`.
        constrained: under the grammar, or free.
        sampling: overrides of the requests' own settings.
        batch_size: rows decoded together.
        policy: keyword arguments of `sampler.chat.Chat` (format, scope, schema_mode, ...).
        finish_in_budget: let constrained rows end within their tokens where they can.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        weights: str,
        constrained: bool,
        sampling: Sampling,
        batch_size: int,
        policy: Mapping[str, Any],
        finish_in_budget: bool = False,
    ) -> None:
        self.loaded, self.weights, self.sampling = loaded, weights, sampling
        self.constrained, self.batch_size, self.policy = constrained, batch_size, policy
        self.finish_in_budget = constrained and finish_in_budget
        self.chat = Chat(loaded, constrained=constrained, **policy)

    def run(self, lines: Iterable[RequestLine]) -> Iterator[ResultRow]:
        """Answer requests; a row comes as soon as its request ends, failed ones first."""
        requests: list[Request] = []
        for line in lines:
            try:
                params = replace(self.sampling.params(line), finish_in_budget=self.finish_in_budget)
                prompt = self.chat.prepare(line.body)
                self._check_length(len(prompt.ids), params.max_tokens)
                requests.append(prompt.request(params, (line, prompt)))
            except Exception as error:
                # Whatever a request breaks (a schema, a template), it breaks for itself alone.
                yield failed_row(line, error)
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

    def close(self) -> None:
        """Nothing to give back: the model is the caller's."""

    def describe(self) -> dict[str, Any]:
        """Model, weights, sampling and, of the policy, what bears on the answers."""
        # A free run is parsed by the format as well.
        policy = self.policy if self.constrained else {"format": self.policy["format"]}
        return {
            "engine": "hf",
            "model": self.loaded.name,
            "weights": self.weights,
            "dtype": str(self.loaded.model.dtype).removeprefix("torch."),
            **self.sampling.given(),
            "seed": self.sampling.base_seed or 0,
            **policy,
            # Absent where it is off, as in runs from before there was such a thing.
            **({"finish_in_budget": True} if self.finish_in_budget else {}),
            "sent": "decoded here under the grammar" if self.constrained else "decoded here freely",
        }

    def _check_length(self, prompt: int, max_tokens: int) -> None:
        config = self.loaded.model.config.get_text_config()
        context = getattr(config, "max_position_embeddings", None)
        if context is not None and prompt + max_tokens > context:
            raise ValueError(
                f"the prompt has {prompt:,} tokens and max_tokens is {max_tokens:,}, but the"
                f" model's context is {context:,}; shorten the prompt or lower max_tokens"
            )

    def _row(self, completion: Completion) -> ResultRow:
        line, prompt = completion.key
        if completion.finish_reason == "error":
            return failed_row(line, RuntimeError(completion.error), seconds=completion.seconds)
        # A call of a tool that the request does not have is still a call: it is the schema check,
        # not the parser, that must find it.
        tools = line.body.get("tools")
        parsed = self.chat.parse(completion.text, prompt, tools, any_tool=True)
        message, finish_reason = answer(completion, parsed)
        valid, failures = verdict(finish_reason, message, line.body.get("tools"))
        return ResultRow(
            data_index=line.data_index,
            request=line.body,
            response=self._response(line, completion, message, finish_reason),
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
                "warnings": list(prompt.plan.warnings),
                "retries": completion.retries,
                "hurried": completion.hurried,
                "guard_failures": [str(failure) for failure in completion.guard_failures],
            },
        )

    def _response(
        self, line: RequestLine, completion: Completion, message: dict[str, Any], reason: str
    ) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{line.data_index}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.loaded.name,
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {
                "prompt_tokens": completion.prompt_tokens,
                "completion_tokens": completion.steps,
                "total_tokens": completion.prompt_tokens + completion.steps,
            },
        }


def answer(completion: Completion, parsed: Parsed) -> tuple[dict[str, Any], str]:
    """The message and OpenAI's finish_reason.

    A call that cannot be read is an attempt to call all the same. It stands among the calls with
    its raw text for arguments, which are no JSON: K2VV's check, ours and theirs, then finds it.
    """
    attempts = [
        problem
        for problem in parsed.problems
        if problem.kind in ("malformed", "incomplete") and problem.text != _thought(parsed)
    ]
    if completion.finish_reason == "length" or not (parsed.tool_calls or attempts):
        return parsed.message, completion.finish_reason
    calls = list(parsed.tool_calls)
    for problem in attempts:
        named = _NAME.search(problem.text)
        name = (named[1] or named[2]) if named else ""
        function = {"name": name, "arguments": problem.text}
        calls.append({"id": f"unreadable_{len(calls)}", "type": "function", "function": function})
    return {**parsed.message, "tool_calls": calls}, "tool_calls"


def _thought(parsed: Parsed) -> str | None:
    """Thinking that the completion ends in: nothing was called there."""
    unclosed = (p.text for p in parsed.problems if p.detail.startswith("thinking is not"))
    return next(unclosed, None)


def fingerprint(loaded: LoadedModel) -> str:
    """A digest of the chat template, and of every tensor's name, shape and sum: 16 hex digits."""
    digest = hashlib.sha256(str(loaded.tokenizer.chat_template).encode())
    for name, tensor in loaded.model.state_dict().items():
        some = tensor if tensor.numel() < _SUMMED else tensor[0]
        digest.update(f"{name} {tuple(tensor.shape)} {some.double().sum().item()!r}".encode())
    return digest.hexdigest()[:16]
