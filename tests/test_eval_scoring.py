"""Verdicts on calls, the two metrics, and the statistics, against published and outside values."""

import json
import math

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from eval import scoring, workloads
from eval.records import RequestLine, ResultRow
from eval.scoring import Confusion, SchemaAccuracy

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["c", "f"]},
        "place": {
            "type": "object",
            "properties": {"a/b": {"type": "array", "items": {"type": "number"}}},
        },
        "when": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
}


def tool(name="get_weather", parameters=WEATHER):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def call(arguments, name="get_weather"):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": "c0", "type": "function", "function": {"name": name, "arguments": text}}


def message(*calls):
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def check(arguments, schema=WEATHER):
    return scoring.check_calls(message(call(arguments)), [tool(parameters=schema)])


def causes(arguments, schema=WEATHER):
    return [failure.cause for failure in check(arguments, schema)]


def row(index, reason, *calls, tools=(), status="success", valid=None, **request):
    """A row of a request with these fields, answered by these calls."""
    body = {"messages": [{"role": "user", "content": "x"}], "tools": list(tools), **request}
    answer = {"role": "assistant", "content": "x"} | ({"tool_calls": list(calls)} if calls else {})
    return ResultRow(
        data_index=index,
        request=body,
        response={"choices": [{"message": answer, "finish_reason": reason}]},
        status=status,
        finish_reason=reason,
        tool_calls_valid=valid,
    )


def bare(reasons, valid=()):
    """Rows as a vendor's file may have them: a finish reason and a verdict, nothing else."""
    return [
        ResultRow(data_index=i, status="success", finish_reason=reason, tool_calls_valid=i in valid)
        for i, reason in reasons.items()
    ]


