"""Slots: the values a request can mention, each with a JSON Schema and the words that say it.

A slot draws ``(value, words)``: the JSON value that belongs into the call's arguments, and the
text that stands for it in the request. Words that are the value itself (names, titles, places)
come from pools of which a share is held out from training.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from sampler.nano.pools import POOLS

_NUMERALS = "zero one two three four five six seven eight nine ten eleven twelve".split()


def listing(words: list[str]) -> str:
    """``["a", "b", "c"]`` -> ``"a, b and c"``."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _is_held_out(parts: tuple[str, ...]) -> bool:
    """A fixed eighth of all values, chosen by their bytes so that no state is shared."""
    return sum(sum(part.encode()) for part in parts) % 8 == 0


@dataclass(frozen=True)
class Text:
    """A string whose words are the value: one draw from each list of a pool, joined."""

    pool: str

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the values."""
        return {"type": "string"}

    def draw(self, rng: Random, held_out: bool) -> tuple[Any, str]:
        """A value and the words for it, from the held-out share of a pool or from the rest."""
        # Bounded: a pool of a dozen words may have none that is held out.
        for _ in range(512):
            parts = tuple(rng.choice(pool) for pool in POOLS[self.pool])
            if _is_held_out(parts) == held_out:
                break
        value = "".join(parts)
        return value, value


@dataclass(frozen=True)
class Choice:
    """An enum: value -> the ways to say it."""

    words: dict[str, tuple[str, ...]]

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.words)}

    def draw(self, rng: Random, held_out: bool) -> tuple[Any, str]:
        value = rng.choice(list(self.words))
        return value, rng.choice(self.words[value])


@dataclass(frozen=True)
class Integer:
    """A bounded integer, said in digits or, up to twelve, in letters."""

    low: int
    high: int

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def draw(self, rng: Random, held_out: bool) -> tuple[Any, str]:
        value = rng.randint(self.low, self.high)
        if 1 < value < len(_NUMERALS) and rng.random() < 0.3:
            return value, _NUMERALS[value]
        return value, str(value)


@dataclass(frozen=True)
class Number:
    """A bounded number with at most one decimal."""

    low: int
    high: int

    def schema(self) -> dict[str, Any]:
        return {"type": "number", "minimum": self.low, "maximum": self.high}

    def draw(self, rng: Random, held_out: bool) -> tuple[Any, str]:
        value: Any = rng.randint(self.low, self.high - 1)
        if rng.random() < 0.5:
            value += rng.randint(1, 9) / 10
        return value, str(value)


@dataclass(frozen=True)
class Flag:
    """A boolean, with the ways to say yes and to say no."""

    yes: tuple[str, ...]
    no: tuple[str, ...]

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def draw(self, rng: Random, held_out: bool) -> tuple[Any, str]:
        value = rng.random() < 0.6
        return value, rng.choice(self.yes if value else self.no)


@dataclass(frozen=True)
class Many:
    """An array of one to `high` different values of another slot."""

    item: Text | Choice | Integer
    high: int = 3

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema(), "minItems": 1}

    def draw(self, rng: Random, held_out: bool) -> tuple[Any, str]:
        values, words = [], []
        for _ in range(rng.randint(1, self.high)):
            value, word = self.item.draw(rng, held_out)
            if value not in values:
                values.append(value)
                words.append(word)
        return values, listing(words)


@dataclass(frozen=True)
class Record:
    """A nested object. Phrases mention its members as ``{key.member}``."""

    members: dict[str, Any]
    optional: frozenset[str] = field(default_factory=frozenset)

    def schema(self) -> dict[str, Any]:
        return object_schema(self.members, [k for k in self.members if k not in self.optional])


@dataclass(frozen=True)
class Rows:
    """An array of objects, each said through a template such as ``"{quantity} {item}"``."""

    record: Record
    template: str
    high: int = 3

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.record.schema(), "minItems": 1}

    def draw(self, rng: Random, held_out: bool) -> tuple[Any, str]:
        values, words = [], []
        for _ in range(rng.randint(1, self.high)):
            drawn = {k: slot.draw(rng, held_out) for k, slot in self.record.members.items()}
            values.append({k: value for k, (value, _) in drawn.items()})
            words.append(self.template.format(**{k: word for k, (_, word) in drawn.items()}))
        return values, listing(words)


Slot = Text | Choice | Integer | Number | Flag | Many | Record | Rows


def object_schema(members: dict[str, Slot], required: list[str]) -> dict[str, Any]:
    """A closed JSON Schema object with `members` in order; `required` names those that must be."""
    return {
        "type": "object",
        "properties": {key: slot.schema() for key, slot in members.items()},
        "required": required,
        "additionalProperties": False,
    }
