"""Random walks: texts drawn from a mask alone, leaning towards those that a grammar gets wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from eval.json_schema_engines import END, WIDTH

_WORDS = ("0", "1", "-1", "1.5", "true", "null", '"a"', "[]", "{}", "[1,1]", '{"a":1}')


class Walker:
    """Draws texts from a matcher.

    Single bytes rarely meet what a schema is about, so a walk often tries whole words: the
    schema's own keys and values, and small values of each type. What the mask refuses of a word
    is left out, so that any text the mask allows can come up, and nothing else.

    Args:
        schema: where the words come from.
        rng: draws.
        steps: tokens after which a walk turns to whatever ends it soonest.
    """

    def __init__(self, schema: Any, rng: random.Random, steps: int = 400) -> None:
        self._rng, self._steps = rng, steps
        self._words = sorted({*_WORDS, *_words(schema)})

    def walk(self, matcher: Any) -> bytes | None:
        """A text that the grammar accepts whole, or None where none was found in time.

        Raises:
            RuntimeError: the mask allows nothing, or what the matcher then refuses.
        """
        matcher.reset()
        text = bytearray()
        for step in range(4 * self._steps):
            closing = step >= self._steps
            if not closing and self._rng.random() < 0.2:
                for byte in self._rng.choice(self._words).encode():
                    if not matcher.accept(byte):
                        break
                    text.append(byte)
            weights = np.where(matcher.allowed(), _CLOSING if closing else _OPEN, 0.0)
            total = weights.cumsum()
            if total[-1] == 0:
                raise RuntimeError(f"the grammar dead-ends after {bytes(text)[-80:]!r}")
            token = int(np.searchsorted(total, self._rng.random() * total[-1], side="right"))
            if not matcher.accept(token):
                raise RuntimeError(
                    f"the mask allows token {token} after {bytes(text)!r}, the matcher refuses it"
                )
            if token == END:
                return bytes(text)
            text.append(token)
        return None


def _weights(end: float, close: float, quote: float, space: float) -> np.ndarray:
    weights = np.full(WIDTH, 0.02)
    weights[0x21:0x7F] = 1.0
    weights[[0x20, 0x0A, 0x0D, 0x09]] = space
    weights[[ord(c) for c in "}]"]] = close
    weights[ord('"')] = quote
    weights[END] = end
    return weights


_OPEN = _weights(end=20.0, close=3.0, quote=12.0, space=0.05)
_CLOSING = _weights(end=1e9, close=1e6, quote=1e3, space=1e-6)


def _words(schema: Any) -> Iterator[str]:
    """JSON texts of the keys and scalars anywhere in a schema, the short ones."""
    stack = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            stack.extend(node.values())
            texts = [json.dumps(key, ensure_ascii=False) + ":" for key in node]
        elif isinstance(node, list):
            stack.extend(node)
            continue
        else:
            texts = [json.dumps(node, ensure_ascii=False)]
        yield from (text for text in texts if len(text) <= 40)
