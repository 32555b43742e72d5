"""Small vocabularies that the grammar tests share, and what they must be for those tests to mean
something."""

import functools

import pytest
import torch
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from grammar.formats import FORMATS

EOS, PAD, ROLE = "<|im_end|>", "<pad>", "<|im_start|>"
PADDING = 37  # columns of the logits beyond the tokenizer

CORPUS = [
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern", "days": 3}}\n</tool_call>',
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    '<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>',
    "I will look up the weather, then the news. If a < b, say so; else wait.\n\n",
    '[1, -2.5, true, false, null, "é", "上海"]',
]


@functools.cache
def byte_level(marked: bool) -> PreTrainedTokenizerFast:
    """A byte-level BPE of some 400 tokens; ``marked``: every format's markers are single tokens."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=[ROLE, EOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS * 5, trainer)
    if marked:
        markers = dict.fromkeys(m for f in FORMATS.values() for m in f.markers)
        backend.add_special_tokens([AddedToken(m, special=True) for m in markers])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=EOS, pad_token=PAD)


@functools.cache
def byte_fallback() -> PreTrainedTokenizerFast:
    """SentencePiece's way: ``▁`` for a space, ``<0x0A>`` for what has no piece."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "▁a"]
    backend = Tokenizer(
        models.BPE(
            vocab={p: i for i, p in enumerate(pieces)},
            merges=[("▁", "a")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def width(tokenizer: PreTrainedTokenizerFast) -> int:
    """Columns of the logits of a model with this tokenizer."""
    return len(tokenizer) + PADDING


def allowed_ids(mask_row: torch.Tensor, vocab_size: int) -> set[int]:
    """The ids whose bits are set, read one by one."""
    words = [word & 0xFFFFFFFF for word in mask_row.tolist()]
    return {i for i in range(vocab_size) if words[i // 32] >> (i % 32) & 1}


@pytest.mark.parametrize("marked", [True, False])
def test_markers_are_one_token_or_several(marked):
    tokenizer = byte_level(marked)
    for fmt in FORMATS.values():
        for marker in fmt.markers:
            ids = tokenizer.encode(marker, add_special_tokens=False)
            assert (len(ids) == 1) is marked, marker


@pytest.mark.parametrize("tokenizer", [byte_level(True), byte_level(False), byte_fallback()])
def test_every_byte_has_a_token(tokenizer):
    text = "".join(map(chr, range(0x20, 0x3000, 37)))
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
