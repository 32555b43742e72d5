"""``grammar.schema`` on schemas drawn at random: jsonschema judges what each grammar can write.

The schemas hold every keyword that is rewritten, in combination. Whatever the masks of an exact or
a rewritten schema allow must validate; every valid value must be allowed where keys may come in any
order, but for the spellings that are documented as narrower.
"""

import json
import random
import re

import pytest
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar.schema import Options, prepare
from tests.test_schema_masks import EOS, compiled, takes

KEYS = ["a", "b", "xa"]
TEXTS = ["", "a", "ab", "xa", "b-1", 'q"']
VALUES = [None, True, 0, 1, -3, 2.5, "a", "ab", [], [1], {}, {"a": 1}]


def schemas(rng, depth, refs=True):
    """A schema of a few keywords."""
    if depth == 0:
        return rng.choice(
            [{}, True, {"type": "integer"}, {"type": "string"}, {"const": "a"}, {"enum": [1, "b"]}]
        )

    def deeper():
        return schemas(rng, depth - 1)

    def some(of, low=1):
        return rng.sample(of, rng.randint(low, len(of)))

    keywords = {
        "type": lambda: rng.choice(["object", "array", "string", "integer", ["string", "null"]]),
        "enum": lambda: some(VALUES),
        "const": lambda: rng.choice(VALUES),
        "minimum": lambda: rng.randint(-2, 2),
        "exclusiveMaximum": lambda: rng.randint(1, 4),
        "multipleOf": lambda: rng.choice([2, 3, 0.5]),
        "minLength": lambda: rng.randint(0, 2),
        "maxLength": lambda: rng.randint(1, 3),
        "pattern": lambda: rng.choice(["^a", "b$", "^[a-z]+$", "x|1", "^(?!a)"]),
        "properties": lambda: {k: deeper() for k in some(KEYS)},
        "required": lambda: some(KEYS),
        "additionalProperties": lambda: rng.choice([False, deeper()]),
        "patternProperties": lambda: {rng.choice(["^x", "a$"]): deeper()},
        "propertyNames": lambda: rng.choice([{"maxLength": 1}, {"pattern": "a"}]),
        "minProperties": lambda: rng.randint(0, 2),
        "maxProperties": lambda: rng.randint(1, 3),
        "dependentRequired": lambda: {rng.choice(KEYS): some(KEYS)},
        "dependentSchemas": lambda: {rng.choice(KEYS): deeper()},
        "items": deeper,
        "prefixItems": lambda: [deeper() for _ in range(rng.randint(1, 2))],
        "minItems": lambda: rng.randint(0, 2),
        "maxItems": lambda: rng.randint(1, 3),
        "uniqueItems": lambda: True,
        "contains": deeper,
        "allOf": lambda: [deeper() for _ in range(2)],
        "anyOf": lambda: [deeper() for _ in range(2)],
        "oneOf": lambda: [deeper() for _ in range(2)],
        "not": deeper,
        "if": deeper,
        "$ref": lambda: rng.choice(["#/$defs/d", "#/$defs/e"]),
    }
    chosen = rng.sample(sorted(keywords if refs else keywords.keys() - {"$ref"}), rng.randint(1, 4))
    schema = {k: keywords[k]() for k in chosen}
    if "if" in schema:
        schema |= {"then": deeper(), "else": deeper()}
    return schema


def draw(rng):
    schema = schemas(rng, 2)
    if isinstance(schema, dict):
        schema["$defs"] = {
            "d": schemas(rng, 1, refs=False),
            "e": {"type": "object", "properties": {"a": {"$ref": "#/$defs/e"}, "b": {}}},
        }
    return schema


