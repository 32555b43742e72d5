"""BFCL's questions as chat requests: schemas, names, the ground truth as calls."""

import json
import os
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval import bfcl, bfcl_schema
from eval.chat_body import check_tools
from eval.workloads import limited, load_workload
from grammar import policy
from grammar.schema import SchemaError

SHARED = Path(os.environ.get("MASKED_SAMPLING_SHARED", Path(__file__).parents[2] / "shared"))
DATA = SHARED / "data" / "bfcl"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/bfcl")


def question(**fields):
    return {
        "id": "simple_python_3",
        "question": [[{"role": "user", "content": "7!"}], [{"role": "user", "content": "8!"}]],
        "function": [
            {
                "name": "math.factorial",
                "description": "n!",
                "parameters": {
                    "type": "dict",
                    "properties": {"n": {"type": "integer"}},
                    "required": ["n"],
                },
            }
        ],
        **fields,
    }


def undescribed(schema):
    """A schema without its descriptions, which make most of those of BFCL different ones."""
    if isinstance(schema, list):
        return [undescribed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: undescribed(value)
        for key, value in schema.items()
        if key != "description" or not isinstance(value, str)
    }


class TestSchema:
    @pytest.mark.parametrize(
        ("word", "good", "bad"),
        [
            ("dict", {"a": 1}, []),
            ("HashMap", {"a": 1}, "a"),
            ("float", 1.5, "1.5"),
            ("double", 2, None),
            ("long", 2**40, 1.5),
            ("tuple", [1, "a"], {"0": 1}),
            ("ArrayList", [1], "[1]"),
            ("String", "a", 1),
            ("Boolean", True, 1),
            ("NoneType", None, 0),
        ],
    )
    def test_types_mean_what_their_languages_mean(self, word, good, bad):
        validator = jsonschema.Draft202012Validator(bfcl_schema.json_schema({"type": word}))
        assert validator.is_valid(good)
        assert not validator.is_valid(bad)

    def test_any_takes_anything(self):
        assert bfcl_schema.json_schema({"type": "any", "description": "d"}) == {"description": "d"}
        assert bfcl_schema.json_schema({"type": ["string", "any"]}) == {}
        assert bfcl_schema.json_schema("any") == {}
        assert bfcl_schema.json_schema({"type": ""}) == {}

    def test_schemas_inside_schemas(self):
        schema = bfcl_schema.parameters_schema(
            {
                "type": "dict",
                "properties": {
                    "rows": {
                        "type": "tuple",
                        "items": {"type": "dict", "properties": {"x": "float"}},
                    },
                    "either": {"anyOf": [{"type": "float"}, {"type": "any"}]},
                    "map": {"type": "HashMap", "additionalProperties": {"type": "long"}},
                    "pair": {"type": "tuple", "items": [{"type": "float"}, {"type": "String"}]},
                },
            }
        )
        assert schema == {
            "type": "object",
            "properties": {
                "rows": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"x": {"type": "number"}}},
                },
                "either": {"anyOf": [{"type": "number"}, {}]},
                "map": {"type": "object", "additionalProperties": {"type": "integer"}},
                "pair": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "string"}]},
            },
        }

    def test_an_argument_may_be_called_as_a_keyword_is(self):
        properties = {
            "type": {"type": "float"},
            "enum": {"type": "string"},
            "required": {"type": "boolean"},
            "optional": {"type": "any"},
        }
        schema = bfcl_schema.parameters_schema({"type": "dict", "properties": properties})
        assert schema["properties"] == {
            "type": {"type": "number"},
            "enum": {"type": "string"},
            "required": {"type": "boolean"},
            "optional": {},
        }

    def test_values_are_not_taken_for_schemas(self):
        default = {"type": "dict", "optional": True}
        schema = bfcl_schema.json_schema(
            {"type": "dict", "default": default, "const": {"type": "float"}}
        )
        assert schema == {"type": "object", "default": default, "const": {"type": "float"}}

    def test_required_in_every_form(self):
        schema = bfcl_schema.parameters_schema(
            {
                "properties": {
                    "a": {"type": "string", "required": True, "optional": False},
                    "b": {"type": "string", "required": False, "optional": True},
                    "c": {"type": "dict", "required": None, "properties": None},
                },
                "required": ["c", "c"],
                "optional": ["b"],
            }
        )
        assert schema["required"] == ["c", "a"]
        assert schema["properties"] == {
            "a": {"type": "string"},
            "b": {"type": "string"},
            "c": {"type": "object"},
        }

    @pytest.mark.parametrize(
        ("described", "good", "bad"),
        [
            ({"type": "boolean", "enum": ["True", "False"]}, [True, False], ["True", None]),
            (
                {"type": "boolean", "enum": ["true", "dontcare"]},
                [True, "dontcare"],
                [False, "true"],
            ),
            ({"type": "integer", "enum": ["1", "2", "dontcare"]}, [1, "dontcare"], ["1", 3]),
            ({"type": "integer", "enum": ["Group A", "Group B"]}, ["Group A"], [1]),
            ({"type": "float", "enum": ["0.5", 2]}, [0.5, 2], ["0.5"]),
            ({"type": "string", "enum": ["1", "x"]}, ["1"], [1]),
            (
                {"type": "array", "items": {"type": "string"}, "enum": ["a", "b"]},
                [[], ["a"], ["b", "a"]],
                ["a", ["c"]],
            ),
            ({"type": "array", "enum": [["a"], ["b"]]}, [["a"]], [["a", "b"]]),
            ({"type": "string", "enum": []}, ["anything"], [1]),
        ],
    )
    def test_lists_of_values_can_be_met(self, described, good, bad):
        schema = bfcl_schema.json_schema(described)
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        assert all(map(validator.is_valid, good))
        assert not any(map(validator.is_valid, bad))

    @pytest.mark.parametrize(
        ("parameters", "said"),
        [
            (
                {"type": "dict", "properties": {"a": {"type": "Foo"}}},
                "parameters.a.type must be one",
            ),
            ({"properties": {"a": {"type": {"x": 1}}}}, "parameters.a.type must be one"),
            ({"properties": {"a": 5}}, "parameters.a must be a schema; got 5"),
            ({"properties": ["a"]}, "parameters.properties must be an object"),
            ({"type": "dict", "required": "a"}, "parameters.required must be a list; got 'a'"),
            ({"type": "dict", "required": [["a"]]}, "parameters.required must list names"),
            ({"type": "string"}, "parameters must describe an object"),
            ([], "parameters must be a schema; got []"),
            (True, "parameters must describe an object"),
        ],
    )
    def test_what_is_no_schema_is_refused_with_its_place(self, parameters, said):
        with pytest.raises(ValueError) as error:
            bfcl_schema.parameters_schema(parameters)
        assert said in str(error.value)

    def test_no_parameters_are_an_object_without_keys(self):
        # `{}` would make every call invalid, as it does in K2VV's validator.
        assert bfcl_schema.parameters_schema(None) == {"type": "object", "properties": {}}

    @needs_data
    def test_every_schema_of_the_leaderboard_is_valid_and_of_our_types(self):
        seen = set()
        for request in load_workload(DATA).requests:
            check_tools(request.body)
            for tool in request.body.get("tools", []):
                whole = undescribed(tool["function"]["parameters"])
                assert whole["type"] == "object"
                # Argument by argument: those come again and again.
                parts = [whole | {"properties": {}}, *whole["properties"].values()]
                seen.update(map(json.dumps, parts))
        draft = jsonschema.Draft202012Validator
        meta = draft(draft.META_SCHEMA)
        for schema in map(json.loads, seen):
            assert meta.is_valid(schema), schema
        assert len(seen) > 1000


