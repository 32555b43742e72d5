"""A request made ready to decode: its prompt, its grammar, the parameters of each choice."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from grammar.deadline import OutOfTime, current
from sampler.chat import Chat, Prompt
from sampler.params import SamplingParams
from sampler.serve.errors import ApiError, refused
from sampler.serve.limits import Limits
from sampler.serve.protocol import ChatRequest

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
)
_ANSWERS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
_PASSED_ON = ("tools", "tool_choice", "parallel_tool_calls", *_ANSWERS)
_SEEDS = 2**63
_LONGEST_HEADER = 1000
"""Characters. Clients take lines of 8 kB at most, and proxies buffers of 4 kB for all headers."""


@dataclass(frozen=True)
class Job:
    """What the decoding loop is to do for one request.

    Attributes:
        request: as it was read.
        prompt: shared by its choices.
        params: one for each choice; they differ in their seeds.
        tools: those whose calls are calls; without them, and under tool_choice none, a text that
            looks like one is content.
    """

    request: ChatRequest
    prompt: Prompt
    params: tuple[SamplingParams, ...]
    tools: list[Mapping[str, Any]]

    @property
    def guarded(self) -> tuple[str, ...]:
        """What only validation enforces: names of tools, or of the field with the schema."""
        return self.prompt.plan.guarded

    @property
    def guard_note(self) -> str:
        """What is guarded as a header says it, as far as there is room: `guarded=a,b,+7`."""
        if not self.guarded:
            return ""
        shown, size = [], 0
        for name in self.guarded:
            size += len(name) + 1
            if size > _LONGEST_HEADER:
                shown.append(f"+{len(self.guarded) - len(shown)}")
                break
            shown.append(name)
        return f"guarded={','.join(shown)}"

    @property
    def held_back(self) -> bool:
        """A stream must wait for the end: the guard may have the text decoded again."""
        return bool(self.guarded)

    @cached_property
    def headers(self) -> dict[str, str]:
        """What the client should know of how this was planned."""
        headers = {}
        if self.guarded:
            headers["x-masked-sampling-guard"] = self.guard_note
        if self.prompt.plan.warnings:
            text = " ".join("; ".join(self.prompt.plan.warnings).split())
            if len(text) > _LONGEST_HEADER:
                text = text[: _LONGEST_HEADER - 3] + "..."
            headers["x-masked-sampling-warning"] = text.encode("ascii", "replace").decode()
        return headers


def prepare(
    chat: Chat,
    limits: Limits,
    request: ChatRequest,
    body: Mapping[str, Any],
    *,
    finish_in_budget: bool = True,
) -> Job:
    """Check a request against the limits, render and tokenize its prompt, compile its grammar.

    Slow (a grammar may take seconds): not for the event loop.

    Args:
        body: what `request` was read from.
        finish_in_budget: see `sampler.params.SamplingParams`.

    Raises:
        ApiError: 400, naming the field, or the tool, the place in its schema and the reason.
    """
    _check_sizes(request, body, limits)
    wanted = request.max_completion_tokens
    if wanted is None:
        wanted = request.max_tokens
    if wanted is not None and wanted > limits.tokens:
        raise ApiError(
            400,
            f"max_tokens must be at most {limits.tokens:,} here; got {wanted:,}",
            param="max_tokens",
        )
    # Checked before anything slow; how many tokens there is room for is known only later.
    params = _params(request, max_tokens=1 if wanted is None else wanted)
    vocab_size = chat.loaded.vocab_size
    outside = [token for token in request.logit_bias or () if not 0 <= token < vocab_size]
    if outside:
        raise ApiError(
            400,
            f"logit_bias must have token ids below {vocab_size:,}; got {outside[0]}",
            param="logit_bias",
        )
    try:
        prompt = chat.prepare(_chat_body(request, body))
    except ValueError as error:
        raise refused(error) from error
    except OutOfTime as error:
        raise refused(
            f"the request was not prepared within the {current().seconds:g} s that it has; send"
            " fewer tools, or smaller ones"
        ) from error
    if prompt.guard is not None and not prompt.plan.guarded:
        # A stream has sent by then what the guard would have decoded again; a whole answer is to
        # say the same.
        prompt = replace(prompt, guard=prompt.guard.without_retries())
    room = _room(chat, limits, len(prompt.ids), wanted)
    max_tokens = min(limits.tokens, room) if wanted is None else wanted
    params |= {"max_tokens": max_tokens, "finish_in_budget": finish_in_budget}
    seed = secrets.randbelow(_SEEDS) if request.seed is None else request.seed
    parsed = prompt.plan.tool_choice != "none"
    return Job(
        request,
        prompt,
        tuple(SamplingParams(**params, seed=_wrapped(seed + i)) for i in range(request.choices)),
        list(request.tools or ()) if parsed else [],
    )


def _check_sizes(request: ChatRequest, body: Mapping[str, Any], limits: Limits) -> None:
    tools = request.tools or []
    if len(tools) > limits.tools:
        raise ApiError(
            400, f"tools must be at most {limits.tools}; got {len(tools)}", param="tools"
        )
    sized = [(name, body.get(name)) for name in _ANSWERS]
    sized += [(f"tools[{i}]", tool) for i, tool in enumerate(tools)]
    for name, value in sized:
        try:
            size = 0 if value is None else len(json.dumps(value))
        except RecursionError:
            raise ApiError(400, f"{name} is nested too deeply", param=_field(name)) from None
        if size > limits.schema_bytes:
            message = f"{name} must be at most {limits.schema_bytes:,} bytes; got {size:,}"
            raise ApiError(400, message, param=_field(name))


def _field(name: str) -> str:
    return name.partition("[")[0]


def _params(request: ChatRequest, *, max_tokens: int) -> dict[str, Any]:
    """Arguments of `SamplingParams` that do not differ between choices, checked."""
    given = {name: getattr(request, name) for name in _SAMPLING}
    params = {name: value for name, value in given.items() if value is not None}
    if params.get("top_k") == -1:
        # What vLLM calls no cut.
        params["top_k"] = 0
    params["stop"] = tuple(request.stop)
    if request.logprobs:
        # At least one: the token's own logprob is then the model's, as the others are.
        params["top_logprobs"] = max(1, request.top_logprobs or 0)
    try:
        SamplingParams(**params, max_tokens=max_tokens, seed=request.seed or 0)
    except (TypeError, ValueError) as error:
        raise refused(error) from error
    return params


def _wrapped(seed: int) -> int:
    """A sum of two seeds as the 64-bit integer it overflows to."""
    return (seed + _SEEDS) % (2 * _SEEDS) - _SEEDS


def _chat_body(request: ChatRequest, body: Mapping[str, Any]) -> dict[str, Any]:
    """What `Chat.prepare` takes."""
    passed = {name: body[name] for name in _PASSED_ON if body.get(name) is not None}
    variables = dict(request.chat_template_kwargs or {})
    if request.thinking is not None:
        # The names that Kimi's own open models have for them.
        variables.setdefault("thinking", request.thinking.type == "enabled")
        if request.thinking.effort is not None:
            variables.setdefault("thinking_effort", request.thinking.effort)
        if request.thinking.keep is not None:
            variables.setdefault("preserve_thinking", True)
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    if variables:
        passed["chat_template_kwargs"] = variables
    return {**passed, "messages": request.messages}


def _room(chat: Chat, limits: Limits, prompt: int, wanted: int | None) -> int:
    """Tokens that fit behind the prompt."""
    config = chat.loaded.model.config.get_text_config()
    bounds = {
        "the model's context": getattr(config, "max_position_embeddings", None),
        "this server's cache": limits.cache_tokens,
    }
    known = {name: tokens for name, tokens in bounds.items() if tokens is not None}
    if not known:
        return _SEEDS
    what, most = min(known.items(), key=lambda item: item[1])
    if prompt + (wanted or 1) > most:
        asked = "" if wanted is None else f" and max_tokens is {wanted:,}"
        raise ApiError(
            400,
            f"the prompt has {prompt:,} tokens{asked}, but {what} is {most:,}; shorten the"
            " messages or lower max_tokens",
            param="messages" if wanted is None else "max_tokens",
            code="context_length_exceeded",
        )
    return most - prompt
