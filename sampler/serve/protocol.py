"""The body of POST /v1/chat/completions: what is read, what is refused, what is ignored.

What messages, tools and grammars may be is for `sampler.chat` to say; here the rest is checked.

Fields that nobody here knows are ignored, as vLLM does. Fields that would change what is sampled,
and that the decoding loop does not have, are refused: an answer must be the one that was asked for.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from sampler.serve.errors import ApiError

MAX_CHOICES = 128
MAX_STOPS = 16
"""Each is looked for after every token."""

_OFF = (None, False, 0, "", [], {})
# What is not supported, with the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (None, True),
    "allowed_token_ids": (None,),
    "audio": _OFF,
    "bad_words": _OFF,
    "best_of": (None, 1),
    "chat_template": _OFF,
    "continue_final_message": _OFF,
    "documents": _OFF,
    "dry_multiplier": _OFF,
    "ebnf": _OFF,
    "echo": _OFF,
    "function_call": _OFF,
    "functions": _OFF,
    "ignore_eos": _OFF,
    "include_stop_str_in_output": _OFF,
    "length_penalty": (None, 1),
    "logits_processors": _OFF,
    "lora_path": _OFF,
    "min_tokens": _OFF,
    "mirostat": _OFF,
    "mirostat_mode": _OFF,
    "modalities": (None, ["text"]),
    "no_repeat_ngram_size": _OFF,
    "num_beams": (None, 1),
    "prediction": _OFF,
    "prompt_logprobs": (None,),
    "regex": _OFF,
    "skip_special_tokens": (None, True),
    "stop_token_ids": _OFF,
    "thinking_token_budget": (None,),
    "truncate_prompt_tokens": (None,),
    "typical_p": (None, 1),
    "use_beam_search": _OFF,
    "web_search_options": (None,),
    "xtc_probability": _OFF,
}
_INSTEAD = {
    "functions": "tools",
    "function_call": "tool_choice",
    "regex": "structured_outputs",
    "ebnf": "structured_outputs",
}


def _stops(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if texts is None:
        return []
    if not isinstance(texts, list) or not all(isinstance(t, str) and t for t in texts):
        raise ValueError(f"must be a text or a list of texts, none empty; got {_short(value)}")
    if len(texts) > MAX_STOPS:
        raise ValueError(f"must be at most {MAX_STOPS} texts; got {len(texts)}")
    return texts


def _token_ids(value: Any) -> Any:
    """JSON has keys that are texts; here they are token ids."""
    if not isinstance(value, dict):
        return value
    try:
        return {int(key): bias for key, bias in value.items()}
    except ValueError:
        raise ValueError("must have token ids for keys") from None


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class StreamOptions(_Model):
    """OpenAI's ``stream_options``, and vLLM's field of it."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Thinking(_Model):
    """Kimi's switch: whether to think, how hard, and whether to keep the thoughts of old turns."""

    type: Literal["enabled", "disabled"]
    effort: str | None = None
    keep: Literal["all"] | None = None


class ChatRequest(_Model):
    """A request; None is a field that was not sent."""

    model: str | None = None
    messages: Any
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Any = None
    structured_outputs: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    thinking: Thinking | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[int, float] | None, BeforeValidator(_token_ids)] = None
    seed: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: Annotated[list[str], BeforeValidator(_stops)] = []
    n: Annotated[int | None, Field(ge=1, le=MAX_CHOICES)] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="after")
    def _together(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream to be true")
        return self

    @property
    def choices(self) -> int:
        """How many answers are wanted, OpenAI's ``n``."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage and no choices."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def usage_so_far(self) -> bool:
        """Whether every other chunk has it, too, as far as its choice has come."""
        return self.include_usage and bool(self.stream_options.continuous_usage_stats)


def read_request(raw: bytes) -> tuple[ChatRequest, dict[str, Any]]:
    """The request, and its body as it came.

    Raises:
        ApiError: 400, naming the first field that is wrong.
    """
    body = _load(raw)
    if not isinstance(body, dict):
        raise ApiError(400, f"the body must be a JSON object; got {_short(body)}")
    for name, neutral in _UNSUPPORTED.items():
        if name in body and body[name] not in neutral:
            instead = f"use {_INSTEAD[name]}" if name in _INSTEAD else "leave it out"
            raise ApiError(
                400, f"{name} is not supported: {instead}", param=name, code="unsupported_parameter"
            )
    try:
        return ChatRequest.model_validate(body), body
    except ValidationError as error:
        raise _explained(error) from None


def _load(raw: bytes) -> Any:
    try:
        text = raw.decode()
        body = json.loads(text, parse_constant=_no_constant)
        if "\\u" in text:
            # Half a surrogate pair is JSON, but no text: no tokenizer could read it.
            json.dumps(body, ensure_ascii=False).encode()
    except RecursionError:
        raise ApiError(400, "the body is not JSON: nested too deeply") from None
    except UnicodeEncodeError:
        raise ApiError(400, "the body holds half of a surrogate pair (\\ud800-\\udfff)") from None
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: {error.reason}, byte {error.start}") from None
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from None
    return body


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _explained(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    # Pydantic names the branch of a union, too.
    path = [part for part in first["loc"] if isinstance(part, int) or part.isidentifier()]
    where = ""
    for part in path:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else part
    message = first["msg"].removeprefix("Value error, ")
    if not where:
        return ApiError(400, message, param=message.split(" ")[0])
    message = message[:1].lower() + message[1:]
    if first["type"] != "value_error" and first["type"] != "missing":
        message += f"; got {_short(first['input'])}"
    return ApiError(400, f"{where}: {message}", param=str(path[0]))


def _short(value: Any) -> str:
    # Not json.dumps, nor repr of the whole: the value may be megabytes.
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
