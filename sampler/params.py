"""What goes into the decoding loop and what comes out: frozen, checked when made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from grammar.guard import Guard, GuardFailure

FinishReason = Literal["stop", "length", "error"]

_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled.

    Attributes:
        temperature: >= 0; under 1e-5 is argmax.
        top_p: in (0, 1]; 1 is no cut.
        top_k: >= 0; 0 is no cut.
        min_p: in [0, 1]; 0 is no cut.
        seed: int64. With the position and the token's id it is all that the noise depends on.
        max_tokens: most tokens to generate, at least 1; the stop token counts.
        stop: texts that end the completion; the text is cut before the first of them.
        presence_penalty: in [-2, 2]; taken from the logit of every token that has been generated.
        frequency_penalty: in [-2, 2]; taken from it once for each time.
        repetition_penalty: > 0; divides positive logits of every token in the prompt or generated,
            and multiplies negative ones. 1 is none.
        logit_bias: token id to what is added to its logit, in [-100, 100]. See `sampler.penalties`
            for all four. A mask is stronger: no bias allows what it forbids.
        top_logprobs: how many of the most likely tokens to report at each position, at most 20; 0
            reports none.
        finish_in_budget: where a grammar allows it, steer to an end within `max_tokens`.

    Raises:
        ValueError: a value out of range, with the argument's name.
        TypeError: a value of the wrong type.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    top_logprobs: int = 0
    finish_in_budget: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.finish_in_budget, bool):
            raise TypeError(f"finish_in_budget must be a bool, got {self.finish_in_budget!r}")
        for name in _NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name} must be a number, got {value!r}")
            try:
                object.__setattr__(self, name, float(value))
            except OverflowError:
                raise ValueError(f"{name} must be a number that a float can hold") from None
        for name in ("top_k", "seed", "max_tokens", "top_logprobs"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an integer, got {value!r}")
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        stop = tuple(self.stop)
        if not all(isinstance(text, str) and text for text in stop):
            raise ValueError(f"stop must hold texts that are not empty, got {self.stop!r}")
        object.__setattr__(self, "stop", stop)
        checks = (
            (
                "temperature",
                math.isfinite(self.temperature) and self.temperature >= 0,
                "at least 0",
            ),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]; 1 is no cut"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]; 0 is no cut"),
            ("top_k", 0 <= self.top_k < 2**31, "at least 0; 0 is no cut"),
            ("seed", -(2**63) <= self.seed < 2**63, "a 64-bit integer"),
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("presence_penalty", abs(self.presence_penalty) <= 2, "in [-2, 2]; 0 is none"),
            ("frequency_penalty", abs(self.frequency_penalty) <= 2, "in [-2, 2]; 0 is none"),
            (
                "repetition_penalty",
                math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0,
                "greater than 0; 1 is none",
            ),
            ("top_logprobs", 0 <= self.top_logprobs <= 20, "in [0, 20]; 0 reports none"),
        )
        for name, good, wanted in checks:
            if not good:
                raise ValueError(f"{name} must be {wanted}, got {getattr(self, name)!r}")
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))

    @property
    def penalised(self) -> bool:
        """Whether logits are changed before the draw: by a penalty or a bias."""
        neutral = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        return neutral != (0.0, 0.0, 1.0) or bool(self.logit_bias)


def _checked_bias(bias: Mapping[int, float]) -> Mapping[int, float]:
    """A copy of `logit_bias`."""
    if not isinstance(bias, Mapping):
        raise TypeError(f"logit_bias must map token ids to numbers, got {bias!r}")
    for token, value in bias.items():
        if isinstance(token, bool) or not isinstance(token, int):
            raise TypeError(f"logit_bias must have token ids for keys, got {token!r}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"logit_bias[{token}] must be a number, got {value!r}")
        if not -100 <= value <= 100:
            raise ValueError(f"logit_bias[{token}] must be in [-100, 100], got {value!r}")
    return {token: float(value) for token, value in bias.items()}


@dataclass(frozen=True)
class Request:
    """One prompt to complete.

    Attributes:
        prompt: token ids, at least one.
        params: how to sample.
        grammar: a compiled grammar (`grammar.compiler.Compiler.compile`), or None to decode freely.
        guard: validates what was decoded and has it redone (`grammar.guard.Guard`), or None.
        key: whatever the caller tells requests apart by; comes back on the completion.
    """

    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    grammar: Any | None = None
    key: Any = None
    guard: Guard | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", tuple(int(token) for token in self.prompt))
        if not self.prompt:
            raise ValueError("prompt must hold at least one token id, got none")


@dataclass(frozen=True)
class Intervention:
    """A position at which the grammar changed the draw.

    Attributes:
        position: index of the generated token, from 0.
        free_token: what the same noise draws without the grammar.
        token: what was drawn.
        log_removed: log of the probability (nats) that the mask forbade at this position.
        kind: "forbidden" when the mask forbids `free_token`; "cut" when it is allowed, but the
            mask changed what top_k, top_p or min_p keep.
    """

    position: int
    free_token: int
    token: int
    log_removed: float
    kind: Literal["forbidden", "cut"]


@dataclass(frozen=True)
class NearTie:
    """A draw that another shape of the batch may decide otherwise: the two best scores are close.

    Attributes:
        position: index of the generated token, from 0.
        token: the winner.
        runner_up: the next best.
        margin: the difference of their scores, nats.
    """

    position: int
    token: int
    runner_up: int
    margin: float


@dataclass(frozen=True)
class Live:
    """A request that is running, between two steps of the decoder.

    The sequences are the row's own, not copies: read them before the next step and leave them as
    they are. They grow, but for a guard that has the text decoded again: it cuts them back, and
    `retries` says so. All three are of one length, but that `top_logprobs` is empty where none
    were asked for.

    Attributes:
        key: the request's.
        token_ids: what has been generated and kept so far; a stop token never shows.
        logprobs, top_logprobs, retries: as those of a `Completion`.
    """

    key: Any
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    top_logprobs: Sequence[Mapping[int, float]]
    retries: int


@dataclass(frozen=True)
class Completion:
    """What became of one request.

    Attributes:
        key: the request's.
        token_ids: what was generated, the stop token excluded.
        text: the tokens decoded, special tokens kept, cut before a stop text.
        finish_reason: "stop" at a stop token or text, "length" at max_tokens, "error".
        stop: the stop token's id or the stop text, where that ended it.
        logprobs: nats, one a token, under the distribution drawn from before top_k, top_p, min_p;
            0 for tokens that were not drawn.
        top_logprobs: one mapping a token, id to nats, most likely first, under the model's own
            distribution: before mask, temperature and cuts. The token that came is always in it.
        prompt_tokens: length of the prompt.
        steps: tokens that came, the stop token included; those that the guard threw away are not.
        forced: how many of them were the only one that the grammar allowed, and were not sampled.
        jumped: how many of them string jump-forward put in, unsampled.
        seconds: from the prefill of the prompt to the last token.
        error: what went wrong, for "error". Otherwise set only where the guard gave up: the text
            is then the last attempt, finish_reason is how that ended, and this says which call is
            not valid and where.
        retries: how often the guard had the rest of the text decoded again.
        redone: tokens that it threw away, stop tokens included.
        guard_failures: what it objected to, in the order of the attempts. Those of the last
            attempt have `stream` equal to `retries`; without such, the text is valid.
        hurried: tokens that `finish_in_budget` drew anew, to end within the budget.
        interventions: where the grammar changed the draw (empty unless traced).
        near_ties: draws decided by less than the tie margin (empty unless traced).
        log_removed: nats, one a step, -inf where nothing was forbidden (empty unless traced).
    """

    key: Any
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    steps: int
    seconds: float
    forced: int = 0
    jumped: int = 0
    stop: int | str | None = None
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[Mapping[int, float], ...] = ()
    error: str | None = None
    retries: int = 0
    redone: int = 0
    guard_failures: tuple[GuardFailure, ...] = ()
    hurried: int = 0
    interventions: tuple[Intervention, ...] = ()
    near_ties: tuple[NearTie, ...] = ()
    log_removed: tuple[float, ...] = ()
