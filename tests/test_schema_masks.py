"""``grammar.schema``: each row of the table of what xgrammar drops, on the mask.

A text is taken if, byte by byte, the mask allows it and allows the end after it. What is right and
what is wrong is stated here by hand, or taken from jsonschema.
"""

import functools
import json

import jsonschema
import pytest
import xgrammar

from grammar.schema import Options, SchemaError, prepare, require

EOS = 256
BYTES = xgrammar.TokenizerInfo(
    [bytes([i]) for i in range(256)] + [b"</s>"],
    vocab_type=xgrammar.VocabType.RAW,
    stop_token_ids=[EOS],
)
COMPILER = xgrammar.GrammarCompiler(BYTES, max_threads=1)
TARGETS = pytest.mark.parametrize("target", ["schema", "grammar"])


def compiled(prepared):
    """The grammar of a prepared schema, over single bytes."""
    if prepared.grammar is not None:
        return COMPILER.compile_grammar(xgrammar.Grammar.from_ebnf(prepared.grammar))
    return COMPILER.compile_json_schema(json.dumps(prepared.schema), max_whitespace_cnt=2)


def takes(compiled_grammar, text):
    """Whether the masks allow a text and its end."""
    matcher = xgrammar.GrammarMatcher(compiled_grammar)
    mask = xgrammar.allocate_token_bitmask(1, EOS + 1)
    for token in [*text.encode(), EOS]:
        matcher.fill_next_token_bitmask(mask)
        if not mask[0, token // 32].item() >> token % 32 & 1:
            return False
        assert matcher.accept_token(token)
    return matcher.is_terminated()


@functools.cache
def prepared_for(schema_text, target, undeclared_keys="allow", **more):
    options = Options(target=target, undeclared_keys=undeclared_keys, **more)
    return prepare(json.loads(schema_text), options=options)


def check(schema, target, right, wrong, **options):
    prepared = prepared_for(json.dumps(schema), target, **options)
    require(prepared, "the schema of this test")
    grammar = compiled(prepared)
    for text in right:
        assert prepared.is_valid(json.loads(text)), text
        assert takes(grammar, text), text
    for text in wrong:
        if takes(grammar, text):
            assert prepared.verdict == "guarded", f"{text} is taken and the verdict is not guarded"
            assert not prepared.is_valid(json.loads(text)), text
    return prepared


OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
CLOSED = OBJECT | {"additionalProperties": False}

# Situation: schema, texts that are valid, texts that xgrammar alone takes and jsonschema refuses.
ENFORCED = {
    "siblings of anyOf": (
        CLOSED | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":1}', '{"b":"x"}', '{"a":1,"b":"x"}'],
        ["{}", "5", '{"a":"x"}', '{"c":1}'],
    ),
    "siblings of oneOf": (
        CLOSED | {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":1}', '{"b":"x"}'],
        ["{}", '{"a":1,"b":"x"}', "7"],
    ),
    "siblings of allOf": (
        {"type": "object", "required": ["a"], "allOf": [OBJECT]},
        ['{"a":1}'],
        ["{}", "5", '{"a":"x"}'],
    ),
    "siblings of $ref": (
        {"$ref": "#/$defs/o", "required": ["a"], "$defs": {"o": OBJECT}},
        ['{"a":1}'],
        ["{}", '{"a":"x"}'],
    ),
    "siblings of enum": ({"enum": [1, "x", None], "type": "string"}, ['"x"'], ["1", "null"]),
    "siblings of const": ({"const": 5, "maximum": 7, "type": "integer"}, ["5"], ["6", '"5"']),
    "enum outside its bounds": ({"enum": [1, 5, 9], "minimum": 4}, ["5", "9"], ["1"]),
    "allOf with two branches": (
        {"allOf": [OBJECT, {"required": ["b"]}, {"properties": {"a": {"minimum": 3}}}]},
        ['{"a":3,"b":"x"}', '{"b":"x"}'],
        ["{}", '{"a":2,"b":"x"}', '{"a":1}'],
    ),
    "oneOf overlapping": (
        {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 9}]},
        ["10", "-1"],
        ["0", "5", "9"],
    ),
    "oneOf by a tag": (
        {
            "oneOf": [
                {"properties": {"k": {"const": "i"}, "v": {"type": "integer"}}, "required": ["k"]},
                {"properties": {"k": {"const": "s"}, "v": {"type": "string"}}, "required": ["k"]},
            ],
            "type": "object",
        },
        ['{"k":"i","v":1}', '{"k":"s","v":"x"}'],
        ['{"k":"i","v":"x"}', '{"k":"s","v":1}', '{"k":"z"}', "{}"],
    ),
    "not with required": (
        OBJECT | {"not": {"required": ["a", "b"]}},
        ["{}", '{"a":1}', '{"b":"x"}'],
        ['{"a":1,"b":"x"}'],
    ),
    "not with enum": (
        {"type": "string", "not": {"enum": ["no", "never"]}},
        ['"yes"', '"n"', '"nope"', '"nevermore"', '""'],
        ['"no"', '"never"'],
    ),
    "not with type": ({"not": {"type": ["string", "array"]}}, ["1", "{}", "null"], ['"x"', "[]"]),
    "not with bounds": ({"type": "integer", "not": {"minimum": 3}}, ["2", "-9"], ["3", "4"]),
    "not with pattern": ({"type": "string", "not": {"pattern": "^a"}}, ['"b"', '""'], ['"ab"']),
    "if and then": (
        {
            "type": "object",
            "properties": {"kind": {"enum": ["x", "y"]}, "n": {"type": "integer"}},
            "required": ["kind"],
            "if": {"properties": {"kind": {"const": "x"}}},
            "then": {"required": ["n"]},
            "else": {"properties": {"n": {"maximum": 0}}},
        },
        ['{"kind":"x","n":4}', '{"kind":"y"}', '{"kind":"y","n":0}'],
        ['{"kind":"x"}', '{"kind":"y","n":1}'],
    ),
    "dependentRequired": (
        OBJECT | {"dependentRequired": {"a": ["b"]}},
        ["{}", '{"b":"x"}', '{"a":1,"b":"x"}'],
        ['{"a":1}'],
    ),
    "dependentSchemas": (
        OBJECT | {"dependentSchemas": {"a": {"properties": {"b": {"const": "y"}}}}},
        ['{"b":"x"}', '{"a":1,"b":"y"}'],
        ['{"a":1,"b":"x"}'],
    ),
    "required key absent from properties": (
        {"type": "object", "required": ["z"], "properties": {"a": {"type": "integer"}}},
        ['{"z":1}', '{"a":1,"z":null}'],
        ["{}", '{"a":1}'],
    ),
    "patternProperties over a property": (
        {
            "type": "object",
            "properties": {"xa": {"minimum": 5}},
            "patternProperties": {"^x": {"type": "integer"}},
            "additionalProperties": False,
        },
        ['{"xa":7}', '{"xb":1}'],
        ['{"xa":"s"}', '{"xa":3}', '{"xb":"s"}', '{"y":1}'],
    ),
    "patternProperties over each other": (
        {
            "type": "object",
            "patternProperties": {"^x": {"type": "integer"}, "y$": {"minimum": 5}},
            "additionalProperties": False,
        },
        ['{"xa":1}', '{"xy":7}', '{"ay":"s"}'],
        ['{"xy":1}', '{"xy":"s"}', '{"xa":"s"}', '{"a":1}'],
    ),
    "propertyNames with properties": (
        OBJECT | {"propertyNames": {"maxLength": 2}},
        ['{"a":1}', '{"zz":1}'],
        ['{"zzz":1}', '{"a":"x"}'],
    ),
    "a bound with no type": ({"minimum": 5}, ["5", '"x"', "null", "{}"], ["1", "4.9"]),
    "a length with no type": ({"maxLength": 2}, ['"ab"', "12345"], ['"abc"']),
    "multiples without a bound": (
        {"type": "integer", "multipleOf": 7},
        ["0", "-14", "7000007"],
        ["1", "-15", "7000008"],
    ),
    "integer multipleOf beyond 1024": (
        {"type": "integer", "multipleOf": 5000, "minimum": 1, "maximum": 20000},
        ["5000", "20000"],
        ["1", "5001", "25000"],
    ),
    "integer with a fractional step": (
        {"type": "integer", "multipleOf": 2.5, "minimum": 0, "maximum": 20},
        ["0", "5", "20"],
        ["2", "4"],
    ),
    "pattern with a length": (
        {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3},
        ['"ab"', '"abc"'],
        ['"a"', '"abcd"', '"AB"'],
    ),
    "format with a length": (
        {"type": "string", "format": "ipv4", "maxLength": 9},
        ['"10.0.0.1"'],
        ['"192.168.100.100"', '"x"'],
    ),
    "lookahead": (
        {"type": "string", "pattern": "^(?!\\.)(?!.*\\.\\.)[a-z.]+@[a-z]+$"},
        ['"a.b@c"'],
        ['".a@c"', '"a..b@c"'],
    ),
    "pattern not anchored": ({"type": "string", "pattern": "b"}, ['"abc"', '"b"'], ['"ac"']),
    "pattern with an alternative not in brackets": (
        {"type": "string", "pattern": "^a$|^b"},
        ['"a"', '"b"', '"bc"'],
        ['"ab"', '"c"'],
    ),
    "negated classes of letters and digits": (
        {"type": "string", "pattern": "^\\W\\D\\S$"},
        ['"-x-"'],
        ['"éxx"', '"-٣x"', '"-x\u2003"'],
    ),
    "pattern with a control character": (
        {"type": "string", "pattern": "^a.?b$"},
        ['"ab"', '"a b"'],
        ['"a\tb"', '"a\nb"'],
    ),
    "$anchor": (
        {"$ref": "#i", "$defs": {"x": {"$anchor": "i", "type": "integer"}}},
        ["1"],
        ['"x"', "{}"],
    ),
    "an absolute $ref to an $id inside": (
        {
            "$id": "https://example.com/root",
            "$ref": "https://example.com/leaf",
            "$defs": {"x": {"$id": "leaf", "type": "integer"}},
        },
        ["1"],
        ['"x"'],
    ),
    "$dynamicRef with one place to go": (
        {"$dynamicRef": "#i", "$defs": {"x": {"$dynamicAnchor": "i", "type": "integer"}}},
        ["1"],
        ['"x"'],
    ),
    "a declared key spelled with escapes": (
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        ['{"a":1}', '{"z":"x"}'],
        ['{"\\u0061":"x"}', '{"a":"x"}'],
    ),
    "false under a key": (
        {"type": "object", "properties": {"a": False, "b": {}}},
        ["{}", '{"b":1}', '{"c":1}'],
        ['{"a":1}'],
    ),
    "fractional integer bounds": (
        {"type": "integer", "minimum": 1.5, "maximum": 3.5},
        ["2", "3"],
        ["1", "4"],
    ),
    "true in prefixItems": (
        {"type": "array", "prefixItems": [True, {"type": "integer"}], "items": False},
        ['["x",1]', "[null]", "[]"],
        ['["x","y"]', "[1,2,3]"],
    ),
    "minLength written as a float": ({"type": "string", "minLength": 2.0}, ['"ab"'], ['"a"']),
    "maxItems below prefixItems": (
        {"type": "array", "prefixItems": [{"type": "integer"}] * 3, "maxItems": 1},
        ["[]", "[1]"],
        ["[1,2]", '["x"]'],
    ),
    "items that nothing satisfies": ({"type": "array", "items": False}, ["[]"], ["[1]"]),
    "minProperties of undeclared keys": (
        {"type": "object", "minProperties": 1, "maxProperties": 2},
        ['{"a":1}', '{"a":1,"b":2}'],
        ["{}", '{"a":1,"b":2,"c":3}'],
    ),
    "oneOf of types": ({"oneOf": [{"type": "string"}, {"type": "null"}]}, ['"x"', "null"], ["1"]),
    "recursion": (
        {"type": "object", "properties": {"n": {"$ref": "#"}}, "additionalProperties": False},
        ["{}", '{"n":{"n":{}}}'],
        ['{"n":1}', '{"n":{"m":1}}'],
    ),
    "recursion through allOf": (
        {
            "$defs": {"t": {"properties": {"c": {"type": "array", "items": {"$ref": "#"}}}}},
            "allOf": [{"$ref": "#/$defs/t"}, {"type": "object", "required": ["v"]}],
        },
        ['{"v":1}', '{"c":[{"v":1}],"v":2}'],
        ["{}", '{"c":[{}],"v":2}', '{"c":1,"v":2}'],
    ),
    "bounds beyond 2^53": (
        {"type": "integer", "minimum": 9007199254740993},
        ["9007199254740993", "9223372036854775000"],
        ["9007199254740992", "1"],
    ),
}

