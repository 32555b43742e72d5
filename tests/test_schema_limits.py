"""Hostile schemas: each ends in a verdict within its limits, and the grammar of it compiles."""

import json
import tracemalloc

import pytest

from grammar.schema import Options, prepare
from tests.test_schema_masks import compiled, takes


def nested(depth, leaf):
    schema = leaf
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def nested_all_of(depth):
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"anyOf": [{"allOf": [schema, schema]}, {"allOf": [schema, {"minimum": 1}]}]}
    return schema


def diamonds(count):
    """Each definition leads twice to the next: 2^count paths."""
    definitions = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]}
        for i in range(count)
    }
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{count}": {"type": "string"}}}


HOSTILE = {
    "deep": nested(5000, {}),
    "just deep enough": nested(95, {"type": "string"}),
    "deep arrays": json.loads("[" * 900 + "]" * 900),
    "allOf of anyOf of allOf": nested_all_of(7),
    "anyOf times anyOf": {
        "allOf": [
            {"anyOf": [{"properties": {f"{i}{j}": {"const": j}}} for j in range(8)]}
            for i in range(12)
        ]
    },
    "oneOf of many overlapping objects": {
        "oneOf": [
            {"properties": {k: {"type": "string"} for k in f"abcdefgh{i}"}, "required": [str(i)]}
            for i in range(60)
        ]
    },
    "not of not of oneOf": {
        "not": {"not": {"oneOf": [{"properties": {str(i): {"minimum": i}}} for i in range(20)]}}
    },
    "dependencies of all on all": {
        "dependentRequired": {str(i): [str(j) for j in range(15)] for i in range(15)}
    },
    "diamonds": diamonds(60),
    "an enum of many": {"enum": [f"value {i}" for i in range(3_000)]},
    "an enum larger than allowed": {"enum": ["x" * 1000] * 1500},
    "many properties": {"properties": {f"key{i}": {"type": "integer"} for i in range(2000)}},
    "long keys": {"properties": {"k" * 2000 + str(i): {} for i in range(3)}},
    "recursive in every way": {
        "properties": {"a": {"$ref": "#"}, "b": {"allOf": [{"$ref": "#"}, {"required": ["a"]}]}},
        "items": {"anyOf": [{"$ref": "#"}, {"not": {"$ref": "#"}}]},
    },
    "a pattern that backtracks": {"pattern": "^(a+)+$", "enum": ["a" * 40 + "b", "aa"]},
    "a pattern that grows": {"allOf": [{"pattern": f"[ab]{{{i}}}a.{{30}}c"} for i in range(9)]},
    "counts within counts": {"type": "string", "pattern": "^((a{1,99}b){1,99}c){1,99}$"},
    "a huge count": {"type": "string", "minLength": 10**12},
    "a huge range": {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
    "a tiny step": {"type": "number", "multipleOf": 1e-300, "minimum": 0, "maximum": 1},
    "many patterns": {"patternProperties": {f"{c}{d}": {} for c in "abcdef" for d in "abcdef"}},
    "many items": {"prefixItems": [{"type": "integer"}] * 300, "minItems": 300, "maxItems": 10**9},
    "a Windows line of escapes": {"properties": {'\\"\n\u0000' * 50: {"const": '\\"\n\u0000'}}},
}


@pytest.mark.parametrize("target", ["schema", "grammar"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_ends_in_a_verdict(name, target):
    tracemalloc.start()
    options = Options(target=target, undeclared_keys="allow", max_seconds=1.0)
    prepared = prepare(HOSTILE[name], options=options)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300 * 2**20
    if prepared.verdict == "refused":
        assert prepared.reasons[0].message
    else:
        compiled(prepared)


def test_each_limit_is_named_in_its_error():
    for options, schema, word in (
        (Options(max_bytes=100), {"enum": ["x" * 200]}, "max_bytes = 100"),
        (Options(max_depth=5), nested(30, {}), "deeper than 5"),
        (Options(max_growth=10), nested_all_of(6), "max_growth"),
        (Options(max_seconds=0.0), HOSTILE["oneOf of many overlapping objects"], "max_seconds"),
    ):
        prepared = prepare(schema, options=options)
        assert prepared.verdict == "refused"
        assert word in prepared.reasons[0].message


def test_what_outgrows_one_reading_is_guarded_by_a_coarser_one():
    prepared = prepare(HOSTILE["oneOf of many overlapping objects"])
    assert prepared.verdict == "guarded"
    assert any(r.keyword == "oneOf" and r.kind == "guarded" for r in prepared.reasons)


def test_nothing_is_fetched(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("socket.create_connection", refuse)
    schema = {"properties": {"a": {"$ref": "http://127.0.0.1/schema.json"}}}
    prepared = prepare(schema)
    assert prepared.verdict == "refused"
    with pytest.raises(Exception, match=r"http://127\.0\.0\.1/schema\.json"):
        prepared.is_valid({"a": 1})


def test_published_metaschemas_are_known():
    prepared = prepare({"$ref": "http://json-schema.org/draft-07/schema#"})
    assert prepared.verdict in ("rewritten", "guarded")
    grammar = compiled(prepared)
    assert takes(grammar, '{"type": "object"}')
    assert not takes(grammar, '{"type": 5}')