class TestCheckCalls:
    def test_valid_calls_have_no_failures(self):
        good = call({"city": "Rome", "days": 2, "unit": "c", "when": None})
        parsed = {"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
        assert scoring.check_calls(message(good, parsed), [tool(), tool("ping")]) == []

    @pytest.mark.parametrize(
        ("arguments", "valid"),
        [
            ('{"n": 2}', True),
            ('{"n": 2.0}', True),
            ('{"n": true}', False),
            ('{"n": "2"}', False),
            ('{"n": 2e0}', True),
            ('{"n": 2.5}', False),
            ('{"n": 1e400}', False),
        ],
    )
    def test_integers_are_those_of_json_schema(self, arguments, valid):
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        assert causes(arguments, schema) == ([] if valid else ["type"])

    @pytest.mark.parametrize("value", [[12, 15], [12.0, 15.0], [12, 15.0]])
    def test_integers_are_numbers(self, value):
        numbers = {"type": "array", "items": {"type": "number"}}
        assert causes({"v": value}, {"type": "object", "properties": {"v": numbers}}) == []

    @pytest.mark.parametrize(
        ("arguments", "cause"),
        [
            ("null", "not_object"),
            ("5", "not_object"),
            ('"text"', "not_object"),
            ("[1]", "not_object"),
            ('"{\\"a\\": 1}"', "double_encoded"),
            ('"[1]"', "not_object"),
        ],
    )
    @pytest.mark.parametrize("schema", [{}, {"type": "object"}, True])
    def test_json_that_is_no_object(self, arguments, cause, schema):
        assert causes(arguments, schema) == [cause]

    @pytest.mark.parametrize(
        "arguments",
        [
            "",
            " ",
            "{",
            '{"a": ',
            "{'a': 1}",
            '{"a": 1}{"b": 2}',
            '{"city": NaN}',
            "[" * 99_999,
            f'{{"days": 1{"0" * 5000}}}',
        ],
    )
    def test_text_that_is_not_json(self, arguments):
        assert causes(arguments) == ["bad_json"]

    def test_a_bad_call_does_not_inherit_the_one_before(self):
        outputs = [call('{"city": "Rome"}'), call('{"city": ')]
        assert [bool(scoring.check_calls(message(c), [tool()])) for c in outputs] == [False, True]
        failures = scoring.check_calls(message(*outputs), [tool()])
        assert [(f.cause, f.call) for f in failures] == [("bad_json", 1)]

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({}, [("missing_key", "")]),
            ({"town": "Rome"}, [("extra_key", ""), ("missing_key", "")]),
            ({"city": 5}, [("type", "/city")]),
            ({"city": ""}, [("bounds", "/city")]),
            ({"city": "x", "days": 8}, [("bounds", "/days")]),
            ({"city": "x", "unit": "k"}, [("enum", "/unit")]),
            ({"city": "x", "when": 5}, [("type", "/when")]),
            ({"city": "x", "place": {"a/b": [1, "2"]}}, [("type", "/place/a~1b/1")]),
        ],
    )
    def test_causes_and_pointers(self, arguments, expected):
        assert sorted((f.cause, f.pointer) for f in check(arguments)) == sorted(expected)

    @pytest.mark.parametrize(
        ("schema", "value", "cause"),
        [
            ({"const": 1}, 2, "enum"),
            ({"exclusiveMinimum": 1}, 1, "bounds"),
            ({"maxItems": 1}, [1, 2], "bounds"),
            ({"pattern": "^a"}, "b", "other"),
            ({"multipleOf": 2}, 3, "other"),
            (False, 1, "other"),
            ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, 3, "other"),
            ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "missing_key"),
            ({"unevaluatedProperties": False}, {"a": 1}, "extra_key"),
            ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {}, "missing_key"),
            ({"allOf": [{"$ref": "#/$defs/t"}]}, 5, "type"),
        ],
    )
    def test_causes_of_other_keywords(self, schema, value, cause):
        whole = {"properties": {"v": schema}, "$defs": {"t": {"type": "string"}}}
        assert causes({"v": value}, whole) == [cause]

    def test_formats_are_not_checked(self):
        schema = {"properties": {"d": {"type": "string", "format": "date"}}}
        assert causes({"d": "yesterday"}, schema) == []

    def test_dialect_is_that_of_the_schema(self):
        # Before 2019-09 a $ref hides its siblings.
        schema = {
            "definitions": {"any": {}},
            "properties": {"v": {"$ref": "#/definitions/any", "type": "string"}},
        }
        draft_7 = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
        assert causes({"v": 1}, draft_7) == []
        assert causes({"v": 1}, schema) == ["type"]

    @pytest.mark.parametrize("parameters", [{}, None, "absent", False])
    def test_a_tool_without_a_schema_fits_no_call(self, parameters):
        listed = tool(parameters=parameters)
        if parameters == "absent":
            del listed["function"]["parameters"]
        (failure,) = scoring.check_calls(message(call({})), [listed])
        assert failure.cause == "other"
        assert "no parameters schema" in failure.detail

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "objekt"},
            {"properties": {"a": {"$ref": "#/$defs/gone"}}},
            {"properties": {"a": {"$ref": "https://example.com/schema.json"}}},
            {"properties": {"a": {"pattern": "(?<x"}}},
            {"$ref": "#"},
        ],
    )
    def test_a_schema_that_cannot_be_applied_fails_its_calls_alone(self, schema):
        tools = [tool("broken", schema), tool()]
        broken, fine = call({"a": "x"}, "broken"), call({"city": "Rome"})
        failures = scoring.check_calls(message(broken, fine), tools)
        assert [(f.cause, f.tool) for f in failures] == [("other", "broken")]
        assert "schema" in failures[0].detail

    def test_no_schema_is_fetched(self, monkeypatch):
        fetched = []
        monkeypatch.setattr("urllib.request.urlopen", fetched.append)
        assert causes({}, {"$ref": "http://localhost:9/schema.json"}) == ["other"]
        assert fetched == []

    def test_unknown_tool(self):
        (failure,) = scoring.check_calls(message(call({}, "weather_get")), [tool()])
        assert (failure.cause, failure.tool) == ("unknown_tool", "weather_get")
        assert "get_weather" in failure.detail
        both = scoring.check_calls(message(call("{", "weather_get")), [tool()])
        assert [f.cause for f in both] == ["unknown_tool", "bad_json"]
        for tools in ([], None, "x", [None, {"function": {}}]):
            assert scoring.check_calls(message(call({})), tools)[0].cause == "unknown_tool"

    def test_first_of_two_tools_of_one_name_counts(self):
        listed = [tool(parameters={"required": ["a"]}), tool(parameters={"required": ["b"]})]
        assert scoring.check_calls(message(call({"a": 1})), listed) == []

    @pytest.mark.parametrize("calls", [None, [], {}, "x"])
    def test_no_calls(self, calls):
        (failure,) = scoring.check_calls({"tool_calls": calls}, [tool()])
        assert failure.cause == "no_calls"

    @pytest.mark.parametrize(
        ("odd", "cause"),
        [
            (None, "other"),
            ({}, "other"),
            ({"function": None}, "other"),
            ({"function": {"name": 5, "arguments": "{}"}}, "other"),
            ({"function": {"name": "", "arguments": "{}"}}, "other"),
            ({"function": {"name": "", "arguments": '<tool_call>{"na'}}, "bad_json"),
            ({"function": {"name": "get_weather"}}, "bad_json"),
            ({"function": {"name": "get_weather", "arguments": None}}, "not_object"),
        ],
    )
    def test_calls_that_are_none(self, odd, cause):
        assert [f.cause for f in scoring.check_calls(message(odd), [tool()])] == [cause]

    SCHEMAS = (WEATHER, {"type": "object"}, {"required": ["b"]}, {"maxProperties": 1}, {"not": {}})

    @settings(deadline=None)
    @given(
        st.sampled_from(SCHEMAS),
        st.dictionaries(
            st.sampled_from(["city", "days", "unit", "a", "b"]),
            st.none()
            | st.booleans()
            | st.integers(-1, 9)
            | st.floats(0, 3)
            | st.sampled_from("cfx"),
        ),
    )
    def test_verdict_is_that_of_jsonschema(self, schema, arguments):
        expected = jsonschema.Draft202012Validator(schema).is_valid(arguments)
        assert (not check(arguments, schema)) == expected