# What the rules of a grammar enforce, and no schema for xgrammar does.
GRAMMAR_ONLY = {
    "uniqueItems over a few values": (
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
        ["[]", '["b","a"]', '["c","a","b"]'],
        ['["a","a"]', '["a","b","a"]', '["d"]'],
    ),
    "contains": (
        {"type": "array", "contains": {"const": 5}, "items": {"type": "integer"}},
        ["[5]", "[1,5,2]", "[1,2,5]"],
        ["[]", "[1]", '["x",5]'],
    ),
    "contains within bounds": (
        {"type": "array", "contains": {"type": "string"}, "minItems": 2, "maxItems": 3},
        ['["x",1]', '[1,2,"x"]'],
        ['["x"]', "[1,2]", '[1,2,3,"x"]'],
    ),
    "escapes under a length": (
        {"type": "string", "maxLength": 3},
        ['"a\\nb"', '"\\"\\\\\\""', '"\\ud83d\\ude00ab"', '"\\u0041"', '"a\\/b"'],
        ['"\\n\\n\\n\\n"', '"abcd"', '"a\nb"', '"\\ud83d"'],
    ),
    "escapes under a pattern": (
        {"type": "string", "pattern": '^"[a-z]+"$'},
        ['"\\"abc\\""'],
        ['""abc""', '"abc"'],
    ),
    "a Windows path": (
        {"type": "string", "pattern": r"^[A-Z]:\\\w+$"},
        ['"C:\\\\data"'],
        ['"C:\\data"', '"C:data"'],
    ),
    "bounds beyond 2^63": (
        {"type": "integer", "minimum": 2**63, "maximum": 2**64},
        [str(2**63), str(2**64)],
        [str(2**63 - 1), str(2**64 + 1), "1"],
    ),
    "number multipleOf a half": ({"type": "number", "multipleOf": 0.5}, ["1.5", "2"], ["0.3"]),
    "integer multipleOf with one bound": (
        {"type": "integer", "multipleOf": 3, "minimum": 0},
        ["0", "9"],
        ["4", "-3"],
    ),
    "numbers that are not integers": (
        {"oneOf": [{"type": "integer"}, {"type": "number"}]},
        ["1.5", "-0.25"],
        ["1", "1.0", "-3"],
    ),
}


