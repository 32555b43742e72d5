"""Calls against ground truth: BFCL's rules in a table, and what must hold of any answer."""

import copy
import functools
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval import bfcl
from eval.answers import argument_accuracy, match_calls
from eval.intervals import wilson
from eval.rows import ResultRow
from eval.workloads import load_workload

SHARED = Path(os.environ.get("MASKED_SAMPLING_SHARED", Path(__file__).parents[2] / "shared"))
DATA = SHARED / "data" / "bfcl"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/bfcl")


def call(arguments=None, name="f"):
    return {"type": "function", "function": {"name": name, "arguments": arguments or {}}}


def tool(name="f", required=(), **properties):
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def causes(calls, expected, *tools):
    return [mismatch.cause for mismatch in match_calls(calls, expected, list(tools))]


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
BOOLEAN, OBJECT = {"type": "boolean"}, {"type": "object"}
STRINGS, NUMBERS = {"type": "array", "items": STRING}, {"type": "array", "items": NUMBER}
# The schema of the argument, its accepted values, the value given, and the verdict of BFCL's rules:
# type_checker, string_checker, list_checker, dict_checker and list_dict_checker of ast_checker.py.
VALUES = [
    (STRING, ["New York"], "New York", None),
    (STRING, ["New York"], "new york", None),
    (STRING, ["April 1, 2024"], "April 1,2024", None),
    (STRING, ["April 1, 2024"], "april-1_2024", None),
    (STRING, ["a/b*c^d.e"], "abcde", None),
    (STRING, ["it's"], 'it"s', None),
    (STRING, ["a (b)"], "a b", "wrong_value"),
    (STRING, ["San Francisco", "SF"], "sf", None),
    (STRING, ["San Francisco"], "San Fran", "wrong_value"),
    (STRING, ["5"], 5, "wrong_type"),
    (STRING, ["é"], "É", None),
    (STRING, ["a", ""], "", None),
    (STRING, ["a"], "", "wrong_value"),
    (STRING, [True], True, None),
    (INTEGER, [5], 5, None),
    (INTEGER, [5, ""], 5, None),
    (INTEGER, [5, ""], "", "wrong_type"),
    (INTEGER, [5], 6, "wrong_value"),
    (INTEGER, [5], "5", "wrong_type"),
    (INTEGER, [5], 5.5, "wrong_type"),
    (INTEGER, [1], True, "wrong_type"),
    (INTEGER, [0], False, "wrong_type"),
    (INTEGER, ["dontcare"], "dontcare", None),
    (INTEGER, ["dontcare", ""], "", None),
    (NUMBER, [12.0], 12, None),
    (NUMBER, [12], 12.0, None),
    (NUMBER, [0.1], 0.1, None),
    (NUMBER, [0.1], 0.2, "wrong_value"),
    (NUMBER, [1.0], True, "wrong_type"),
    (NUMBER, [5.0], "5.0", "wrong_type"),
    (BOOLEAN, [True], True, None),
    (BOOLEAN, [True], False, "wrong_value"),
    (BOOLEAN, [True], 1, "wrong_type"),
    (BOOLEAN, [True], "true", "wrong_type"),
    (BOOLEAN, [None], None, None),
    (BOOLEAN, [True], None, "wrong_type"),
    (STRINGS, [["a", "b"]], ["A", "b."], None),
    (STRINGS, [["a", "b"]], ["b", "a"], "wrong_value"),
    (STRINGS, [["a", "b"], ["b", "a"]], ["b", "a"], None),
    (STRINGS, [["a", "b"]], ["a"], "wrong_value"),
    (STRINGS, [["a"]], "a", "wrong_type"),
    (STRINGS, [["a"]], [], "wrong_value"),
    (STRINGS, [["a"], ""], [], None),
    (STRINGS, [["a"], ""], ["b"], "wrong_value"),
    (STRINGS, [], [], None),
    (STRINGS, [], ["a"], "wrong_value"),
    # eval-float-ground-truth, gorilla #1049
    (NUMBERS, [[12.0, 15.0]], [12, 15], None),
    (NUMBERS, [[12.0, 15.0]], [12, 15.5], "wrong_value"),
    (NUMBERS, [[1, 2]], [True, 2], "wrong_value"),
    ({"type": "array"}, [[[10, 20], [30, 40]]], [[10, 20], [30, 40]], None),
    ({"type": "array"}, [[[10, 20], [30, 40]]], [[10, 40], [30, 20]], "wrong_value"),
    (OBJECT, [{"size": ["large", "big"], "milk": ["oat", ""]}], {"size": "BIG"}, None),
    (OBJECT, [{"size": ["large", "big"], "milk": ["oat", ""]}], {"milk": "oat"}, "wrong_value"),
    (OBJECT, [{"size": ["large"]}], {"size": "large", "ice": True}, "wrong_value"),
    (OBJECT, [{"size": ["large"]}], {"size": "small"}, "wrong_value"),
    (OBJECT, [{"size": ["large"]}, {"size": ["small"]}], {"size": "small"}, None),
    (OBJECT, [{"size": ["large"]}, ""], {"size": "large"}, None),
    (OBJECT, ["", {}], {}, None),
    (OBJECT, [{"n": [1]}], {"n": True}, "wrong_value"),
    (OBJECT, [{"at": [{"x": 1, "y": [2.0, 3]}]}], {"at": {"x": 1.0, "y": 3}}, None),
    (OBJECT, [{"at": [{"x": 1}]}], {"at": {"x": 2}}, "wrong_value"),
    ({"type": "array"}, [[{"f": ["age"]}, {"f": ["job"]}]], [{"f": "Age"}, {"f": "job"}], None),
    (
        {"type": "array"},
        [[{"f": ["age"]}, {"f": ["job"]}]],
        [{"f": "job"}, {"f": "age"}],
        "wrong_value",
    ),
    ({}, ["x"], "x", None),
    ({}, ["x"], 5, "wrong_type"),
]