class TestNames:
    def test_dots_become_underscores_and_good_names_stay(self):
        assert bfcl_schema.safe_names(["math.factorial", "get-it_2"]) == {
            "math.factorial": "math_factorial",
            "get-it_2": "get-it_2",
        }

    def test_clashes_are_told_apart_and_a_good_name_has_the_first_claim(self):
        assert bfcl_schema.safe_names(["a.b", "a b", "a_b", "a_b_2"]) == {
            "a.b": "a_b_3",
            "a b": "a_b_4",
            "a_b": "a_b",
            "a_b_2": "a_b_2",
        }

    def test_long_names_are_cut_and_told_apart(self):
        long = "n" * 70
        safe = bfcl_schema.safe_names([long, long + "x"])
        assert safe == {long: "n" * 64, long + "x": "n" * 62 + "_2"}

    @given(st.lists(st.text(alphabet="ab._-é", max_size=4), max_size=12))
    @settings(max_examples=200, deadline=None)
    def test_always_fit_and_never_two_alike(self, names):
        safe = bfcl_schema.safe_names(names)
        assert set(safe) == set(names)
        assert len(set(safe.values())) == len(safe)
        for name in safe.values():
            assert 1 <= len(name) <= 64
            assert name.isascii()
            assert name.replace("-", "").replace("_", "").isalnum() or set(name) <= set("_-")