@TARGETS
@pytest.mark.parametrize("name", ENFORCED)
def test_what_xgrammar_drops_is_enforced(name, target):
    schema, right, wrong = ENFORCED[name]
    assert check(schema, target, right, wrong).verdict in ("exact", "rewritten")


@pytest.mark.parametrize("name", GRAMMAR_ONLY)
def test_the_grammar_enforces_what_a_schema_cannot_say(name):
    schema, right, wrong = GRAMMAR_ONLY[name]
    assert check(schema, "grammar", right, wrong).verdict in ("exact", "rewritten")
    texts = [t for t in right if takes(compiled(prepared_for(json.dumps(schema), "schema")), t)]
    assert len(texts) < len(right) or prepared_for(json.dumps(schema), "schema").verdict == (
        "guarded"
    )


GUARDED = {
    "uniqueItems at large": ({"type": "array", "uniqueItems": True}, "[1]", "[1,1]"),
    "minProperties of repeated keys": (
        {"type": "object", "minProperties": 2},
        '{"a":1,"b":2}',
        '{"z":1,"z":1}',
    ),
    "oneOf of integers and numbers": (
        {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}]},
        "5.5",
        "7",
    ),
    "multiples of a hundredth": ({"type": "number", "multipleOf": 0.01}, "0.25", "0.005"),
    "maxContains": ({"contains": {"const": 1}, "maxContains": 1}, "[1,2]", "[1,1]"),
    "not with items": ({"not": {"items": {"type": "string"}}}, "[1]", '["x"]'),
    "unevaluatedProperties beside allOf": (
        {"allOf": [OBJECT], "unevaluatedProperties": False},
        '{"a":1}',
        '{"z":1}',
    ),
}


