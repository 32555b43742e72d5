"""The bundled model's tokenizer: a byte-level BPE trained on its own dialogues.

Spaces stand alone, digits stand alone, and punctuation around one space stays together (``": "``,
``", "``): a word then has the same token in the request and inside the JSON that copies it, which
is what lets a very small model copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CALL, END_OF_CALL = "<tool_call>", "</tool_call>"

_PIECES = r"\p{L}+|\p{N}|[^\p{L}\p{N}\s]+ [^\p{L}\p{N}\s]+|[^\p{L}\p{N}\s]+|\s"


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, template: Path
) -> PreTrainedTokenizerFast:
    """Train a BPE of `vocab_size` tokens on `texts`; `template` is the chat template's file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, TURN, END_OF_TURN, CALL, END_OF_CALL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # Markers are added tokens but not special ones, as in Qwen: decoding keeps them.
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False, special=False) for t in (CALL, END_OF_CALL)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=PAD,
        additional_special_tokens=[TURN],
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template.read_text(encoding="utf-8")
    return fast
