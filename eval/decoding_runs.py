"""The ways to decode that are compared, each on the same work, with a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor

from eval.decoding_peers import PEERS
from eval.decoding_turns import Pause
from eval.decoding_work import Item
from sampler.chat import Chat
from sampler.decoding import Decoder
from sampler.logits_processor import GrammarLogitsProcessor
from sampler.params import Completion
from sampler.row import Row


@dataclass
class Timing:
    """What one run of one way took.

    Attributes:
        prompt_s: seconds until the first tokens could be drawn.
        steps_s: seconds of each step after it, from one draw to the next.
        decode_s: seconds from then on, the last draw included.
        tokens: that came, stop tokens included; of a way that jumps, whose tokens may be others,
            those that the same text is to the other ways.
        forced, jumped: how many of them were the only ones allowed, and how many of text that was.
        forwards: calls of the model after the prompts.
        parts_s: seconds in the parts of the loop; of `generate`, only in "grammar".
        prompt_tokens: tokens of prompts that the model computed.
        told: whether the tokens are the work's.
    """

    prompt_s: float = 0.0
    steps_s: list[float] = field(default_factory=list)
    decode_s: float = 0.0
    tokens: int = 0
    forced: int = 0
    jumped: int = 0
    forwards: int = 0
    parts_s: dict[str, float] = field(default_factory=dict)
    prompt_tokens: int = 0
    told: bool = True


class ScriptedDecoder(Decoder):
    """A decoder whose rows draw as ever, and then are told what they drew.

    Args:
        scripts: tokens of each request, by its key.
    """

    def __init__(self, *args: Any, scripts: Mapping[int, Sequence[int]], **options: Any) -> None:
        super().__init__(*args, **options)
        self.scripts = scripts

    def _take(self, i: int, token: int, logprob: float, status: int) -> None:
        super()._take(i, self._told(self._rows[i]), logprob, status)

    def _told(self, row: Row) -> int:
        script = self.scripts[row.request.key]
        if not self.jump_forward:
            return script[row.position]
        # A jump goes on by text, and may end inside a token of the script; then what is left of
        # that token is told, whole or byte by byte.
        done, at = sum(len(self._token_bytes[token]) for token in row.token_ids), 0
        for token in script:
            piece = self._token_bytes[token]
            if done <= at:
                return token
            at += len(piece)
            if done < at:
                rest = piece[done - at :]
                known = self._token_bytes
                return known.index(rest) if rest in known else known.index(rest[:1])
        raise WrongTokens(f"request {row.request.key + 1} has outgrown what it was told")


@dataclass(frozen=True)
class Work:
    """What every way is given.

    Attributes:
        chat: of the model.
        items: the requests.
        scripts: the tokens of each, in order.
        batch_size: rows decoded together.
    """

    chat: Chat
    items: Sequence[Item]
    scripts: Sequence[tuple[int, ...]]
    batch_size: int

    @property
    def tokens(self) -> int:
        """Of all scripts together."""
        return sum(map(len, self.scripts))


class WrongTokens(AssertionError):
    """A way gave other tokens than it was told."""


def decoder(work: Work, kind: type[Decoder] = Decoder, **options: Any) -> Decoder:
    """A decoder for the work's model."""
    loaded = work.chat.loaded
    return kind(
        loaded.model,
        tokenizer=loaded.tokenizer,
        stop_token_ids=loaded.stop_token_ids,
        batch_size=work.batch_size,
        **options,
    )


def _go_on() -> None:
    """The pause of a way that runs alone."""


def run_loop(
    work: Work, constrained: Callable[[int], bool], *, pause: Pause = _go_on, **options: Any
) -> Timing:
    """Our loop; `constrained` says of each item whether its grammar counts.

    Args:
        pause: called between two steps; its time is not counted.
    """
    loop = decoder(work, ScriptedDecoder, scripts=work.scripts, **options)
    for n, (item, script) in enumerate(zip(work.items, work.scripts, strict=True)):
        # The same text may be a few tokens more, where a jump ends inside one.
        most = len(script) * (2 if loop.jump_forward else 1)
        loop.submit(item.request(n, constrained=constrained(n), max_tokens=most))
    done: list[Completion] = []
    steps: list[float] = []
    while loop.busy:
        began = time.perf_counter()
        done += loop.step()
        steps.append(time.perf_counter() - began)
        pause()
    said = {c.key: _tokens(c) for c in done}
    _check(work, said, loop._token_bytes if loop.jump_forward else None)
    seconds = loop.counts.seconds
    return Timing(
        prompt_s=seconds["prompt"],
        # The first step is that of the prompts.
        steps_s=steps[1:],
        decode_s=sum(steps) - seconds["prompt"],
        tokens=work.tokens,
        forced=loop.counts.forced,
        jumped=sum(c.jumped for c in done),
        forwards=len(steps) - 1,
        parts_s={name: took for name, took in seconds.items() if name != "prompt"},
        prompt_tokens=loop.batch.prompt_tokens,
    )


def run_generate(
    work: Work,
    processor: Callable[[Sequence[Item]], Any] | None,
    *,
    told: bool = True,
    pause: Pause = _go_on,
) -> Timing:
    """`model.generate`, a batch after the other, with the processor made for each batch.

    Args:
        told: whether the tokens are the work's; else whatever `generate` samples.
        pause: called between two steps; its time is not counted.
    """
    total = Timing(told=told)
    for start in range(0, len(work.items), work.batch_size):
        part = slice(start, start + work.batch_size)
        items, scripts = work.items[part], work.scripts[part]
        clock = _Clock(processor(items) if processor else None, scripts if told else None, pause)
        _generate(work, items, scripts, clock, total)
    return total