@TARGETS
@pytest.mark.parametrize("name", GUARDED)
def test_what_no_grammar_enforces_is_guarded_and_judged(name, target):
    schema, right, wrong = GUARDED[name]
    prepared = check(schema, target, [right], [wrong])
    assert prepared.verdict == "guarded"
    assert any(r.kind == "guarded" for r in prepared.reasons)
    assert not prepared.is_valid(json.loads(wrong))


REFUSED = {
    "a reference to elsewhere": ({"$ref": "https://example.com/x.json"}, "#", "nothing is fetched"),
    "a reference to nowhere": (
        {"properties": {"a": {"$ref": "#/$defs/b"}}},
        "#/properties/a",
        "leads nowhere",
    ),
    "a reference with no hash": (
        {"properties": {"a": {"$ref": "/$defs/b"}}, "$defs": {"b": {}}},
        "#/properties/a",
        "leads out of the schema",
    ),
    "a reference to itself": (
        {"$ref": "#/$defs/n", "$defs": {"n": {"$ref": "#/$defs/n"}}},
        "#/$defs/n",
        "refers to itself",
    ),
    "an unknown type": ({"items": {"type": "dict"}}, "#/items", "aliases"),
    "an empty enum": ({"enum": []}, "#", "no value satisfies it"),
    "bounds that exclude each other": (
        {"type": "integer", "minimum": 5, "maximum": 4},
        "#",
        "no value satisfies it",
    ),
    "a tree that never ends": (
        {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]},
        "#",
        "no value satisfies it",
    ),
    "false": (False, "#", "no value satisfies it"),
    "a pattern that Python cannot read": (
        {"properties": {"a": {"pattern": "^\\p{L}$"}}},
        "#/properties/a",
        "not understood by Python",
    ),
    "a bound that is no number": ({"minimum": "5"}, "#", "must be a number"),
    "a length below zero": ({"maxLength": -1}, "#", "must not be negative"),
    "properties that are a list": ({"properties": []}, "#", "must be an object"),
    "required that is a string": ({"required": "a"}, "#", "must be a list"),
    "a schema that is a string": ({"properties": {"a": "string"}}, "#/properties/a", "boolean"),
    "no schema": ("x", "#", "a schema must be an object or a boolean"),
    "not JSON": ({"const": float("nan")}, "#", "must be JSON"),
}


