"""Text that comes a token at a time, against the decoding of all tokens at once."""

import random
from itertools import chain

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from sampler.detokenizer import Detokenizer, StopTexts
from tests.looping import decoded, requests_of

TEXTS = [
    'He said: "naïve café" – 東京 🏳️‍🌈 ok',
    "  two spaces\n\n\ttab \u200d joiner e\u0301",
    "</tool_call> spelt out, and once more: </tool_call>",
]


def metaspace():
    """A tokenizer as Llama's: no space before the first word, and bytes where words are wanting."""
    words = ["▁a", "▁tool", "b", "▁", "é", "東"] + [f"<0x{n:02X}>" for n in range(256)]
    model = tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="b")
    made = tokenizers.Tokenizer(model)
    made.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.fixture(scope="module", params=["nano", "metaspace"])
def rows(request, loaded):
    """How to decode, and sequences: of nano at random as well, which is hardly ever UTF-8."""
    tokenizer = loaded.tokenizer if request.param == "nano" else metaspace()

    def decode(ids):
        return tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    decode.__name__, draw = request.param, random.Random(0)
    if request.param == "nano":
        found = [tokenizer.encode(text) for text in TEXTS]
        assert [decode(ids) for ids in found] == TEXTS
        found += [[draw.randrange(600) for _ in range(draw.randrange(1, 90))] for _ in range(40)]
    else:
        spelt = [[n] for n in range(6)]
        spelt += [[6 + octet for octet in letter.encode()] for letter in "\n\tß東😀"]
        found = [list(chain.from_iterable(draw.choices(spelt, k=40))) for _ in range(40)]
    return decode, found


def test_pieces_and_what_is_open_are_the_text(rows):
    decode, sequences = rows
    for ids in sequences:
        stream, told = Detokenizer(decode), ""
        for n, token in enumerate(ids, 1):
            told += stream.add([token])
            text = decode(ids[:n])
            # Beside half a character, Llama's decoder gives up on the bytes before it as well.
            if "\ufffd" not in text or decode.__name__ == "nano":
                assert told + stream.open == text


def test_a_stop_text_is_found_at_the_token_that_brings_it(rows):
    decode, sequences = rows
    draw, ends = random.Random(1), 0
    for ids in sequences:
        whole = decode(ids)
        for _ in range(5):
            at = draw.randrange(len(whole))
            stops = [whole[at : at + draw.randrange(1, 6)], "never there"]
            if "\ufffd" in stops[0]:
                continue
            first = next(n for n in range(1, len(ids) + 1) if stops[0] in decode(ids[:n]))
            seen = StopTexts(stops, decode)
            assert [seen.reached([token]) for token in ids[:first]] == [False] * (first - 1) + [
                True
            ]
            ends += 1
    assert ends > 100


def test_a_row_decodes_a_few_tokens_a_step(loaded, chats, dialogues, monkeypatch):
    """What a stop text costs does not grow with the row."""
    sizes = []
    decode = type(loaded.tokenizer).decode

    def counted(self, ids, **options):
        sizes.append(len(ids))
        return decode(self, ids, **options)

    monkeypatch.setattr(type(loaded.tokenizer), "decode", counted)
    requests = requests_of(chats["free"], dialogues[:8], stop=("\x00never",), max_tokens=120)
    done, _ = decoded(loaded, requests)
    steps = sum(completion.steps for completion in done.values())
    assert steps > 100
    # Once whole for each completion; a few more where a character is spelt in bytes.
    assert sum(sizes) < 8 * steps