class TestSchemaAccuracy:
    def test_denominator_is_triggered_responses(self):
        # K2VV's discussion of its own metric: 1,045 of 1,097 triggered, among 2,000 requests.
        reasons = {i: "tool_calls" if i <= 1097 else "stop" for i in range(1, 2001)}
        score = SchemaAccuracy.from_rows(bare(reasons, valid=range(1, 1046)))
        assert (score.successful, score.triggered) == (1045, 1097)
        assert score.accuracy == pytest.approx(0.9526, abs=5e-5)

    def test_response_is_the_unit_and_one_bad_call_spoils_it(self):
        good, bad = call({"city": "Rome"}), call({})
        rows = [
            row(1, "tool_calls", good, bad, tools=[tool()]),
            row(2, "tool_calls", good, good, tools=[tool()]),
        ]
        score = SchemaAccuracy.from_rows(rows)
        assert (score.successful, score.triggered) == (1, 2)

    def test_truncated_failed_and_untriggered_are_in_no_denominator(self):
        good = call({"city": "Rome"})
        rows = [
            row(1, "length", good, tools=[tool()]),
            row(2, "stop", good, tools=[tool()]),
            row(3, "tool_calls", good, tools=[tool()], status="failed"),
            row(4, None),
            row(5, "tool_calls", good, tools=[tool()]),
            row(6, "tool_calls", tools=[tool()]),
        ]
        score = SchemaAccuracy.from_rows(rows)
        assert (score.successful, score.triggered, score.truncated) == (1, 2, 1)

    def test_nothing_triggered(self):
        score = SchemaAccuracy.from_rows(bare({1: "stop", 2: "length"}))
        assert score.accuracy is None
        assert score.interval is None
        json.dumps(score.as_dict(), allow_nan=False)
        assert SchemaAccuracy.from_rows([]).as_dict()["accuracy"] is None

    def test_by_group_from_the_request_or_from_outside(self):
        good, bad, tools = call({"city": "Rome"}), call({}), [tool()]
        rows = [
            row(1, "tool_calls", good, tools=tools, metadata={"group": "as_trained"}),
            row(2, "tool_calls", bad, tools=tools, metadata={"group": "changed"}),
            row(3, "tool_calls", good, tools=tools),
        ]
        inside = SchemaAccuracy.from_rows(rows).by_group
        assert {g: (s.successful, s.triggered) for g, s in inside.items()} == {
            "as_trained": (1, 1),
            "changed": (0, 1),
            "ungrouped": (1, 1),
        }
        outside = SchemaAccuracy.from_rows(rows, {1: "x", 2: "x", 3: "y"}).by_group
        assert {g: s.triggered for g, s in outside.items()} == {"x": 2, "y": 1}

    def test_own_verdict_goes_before_the_stored_one(self):
        rows = [row(1, "tool_calls", call({}), tools=[tool()], valid=True)]
        assert SchemaAccuracy.from_rows(rows).successful == 0