@TARGETS
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_guaranteed_is_refused_with_its_place(name, target):
    schema, pointer, message = REFUSED[name]
    prepared = prepare(schema, options=Options(target=target))
    assert (prepared.verdict, prepared.schema, prepared.grammar) == ("refused", None, None)
    assert prepared.reasons[0].pointer == pointer
    assert message in prepared.reasons[0].message
    with pytest.raises(SchemaError, match="the schema of tool 'x' is refused at #"):
        require(prepared, "the schema of tool 'x'")


@pytest.mark.parametrize(
    ("draft", "schema", "right", "wrong"),
    [
        ("4", {"type": "integer", "minimum": 1, "exclusiveMinimum": True}, ["2"], ["1"]),
        ("4", {"const": 1}, ["2"], []),
        ("6", {"propertyNames": {"maxLength": 1}, "type": "object"}, ['{"a":1}'], ['{"ab":1}']),
        ("7", {"items": [{"type": "integer"}], "additionalItems": False}, ["[1]"], ["[1,2]"]),
        ("7", {"dependencies": {"a": ["b"]}, "type": "object"}, ['{"b":1}'], ['{"a":1}']),
        ("7", {"$ref": "#/definitions/d", "maximum": 3, "definitions": {"d": {}}}, ["9"], []),
        ("2019-09", {"items": [{"type": "integer"}]}, ["[1]"], ['["x"]']),
        (
            "2019-09",
            {"type": "object", "additionalProperties": {"$recursiveRef": "#"}},
            ['{"a":{"b":{}}}'],
            ['{"a":1}'],
        ),
        ("2020-12", {"prefixItems": [{"type": "integer"}]}, ["[1]"], ['["x"]']),
        ("2020-12", {"dependencies": {"a": ["b"]}, "type": "object"}, ['{"a":1}'], []),
        (None, {"items": [{"type": "integer"}], "additionalItems": False}, ["[1]"], ["[1,2]"]),
        (None, {"type": "integer", "maximum": 5, "exclusiveMaximum": True}, ["4"], ["5"]),
        (None, {"dependencies": {"a": {"required": ["b"]}}, "type": "object"}, ["{}"], ['{"a":1}']),
        (
            None,
            {"$ref": "#/definitions/p/items/0", "definitions": {"p": {"items": [{"const": 1}]}}},
            ["1"],
            ["2"],
        ),
    ],
)
@TARGETS
def test_each_draft_is_read_as_its_validator_reads_it(draft, schema, right, wrong, target):
    check(schema, target, right, wrong, draft=draft)


