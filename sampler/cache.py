"""transformers' dynamic cache, whose layers leave room to grow, and rows that join and leave."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

_ROOM = 128
"""Tokens of room that a layer adds when it is full."""


class RoomyLayer(DynamicLayer):
    """A `DynamicLayer` that writes new keys and values into room it has, instead of copying all.

    transformers concatenates at every step; with 256 tokens of context, eight rows of a model of
    135 M parameters spend a quarter of a step on that.
    """

    _room: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(self, key_states, value_states, *args, **kwargs):
        """Append keys and values, [B, heads, T, D] each; returns all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.replace(key_states[:, :, :0], value_states[:, :, :0])
        before = self.keys.shape[-2]
        after = before + key_states.shape[-2]
        if self._room is None or after > self._room[0].shape[-2]:
            # Rows that joined have made `keys` anew, without room.
            self._room = tuple(_roomy(new, len(new), after) for new in (key_states, value_states))
            self._room[0][:, :, :before] = self.keys
            self._room[1][:, :, :before] = self.values
        self._room[0][:, :, before:after] = key_states
        self._room[1][:, :, before:after] = value_states
        self.keys, self.values = (room[:, :, :after] for room in self._room)
        return self.keys, self.values

    def batch_select_indices(self, indices):
        """Keep some rows."""
        super().batch_select_indices(indices)
        self._room = None

    def batch_repeat_interleave(self, repeats):
        """Repeat every row."""
        super().batch_repeat_interleave(repeats)
        self._room = None

    def reorder_cache(self, beam_idx):
        """Put rows into another order."""
        super().reorder_cache(beam_idx)
        self._room = None

    def select(self, rows: torch.Tensor, first: int) -> None:
        """Keep these rows, and of each the slots from `first` on: one copy, with room to grow."""
        slots = self.keys.shape[-2] - first
        self._room = tuple(_roomy(old, len(rows), slots) for old in (self.keys, self.values))
        for old, room in zip((self.keys, self.values), self._room, strict=True):
            torch.index_select(old[:, :, first:], 0, rows, out=room[:, :, :slots])
        self.keys, self.values = (room[:, :, :slots] for room in self._room)

    def replace(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Hold these instead, [B, heads, T, D] each."""
        self.keys, self.values, self._room = keys, values, None


def new_cache(model: Any) -> DynamicCache:
    """An empty cache for the model, of `RoomyLayer`s where its attention is full attention."""
    cache = DynamicCache(config=model.config)
    cache.layers = [
        RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    if not cache.layers:
        cache.layer_class_to_replicate = RoomyLayer
    return cache


def argument(model: Any) -> str:
    """What the model's forward calls its cache: transformers 5.24 renamed it.

    Raises:
        ValueError: it takes none that the loop knows.
    """
    forward = inspect.signature(model.forward).parameters
    for name in ("cache", "past_key_values"):
        if name in forward:
            return name
    raise ValueError(
        f"{type(model).__name__} takes no KV cache that the loop knows (neither cache nor"
        " past_key_values); use an attention model"
    )


def can_join(cache: DynamicCache) -> bool:
    """Whether rows can join and leave, and slots stand empty: not with windows or states."""
    return all(type(layer) is RoomyLayer for layer in cache.layers)


def can_leave(cache: DynamicCache) -> bool:
    """Whether rows can leave while others go on: recurrent states cannot be taken apart."""
    return all(hasattr(layer, "batch_select_indices") for layer in cache.layers)


def length(cache: DynamicCache) -> int:
    """Slots a row."""
    return cache.get_seq_length()


def select(cache: DynamicCache, rows: torch.Tensor, first: int = 0) -> None:
    """Keep these rows, and of each the slots from `first` on (0 unless `can_join`)."""
    if not can_join(cache):
        cache.batch_select_indices(rows)
        return
    for layer in cache.layers:
        if layer.is_initialized:
            layer.select(rows, first)


def join(cache: DynamicCache, other: DynamicCache) -> None:
    """Put the rows of `other` below those of `cache`; the shorter is padded on the left.

    Padding is zeros: what a mask hides must still be finite.
    """
    size = max(length(cache), length(other))
    for ours, theirs in zip(cache.layers, other.layers, strict=True):
        if not ours.is_initialized:
            continue
        ours.replace(
            torch.cat([_padded(ours.keys, size), _padded(theirs.keys, size)]),
            torch.cat([_padded(ours.values, size), _padded(theirs.values, size)]),
        )


def repeat(cache: DynamicCache, model: Any, slots: int, rows: int) -> DynamicCache:
    """A new cache of `rows` rows, each the first `slots` slots of the one row of `cache`."""
    copy = new_cache(model)
    for layer, source in zip(copy.layers, cache.layers, strict=True):
        if source.is_initialized:
            keys, values = source.keys[:, :, :slots], source.values[:, :, :slots]
            layer.lazy_initialization(keys, values)
            layer.replace(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1))
    return copy


def _roomy(states: torch.Tensor, rows: int, slots: int) -> torch.Tensor:
    """Memory like that of `states`, [B, heads, T, D], for so many rows and slots, and more."""
    return states.new_empty(rows, states.shape[1], slots + _ROOM, states.shape[3])


def _padded(states: torch.Tensor, size: int) -> torch.Tensor:
    return torch.nn.functional.pad(states, (0, 0, size - states.shape[-2], 0))


class Prefixes:
    """Keys and values of the beginnings that prompts have shared, the most recent few.

    Args:
        model: whose cache they are of.
        keep: how many beginnings to hold.
        shortest: tokens from which a beginning is worth a forward of its own.
        most: tokens of all that are held, or None.
    """

    def __init__(
        self, model: Any, keep: int = 4, shortest: int = 64, most: int | None = None
    ) -> None:
        self.model, self.keep, self.shortest, self.most = model, keep, shortest, most
        self._stored: list[tuple[tuple[int, ...], DynamicCache]] = []
        self._recent: list[tuple[int, ...]] = []

    def __len__(self) -> int:
        return len(self._stored)

    def shared(self, prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """The longest beginning worth sharing, () for none.

        That of the prompts among themselves or, for one alone, with a prompt seen before. One
        token of every prompt is left over: its state is what comes next is drawn from.
        """
        if len(prompts) == 1:
            candidates = [common([*prompts, old]) for old in self._recent]
        else:
            candidates = [common(prompts)]
        self._recent = [*self._recent, *prompts][-16:]
        limit = min(len(prompt) for prompt in prompts) - 1
        best = max(candidates, key=len, default=())[:limit]
        return best if len(best) >= self.shortest else ()

    def get(self, ids: tuple[int, ...]) -> tuple[int, DynamicCache | None]:
        """The stored beginning that has most of `ids`: how many of them, and its cache, [1, ...].

        The cache may be longer than that.
        """
        found = [(len(common([ids, stored])), cache) for stored, cache in self._stored]
        return max(found, key=lambda item: item[0], default=(0, None))

    def put(self, ids: tuple[int, ...], cache: DynamicCache) -> None:
        """Store the cache of `ids`, in place of stored beginnings of it, if it is not too long."""
        if self.most is not None and len(ids) > self.most:
            return
        kept = [item for item in self._stored if common([item[0], ids]) != item[0]]
        self._stored = [*kept, (ids, cache)][-self.keep :]
        while self.most is not None and sum(len(ids) for ids, _ in self._stored) > self.most:
            del self._stored[0]


def common(sequences: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """What all sequences begin with."""
    first, last = min(sequences), max(sequences)
    for i, (a, b) in enumerate(zip(first, last, strict=False)):
        if a != b:
            return first[:i]
    return min(first, last, key=len)