def walk(grammar, rng, steps=120):
    """A text that the masks allow, or None where it did not come to an end."""
    matcher = xgrammar.GrammarMatcher(grammar)
    mask = xgrammar.allocate_token_bitmask(1, EOS + 1)
    written = []
    for step in range(steps):
        matcher.fill_next_token_bitmask(mask)
        words = mask[0].tolist()
        allowed = [i for i in range(EOS + 1) if words[i // 32] >> i % 32 & 1]
        assert allowed, f"no way on from {bytes(written)!r}"
        closing = [i for i in allowed if i == EOS or chr(i) in '"]}']
        # Later steps lean towards an end.
        likely = closing if closing and rng.random() < 0.2 + step / steps else allowed
        token = rng.choice(likely)
        assert matcher.accept_token(token)
        if token == EOS:
            return bytes(written).decode(errors="replace")
        written.append(token)
    return None


def values(rng, depth=2):
    """A JSON value near those that the schemas speak of."""
    kind = rng.randrange(5 if depth else 3)
    if kind == 0:
        return rng.choice(VALUES)
    if kind == 1:
        return rng.choice(TEXTS)
    if kind == 2:
        return rng.choice([-4, -1, 0, 1, 2, 3, 6, 0.5, 1.5])
    if kind == 3:
        return [values(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {k: values(rng, depth - 1) for k in rng.sample([*KEYS, "z"], rng.randint(0, 3))}


def beyond_a_schema(schema, text):
    """Whether xgrammar refuses a valid text for its spelling: keys out of order, escapes, or spaces
    within a value that the schema lists."""
    several = re.search(r'\\|"[^"]*":.*"[^"]*":', text)
    listed = re.search(r'"(const|enum)"', json.dumps(schema)) and re.search(r"[\[{].", text)
    return several or listed


@pytest.mark.parametrize("undeclared_keys", ["allow", "forbid"])
@pytest.mark.parametrize("target", ["schema", "grammar"])
def test_whatever_an_exact_or_rewritten_grammar_writes_is_valid(target, undeclared_keys):
    ended = counted = 0
    for seed in range(110):
        rng = random.Random(f"{target} {undeclared_keys} {seed}")
        schema = draw(rng)
        prepared = prepare(schema, options=Options(target=target, undeclared_keys=undeclared_keys))
        if prepared.verdict == "refused":
            assert prepared.reasons[0].message == "no value satisfies it"
            continue
        grammar = compiled(prepared)
        for _ in range(4):
            text = walk(grammar, rng)
            if text is None:
                continue
            value = json.loads(text)
            ended += 1
            if prepared.verdict != "guarded":
                counted += 1
                assert prepared.is_valid(value), (schema, text)
    assert ended > 150
    assert counted > 100


@pytest.mark.parametrize("target", ["schema", "grammar"])
def test_invalid_values_are_taken_by_guarded_grammars_alone_and_valid_ones_by_all(target):
    taken = refused = 0
    for seed in range(130):
        rng = random.Random(f"values {target} {seed}")
        schema = draw(rng)
        options = Options(target=target, undeclared_keys="allow", key_order="any")
        prepared = prepare(schema, options=options)
        grammar = None if prepared.verdict == "refused" else compiled(prepared)
        for _ in range(12):
            value = values(rng)
            text = json.dumps(value)
            valid = prepared.is_valid(value)
            takes_it = grammar is not None and takes(grammar, text)
            if takes_it and not valid:
                assert prepared.verdict == "guarded", (schema, text)
            narrow = target == "schema" and beyond_a_schema(schema, text)
            if valid and not takes_it:
                assert narrow, (schema, text)
            taken += takes_it
            refused += not valid
    assert taken > 200
    assert refused > 400


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_prepared_schema_allows_nothing_that_the_original_refuses(rng):
    schema = draw(rng)
    prepared = prepare(schema, options=Options(undeclared_keys="allow"))
    if prepared.verdict not in ("exact", "rewritten"):
        return
    rewritten = prepare(prepared.schema, options=Options(undeclared_keys="allow"))
    for _ in range(15):
        value = values(rng)
        # By jsonschema alone, on both sides.
        if rewritten.is_valid(value):
            assert prepared.is_valid(value), (schema, prepared.schema, value)


def test_preparing_twice_says_the_same():
    for seed in range(60):
        schema = draw(random.Random(f"twice {seed}"))
        for target in ("schema", "grammar"):
            options = Options(target=target, undeclared_keys="allow")
            assert prepare(schema, options=options) == prepare(schema, options=options)