def test_the_draft_is_taken_from_the_schema():
    uri = "http://json-schema.org/draft-04/schema#"
    prepared = prepare({"$schema": uri, "minimum": 1, "exclusiveMinimum": True, "type": "integer"})
    assert prepared.draft == "4"
    assert prepared.validator.META_SCHEMA == jsonschema.Draft4Validator.META_SCHEMA
    assert not takes(compiled(prepared), "1")


@TARGETS
def test_undeclared_keys_are_forbidden_unless_something_is_said_of_them(target):
    check(OBJECT, target, ['{"a":1}'], ['{"z":1}'][:0], undeclared_keys="forbid")
    grammar = compiled(prepared_for(json.dumps(OBJECT), target, "forbid"))
    assert not takes(grammar, '{"z":1}')
    for more in (
        {"additionalProperties": True},
        {"patternProperties": {"^z": {}}},
    ):
        assert takes(compiled(prepared_for(json.dumps(OBJECT | more), target, "forbid")), '{"z":1}')
    assert takes(compiled(prepared_for('{"type":"object"}', target, "forbid")), '{"z":1}')
    nothing = compiled(prepared_for('{"type":"object","properties":{}}', target, "forbid"))
    assert takes(nothing, "{}")
    assert not takes(nothing, '{"z":1}')


def test_forbidden_keys_are_those_that_no_part_of_a_combination_declares():
    schema = {"allOf": [OBJECT, {"properties": {"c": {}}}], "required": ["d"]}
    grammar = compiled(prepared_for(json.dumps(schema), "schema", "forbid"))
    assert takes(grammar, '{"a":1,"b":"x","c":2,"d":3}')
    assert not takes(grammar, '{"d":3,"e":1}')


def test_aliases_are_read_by_option_and_reported():
    schema = {
        "type": "dict",
        "properties": {
            "x": {"type": "float"},
            "any": {"type": "any"},
            "p": {"type": "tuple", "items": {"type": "int"}},
            "days": {"type": "array", "items": {"type": "string"}, "enum": ["mon", "tue"]},
        },
        "required": ["x"],
    }
    assert prepare(schema).verdict == "refused"
    prepared = check(
        schema,
        "schema",
        ['{"x":1.5,"any":null,"p":[1,2],"days":["mon"]}'],
        ["{}", '{"x":"1"}', '{"x":1,"p":["a"]}', '{"x":1,"days":["fri"]}'],
        aliases=True,
    )
    assert prepared.verdict == "rewritten"
    assert {r.pointer for r in prepared.reasons} == {
        *("#", "#/properties/x", "#/properties/any", "#/properties/p", "#/properties/p/items"),
        "#/properties/days",
    }
    # A property that is called `type` is no type.
    assert prepare({"properties": {"type": {"type": "string"}}}, options=Options(aliases=True))


