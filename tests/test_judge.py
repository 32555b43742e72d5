"""The judge: jsonschema's verdicts, in bounded time and without the network."""

import json
import re

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar.formats import FORMATS
from grammar.guard import Guard
from grammar.schema import judge, patterns, prepare
from grammar.schema.judge import Patience
from grammar.schema.patterns import found
from tests.test_schema_limits import diamonds

# `re` would take 2 ** 200 steps on TEXT; other threads would wait for it.
SLOW = r"^(?:(?:a|a)+)+$"
TEXT = "a" * 200 + "!"
CLASSES = {
    "7": jsonschema.Draft7Validator,
    "2019-09": jsonschema.Draft201909Validator,
    "2020-12": jsonschema.Draft202012Validator,
}
DRAFT = "https://json-schema.org/draft/2020-12/schema"


@pytest.fixture
def quick(monkeypatch):
    """Little time, for patterns that would take for ever."""
    monkeypatch.setattr(patterns, "SECONDS", 0.05)
    monkeypatch.setattr(judge, "SECONDS", 0.2)


@pytest.mark.parametrize("draft", CLASSES)
@pytest.mark.parametrize(
    ("schema", "instance"),
    [
        ({"type": "string", "pattern": SLOW}, TEXT),
        ({"not": {"pattern": SLOW}}, TEXT),
        ({"propertyNames": {"pattern": SLOW}}, {TEXT: 1}),
        ({"patternProperties": {SLOW: False}}, {TEXT: 1}),
        ({"patternProperties": {SLOW: True}, "additionalProperties": False}, {TEXT: 1}),
        ({"properties": {"b": {}}, "patternProperties": {SLOW: {}}}, {"b": 1, TEXT: 1}),
        # What `regex` does not take `re` must not be asked either.
        ({"pattern": SLOW + "|{e"}, TEXT),
        # A schema inside that names its draft, and one that leads back to such a root.
        ({"properties": {"a": {"$schema": DRAFT, "pattern": SLOW}}}, {"a": TEXT}),
        (
            {
                "$schema": DRAFT,
                "properties": {"a": {"$ref": "#"}, "b": {"pattern": SLOW}},
            },
            {"a": {"b": TEXT}},
        ),
    ],
)
def test_a_pattern_that_backtracks_without_end_is_given_up(quick, draft, schema, instance):
    with pytest.raises(TimeoutError):
        judge.validator_of(schema, draft).is_valid(instance)


@pytest.mark.parametrize("draft", ["2019-09", "2020-12"])
@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {SLOW: True}},
        {"$ref": "#/$defs/x", "$defs": {"x": {"patternProperties": {SLOW: True}}}},
    ],
)
def test_so_is_one_that_says_which_keys_were_evaluated(quick, draft, schema):
    # First in the schema: nothing else has looked at the pattern before.
    validator = judge.validator_of({"unevaluatedProperties": False, **schema}, draft)
    with pytest.raises(TimeoutError):
        validator.is_valid({TEXT: 1})


def test_a_schema_that_takes_for_ever_without_any_pattern_is_given_up():
    prepared = prepare(diamonds(60))
    assert prepared.verdict != "refused"
    with Patience(0.05).spent(), pytest.raises(TimeoutError):
        prepared.is_valid("x")


def test_the_guard_comes_to_an_end(quick):
    (call,) = calls_of("hermes", [{"a": "x"}])
    pieces = [call.encode()]
    guard = Guard({"f": prepare(diamonds_below("a"))}, format="hermes")
    verdict = guard.check(pieces)
    assert [failure.kind for failure in verdict.failures] == ["unjudged"]
    assert verdict.gives_up


def diamonds_below(key):
    schema = diamonds(60)
    return {
        "type": "object",
        "properties": {key: {"$ref": schema["$ref"]}},
        "$defs": schema["$defs"],
    }


def calls_of(name, arguments):
    return [
        FORMATS[name].render(
            [{"id": "functions.f:0", "function": {"name": "f", "arguments": json.dumps(one)}}]
        )
        for one in arguments
    ]


def tool(parameters):
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


XML = ["qwen3_coder", "glm_4_7", "minimax", "kimi_k3"]


@pytest.mark.parametrize("name", XML)
def test_all_values_of_a_completion_share_the_time(quick, monkeypatch, name):
    asked, search = [], patterns._compiled
    monkeypatch.setattr(patterns, "_compiled", lambda p: asked.append(p) or search(p))
    keys = [f"k{i}" for i in range(40)]
    declared = {"type": "object", "properties": {k: {"pattern": SLOW} for k in keys}}
    (text,) = calls_of(name, [dict.fromkeys(keys, TEXT)])
    parsed = FORMATS[name].parse(text, [tool(declared)])
    (read,) = parsed.tool_calls
    assert json.loads(read["function"]["arguments"]) == dict.fromkeys(keys, TEXT)
    assert 0 < len(asked) < len(keys)


