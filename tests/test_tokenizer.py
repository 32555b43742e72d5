"""``grammar.tokenizer``: bytes of each token, stop ids, control tokens, padded vocabularies."""

from types import SimpleNamespace

import pytest
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from grammar.formats import FORMATS
from grammar.matcher import MatcherBatch
from grammar.tokenizer import control_token_ids, info_from_bytes, token_bytes, tokenizer_info
from tests.test_grammar_vocabularies import (
    EOS,
    PAD,
    ROLE,
    allowed_ids,
    byte_fallback,
    byte_level,
    width,
)

HERMES = FORMATS["hermes"].markers


def matcher(info, ebnf=None, schema=None, tag=None):
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    if ebnf:
        compiled = compiler.compile_grammar(ebnf)
    elif schema:
        compiled = compiler.compile_json_schema(schema)
    else:
        compiled = compiler.compile_structural_tag(tag)
    return MatcherBatch([compiled], vocab_size=info.vocab_size)


def allowed(batch):
    return allowed_ids(batch.fill()[0], batch.vocab_size)


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_byte_level_tokens_spell_the_text(text):
    tokenizer = byte_level(False)
    pieces = token_bytes(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(pieces[i] for i in ids) == text.encode()


def test_byte_fallback_tokens_spell_the_text():
    tokenizer = byte_fallback()
    pieces = token_bytes(tokenizer)
    names = ["▁a", "<0x0A>", "b", "<0xE4>", "<0xB8>", "<0x8A>"]
    ids = [tokenizer.convert_tokens_to_ids(name) for name in names]
    assert b"".join(pieces[i] for i in ids).hex(" ") == "20 61 0a 62 e4 b8 8a"
    assert b"".join(pieces[i] for i in tokenizer.encode("a\nb上")) == " a\nb上".encode()


def tiktoken_like(decode=None):
    """What transformers shows of a tiktoken vocabulary: byte keys, and a few added tokens."""
    pieces = [bytes([b]) for b in range(256)] + [b" world", b"\xe4\xb8"]
    added = {258: AddedToken("<|endoftext|>", special=True)}

    def plain_decode(ids, **_):
        return b"".join(pieces[i] for i in ids).decode(errors="replace")

    return SimpleNamespace(
        eos_token_id=258,
        all_special_ids=[258],
        added_tokens_decoder=added,
        get_vocab=lambda: {p: i for i, p in enumerate(pieces)} | {"<|endoftext|>": 258},
        encode=lambda text, **_: list(text.encode()),
        decode=decode or plain_decode,
    )


def test_tiktoken_bytes_are_kept():
    pieces = token_bytes(tiktoken_like())
    assert pieces[256:] == [b" world", b"\xe4\xb8", b"<|endoftext|>"]
    assert pieces[:256] == [bytes([b]) for b in range(256)]


def test_a_vocabulary_that_does_not_decode_is_refused():
    with pytest.raises(ValueError, match="cannot decode the vocabulary"):
        token_bytes(tiktoken_like(decode=lambda ids, **_: "".join(f"##{i}" for i in ids)))


def test_bytes_are_handed_over_undetected():
    tokenizer = byte_level(True)
    info = tokenizer_info(tokenizer, vocab_size=width(tokenizer), markers=HERMES)
    assert info.vocab_type is xgrammar.VocabType.RAW
    space = tokenizer.encode(" ", add_special_tokens=False)[0]
    assert info.decoded_vocab[space] == b" "


# Sizes


def test_vocab_size_below_the_tokenizer_is_refused():
    tokenizer = byte_level(True)
    with pytest.raises(ValueError, match=r"vocab_size covers .* but the tokenizer has .* pass"):
        tokenizer_info(tokenizer, vocab_size=len(tokenizer) - 1)


@pytest.mark.parametrize("padding", [0, 1, 37, 243])
def test_padding_ids_are_never_allowed(padding):
    tokenizer = byte_level(True)
    size = len(tokenizer) + padding
    info = tokenizer_info(tokenizer, vocab_size=size, markers=HERMES)
    assert info.vocab_size == size
    batch = matcher(info, ebnf="root ::= [^a]*")
    assert batch.bitmask.shape == (1, -(-size // 32))
    assert not allowed(batch) & set(range(len(tokenizer), size))


def test_three_sizes_of_one_vocabulary():
    """Base vocabulary, base and added tokens, logits: the mask has the width of the last, and the
    added tokens that are text are known to the grammar."""
    tokenizer = byte_level(True).__class__(
        tokenizer_object=byte_level(False).backend_tokenizer.__class__.from_str(
            byte_level(False).backend_tokenizer.to_str()
        ),
        eos_token=EOS,
    )
    tokenizer.add_tokens([AddedToken(" " * n, normalized=False) for n in range(2, 8)])
    assert tokenizer.vocab_size < len(tokenizer)
    size = len(tokenizer) + 27
    batch = matcher(tokenizer_info(tokenizer, vocab_size=size), ebnf='root ::= " "*')
    runs = {tokenizer.convert_tokens_to_ids(" " * n) for n in range(2, 8)}
    assert runs <= allowed(batch)
    assert max(allowed(batch)) < len(tokenizer)


# Stop ids


def test_stop_ids_of_model_and_tokenizer_are_united():
    tokenizer = byte_level(True)
    other = tokenizer.convert_tokens_to_ids(ROLE)
    info = tokenizer_info(tokenizer, vocab_size=width(tokenizer), stop_token_ids=[other])
    assert sorted(info.stop_token_ids) == sorted([other, tokenizer.eos_token_id])
    batch = matcher(info, ebnf='root ::= "a"')
    assert not allowed(batch) & set(info.stop_token_ids)
    assert batch.accept(0, tokenizer.convert_tokens_to_ids("a"))
    assert allowed(batch) == set(info.stop_token_ids)


def test_one_stop_id_needs_no_list():
    tokenizer = byte_level(True)
    info = tokenizer_info(tokenizer, vocab_size=width(tokenizer), stop_token_ids=5)
    assert sorted(info.stop_token_ids) == sorted([5, tokenizer.eos_token_id])


def test_no_stop_id_is_refused():
    with pytest.raises(ValueError, match="stop_token_ids must name at least one id"):
        info_from_bytes([b"a"], vocab_size=2, stop_token_ids=[])


@pytest.mark.parametrize("stop", [-1, 40])
def test_stop_id_out_of_range_is_refused(stop):
    with pytest.raises(ValueError, match="stop_token_ids must lie in"):
        info_from_bytes([b"a"], vocab_size=40, stop_token_ids=[stop])


def test_stop_token_that_also_closes_a_tag():
    vocabulary = [b"a", b"ok", b"<|channel|>", b"<|end|>", b"<|return|>", b"<eos>"]
    info = info_from_bytes(vocabulary, vocab_size=6, stop_token_ids=[4])
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "tag",
            "begin": "<|channel|>",
            "content": {"type": "any_text"},
            "end": ["<|end|>", "<|return|>"],
        },
    }
    batch = matcher(info, tag=tag)
    assert [batch.accept(0, i) for i in (2, 1, 4)] == [True] * 3
    assert batch.is_terminated(0)


# Control tokens


def test_control_tokens_are_never_allowed_and_markers_are():
    tokenizer = byte_level(True)
    info = tokenizer_info(tokenizer, vocab_size=width(tokenizer), markers=HERMES)
    ids = {t: tokenizer.convert_tokens_to_ids(t) for t in (EOS, PAD, ROLE, *HERMES)}
    foreign = {
        tokenizer.convert_tokens_to_ids(m) for m in FORMATS["kimi_k2"].markers if m.startswith("<|")
    }
    text = allowed(matcher(info, ebnf=r"root ::= [^\0]*"))
    assert {ids[m] for m in HERMES} <= text
    assert ids[EOS] in text  # the text may end anywhere
    assert not text & ({ids[PAD], ids[ROLE]} | foreign)

    string = matcher(info, schema={"type": "string"})
    assert string.accept(0, tokenizer.convert_tokens_to_ids('"'))
    assert not allowed(string) & ({ids[PAD], ids[ROLE], ids[EOS]} | foreign)


def test_control_tokens_are_known_by_their_shape_too():
    """DeepSeek's role markers are added tokens that do not say ``special``; ``<think>`` and runs
    of spaces are added tokens too, and text."""
    added = {
        0: AddedToken("<｜User｜>", special=False),
        1: AddedToken("<|EOT|>", special=False),
        2: AddedToken("<think>", special=False),
        3: AddedToken("    ", special=False),
        4: AddedToken("[PAD]", special=True),
        5: AddedToken("｜DSML｜", special=False),
        6: AddedToken("<|tool_call_begin|>", special=True),
    }
    tokenizer = SimpleNamespace(added_tokens_decoder=added, all_special_ids=[4, 6])
    assert control_token_ids(tokenizer) == {0, 1, 4, 6}
    assert control_token_ids(tokenizer, markers=["<|tool_call_begin|>"]) == {0, 1, 4}


# Tokens and text


def test_an_escape_may_be_split_between_tokens():
    vocabulary = [b'{"q": "', b"a", b"\\", b"n", b"\\n", b'"}', b"<eos>"]
    info = info_from_bytes(vocabulary, vocab_size=7, stop_token_ids=[6])
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    batch = matcher(info, schema=schema)
    for i in (0, 1, 2):
        assert i in allowed(batch)
        assert batch.accept(0, i)
    # `"}` may follow the backslash only as an escaped quote and a brace inside the string.
    assert allowed(batch) == {2, 3, 4, 5}
    assert [batch.accept(0, i) for i in (3, 1, 5)] == [True] * 3
    assert allowed(batch) == {6}


def test_bytes_of_one_character_may_be_split_between_tokens():
    tokenizer = byte_fallback()
    info = tokenizer_info(tokenizer, vocab_size=len(tokenizer))
    batch = matcher(info, ebnf='root ::= " a\\nb上"')
    names = ["▁a", "<0x0A>", "b", "<0xE4>", "<0xB8>", "<0x8A>", "</s>"]
    for name in names:
        i = tokenizer.convert_tokens_to_ids(name)
        assert i in allowed(batch), name
        assert batch.accept(0, i)
    assert batch.is_terminated(0)