ORDERS = {
    "few keys": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {}},
    "many keys": {k: {"type": "integer"} for k in "abcdefghij"},
}


@pytest.mark.parametrize("name", ORDERS)
def test_any_order_keeps_every_required_key_and_every_type(name):
    schema = {"type": "object", "properties": ORDERS[name], "required": ["a", "c"]}
    prepared = prepared_for(json.dumps(schema), "grammar", key_order="any")
    assert prepared.verdict == "exact"
    grammar = compiled(prepared)
    for text in ('{"c":1,"a":2}', '{"a":2,"c":1}', '{"z":0,"c":1,"y":0,"a":2,"x":0}'):
        assert takes(grammar, text), text
    for text in ('{"a":1,"a":2}', '{"a":1}', '{"c":1}', "{}", '{"c":1,"a":"x"}', '{"z":1,"a":1}'):
        assert not takes(grammar, text), text


def test_many_required_keys_come_in_their_order_with_the_optional_ones_anywhere():
    keys = [f"k{i}" for i in range(12)]
    properties = {k: {"type": "integer"} for k in keys} | {"o": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": keys}
    grammar = compiled(prepared_for(json.dumps(schema), "grammar", key_order="any"))
    members = [f'"{k}":1' for k in keys]
    for i in (0, 5, 12):
        assert takes(grammar, "{" + ",".join([*members[:i], '"o":"x"', *members[i:]]) + "}")
    assert not takes(grammar, "{" + ",".join(members[1:]) + "}")
    assert not takes(grammar, "{" + ",".join([*members, '"o":1']) + "}")


def test_exact_means_that_nothing_was_done():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    prepared = prepare(schema)
    assert (prepared.verdict, prepared.reasons) == ("exact", ())
    assert prepared.schema == schema | {"additionalProperties": False}
    assert prepared.original is schema


def test_a_broken_identifier_is_no_reason_to_refuse():
    for name in ("", "anyOf with refs", "#user", "http://[broken"):
        assert prepare({"$id": name, "type": "object"}).verdict == "exact"


@TARGETS
def test_formats_are_enforced_to_the_calendar(target):
    for name, right, wrong in (
        ("date", ["2024-02-29", "2023-12-31"], ["2023-02-29", "2023-13-01", "2023-04-31"]),
        ("date-time", ["2024-02-29T23:59:59Z"], ["2024-02-29", "2024-02-29T24:00:00Z"]),
        ("email", ["a.b@example.com"], ["a@", "@b", "a b@c.d"]),
        ("ipv4", ["1.2.3.4"], ["01.2.3.4", "256.1.1.1"]),
        ("ipv6", ["::1", "1:2:3:4:5:6:7:8"], ["1::2::3", ":::"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567"]),
        ("uri", ["https://example.com/a?b#c"], ["not a uri", "/path"]),
        ("hostname", ["a.example"], ["-a", "a" * 64]),
        ("time", ["10:00:00Z"], ["25:00:00Z"]),
        ("json-pointer", ["", "/a~1b"], ["a", "/~2"]),
        ("duration", ["P1DT2H"], ["P", "1D"]),
    ):
        grammar = compiled(prepared_for(json.dumps({"type": "string", "format": name}), target))
        for text in right:
            assert takes(grammar, json.dumps(text)), (name, text)
        for text in wrong:
            assert not takes(grammar, json.dumps(text)), (name, text)


def test_the_parts_of_a_tool_keep_their_place_as_properties():
    """The XML styles read the properties of the root."""
    schema = {
        "allOf": [{"properties": {"q": {"type": "string"}}}, {"required": ["q"]}],
        "type": "object",
    }
    prepared = prepare(schema)
    assert prepared.schema == {
        "type": "object",
        "properties": {"q": {"type": "string"}},
        "required": ["q"],
        "additionalProperties": False,
    }