class TestTrigger:
    def test_finish_reasons_other_than_tool_calls_are_negative(self):
        official = {
            1: "tool_calls",
            2: "tool_calls",
            3: "stop",
            4: "length",
            5: "stop",
            6: "tool_calls",
        }
        model = {
            1: "tool_calls",
            2: "length",
            3: "tool_calls",
            4: "stop",
            5: "length",
            6: "tool_calls",
        }
        found = scoring.trigger(bare(model), bare(official))
        assert (found.tp, found.fp, found.fn, found.tn) == (2, 1, 1, 2)
        for value in (found.precision, found.recall, found.f1):
            assert value == pytest.approx(2 / 3)
        assert found.undefined == ()

    def test_nothing_triggered_is_zero_and_said(self):
        found = scoring.trigger(bare({1: "stop", 2: "length"}), bare({1: "stop", 2: "stop"}))
        assert (found.precision, found.recall, found.f1) == (0.0, 0.0, 0.0)
        assert found.undefined == ("precision", "recall", "f1")
        json.dumps(found.as_dict(), allow_nan=False)

    @pytest.mark.parametrize(
        ("table", "undefined"),
        [((0, 0, 3, 1), ("precision", "f1")), ((0, 3, 0, 1), ("recall", "f1")), ((0, 1, 1, 1), ())],
    )
    def test_half_defined(self, table, undefined):
        found = Confusion(*table)
        assert found.f1 == 0.0
        assert found.undefined == undefined

    @pytest.mark.parametrize("table", [(2, 1, 3, 4), (3, 0, 6, 1)])
    def test_counts_are_reported_since_f1_alone_does_not_tell(self, table):
        # Two tables of ten requests with the same F1 of 0.5, three triggered in both.
        report = Confusion(*table).as_dict()
        assert report["f1"] == pytest.approx(0.5)
        assert tuple(report[key] for key in ("TP", "FP", "FN", "TN")) == table

    def test_rows_of_one_file_are_listed_and_not_guessed(self):
        found = scoring.trigger(
            bare({1: "stop", 2: "tool_calls", 9: "stop"}), bare({2: "tool_calls", 4: "tool_calls"})
        )
        assert (found.tp, found.fp, found.fn, found.tn) == (1, 0, 0, 0)
        assert found.only_in_results == (1, 9)
        assert found.only_in_reference == (4,)

    def test_failed_and_broken_off_answers_are_undecided(self):
        rows = [row(1, None), row(2, None, status="failed"), row(3, "tool_calls")]
        found = scoring.trigger(rows, bare({1: "stop", 2: "tool_calls", 3: "tool_calls"}))
        assert found.undecided == (1, 2)
        assert (found.tp, found.fp, found.fn, found.tn) == (1, 0, 0, 0)

    def test_another_request_under_the_same_index_is_not_counted(self):
        ours = [row(i, "tool_calls", tools=[tool()]) for i in (1, 2, 3)]
        theirs = [
            row(1, "tool_calls", tools=[tool()], tool_choice="auto", temperature=0.6),
            row(2, "tool_calls", tools=[tool("ping")]),
            row(3, "stop", tools=[tool()], tool_choice="none"),
        ]
        found = scoring.trigger(ours, theirs)
        assert (found.tp, found.fp, found.fn, found.tn) == (1, 0, 0, 0)
        assert found.other_request == (2, 3)
        assert found.as_dict()["other_request"] == [2, 3]

    def test_only_looks_at_what_it_is_told(self):
        found = scoring.trigger(
            bare({1: "tool_calls", 2: "tool_calls", 3: "stop"}),
            bare({1: "tool_calls", 2: "stop", 4: "stop"}),
            only={1, 4},
        )
        assert (found.tp, found.fp, found.only_in_results, found.only_in_reference) == (
            1,
            0,
            (),
            (4,),
        )

    @given(st.tuples(*[st.integers(0, 50)] * 4))
    def test_f1_is_the_harmonic_mean(self, table):
        found = Confusion(*table)
        precision, recall = found.precision, found.recall
        mean = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        assert found.f1 == pytest.approx(mean)


