"""How much one request, and all of them together, may ask for."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

LEAST_CACHE = 1024
"""Tokens of the cache below which a server does not start of itself: it would refuse everything."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a server.

    Attributes:
        batch_size: rows decoded together.
        queue: rows that may wait beyond them; a request that finds no place is a 429.
        body_bytes: of a request; more is a 413.
        tools: in a request.
        schema_bytes: of one schema, or one grammar, written as JSON.
        tokens: most `max_tokens`, and what a request has that does not say. The model's context
            bounds both as well.
        cache_tokens: of the KV cache, that all rows may take together, or None; a prompt and its
            `max_tokens` must fit. See `sampler.decoding.Decoder`.
        body_seconds: within which a body must have come; more is a 408.
        ping_seconds: after which a stream that has nothing to say sends a comment: proxies close
            what is silent, and a call may be long.
        send_seconds: within which a client must take an event of a stream; one that does not has
            left.
        prepare_seconds: for the schemas, patterns and grammars of one request, once it is its turn;
            more is a 400.

    Raises:
        ValueError: one of them is below 1 (`queue`: below 0; seconds: not above 0).
    """

    batch_size: int = 16
    queue: int = 256
    body_bytes: int = 8 * 2**20
    tools: int = 512
    schema_bytes: int = 2**20
    tokens: int = 131_072
    cache_tokens: int | None = None
    body_seconds: float = 30.0
    ping_seconds: float = 15.0
    send_seconds: float = 60.0
    prepare_seconds: float = 20.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name == "queue" else 1
            # What is no number is neither above nor at least anything.
            if field.name.endswith("seconds"):
                if not value > 0:
                    raise ValueError(f"{field.name} must be above 0, got {value}")
            elif value is not None and not value >= least:
                raise ValueError(f"{field.name} must be at least {least}, got {value}")

    def fitted(self, model: Any) -> Limits:
        """The same, with `cache_tokens` set: to what half of the free memory holds, if to none.

        Beginnings that are kept may take half as much again; the rest is for what a forward needs.

        Raises:
            ValueError: hardly anything is free.
        """
        if self.cache_tokens is not None:
            return self
        from sampler.room import free_bytes, token_bytes

        free, size = free_bytes(model.device), token_bytes(model)
        if not size:
            return self
        tokens = free // 2 // size
        if tokens < LEAST_CACHE:
            raise ValueError(
                f"{free / 2**20:,.0f} MiB of memory are free, and half of it holds {tokens:,}"
                f" tokens of {size:,} bytes: at least {LEAST_CACHE:,} are wanted; free some, or say"
                " how many with --max-cache-tokens"
            )
        return replace(self, cache_tokens=tokens)

    @property
    def seats(self) -> int:
        """Rows that may be in the house at a time."""
        return self.batch_size + self.queue