@pytest.mark.parametrize(("schema", "accepted", "value", "verdict"), VALUES)
def test_a_value_against_the_accepted_ones(schema, accepted, value, verdict):
    expected = [{"f": {"x": accepted}}]
    as_object = causes([call({"x": value})], expected, tool(x=schema))
    as_text = causes([call(json.dumps({"x": value}))], expected, tool(x=schema))
    assert as_object == as_text == ([verdict] if verdict else [])


MANY = tool(required=["a", "c"], a=STRING, b=INTEGER, c=INTEGER)
MANY_RIGHT = [{"f": {"a": ["x"], "b": [1, ""], "c": [2, ""]}}]


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"a": "x", "b": 1, "c": 2}, []),
            # `b` may be left out; `c` as well by its answer, but the tool requires it.
            ({"a": "x", "c": 2}, []),
            ({"a": "x", "b": 1}, ["missing_argument"]),
            ({"b": 1, "c": 2}, ["missing_argument"]),
            ({"a": "x", "c": 2, "d": 1}, ["unexpected_argument"]),
            ({"a": "y", "d": 1}, ["unexpected_argument", "wrong_value", "missing_argument"]),
        ],
    )
    def test_left_out_and_added(self, arguments, said):
        assert causes([call(arguments)], MANY_RIGHT, MANY) == said

    def test_a_listed_argument_without_empty_text_is_needed_even_if_the_tool_does_not_say(self):
        assert causes([call()], [{"f": {"a": ["x"]}}], tool(a=STRING)) == ["missing_argument"]

    def test_a_required_argument_that_the_answer_does_not_know_is_not_missed(self):
        # live_multiple_964-207-0 of v4 has it so.
        assert causes([call({"q": "x"})], [{"f": {"q": ["x"]}}], tool(required=["s"])) == []

    def test_a_mismatch_says_where_and_what(self):
        (found,) = match_calls([call({"a": "y"})], [{"f": {"a": ["x"]}}], [tool(a=STRING)])
        assert (found.tool, found.argument) == ("f", "a")
        assert found.detail == '"y" is not among ["x"]'