class TestStatistics:
    @pytest.mark.parametrize("n", [1, 2, 7, 100, 1097, 4000])
    @pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
    def test_wilson_is_scipys(self, n, confidence):
        for k in {0, 1, n // 3, n - 1, n}:
            expected = binomtest(k, n).proportion_ci(confidence, method="wilson")
            assert scoring.wilson(k, n, confidence) == pytest.approx(tuple(expected), abs=1e-12)

    def test_wilson_at_the_ends(self):
        # By hand, z = 1.959964: 10 of 10 has the lower end 1 / (1 + z^2 / 10).
        low, high = scoring.wilson(10, 10)
        assert (low, high) == (pytest.approx(1 / (1 + 1.959964**2 / 10), abs=1e-6), 1.0)
        assert scoring.wilson(0, 10) == (0.0, pytest.approx(1 - low))
        assert scoring.wilson(0, 0) == (0.0, 1.0)

    @pytest.mark.parametrize("bad", [(5, 4), (-1, 4), (0, -1), (1, 2, 0.0), (1, 2, 1.0)])
    def test_wilson_refuses(self, bad):
        with pytest.raises(ValueError, match="must be"):
            scoring.wilson(*bad)

    @pytest.mark.parametrize(
        "pair", [(0, 1), (1, 1), (5, 0), (10, 3), (3, 10), (60, 41), (900, 1000)]
    )
    def test_mcnemar_is_the_exact_binomial_test(self, pair):
        expected = binomtest(pair[0], sum(pair), 0.5).pvalue
        assert scoring.mcnemar_exact(*pair) == pytest.approx(expected, rel=1e-9)

    def test_mcnemar_by_hand_and_at_the_ends(self):
        assert scoring.mcnemar_exact(0, 5) == 2 / 32
        assert scoring.mcnemar_exact(1, 5) == 2 * (1 + 6) / 64
        assert scoring.mcnemar_exact(0, 0) == 1.0
        assert scoring.mcnemar_exact(4, 4) == 1.0
        assert math.isfinite(scoring.mcnemar_exact(0, 3000))
        with pytest.raises(ValueError, match="counts must be"):
            scoring.mcnemar_exact(-1, 2)


class TestPairs:
    def test_counts_add_up_to_the_requests(self):
        good, bad, tools = call({"city": "Rome"}), call({}), [tool()]

        def run(**answers):
            kinds = {"good": ("tool_calls", good), "bad": ("tool_calls", bad), "stop": ("stop",)}
            kinds["cut"] = ("length",)
            return [
                row(int(i[1:]), None, status="failed")
                if kind == "failed"
                else row(int(i[1:]), *kinds[kind], tools=tools)
                for i, kind in answers.items()
            ]

        free = run(
            r1="good",
            r2="good",
            r3="bad",
            r4="bad",
            r5="bad",
            r6="good",
            r7="stop",
            r8="stop",
            r9="good",
        )
        held = run(
            r1="good",
            r2="bad",
            r3="good",
            r4="good",
            r5="bad",
            r6="cut",
            r7="good",
            r8="stop",
            r10="good",
        )
        table = scoring.paired_table([*free, *run(r11="failed")], [*held, *run(r11="good")])
        counts = {key: table[key] for key in ("both", "only_free", "only_constrained", "neither")}
        assert counts == {"both": 1, "only_free": 1, "only_constrained": 2, "neither": 1}
        assert table["pairs"] == 5
        assert table["p_value"] == binomtest(1, 3).pvalue == 1.0
        assert table["triggered_only_free"] == 1
        assert table["triggered_only_constrained"] == 1
        assert table["triggered_by_none"] == 1
        assert table["unpaired"] == 3

    def test_another_request_under_the_same_index_is_no_pair(self):
        good, tools = call({"city": "Rome"}), [tool()]
        free = [row(1, "tool_calls", good, tools=tools), row(2, "tool_calls", good, tools=tools)]
        held = [free[0], row(2, "tool_calls", good, tools=tools, tool_choice="required")]
        table = scoring.paired_table(free, held)
        assert (table["pairs"], table["unpaired"]) == (1, 1)

    @given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30))
    def test_outcomes_are_counted_as_mcnemar_wants_them(self, outcomes):
        counts = scoring.paired_outcomes(outcomes, ("a", "b"))
        assert counts["pairs"] == len(outcomes)
        assert counts["both"] + counts["only_a"] == sum(a for a, _ in outcomes)
        assert counts["both"] + counts["only_b"] == sum(b for _, b in outcomes)
        differing = counts["only_a"] + counts["only_b"]
        expected = binomtest(counts["only_a"], differing).pvalue if differing else 1.0
        assert counts["p_value"] == pytest.approx(expected)

    def test_nothing_to_pair(self):
        table = scoring.paired_table([], [])
        assert (table["pairs"], table["p_value"]) == (0, 1.0)