@pytest.mark.parametrize("name", [*XML, "kimi_k2", "deepseek_v3_2"])
def test_reading_a_call_fetches_nothing(monkeypatch, name):
    opened = []

    def refuse(*args, **kwargs):
        opened.append(args)
        raise OSError

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("socket.create_connection", refuse)
    far = {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}}
    (text,) = calls_of(name, [{"a": "5"}])
    FORMATS[name].parse(text.replace("functions.f:0", "other"), [tool(far)])
    assert not opened


KEY = st.sampled_from(["a", "ab", "b", "x", "type"])
VALUE = st.sampled_from([None, True, 0, 1, "a", "ab", "", [], {}, {"a": 1}])
LEAF = st.sampled_from(
    [True, False, {}, {"type": "integer"}, {"type": "object"}, {"pattern": "^a"}, {"const": 1}]
)


def bigger(inner):
    named = st.dictionaries(KEY, inner, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": named,
            "patternProperties": st.dictionaries(
                st.sampled_from(["^a", "b$", "a|x"]), inner, max_size=2
            ),
            "additionalProperties": inner,
            "unevaluatedProperties": inner,
            "dependentSchemas": named,
            "propertyNames": st.sampled_from([{"pattern": "a"}, True]),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "if": inner,
            "then": inner,
            "else": inner,
            "not": inner,
            "$ref": st.sampled_from(["#/$defs/d", "#/$defs/e"]),
        },
    )


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(sorted(CLASSES)),
    st.recursive(LEAF, bigger, max_leaves=6),
    bigger(LEAF),
    bigger(LEAF),
    st.lists(st.dictionaries(KEY, VALUE, max_size=3) | VALUE, min_size=1, max_size=4),
)
def test_verdicts_are_jsonschemas(draft, schema, d, e, instances):
    schema = {"allOf": [schema], "$defs": {"d": d, "e": e}, "unevaluatedProperties": False}
    theirs, ours = CLASSES[draft](schema), judge.validator_of(schema, draft)
    for instance in instances:
        assert verdict(ours, instance) == verdict(theirs, instance)


def verdict(validator, instance):
    try:
        return validator.is_valid(instance)
    except RecursionError:
        return "endless"


@pytest.mark.parametrize("draft", CLASSES)
def test_messages_are_jsonschemas(draft):
    schema = {
        "properties": {"a": {"pattern": "^x"}},
        "patternProperties": {"^p": {"type": "null"}},
        "additionalProperties": False,
    }
    for instance in ({"a": "y"}, {"p": 1}, {"q": 1}, {"q": 1, "r": 2}):
        ours = judge.validator_of(schema, draft).iter_errors(instance)
        theirs = CLASSES[draft](schema).iter_errors(instance)
        assert [(e.message, e.json_path, e.validator) for e in ours] == [
            (e.message, e.json_path, e.validator) for e in theirs
        ]


# Where `regex` gives a meaning to what `re` takes as it stands, and all around it.
MEANINGS = [
    "^a+$",
    "a|b",
    r"\d{2}",
    r"^\w*-\w*$",
    "[^x]",
    r"\u00e9",
    "(?:ab){e<=1}",
    "a{e}",
    "a{2}{e}",
    "{a}|{",
    "a{,2}b",
    "a{1,}b",
    "{}",
    "[[:alpha:]]",
    "[[ab]",
    "[]a]",
    "[^]a]",
    r"\[[{]",
    r"[\]{]e",
    r"a\{e\}",
    "[a&&b]",
    "[a||b]",
    "(?x) a # [\n b",
    r"\N{DIGIT ONE}",
]


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(MEANINGS), st.text("ab1{}[]:e,<=&|-é", max_size=8) | st.text(max_size=8))
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_patterns_mean_what_they_mean_to_re(pattern, text):
    assert found(pattern, text) == (re.search(pattern, text) is not None)


def test_a_key_that_a_pattern_takes_too_long_on_is_refused(quick):
    schema = {"properties": {TEXT: {}}, "patternProperties": {SLOW: {"type": "null"}}}
    prepared = prepare(schema)
    assert prepared.verdict == "refused"
    assert "simplify the pattern" in prepared.reasons[0].message


def test_a_group_named_as_in_javascript_is_told_from_a_key():
    schema = {
        "properties": {"ab": {"type": "null"}, "b": {"type": "null"}},
        "patternProperties": {"^(?<first>a)": {"enum": [None, 1]}},
    }
    prepared = prepare(schema)
    assert prepared.verdict in ("exact", "rewritten")
    assert prepared.is_valid({"ab": None})


def test_a_full_stack_in_rust_is_an_exception():
    """pyo3's class is no Exception, and is not to be had by import."""
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(RecursionError, match="nests too deeply: full"), Patience().spent():
        raise panic("full")
    with pytest.raises(KeyboardInterrupt), Patience().spent():
        raise KeyboardInterrupt
