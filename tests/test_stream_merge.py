"""Chunks of a stream to a message: the ways in which servers differ from the specification."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.stream_merge import StreamMerge


def merged(*choices, **last):
    merge = StreamMerge()
    for choice in choices:
        merge.add({"id": "c", "created": 1, "model": "m", "choices": [{"index": 0, **choice}]})
    if last:
        merge.add(last)
    return merge


def calls_of(merge):
    message = merge.response()["choices"][0]["message"]
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", [])
    ]


def deltas(*pieces):
    return merged(*({"delta": {"tool_calls": one}} for one in pieces))


def test_index_is_missing():
    # SamSaffron/term-llm#314
    merge = deltas(
        [
            {"id": "c0", "function": {"name": "a", "arguments": '{"x": 1}'}},
            {"id": "c1", "function": {"name": "b", "arguments": '{"y": 2}'}},
        ]
    )
    assert calls_of(merge) == [("a", {"x": 1}), ("b", {"y": 2})]


def test_second_call_reuses_the_index_of_the_first():
    # dyedd/lens#49
    merge = deltas(
        [{"index": 0, "id": "t1", "function": {"name": "glob", "arguments": ""}}],
        [{"index": 0, "function": {"arguments": '{"path":"","pattern":"**/*"}'}}],
        [{"index": 0, "function": {"arguments": '{"path":"content/wiki","pattern":""}'}}],
    )
    assert calls_of(merge) == [
        ("glob", {"path": "", "pattern": "**/*"}),
        ("glob", {"path": "content/wiki", "pattern": ""}),
    ]
    assert merge.notes == ["text after whole arguments of glob is taken for another call"]


def test_name_is_sent_again():
    # open-webui/open-webui#22235
    merge = deltas(
        [{"index": 0, "id": "c0", "function": {"name": "my_search", "arguments": ""}}],
        [{"index": 0, "function": {"name": "my_search", "arguments": '{"q": "A"}'}}],
    )
    assert calls_of(merge) == [("my_search", {"q": "A"})]
    assert merge.notes == []


def test_objects_glued_inside_one_piece_are_left_for_the_check_to_find():
    merge = deltas([{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a":1}{}'}}])
    with pytest.raises(ValueError):
        calls_of(merge)


@st.composite
def streams(draw):
    """Calls, and pieces of them in one of the ways servers have."""
    values = st.dictionaries(st.text(max_size=3), st.text('{}"\\ a', max_size=6), max_size=3)
    calls = draw(st.lists(st.tuples(st.sampled_from(["f", "get", "get_all"]), values), max_size=4))
    way = draw(
        st.sampled_from(["indexed", "no_index", "all_zero", "name_again", "fresh_ids", "no_ids"])
    )
    pieces = []
    for number, (name, arguments) in enumerate(calls):
        text = json.dumps(arguments)
        cuts = draw(st.lists(st.integers(0, len(text)), max_size=4))
        bounds = sorted({0, len(text), *cuts})
        texts = ["", *(text[a:b] for a, b in pairwise(bounds)), ""]
        for place, part in enumerate(texts):
            piece = {"index": number, "function": {"arguments": part}}
            if place == 0 or way == "name_again":
                piece["function"]["name"] = name
            if place == 0:
                piece["id"] = f"call_{number}"
            if way == "fresh_ids":
                piece["id"] = f"call_{len(pieces)}"
            if way == "no_index":
                del piece["index"]
            if way == "all_zero":
                piece["index"] = 0
            if way == "no_ids":
                piece.pop("id", None)
            pieces.append(piece)
    return calls, pieces


@given(streams())
def test_however_it_is_cut_and_marked_the_calls_come_back(drawn):
    calls, pieces = drawn
    assert calls_of(deltas(*([piece] for piece in pieces))) == calls


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers()), min_size=2, max_size=3))
def test_calls_that_share_chunks_are_kept_apart_without_an_index(drawn):
    texts = [json.dumps({"x": n}) for _, n in drawn]
    first = [{"id": f"c{i}", "function": {"name": name}} for i, (name, _) in enumerate(drawn)]
    rest = [
        [{"function": {"arguments": text[:3]}} for text in texts],
        [{"function": {"arguments": text[3:]}} for text in texts],
    ]
    assert calls_of(deltas(first, *rest)) == [(name, {"x": n}) for name, n in drawn]


def test_text_of_every_kind_is_joined_and_usage_comes_last():
    merge = merged(
        {"delta": {"role": "assistant", "content": "", "reasoning_content": "Hm"}},
        {"delta": {"role": "assistant", "content": "I ", "reasoning_content": "m."}},
        {"delta": {"content": "will", "tool_calls": None}, "finish_reason": None},
        {"delta": {}, "finish_reason": "stop"},
        choices=[],
        usage={"total_tokens": 9},
    )
    assert merge.response() == {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "I will", "reasoning_content": "Hmm."},
                "finish_reason": "stop",
            }
        ],
        "usage": {"total_tokens": 9},
    }


def test_without_a_finish_reason_there_is_none():
    assert merged({"delta": {"content": "I will"}, "finish_reason": None}).finish_reason is None


def test_only_the_first_choice_counts():
    merge = merged({"delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}})
    assert merge.response()["choices"][0]["message"]["content"] == "a"


@pytest.mark.parametrize(
    "chunk",
    [
        5,
        [],
        {"choices": 5},
        {"choices": ["x"]},
        {"choices": [{"index": 0, "delta": []}, {"index": 0, "delta": "x"}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": ["x"]}}]},
    ],
)
def test_what_is_no_chunk_is_refused(chunk):
    with pytest.raises(ValueError):
        StreamMerge().add(chunk)


def test_arguments_may_come_as_an_object():
    merge = deltas([{"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": 1}}}])
    assert calls_of(merge) == [("f", {"x": 1})]
