"""Engines: requests in, result rows out. The interface, and what every engine shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Protocol

from eval.request_lines import RequestLine
from eval.rows import ResultRow
from sampler.params import SamplingParams

_FIELDS = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "stop")
# Spreads neighbouring requests over the seeds, so that no two share their noise.
_SEED_STRIDE = 1_000_003


class Engine(Protocol):
    """What the harness asks of whatever answers requests."""

    def run(self, lines: Iterable[RequestLine]) -> Iterator[ResultRow]:
        """Answer requests: a row each, in the order in which they end, failed ones included.

        Abandoning the iterator gives up what is still in flight.
        """
        ...

    def close(self) -> None:
        """Give back connections and threads; the engine is of no use afterwards."""
        ...

    def describe(self) -> dict[str, Any]:
        """Ready for JSON: everything that rows of one run share, and ``sent``, a phrase for people.

        It is the run key, so what does not change an answer (batch size, concurrency, time limits)
        is not in it.
        """
        ...


@dataclass(frozen=True)
class Sampling:
    """Sampling settings of a run: what is not None goes before the request's own.

    Where neither says anything, a local model has temperature 1.0, no cut and 256 tokens, and an
    endpoint its own defaults. A request without a seed of its own gets one made from `base_seed`
    and its data_index; with `base_seed` None, that is 0 for a local model, and none for an
    endpoint.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    base_seed: int | None = None

    def params(self, line: RequestLine) -> SamplingParams:
        """The parameters of one request for a local model.

        Raises:
            ValueError, TypeError: the request's own are out of range or of a wrong type.
        """
        body = line.body
        own = {name: body[name] for name in _FIELDS if body.get(name) is not None}
        if body.get("max_completion_tokens") is not None:
            own["max_tokens"] = body["max_completion_tokens"]
        return SamplingParams(**{"seed": self.seed_of(line), **own, **self.given()})

    def given(self) -> dict[str, Any]:
        """The settings that go before the requests' own, by name; the seed is not among them."""
        return {k: v for k, v in asdict(self).items() if k in _FIELDS and v is not None}

    def seed_of(self, line: RequestLine) -> int:
        """The seed of a request that has none of its own."""
        return ((self.base_seed or 0) * _SEED_STRIDE + line.data_index) % 2**63


def failed_row(
    line: RequestLine,
    error: BaseException,
    *,
    message: str | None = None,
    request: Mapping[str, Any] | None = None,
    seconds: float = 0.0,
    **fields: Any,
) -> ResultRow:
    """The row of a request that got no answer.

    message: what went wrong, for people; the error's own text if it is None.
    request: the body that was sent; the line's own if it is None.
    fields: further fields of the row.
    """
    message = str(error) if message is None else message
    kind = type(error).__name__
    return ResultRow(
        data_index=line.data_index,
        request=line.body if request is None else request,
        response={"error_type": kind, "error_message": message, "error": f"{kind}: {message}"},
        status="failed",
        last_run_at=datetime.now().isoformat(),
        duration_ms=round(seconds * 1000),
        hash=line.hash,
        **fields,
    )