def _generate(
    work: Work, items: Sequence[Item], scripts: Sequence[tuple[int, ...]], clock: Any, total: Timing
) -> None:
    loaded = work.chat.loaded
    pad = loaded.tokenizer.pad_token_id or 0
    width = max(len(item.prompt.ids) for item in items)
    ids = torch.tensor([[pad] * (width - len(i.prompt.ids)) + [*i.prompt.ids] for i in items])
    mask = torch.tensor(
        [[0] * (width - len(i.prompt.ids)) + [1] * len(i.prompt.ids) for i in items]
    )
    params = items[0].params
    config = GenerationConfig(
        do_sample=params.temperature > 0,
        temperature=params.temperature or None,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p or None,
        max_new_tokens=max(map(len, scripts)),
        eos_token_id=list(loaded.stop_token_ids),
        pad_token_id=pad,
    )
    torch.manual_seed(params.seed)
    began = time.perf_counter()
    out = loaded.model.generate(
        input_ids=ids.to(loaded.model.device),
        attention_mask=mask.to(loaded.model.device),
        generation_config=config,
        logits_processor=[clock],
    )
    ended = time.perf_counter()
    rows = [_until_stop(row, loaded.stop_token_ids) for row in out[:, width:].tolist()]
    if clock.scripts is not None and rows != [list(script) for script in scripts]:
        raise WrongTokens("generate gave other tokens than it was told")
    total.prompt_s += clock.came[0] - began
    total.steps_s += [b - a for a, b in zip(clock.left, clock.came[1:], strict=False)]
    total.decode_s += ended - clock.came[0] - clock.away_s
    total.tokens += sum(map(len, rows))
    total.forwards += len(clock.came) - 1
    total.parts_s["grammar"] = total.parts_s.get("grammar", 0.0) + clock.grammar_s
    total.prompt_tokens += sum(len(item.prompt.ids) for item in items)


class _Clock(LogitsProcessor):
    """Times a processor, then tells the rows their tokens and lets others have their turn, and
    keeps the time of that apart."""

    def __init__(
        self,
        processor: Callable | None,
        scripts: Sequence[tuple[int, ...]] | None,
        pause: Pause,
    ) -> None:
        self.processor, self.scripts, self.pause = processor, scripts, pause
        self.came: list[float] = []
        self.left: list[float] = []
        self.grammar_s = 0.0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        began = time.perf_counter()
        if self.processor is not None:
            scores = self.processor(input_ids, scores)
        came = time.perf_counter()
        if self.came:
            self.grammar_s += came - began
        if self.scripts is not None:
            at = len(self.came)
            tokens = [script[at] if at < len(script) else 0 for script in self.scripts]
            scores.fill_(-torch.inf)
            scores[range(len(tokens)), tokens] = 0.0
        self.came.append(came)
        self.pause()
        self.left.append(time.perf_counter())
        return scores

    @property
    def away_s(self) -> float:
        """Seconds of telling and of pauses."""
        return sum(left - came for came, left in zip(self.came, self.left, strict=True))


def _until_stop(row: Iterable[int], stops: Iterable[int]) -> list[int]:
    row, stops = list(row), set(stops)
    end = next((i for i, token in enumerate(row) if token in stops), len(row))
    return row[: end + 1]


def _tokens(completion: Completion) -> tuple[int, ...]:
    stop = () if completion.stop is None else (completion.stop,)
    return (*completion.token_ids, *stop)


def _check(
    work: Work, tokens: Mapping[int, tuple[int, ...]], pieces: Sequence[bytes] | None
) -> None:
    """Rows must have the tokens that they were told, or, with `pieces`, the text."""

    def said(ids: Sequence[int]) -> Any:
        return tuple(ids) if pieces is None else b"".join(pieces[token] for token in ids)

    for n, script in enumerate(work.scripts):
        if said(tokens[n]) != said(script):
            raise WrongTokens(f"request {n + 1} gave other tokens than it was told")


def _all(n: int) -> bool:
    return True


def _none(n: int) -> bool:
    return False


def _every_other(n: int) -> bool:
    return n % 2 == 1


def _ours(items: Sequence[Item]) -> Any:
    return GrammarLogitsProcessor([item.prompt.grammar for item in items])


Way = Callable[..., Timing]
"""Takes work, and `pause=`."""

OWN_TOKENS = ("generate_llguidance", "generate_outlines")
"""Ways whose grammar is not ours, so that they cannot be told our tokens."""


def ways(chat: Chat, names: Iterable[str]) -> tuple[dict[str, Way], list[str]]:
    """Those that can run here, ready to be given work, and why the others cannot."""
    loop: dict[str, Way] = {
        "free": partial(run_loop, constrained=_none),
        "dense": partial(run_loop, constrained=_all, masked_head=False, forced_runs=False),
        "masked": partial(run_loop, constrained=_all, forced_runs=False),
        "forced": partial(run_loop, constrained=_all),
        "jump": partial(run_loop, constrained=_all, jump_forward=True),
        "mixed": partial(run_loop, constrained=_every_other, forced_runs=False),
        "generate": partial(run_generate, processor=None),
        "generate_ours": partial(run_generate, processor=_ours),
    }
    ready: dict[str, Way] = {}
    notes: list[str] = []
    for name in names:
        if name in loop:
            ready[name] = loop[name]
            continue
        peer = name.removeprefix("generate_")
        try:
            factory = PEERS[peer](chat)
        except ImportError:
            notes.append(f"{name} was left out: {peer} is not installed.")
            continue
        ready[name] = partial(run_generate, processor=factory, told=name not in OWN_TOKENS)
    return ready, notes