class TestFailureCounts:
    def test_a_response_counts_once_under_each_cause(self):
        tools = [tool(), tool("ping", {"type": "object"})]
        group = {"tools": tools, "metadata": {"group": "changed"}}
        rows = [
            row(1, "tool_calls", call({}), call({"town": 1}), **group),
            row(2, "tool_calls", call("5", "ping"), call({"city": "x"}), **group),
            row(3, "length", call({}), tools=tools),
            row(4, "tool_calls", call({}, "pong"), tools=tools),
            row(5, "tool_calls", tools=tools),
            row(6, "stop", call({}), tools=tools),
            row(7, "tool_calls", call({"city": "x"}), tools=tools),
        ]
        counts = scoring.failure_counts(rows)
        assert counts["invalid"] == 4
        assert counts["by_cause"] == dict.fromkeys(
            ["unknown_tool", "not_object", "missing_key", "extra_key", "no_calls", "truncated"], 1
        )
        assert counts["by_tool"] == {
            "get_weather": {"missing_key": 1, "extra_key": 1},
            "ping": {"not_object": 1},
            "pong": {"unknown_tool": 1},
        }
        assert counts["by_group"] == {
            "changed": {"not_object": 1, "missing_key": 1, "extra_key": 1},
            "ungrouped": {"unknown_tool": 1, "no_calls": 1, "truncated": 1},
        }

    def test_verdict_of_a_file_without_requests_is_taken_over(self):
        counts = scoring.failure_counts(bare({1: "tool_calls", 2: "tool_calls"}, valid={1}))
        assert (counts["invalid"], counts["by_cause"]) == (1, {"other": 1})


class TestVerdict:
    @pytest.mark.parametrize(
        ("reason", "calls", "expected"),
        [
            ("tool_calls", [call({"city": "x"})], True),
            ("tool_calls", [call({"city": "x"}), call({})], False),
            ("tool_calls", [], None),
            ("stop", [call({"city": "x"})], None),
            ("length", [call({})], None),
            (None, [], None),
        ],
    )
    def test_is_theirs(self, reason, calls, expected):
        assert scoring.verdict(reason, message(*calls), [tool()])[0] is expected


