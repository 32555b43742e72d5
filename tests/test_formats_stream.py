"""A completion in pieces: the same message however it is cut, and nothing taken back."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar.formats import FORMATS, StreamParser

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {"type": "object", "properties": {"s": {"type": "string"}}},
    },
}
EVERY_FORMAT = pytest.mark.parametrize("name", sorted(FORMATS))


def streamed(fmt, pieces, **options):
    """The message that the deltas add up to, and what the parser itself says."""
    stream = StreamParser(fmt, [TOOL], **options)
    deltas = [stream.feed(piece) for piece in pieces] + [stream.finish()]
    message = {"role": "assistant", "content": "".join(d.content for d in deltas)}
    if thought := "".join(d.reasoning_content for d in deltas):
        message["reasoning_content"] = thought
    if calls := [call for d in deltas for call in d.tool_calls]:
        assert [call.pop("index") for call in calls] == list(range(len(calls)))
        message["tool_calls"] = calls
    return message, stream.parsed


def call(fmt, **arguments):
    function = {"name": "f", "arguments": json.dumps(arguments)}
    return fmt.render([{"id": "call_0", "type": "function", "function": function}])


def soup(fmt):
    """Texts in which anything may follow anything."""
    fragments = [
        *fmt.markers,
        *fmt.banned,
        call(fmt, s="é😀"),
        # Some formats have no way to write their own marker inside a value: models may.
        call(fmt, s='a MARKER "b" \n').replace("MARKER", fmt.markers[0]),
        call(fmt, s="x")[:-9],
        *re.split(r"(?<=>)|(?=<)", call(fmt, s="x", t=[1, "y"])),
        *('"', "\\", '"}', "{", "}", "\n", " ", "<", "a", "f", '{"name": "f", "arguments": '),
    ]
    return st.lists(st.sampled_from(fragments) | st.text(max_size=3), max_size=8).map("".join)


@EVERY_FORMAT
@settings(deadline=None, max_examples=60)
@given(data=st.data(), reasoning=st.booleans(), calls=st.sampled_from([True, True, False]))
def test_every_cut_gives_the_message_of_the_whole(name, data, reasoning, calls):
    fmt = FORMATS[name]
    text = data.draw(soup(fmt))
    whole = fmt.parse(text, [TOOL], reasoning=reasoning, calls=calls)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    bounds = [0, *cuts, len(text)]
    in_parts = [text[a:b] for a, b in pairwise(bounds)]
    for pieces in ([*text], [text], in_parts):
        message, parsed = streamed(fmt, pieces, reasoning=reasoning, calls=calls)
        assert parsed == whole
        assert message == {k: v for k, v in whole.message.items() if v or k == "content"}


@EVERY_FORMAT
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_where_nothing_is_a_call_all_is_content_word_for_word(name, data):
    fmt = FORMATS[name]
    text = data.draw(soup(fmt))
    parsed = fmt.parse(text, [TOOL], calls=False)
    assert parsed.tool_calls == []
    thinks = fmt.start_of_thinking is not None and text.lstrip().startswith(fmt.start_of_thinking)
    if fmt.bare_content and not thinks:
        assert parsed.message["content"] == text
        assert parsed.problems == ()


@EVERY_FORMAT
@pytest.mark.parametrize("run", [" ", "\n", "a", "<", "`", "_a"])
def test_a_head_that_goes_on_and_on_is_read_in_a_moment(name, run):
    fmt = FORMATS[name]
    for opener in {*fmt.banned, *fmt.openers, *(call(fmt, s="x").split("f", 1)[:1])}:
        text = opener + run * 2000 + "!" + run * 2000
        _, parsed = streamed(fmt, [text[:1500], text[1500:]])
        assert not parsed.tool_calls


@EVERY_FORMAT
def test_spans_are_where_the_calls_stand(name):
    fmt = FORMATS[name]
    text = "<think>so</think>\nwords " + call(fmt, s="one") + " and " + call(fmt, s="two")
    for pieces in ([text], [*text]):
        _, parsed = streamed(fmt, pieces)
        assert len(parsed.spans) == 2
        for (start, stop), s in zip(parsed.spans, ("one", "two"), strict=True):
            assert s in text[start:stop]
            assert fmt.parse(text[start:stop], [TOOL]).tool_calls[0]["function"]["arguments"] == (
                json.dumps({"s": s})
            )


@EVERY_FORMAT
def test_what_nothing_can_change_is_passed_on_at_once(name):
    fmt = FORMATS[name]
    stream = StreamParser(fmt, [TOOL])
    assert stream.feed("Let me look").content == "Let me look"
    assert stream.feed(" it up").content == " it up"
    assert not stream.feed("\n")  # may be layout before a call
    written = call(fmt, s="x")
    deltas = [stream.feed(piece) for piece in written]
    deltas.append(stream.feed("\n"))
    calls = [c for delta in deltas for c in delta.tool_calls]
    assert [c["function"]["name"] for c in calls] == ["f"], "a finished call waits for the end"
    assert "".join(d.content for d in deltas).strip() == ""


@EVERY_FORMAT
def test_thinking_is_passed_on_while_it_lasts(name):
    fmt = FORMATS[name]
    if fmt.end_of_thinking is None:
        pytest.skip("its scanner reads thinking")
    stream = StreamParser(fmt, [TOOL], reasoning=True)
    assert stream.feed("I should").reasoning_content == "I should"
    assert stream.feed(" look").reasoning_content == " look"
    assert stream.feed(fmt.end_of_thinking + "\n\nDone").content == "Done"
    stream.finish()
    assert stream.parsed.message["reasoning_content"] == "I should look"


@EVERY_FORMAT
def test_a_long_call_is_not_read_anew_at_every_piece(name, monkeypatch):
    fmt = FORMATS[name]
    scanned = 0
    scan = type(fmt)._scan

    def counting(self, text, *args, **options):
        nonlocal scanned
        scanned += len(text)
        return scan(self, text, *args, **options)

    monkeypatch.setattr(type(fmt), "_scan", counting)
    text = call(fmt, s="word " * 2000)
    message, _ = streamed(fmt, [*text])
    assert len(message["tool_calls"]) == 1
    assert scanned < 40 * len(text)