class TestQuestions:
    def test_the_first_turn_is_asked_with_tools_a_model_may_call(self):
        body = bfcl.chat_body(question(), "bfcl_simple_python")
        assert body == {
            "messages": [{"role": "user", "content": "7!"}],
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "math_factorial",
                        "description": "n!",
                        "parameters": {
                            "type": "object",
                            "properties": {"n": {"type": "integer"}},
                            "required": ["n"],
                        },
                    },
                }
            ],
            "tool_choice": "auto",
            "metadata": {
                "group": "bfcl_simple_python",
                "bfcl_id": "simple_python_3",
                "names": {"math_factorial": "math.factorial"},
            },
        }
        assert policy.plan(body, format="hermes", scope="always", schema_mode="strict").constrained

    def test_without_functions_it_is_asked_without_tools(self):
        # live_irrelevance of v4 has four of these; the API takes no empty list.
        body = bfcl.chat_body(question(function=[]), "g")
        assert sorted(body) == ["messages", "metadata"]

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"question": "7!"}, "question must be a list of turns"),
            ({"question": [{"role": "user", "content": "7!"}]}, "question must be a list of turns"),
            (
                {"question": [[{"role": "robot", "content": "7!"}]]},
                "messages[0].role must be one of",
            ),
            ({"function": None}, "function must be a list of functions"),
            ({"function": [{"parameters": {}}]}, "function must list objects with a name"),
            (
                {"function": [{"name": "f", "parameters": {"type": "Foo"}}]},
                "function 'f': parameters.type must be one of BFCL's types; got 'Foo'",
            ),
        ],
    )
    def test_what_cannot_be_asked_says_why(self, fields, said):
        with pytest.raises(ValueError) as error:
            bfcl.chat_body(question(**fields), "g")
        assert said in str(error.value)

    @pytest.mark.parametrize(
        ("name", "set_"),
        [
            ("simple_python_12", "simple_python"),
            ("live_multiple_3-1-0", "live_multiple"),
            ("live_irrelevance_0-0-0", "live_irrelevance"),
            ("nothing", "elsewhere"),
            (None, "elsewhere"),
        ],
    )
    def test_the_set_is_read_off_the_id(self, name, set_):
        assert bfcl.category({"id": name}, "elsewhere") == set_

    @pytest.mark.parametrize(
        "name",
        ["BFCL_v4_simple_python.json", "simple_python.jsonl.gz", "x/BFCL_v3_simple_python.json"],
    )
    def test_else_off_the_file(self, name):
        assert bfcl.set_name(name) == "simple_python"

    @pytest.mark.parametrize(
        ("truth", "said"),
        [
            ([], "at least one call"),
            ({"math.factorial": {"n": [7]}}, "ground_truth must be a list"),
            (["math.factorial(7)"], "ground_truth must list calls"),
            ([{"math.factorial": {"n": [7]}, "g": {}}], "ground_truth must list calls"),
            ([{"factorial": {"n": [7]}}], "calls 'factorial', which is not a function"),
            ([{"math.factorial": [7]}], "the arguments of 'math.factorial' as an object"),
        ],
    )
    def test_ground_truth_of_another_shape_is_refused(self, truth, said):
        with pytest.raises(ValueError) as error:
            bfcl.expected_calls(truth, bfcl.chat_body(question(), "g"))
        assert said in str(error.value)

    def test_ground_truth_goes_by_the_names_of_the_request(self):
        body = bfcl.chat_body(question(), "g")
        expected = bfcl.expected_calls([{"math.factorial": {"n": 7, "list": []}}], body)
        assert expected == [{"math_factorial": {"n": [7], "list": [[]]}}]

    def test_first_values_are_a_call_that_fits_the_schema(self):
        schema = bfcl_schema.parameters_schema(
            {
                "type": "dict",
                "properties": {
                    "unit": {"type": "string"},
                    "port": {"type": "integer"},
                    "airport": {"type": "string"},
                    "gone": {"type": "string"},
                    "order": {
                        "type": "dict",
                        "properties": {"note": {"type": "string"}},
                        "required": ["note"],
                    },
                    "rows": {"type": "array", "items": {"type": "dict"}},
                },
                "required": ["airport", "order"],
            }
        )
        truth = {
            "unit": ["", None, "m"],
            "port": [5432, ""],
            "airport": [""],
            "gone": ["", None],
            "order": [{"size": ["large", "big"], "note": [""], "milk": [""]}],
            "rows": [[{"x": [60.2]}, {"y": ["", 2]}]],
        }
        values = bfcl.first_values(truth, schema)
        assert values == {
            "unit": "m",
            "port": 5432,
            "airport": "",
            "order": {"size": "large", "note": ""},
            "rows": [{"x": 60.2}, {"y": 2}],
        }
        jsonschema.validate(values, schema)

    @needs_data
    def test_the_policy_takes_every_question_or_says_which_schema_it_cannot_hold(self):
        refused = {}
        for request in limited(load_workload(DATA).requests, per_group=8):
            try:
                policy.plan(request.body, format="hermes", scope="always", schema_mode="strict")
            except SchemaError as error:
                refused[request.body["metadata"]["bfcl_id"]] = str(error)
        assert refused == {}