class TestCalls:
    TOOLS = (tool("f", a=INTEGER), tool("g", a=INTEGER))
    F1, F2, G1 = ({"f": {"a": [1]}}, {"f": {"a": [2]}}, {"g": {"a": [1]}})

    def test_order_does_not_matter(self):
        calls = [call({"a": 1}, "g"), call({"a": 2}), call({"a": 1})]
        assert causes(calls, [self.F1, self.F2, self.G1], *self.TOOLS) == []

    def test_each_call_answers_one(self):
        calls = [call({"a": 1}), call({"a": 1})]
        assert causes(calls, [self.F1, self.F2], *self.TOOLS) == ["wrong_value"]
        assert causes(calls, [self.F1, self.F1], *self.TOOLS) == []

    def test_the_first_fit_is_not_the_last_word(self):
        either = {"f": {"a": [1, 2]}}
        calls = [call({"a": 1}), call({"a": 2})]
        assert causes(calls, [either, self.F1], *self.TOOLS) == []
        assert causes(calls[::-1], [either, self.F1], *self.TOOLS) == []

    @pytest.mark.parametrize("calls", [None, [], "f(1)", {}])
    def test_no_call(self, calls):
        assert causes(calls, [self.F1], *self.TOOLS) == ["no_call"]

    def test_count_and_tool(self):
        assert causes([call({"a": 1})] * 2, [self.F1], *self.TOOLS) == ["wrong_count"]
        assert causes([call({"a": 1})], [self.F1, self.F2], *self.TOOLS) == ["wrong_count"]
        assert causes([call({"a": 1}, "g")], [self.F1], *self.TOOLS) == ["wrong_tool"]

    def test_what_is_left_over_is_paired_by_its_tool(self):
        calls = [call({"a": 5}, "g"), call({"a": 5})]
        found = match_calls(calls, [self.F1, self.G1], list(self.TOOLS))
        assert [(m.tool, m.cause) for m in found] == [("f", "wrong_value"), ("g", "wrong_value")]

    @pytest.mark.parametrize(
        "unreadable",
        [
            {"function": {"name": "f", "arguments": "{"}},
            {"function": {"name": "f", "arguments": "[1]"}},
            {"function": {"name": "f", "arguments": '{"a": NaN}'}},
            {"function": {"name": "f", "arguments": None}},
            {"function": {"name": "f"}},
            {"function": {"name": "", "arguments": {"a": 1}}},
            {"function": {"name": 5, "arguments": {"a": 1}}},
            {"function": "f"},
            {},
            "f",
            None,
        ],
    )
    def test_unreadable(self, unreadable):
        assert causes([unreadable], [self.F1], *self.TOOLS) == ["unreadable"]

    @pytest.mark.parametrize("tools", [None, [], "f", [{"function": {"name": "f"}}, 5]])
    def test_tools_that_say_nothing_leave_the_answer_to_say_it(self, tools):
        assert match_calls([call({"a": 1})], [self.F1], tools) == []
        assert [m.cause for m in match_calls([call()], [self.F1], tools)] == ["missing_argument"]


def row(index, calls=None, *, reason=None, status="success", group="one"):
    message = {"role": "assistant", "content": "", **({"tool_calls": calls} if calls else {})}
    reason = reason or ("tool_calls" if calls else "stop")
    return ResultRow(
        data_index=index,
        request={"tools": [tool(a=INTEGER)], "metadata": {"group": group}},
        response={"choices": [{"message": message, "finish_reason": reason}]},
        status=status,
        finish_reason=reason if status == "success" else None,
    )


ANSWERS = {i: [{"f": {"a": [1]}}] for i in range(1, 8)}


class TestAccuracy:
    def test_every_count(self):
        rows = [
            row(1, [call({"a": 1})]),
            row(2, [call({"a": 2})]),
            row(3),
            row(4, [call({"a": 1})], reason="length"),
            row(5, [call({"a": 1}), call({"b": "x"})], group="two"),
            row(6, status="failed", group="two"),
            row(7, [call({"a": True, "b": 2})], group="two"),
            row(8, [call({"a": 1})], group="three"),
        ]
        got = argument_accuracy(rows, ANSWERS)
        assert got == {
            "asked": 6,
            "triggered": 4,
            "correct": 1,
            "accuracy": 1 / 6,
            "interval": list(wilson(1, 6)),
            "accuracy_of_triggered": 1 / 4,
            "wrong": {
                "no_call": 1,
                "truncated": 1,
                "wrong_count": 1,
                "unexpected_argument": 1,
                "wrong_type": 1,
                "wrong_value": 1,
            },
            "correct_indices": [1],
            "by_group": got["by_group"],
        }
        parts = got["by_group"]
        assert list(parts) == ["one", "two"]
        assert (parts["one"]["asked"], parts["one"]["correct"]) == (4, 1)
        assert parts["two"]["wrong"] == {
            "wrong_count": 1,
            "unexpected_argument": 1,
            "wrong_type": 1,
        }
        assert parts["two"]["accuracy_of_triggered"] == 0
        assert json.loads(json.dumps(got, allow_nan=False)) == got

    def test_calls_that_do_not_trigger_are_no_calls(self):
        got = argument_accuracy([row(1, [call({"a": 1})], reason="stop")], ANSWERS)
        assert (got["triggered"], got["correct"], got["wrong"]) == (0, 0, {"no_call": 1})

    def test_nothing_asked(self):
        got = argument_accuracy([row(9, [call({"a": 1})])], ANSWERS)
        assert (got["asked"], got["accuracy"], got["interval"]) == (0, None, None)
        assert got["accuracy_of_triggered"] is None


