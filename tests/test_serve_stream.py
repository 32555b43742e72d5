"""Tokens to text piece by piece: nothing is lost, nothing is sent too early."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampler.serve.errors import ApiError
from sampler.serve.stream import TextStream
from tests.test_detokenizer import metaspace

# One byte a token, so that every cut of every character comes up.
TEXT = st.text(alphabet=st.sampled_from("ab STOP<é漢😀\ufffd\u2028\n"), max_size=30)


def decode(ids):
    return bytes(ids).decode(errors="replace")


def pieces(text, sizes, stops=()):
    stream, data = TextStream(decode, stops), text.encode()
    sent = []
    while data:
        size = sizes[len(sent) % len(sizes)]
        sent.append(stream.add(data[:size]))
        data = data[size:]
    return stream, sent


@settings(deadline=None, max_examples=200)
@given(TEXT, st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_the_pieces_are_the_text(text, sizes):
    stream, sent = pieces(text, sizes)
    assert text.startswith("".join(sent))
    assert "".join(sent) + stream.finish(text) == text


@settings(deadline=None)
@given(st.binary(max_size=24))
def test_bytes_that_are_no_text_come_as_the_whole_decodes(data):
    stream, sent = TextStream(decode), []
    for byte in data:
        sent.append(stream.add([byte]))
    whole = decode(data)
    assert "".join(sent) + stream.finish(whole) == whole


@settings(deadline=None, max_examples=200)
@given(TEXT, st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_no_part_of_a_stop_text_is_sent(text, sizes):
    stops = ("STOP", "<é")
    cut = min((at for at in map(text.find, stops) if at >= 0), default=len(text))
    # The loop ends a row once a stop text is whole: the last piece never comes as progress.
    stream, sent = pieces(text[:cut], sizes, stops)
    assert text[:cut].startswith("".join(sent))
    assert "".join(sent) + stream.finish(text[:cut]) == text[:cut]
    half, sent = pieces("ab" + stops[0][:-1], sizes, stops)
    assert "".join(sent) in ("ab", "a", "")
    assert "".join(sent) + half.finish("ab") == "ab"


def test_text_comes_as_soon_as_it_is_settled():
    stream = TextStream(decode, ("STOP",))
    assert stream.add(b"Hel") == "Hel"
    assert stream.add("é".encode()[:1]) == ""
    assert stream.add("é".encode()[1:]) == "é"
    assert stream.add(b" ST") == " "
    assert stream.add(b"x") == "STx"


def test_what_was_sent_cannot_be_taken_back():
    stream = TextStream(decode)
    stream.add(b"one")
    with pytest.raises(ApiError) as caught:
        stream.finish("two")
    assert caught.value.status == 500


def test_bytes_that_become_no_character_end_no_stream():
    """Llama's decoder takes back a newline, a byte to it, for half a character behind it."""
    tokenizer = metaspace()

    def whole(ids):
        return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def octets(data):
        return [tokenizer.convert_tokens_to_ids(f"<0x{octet:02X}>") for octet in data]

    for half in ("😀".encode()[:3], "漢".encode()[:2], b"\xff"):
        ids = [tokenizer.convert_tokens_to_ids("▁a"), *octets(b"\n" + half)]
        assert not whole(ids).startswith("a\n")
        for told in range(len(ids) + 1):
            stream = TextStream(whole)
            sent = "".join(stream.add([token]) for token in ids[:told])
            sent += stream.finish(whole(ids), ids[told:])
            assert sent.startswith("a") and sent.endswith("\ufffd")
            assert sent.startswith("a\n") == (told > 1)


def test_the_tokens_of_a_real_vocabulary(loaded):
    tokenizer = loaded.tokenizer
    text = 'Zürich 漢字 😀 {"a": [1, 2]}\n\n  end'
    ids = tokenizer(text, add_special_tokens=False).input_ids

    def whole(ids):
        return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    stream = TextStream(whole)
    sent = "".join(stream.add([token]) for token in ids)
    assert sent + stream.finish(whole(ids)) == text