class TestInconsistencies:
    @pytest.mark.parametrize(
        ("kinds", "one"),
        [
            (["calls_not_triggered"], row(1, "stop", call({"city": "Rome"}), tools=[tool()])),
            ([], row(1, "length", call({"city": "Rome"}), tools=[tool()])),
            (
                ["called_under_none"],
                row(1, "tool_calls", call({"city": "x"}), tools=[tool()], tool_choice="none"),
            ),
            (["called_under_none"], row(1, "tool_calls", call({"city": "x"}))),
            (["triggered_without_calls"], row(1, "tool_calls", tools=[tool()])),
            (
                ["no_call_under_required"],
                row(1, "stop", tools=[tool()], tool_choice="required"),
            ),
            ([], row(1, "length", tools=[tool()], tool_choice="required")),
            (
                ["other_tool_than_named"],
                row(
                    1,
                    "tool_calls",
                    call({"city": "x"}),
                    tools=[tool()],
                    tool_choice={"type": "function", "function": {"name": "ping"}},
                ),
            ),
            (
                ["parallel_calls"],
                row(
                    1,
                    "tool_calls",
                    *[call({"city": "x"})] * 2,
                    tools=[tool()],
                    parallel_tool_calls=False,
                ),
            ),
            (["no_finish_reason"], row(1, None, tools=[tool()])),
            ([], row(1, None, status="failed")),
            (["verdict_differs"], row(1, "tool_calls", call({}), tools=[tool()], valid=True)),
            ([], row(1, "tool_calls", call({}), tools=[tool()], valid=False)),
            ([], bare({1: "tool_calls"})[0]),
        ],
    )
    def test_flags(self, kinds, one):
        assert [found.kind for found in scoring.inconsistencies([one])] == kinds

    def test_a_forced_tool_that_ends_with_stop_is_no_trigger_but_flagged(self):
        forced = {"type": "function", "function": {"name": "get_weather"}}
        one = row(1, "stop", call({"city": "Rome"}), tools=[tool()], tool_choice=forced)
        assert SchemaAccuracy.from_rows([one]).triggered == 0
        (found,) = scoring.inconsistencies([one])
        assert found.kind == "calls_not_triggered"


class TestWorkloads:
    @pytest.mark.parametrize(
        ("fields", "kind"),
        [
            ({}, "auto"),
            ({"tool_choice": None}, "auto"),
            ({"tool_choice": "auto"}, "auto"),
            ({"tool_choice": "none"}, "none"),
            ({"tool_choice": "required"}, "required"),
            ({"tool_choice": {"type": "function", "function": {"name": "ping"}}}, "named"),
            (
                {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required"}}},
                "required",
            ),
            ({"tools": []}, "none"),
        ],
    )
    def test_kind_of_a_tool_choice(self, fields, kind):
        body = {"messages": [], "tools": [tool()], **fields}
        assert workloads.tool_choice_of(body) == kind
        requests = [RequestLine(data_index=4, body=body)]
        assert workloads.asked_freely(requests) == ({4} if kind == "auto" else set())

    def test_other_tool_choice_is_another_request(self):
        asked = RequestLine(data_index=1, body={"messages": [], "tools": [tool()]})
        chat = RequestLine(data_index=2, body={"messages": []})
        forced, same = workloads.with_tool_choice([asked, chat], "required")
        assert forced.body["tool_choice"] == "required"
        assert forced.hash != asked.hash
        assert "tool_choice" not in asked.body
        assert same == chat
        with pytest.raises(ValueError, match="none, auto, required"):
            workloads.with_tool_choice([asked], "always")

    def test_groups_and_limit(self):
        bodies = [
            {"metadata": {"group": "changed"}},
            {"metadata": {}},
            {"metadata": {"group": 3}},
            {},
        ]
        requests = [RequestLine(data_index=i, body=body) for i, body in enumerate(bodies, 1)]
        assert workloads.groups(requests) == {
            1: "changed",
            2: "ungrouped",
            3: "ungrouped",
            4: "ungrouped",
        }
        assert [r.data_index for r in workloads.limited(requests, 2)] == [1, 2]
        assert workloads.limited(requests, None) == requests
        with pytest.raises(ValueError, match="limit must be"):
            workloads.limited(requests, 0)

    def test_requests_of_a_results_file(self):
        rows = [row(7, "stop", tools=[tool()])]
        (request,) = workloads.requests_of(rows)
        assert (request.data_index, request.body) == (7, rows[0].request)