LEAVES = st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | st.text(max_size=5)
VALUE = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def as_accepted(value):
    """A value as ground truth writes it: each key of an object lists what it takes."""
    if isinstance(value, dict):
        return {key: [as_accepted(item)] for key, item in value.items()}
    return [as_accepted(item) for item in value] if isinstance(value, list) else value


def corrupted(value):
    """Values that are not this one by any rule of the matching."""
    if isinstance(value, bool):
        return [not value, int(value), str(value)]
    if isinstance(value, int | float):
        return [value + 104_729.5, str(value), [value]]
    if isinstance(value, str):
        return [value + "#1", {"": value}, [value]]
    if isinstance(value, list):
        deeper = [
            [*value[:i], bad, *value[i + 1 :]]
            for i, one in enumerate(value)
            for bad in corrupted(one)
        ]
        return [[*value, "#1"], *deeper]
    if isinstance(value, dict):
        deeper = [{**value, key: bad} for key, one in value.items() for bad in corrupted(one)]
        return [{**value, "#1": 1}, *deeper]
    return [False, 0, "null"]


@given(st.dictionaries(st.text(max_size=4), VALUE, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_any_call_is_its_own_answer_and_no_corruption_of_it_is(arguments):
    expected = [{"f": {key: [as_accepted(value)] for key, value in arguments.items()}}]
    tools = [tool()]
    assert match_calls([call(arguments)], expected, tools) == []
    for key, value in arguments.items():
        for bad in corrupted(value):
            assert match_calls([call({**arguments, key: bad})], expected, tools), (key, bad)


HAND_MADE = [
    ("a.b", {"type": "dict", "properties": {"n": {"type": "float"}}}, {"n": [2.0, 3]}),
    (
        "f",
        {"type": "dict", "properties": {"n": {"type": "tuple"}}},
        {"n": [[1, 2]], "m": ["", "x"]},
    ),
    ("f", {"type": "dict", "properties": {}, "required": ["n"]}, {"n": [""], "o": [{"k": ["v"]}]}),
]


def answered(name, parameters, truth):
    """A question of BFCL's, its body, and its expected calls."""
    question = {
        "id": "made_0",
        "question": [[{"role": "user", "content": "go"}]],
        "function": [{"name": name, "parameters": parameters}],
    }
    body = bfcl.chat_body(question, "made")
    return body, bfcl.expected_calls([{name: truth}], body)


@functools.cache
def pairs():
    """Bodies and expected calls: made by hand, and all of the leaderboard where it is there."""
    found = [answered(*one) for one in HAND_MADE]
    if DATA.is_dir():
        workload = load_workload(DATA)
        bodies = {request.data_index: request.body for request in workload.requests}
        for index, expected in workload.answers.items():
            found.append((bodies[index], expected))
    return found


def ground_truth_calls(body, expected):
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in body["tools"]}
    return [
        call(bfcl.first_values(arguments, schemas[name]), name)
        for right in expected
        for name, arguments in right.items()
    ]


def test_the_ground_truth_is_right_in_any_order():
    for body, expected in pairs():
        calls = ground_truth_calls(body, expected)
        assert match_calls(calls, expected, body["tools"]) == []
        assert match_calls(calls[::-1], expected, body["tools"]) == []


def test_a_corrupted_ground_truth_is_wrong():
    for body, expected in pairs():
        calls = ground_truth_calls(body, expected)
        spoilt = [calls[:-1], [*calls, calls[0]], [call({}, "nobody"), *calls[1:]]]
        for i, one in enumerate(calls):
            arguments = one["function"]["arguments"]
            changes = [{**arguments, "#1": 1}]
            changes += [
                {**arguments, key: bad} for key in arguments for bad in worse(arguments[key])
            ]
            for changed in changes:
                other = copy.deepcopy(one)
                other["function"]["arguments"] = changed
                spoilt.append([*calls[:i], other, *calls[i + 1 :]])
        for one in spoilt:
            assert match_calls(one, expected, body["tools"]), (body["metadata"], one)


def worse(value):
    """Corruptions that no list of accepted values holds: another true one may be among those."""
    if isinstance(value, bool | None):
        return ["#1"]
    if isinstance(value, int | float):
        return [value + 104_729.5, "#1"]
    if isinstance(value, str):
        return [value + "#1", {"#1": value}]
    return [[*value, "#1"], "#1"] if isinstance(value, list) else [{**value, "#1": 1}, "#1"]


@needs_data
def test_all_of_the_leaderboard_with_answers_is_judged():
    assert len(pairs()) == len(HAND_MADE) + 2351
