"""Hugging Face tokenizer to xgrammar's ``TokenizerInfo``.

The vocabulary is decoded here, to the bytes of each token, and handed over as it is (``RAW``):
xgrammar's own detection goes by the serialised tokenizer and by what is installed, and a wrong
guess does not fail, it masks the wrong tokens. What is decoded here is checked against the
tokenizer's own ``decode``.

A token without bytes is special to xgrammar: never allowed, anywhere. That is what a control token
must be, and a padding id beyond the tokenizer is. Left with its text, ``<|im_end|>`` could be
sampled inside any JSON string.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import xgrammar

# `<|im_start|>` and `<｜User｜>` are control tokens even where not declared `special`.
_CONTROL_SHAPE = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PROBE = 'Hello, world: {"a": [1, -2.5e3, true]}\n\n\tif x:  y = "ç上海😀"'


def tokenizer_info(
    tokenizer: Any,
    *,
    vocab_size: int,
    stop_token_ids: int | Sequence[int] | None = None,
    markers: Sequence[str] = (),
) -> xgrammar.TokenizerInfo:
    """Describe a tokenizer's vocabulary to xgrammar.

    Args:
        tokenizer: a Hugging Face tokenizer, byte-level, byte-fallback or tiktoken.
        vocab_size: columns of the model's logits, padding included (``model.config.vocab_size``).
        stop_token_ids: every id that ends a turn, as the model and its generation config have
            them. The tokenizer's own ``eos_token_id`` is always added, since some checkpoints
            declare it only there: a decoding loop must stop at the result's ``stop_token_ids``.
        markers: texts that the tool-call format uses (``Format.markers``); a token of that text
            keeps it, every other control token loses it and can never be sampled.

    Raises:
        ValueError: ids beyond ``vocab_size``, no stop id, or a vocabulary that cannot be decoded.
    """
    if isinstance(stop_token_ids, int):
        stop_token_ids = [stop_token_ids]
    stops = set(stop_token_ids or ())
    if tokenizer.eos_token_id is not None:
        stops.add(tokenizer.eos_token_id)
    pieces = token_bytes(tokenizer)
    if vocab_size < len(pieces):
        raise ValueError(
            f"vocab_size covers {vocab_size:,} ids but the tokenizer has {len(pieces):,};"
            " pass the width of the model's logits (model.config.vocab_size)"
        )
    return info_from_bytes(
        pieces,
        vocab_size=vocab_size,
        stop_token_ids=stops,
        control_token_ids=control_token_ids(tokenizer, markers),
    )


def info_from_bytes(
    pieces: Sequence[bytes],
    *,
    vocab_size: int,
    stop_token_ids: Iterable[int],
    control_token_ids: Iterable[int] = (),
) -> xgrammar.TokenizerInfo:
    """The same from the bytes of each token, for vocabularies that come without a tokenizer.

    Raises:
        ValueError: more pieces than ``vocab_size``, no stop id, or one out of range.
    """
    stops = sorted(set(stop_token_ids))
    if not stops:
        raise ValueError(
            "stop_token_ids must name at least one id, and the tokenizer has no eos_token_id;"
            " pass the model's"
        )
    if stops[0] < 0 or stops[-1] >= vocab_size:
        raise ValueError(f"stop_token_ids must lie in [0, {vocab_size:,}); got {stops}")
    if len(pieces) > vocab_size:
        raise ValueError(f"vocab_size covers {vocab_size:,} ids but there are {len(pieces):,}")
    control = set(control_token_ids) - set(stops)
    vocabulary = [b"" if i in control else piece for i, piece in enumerate(pieces)]
    return xgrammar.TokenizerInfo(
        vocabulary, xgrammar.VocabType.RAW, vocab_size=vocab_size, stop_token_ids=stops
    )


def control_token_ids(tokenizer: Any, markers: Sequence[str] = ()) -> frozenset[int]:
    """Ids of the control tokens: special ones and those shaped like ``<|...|>``, but no markers."""
    special = set(tokenizer.all_special_ids)
    return frozenset(
        i
        for i, token in tokenizer.added_tokens_decoder.items()
        if (token.special or i in special or _CONTROL_SHAPE.fullmatch(token.content))
        and token.content not in markers
    )


def token_bytes(tokenizer: Any) -> list[bytes]:
    """The bytes of every token, by id; empty where an id has no token.

    Raises:
        ValueError: no decoding reproduces what the tokenizer itself decodes.
    """
    added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items()}
    vocab = tokenizer.get_vocab()
    size = max([*vocab.values(), *added]) + 1
    for decode in (_decode_byte_fallback, _decode_byte_level, _decode_raw):
        if decode is _decode_byte_fallback and "<0x0A>" not in vocab:
            continue
        pieces = [b""] * size
        for token, i in vocab.items():
            pieces[i] = decode(token)
        for i, content in added.items():
            pieces[i] = content.encode()
        if _agrees(tokenizer, pieces, added):
            return pieces
    raise ValueError(
        f"cannot decode the vocabulary of {type(tokenizer).__name__}: it is neither byte-level,"
        " byte-fallback nor raw bytes; build the byte list yourself and use info_from_bytes"
    )


def _agrees(tokenizer: Any, pieces: Sequence[bytes], added: dict[int, str]) -> bool:
    plain = [i for i, piece in enumerate(pieces) if piece and i not in added]
    samples = [[i] for i in plain[:: max(1, len(plain) // 256)]]
    samples.append(tokenizer.encode(_PROBE, add_special_tokens=False))
    for ids in samples:
        ours = b"".join(pieces[i] for i in ids).decode(errors="replace")
        theirs = tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        # SentencePiece decoders drop the space that starts a text; a completion keeps it.
        if theirs not in (ours, ours.removeprefix(" ")):
            return False
    return True


def _byte_level_alphabet() -> dict[str, int]:
    """The 256 characters that byte-level vocabularies (GPT-2's) spell bytes with."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(shifted)}


BYTE_LEVEL_ALPHABET: dict[str, int] = _byte_level_alphabet()
"""Character to byte."""


def _decode_byte_level(token: str | bytes) -> bytes:
    if isinstance(token, bytes):
        return token
    try:
        return bytes(map(BYTE_LEVEL_ALPHABET.__getitem__, token))
    except KeyError:
        return token.encode()


def _decode_byte_fallback(token: str | bytes) -> bytes:
    if isinstance(token, bytes):
        return token
    if byte := _BYTE_PIECE.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return token.replace("▁", " ").encode()


def _decode_raw(token: str | bytes) -> bytes:
    return token if isinstance(token, bytes) else token.encode()
