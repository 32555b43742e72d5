"""From timings to rows, and from rows of alternating rounds to medians and ratios."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import truediv
from statistics import mean, median
from typing import Any

WAYS = (
    "free",
    "dense",
    "masked",
    "forced",
    "jump",
    "mixed",
    "generate",
    "generate_ours",
    "generate_xgrammar",
    "generate_llguidance",
    "generate_outlines",
)
"""In the order in which they are shown: our loop free; constrained with a dense head, with a masked
head, with forced runs as well, and with forced text put in unsampled; every other row constrained,
masked head; and `model.generate`, free and with logits processors."""

PARTS = ("forward", "head", "sampling", "grammar")
METRICS = (
    "ms_step",
    "ms_token",
    "ms_token_with_prompt",
    "tokens_per_s",
    "prompt_s",
    *(f"{part}_share" for part in PARTS),
)
"""What has a median and a range.

* ``ms_step``: from one draw to the next, the mean of a run. What two ways are to each other is not
  the ratio of these: see `RATIOS`. With forced runs and jumps a step may read
  several tokens a row, so there it is not comparable.
* ``ms_token``: decoding over all tokens of all rows, forced ones included; prompts left out.
* ``ms_token_with_prompt``: the same with the prompts.
* ``tokens_per_s``: of all rows together, prompts left out.
* ``*_share``: of decoding, in [0, 1]; what is missing from 1 is bookkeeping.
"""
COUNTS = ("told", "tokens", "forced", "jumped", "forwards", "prompt_tokens")
"""What is the same in every round; ``told`` says whether the tokens were those of all ways."""

RATIOS: dict[str, tuple[str, str]] = {
    "step_to_free": ("steps_ms", "free"),
    "token_to_free": ("ms_token", "free"),
    "token_with_prompt_to_free": ("ms_token_with_prompt", "free"),
    "rate_to_xgrammar": ("tokens_per_s", "generate_xgrammar"),
    "step_to_generate": ("steps_ms", "generate"),
}
"""Name of a ratio: the metric, and the way it is over.

Of steps it is the median over the ratios of single steps, the first to the first and so on: those
ran one after the other, and a step that something else disturbed counts for one. Tokens of its own
make a way's time a token another thing, since its rows end elsewhere: there only steps are
compared."""


def row_of(round: int, way: str, timing: Any) -> dict[str, Any]:
    """What a run took; `timing` is an `eval.decoding_runs.Timing`. ``steps_ms`` are its steps."""
    decode = timing.decode_s
    return {
        "round": round,
        "way": way,
        "told": timing.told,
        "tokens": timing.tokens,
        "forced": timing.forced,
        "jumped": timing.jumped,
        "forwards": timing.forwards,
        "prompt_tokens": timing.prompt_tokens,
        "prompt_s": timing.prompt_s,
        "decode_s": decode,
        "ms_step": 1e3 * mean(timing.steps_s) if timing.steps_s else None,
        "steps_ms": tuple(1e3 * seconds for seconds in timing.steps_s),
        "ms_token": 1e3 * decode / timing.tokens,
        "ms_token_with_prompt": 1e3 * (decode + timing.prompt_s) / timing.tokens,
        "tokens_per_s": timing.tokens / decode,
        **{
            f"{part}_share": timing.parts_s[part] / decode if part in timing.parts_s else None
            for part in PARTS
        },
    }


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians, least and greatest of each way, and of the ratios within each round.

    Returns:
        ``ways``: way to metric to {median, low, high}, or None where it was not measured, and the
        counts. ``ratios``: ratio to way to the same. A ratio is taken within a round, whose
        ways take turns a step at a time: what slows the machine slows both sides.
    """
    names = list(dict.fromkeys(row["way"] for row in rows))
    own = {name: [row for row in rows if row["way"] == name] for name in names}
    ways: dict[str, Any] = {}
    for name, some in own.items():
        ways[name] = {metric: spread(row[metric] for row in some) for metric in METRICS}
        ways[name] |= {count: _one(name, count, some) for count in COUNTS}
    ratios = {}
    for ratio, (metric, base) in RATIOS.items():
        if base in own:
            under = {row["round"]: row[metric] for row in own[base]}
            ratios[ratio] = {
                name: spread(_over(row[metric], under.get(row["round"])) for row in some)
                for name, some in own.items()
                if metric == "steps_ms" or ways[name]["told"]
            }
    return {"rounds": len({row["round"] for row in rows}), "ways": ways, "ratios": ratios}


def steps_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line for every step of every row."""
    return [
        {"round": row["round"], "way": row["way"], "step": n, "ms": round(ms, 3)}
        for row in rows
        for n, ms in enumerate(row["steps_ms"], 1)
    ]


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Median, least and greatest; None where there is no value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"median": median(known), "low": min(known), "high": max(known)}


def _over(value: Any, under: Any) -> float | None:
    if isinstance(value, tuple) and under:
        return median(map(truediv, value, under)) if value else None
    return value / under if value is not None and under else None


def _one(name: str, count: str, rows: Sequence[Mapping[str, Any]]) -> int:
    values = {row[count] for row in rows}
    if len(values) > 1:
        raise ValueError(f"{count} of {name} must not differ between rounds, got {sorted(values)}")
    return values.pop()
