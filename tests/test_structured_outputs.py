"""vLLM's ``structured_outputs``: what each kind accepts, and what is refused, with its field."""

import json
import re

import jsonschema
import pytest

from grammar.compiler import Compiler, GrammarError
from grammar.formats import FORMATS
from grammar.guard import Guard
from grammar.plan_cache import FIELDS
from grammar.policy import plan
from grammar.schema import SchemaError
from grammar.tokenizer import tokenizer_info
from tests.test_formats_tag import accepts
from tests.test_grammar_vocabularies import byte_level, width
from tests.test_response_format import TOOL, all_of, call, verdicts

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
    "additionalProperties": False,
}
EBNF = 'root ::= greeting ", " name "!"\ngreeting ::= "Hi" | "Hello"\nname ::= [A-Z] [a-z]{1,5}\n'
LARK = 'start: greeting ", " NAME "!"\ngreeting: "Hi" | "Hello"\nNAME: /[A-Z][a-z]{1,5}/\n'
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<a"],
        "tags": [
            {
                "type": "tag",
                "begin": "<a>",
                "content": {"type": "json_schema", "json_schema": SCHEMA},
                "end": "</a>",
            }
        ],
    },
}
OLD_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}],
    "triggers": ["<a"],
}
KINDS = {
    "json": (
        SCHEMA,
        ['{"city": "Lima"}', '{"city":"a", "days": 3}'],
        ["", "Lima", '{"city": 5}', "{}"],
    ),
    "json_object": (True, ["{}", '{"a": [1, "é"]}'], ["[]", "5", ""]),
    "regex": (
        r"\d{3}-[a-c]+(x|yz)?",
        ["123-a", "000-abcyz"],
        ["", "12-a", "123-", "123-ax.", "a123-a"],
    ),
    "grammar": (EBNF, ["Hi, Bob!", "Hello, Zoe!"], ["Hi, bob!", "Hi, B!", "", "Hi, Bob!!"]),
    "choice": (
        ["yes", "yes, but", 'no "way"\n'],
        ["yes", "yes, but", 'no "way"\n'],
        ["", "no", "yess"],
    ),
    "structural_tag": (
        TAG,
        ["none", 'so <a>{"city": "x"}</a> it is', '<a>{"city":"x"}</a><a>{"city":"y"}</a>'],
        ["<a>5</a>", "<a>", '<a>{"city": "x"}'],
    ),
}


@pytest.mark.parametrize("name", ["hermes", "kimi_k2"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_each_kind_accepts(name, kind):
    value, good, bad = KINDS[kind]
    spellings = [{"structured_outputs": {kind: value}}]
    if kind in ("json", "regex", "grammar", "choice"):
        spellings.append({f"guided_{kind}": value})
    if kind in ("json", "structural_tag"):
        spellings.append({"structured_outputs": {kind: json.dumps(value)}})
    for body in spellings:
        assert all_of(verdicts(name, body, good))
        assert not any(verdicts(name, body, bad))


def test_the_old_form_of_a_structural_tag_is_the_new_one():
    _, good, bad = KINDS["structural_tag"]
    for body in ({"structured_outputs": {"structural_tag": OLD_TAG}}, {"response_format": OLD_TAG}):
        assert all_of(verdicts("hermes", body, good))
        assert not any(verdicts("hermes", body, bad))


def test_a_grammar_may_be_lark():
    _, good, bad = KINDS["grammar"]
    body = {"structured_outputs": {"grammar": LARK}}
    assert all_of(verdicts("hermes", body, good))
    assert not any(verdicts("hermes", body, bad))


def test_absent_kinds_are_absent():
    body = {"structured_outputs": {"json": None, "json_object": False, "choice": ["a"]}}
    assert verdicts("hermes", body | {"guided_json": None}, ["a", "{}"]) == [True, False]
    assert plan({"structured_outputs": None}, format="hermes").constraint is None


PATTERNS = [
    r"a|bc",
    r"^ab$",
    r"(?i)ab[c-e]",
    r"a.c",
    r"(?s)a.c",
    r"[^a]{2}",
    r"(?:ab){2,3}?c*",
    r"(?P<x>a)b",
    r"a\.\\\"\n",
    r"\w\d\s",
    r"(?!ab)[ab]{2}",
    r"^(?=.*b)[ab]{1,3}$",
    r"é+|😀",
    r"",
    r"(a|b|)c",
    r"a^b|c",
    r"a$b|c",
    r"\x41[\]\-^]",
]
TEXTS = [
    *["", "a", "b", "ab", "bc", "AB", "ABD", "abe", "abz", "abc", "a\nc", "a c", "axc"],
    *["bb", "ba", "aa", "b\n"],
    *["ababc", "abababcc", "ab", "abab", 'a.\\"\n', "a5 ", "a٣ ", "_0\t", "a5x"],
    *["é", "éé", "😀", "😀😀"],
    *["c", "ac", "bc", "a^b", "A]", "A-", "A^", "AB", "aab", "aaa", "ab\n"],
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_regex_accepts_what_python_matches_as_a_whole(pattern):
    body = {"structured_outputs": {"regex": pattern}}
    texts = list(dict.fromkeys(TEXTS))
    wanted = [re.fullmatch(pattern, text, re.ASCII) is not None for text in texts]
    assert [accepts(FORMATS["hermes"], False, body, text) for text in texts] == wanted


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(a", "it does not parse"),
        (r"(a)\1", "it uses groupref"),
        (r"\bcat\b", "it uses a word boundary"),
        ("a(?=b)c", "it looks ahead in the middle"),
        ("[^\\s\\S]", "it matches no text"),
        ("(?<=a)b", "it looks behind"),
        ("a{5,2}", "it does not parse"),
        ("(" * 3000 + "a" + ")" * 3000, "it"),
    ],
)
def test_a_regex_that_cannot_be_used_is_refused(pattern, why):
    with pytest.raises(ValueError, match=rf"^structured_outputs\.regex .* cannot be used: {why}"):
        plan({"structured_outputs": {"regex": pattern}}, format="hermes")


@pytest.mark.parametrize(
    "value",
    [
        {"regex": "\x7fab"},
        {"regex": "[\x7f-\x80][0-9a-f]b"},
        {"json": {"type": "string", "pattern": "^\x7fab$"}},
        {"json": {"type": "array", "uniqueItems": True, "items": {"enum": ["\x7fab"]}}},
        {"choice": ["\x7fab"]},
    ],
    ids=str,
)
def test_a_digit_after_an_escape_is_not_part_of_it(value):
    text = "\x7fab" if "json" not in value else '"\x7fab"'
    text = f"[{text}]" if "uniqueItems" in str(value) else text
    assert verdicts("hermes", {"structured_outputs": value}, [text, "\u7fab"]) == [True, False]


def compiler():
    tokenizer = byte_level(True)
    markers = FORMATS["hermes"].markers
    return Compiler(tokenizer_info(tokenizer, vocab_size=width(tokenizer), markers=markers))


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"grammar": 'root ::= "a'}, "structured_outputs.grammar"),
        ({"grammar": 'root ::= missing "a"'}, "structured_outputs.grammar"),
        ({"grammar": 'start ::= "a"'}, "structured_outputs.grammar"),
        ({"grammar": "start: missing"}, "structured_outputs.grammar"),
        ({"grammar": "nothing of the kind"}, "structured_outputs.grammar"),
        (
            {"structural_tag": {"format": TAG["format"] | {"triggers": ["<b"]}}},
            "structured_outputs.structural_tag",
        ),
        (
            {"structural_tag": {"format": {"type": "token", "token": "<no such token>"}}},
            "structured_outputs.structural_tag",
        ),
    ],
)  # fmt: skip
def test_what_does_not_compile_says_of_which_field(value, field):
    with pytest.raises(GrammarError, match=rf"^{re.escape(field)} cannot be compiled: \S") as error:
        compiler().compile(plan({"structured_outputs": value}, format="hermes"))
    assert ".cc:" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"structured_outputs": "json"}, "structured_outputs must be an object with one of json"),
        ({"structured_outputs": []}, "structured_outputs must be an object"),
        ({"structured_outputs": {}}, "must have exactly one of .*; got none"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "got json and regex"),
        ({"structured_outputs": {"jsn": {}}}, r"structured_outputs\.jsn is not supported"),
        (
            {"structured_outputs": {"json": {}, "whitespace_pattern": " "}},
            r"structured_outputs\.whitespace_pattern is not supported",
        ),
        ({"structured_outputs": {"json": 5}}, r"structured_outputs\.json must be a JSON Schema"),
        ({"structured_outputs": {"json": "{"}}, r"structured_outputs\.json must be JSON"),
        ({"structured_outputs": {"json_object": 1}}, "must be true or false; got 1"),
        ({"structured_outputs": {"regex": 5}}, r"structured_outputs\.regex must be a regular"),
        ({"structured_outputs": {"regex": "\ud800"}}, "has half of a surrogate pair"),
        ({"structured_outputs": {"grammar": ""}}, r"structured_outputs\.grammar must be a grammar"),
        ({"structured_outputs": {"choice": []}}, "a list of at least one string; got \\[\\]"),
        ({"structured_outputs": {"choice": ["a", 5]}}, r"outputs\.choice\[1\] must be a string"),
        ({"structured_outputs": {"choice": "ab"}}, r"structured_outputs\.choice must be"),
        ({"guided_choice": [None]}, r"guided_choice\[0\] must be a string"),
        ({"guided_regex": "("}, "guided_regex '\\(' cannot be used: it does not parse"),
        ({"structured_outputs": {"structural_tag": 5}}, "must be an object with format, or"),
        ({"structured_outputs": {"structural_tag": "<a>"}}, "structural_tag must be JSON"),
        ({"structured_outputs": {"structural_tag": {}}}, r"structural_tag\.format: Field required"),
        (
            {"structured_outputs": {"structural_tag": {"format": {"type": "tags"}}}},
            r"structured_outputs\.structural_tag\.format: .*'tags'",
        ),
        (
            {"structured_outputs": {"structural_tag": TAG | {"at_least_one": True}}},
            r"structured_outputs\.structural_tag\.at_least_one is not a field",
        ),
        (
            {"structured_outputs": {"structural_tag": OLD_TAG | {"triggers": "<a"}}},
            r"structural_tag\.triggers must be a list of strings",
        ),
        (
            {"structured_outputs": {"structural_tag": OLD_TAG | {"structures": [{}]}}},
            r"structural_tag\.structures\[0\] must have begin and end",
        ),
        ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "both constrain the answer"),
        (
            {"response_format": {"type": "json_object"}, "guided_choice": ["a"]},
            "response_format and guided_choice both constrain",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_meant(body, message):
    with pytest.raises(ValueError, match=message):
        plan(body, format="hermes")


def _chain(rules):
    return "\n".join(
        ["root ::= r0", *(f"r{n} ::= r{n + 1}" for n in range(rules - 2)), f'r{rules - 2} ::= "a"']
    )


def _any_of(*formats):
    return {"structural_tag": {"format": {"type": "or", "elements": list(formats)}}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"regex": "a" * 20_001}, r"\.regex must have at most 20,000 characters of regular exp"),
        ({"grammar": _chain(2_001)}, r"\.grammar must have at most 2,000 rules; got 2,001"),
        ({"grammar": 'root ::= "' + "a" * 2**18 + '"'}, "at most 262,144 characters of grammar"),
        ({"choice": ["a"] * 5_001}, "at most 5,000 strings; got 5,001"),
        (_any_of(*[{"type": "regex", "pattern": "a" * 10_001}] * 2), "20,000 characters of reg"),
        (_any_of({"type": "grammar", "grammar": _chain(2_001)}), "at most 2,000 rules"),
        (
            _any_of(
                {"type": "grammar", "syntax": "lark", "grammar": "// ::=\n" + "a: b\n" * 2_000}
            ),
            "at most 2,000 rules",
        ),
        (_any_of(*[{"type": "const_string", "value": "a"}] * 5_000), "at most 5,000 formats"),
    ],
)
def test_what_would_stop_the_process_is_refused(value, message):
    with pytest.raises(ValueError, match=message):
        plan({"messages": [], "structured_outputs": value}, format="hermes")


def test_a_schema_that_no_value_meets_is_refused_by_name():
    with pytest.raises(SchemaError, match=r"schema of structured_outputs\.json is refused at #"):
        plan({"structured_outputs": {"json": "false"}}, format="hermes")
    tag = json.loads(json.dumps(TAG))
    tag["format"]["tags"][0]["content"]["json_schema"] = {
        "properties": {"a": {"$ref": "#/nowhere"}}
    }
    where = (
        r"the schema at structured_outputs\.structural_tag\.format\.tags\[0\]\.content\.json_schema"
    )
    with pytest.raises(SchemaError, match=rf"{where} is refused at #/properties/a"):
        plan({"structured_outputs": {"structural_tag": tag}}, format="hermes")


UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def test_what_no_mask_holds_an_answer_to_a_guard_does():
    planned = plan({"structured_outputs": {"json": UNIQUE}}, format="hermes")
    assert planned.guarded == ("structured_outputs.json",)
    guard = Guard(answer=planned.answer, format="hermes")
    for text in ("[1, 2]", "[1, 1]"):
        valid = jsonschema.Draft202012Validator(UNIQUE).is_valid(json.loads(text))
        assert guard.check([text.encode()]).ok is valid


def test_what_no_mask_holds_a_structural_tag_to_is_said():
    tag = {"format": {"type": "json_schema", "json_schema": UNIQUE}}
    planned = plan({"structured_outputs": {"structural_tag": tag}}, format="hermes")
    (warning,) = planned.warnings
    assert "structural_tag.format.json_schema is not enforced in full" in warning
    assert "uniqueItems" in warning


def test_schemas_of_a_structural_tag_are_made_sound():
    """xgrammar itself takes a bound on a number's multiples, and drops it."""
    number = {"type": "integer", "multipleOf": 5, "minimum": 1, "maximum": 20}
    schema = {"type": "object", "properties": {"n": number}, "required": ["n"]}
    tag = {"format": {"type": "json_schema", "json_schema": schema}}
    texts = ['{"n": 5}', '{"n": 20}', '{"n": 7}', '{"n": 25}']
    body = {"structured_outputs": {"structural_tag": tag}}
    assert verdicts("hermes", body, texts) == [True, True, False, False]


@pytest.mark.parametrize("name", ["hermes", "kimi_k2", "harmony"])
def test_beside_tools_it_is_the_answer_or_calls(name):
    fmt = FORMATS[name]
    body = {"structured_outputs": {"choice": ["yes", "no"]}, "tools": [TOOL]}
    answers = ["<|channel|>final<|message|>yes" if name == "harmony" else "yes"]
    assert all_of(verdicts(name, body, [*answers, call(name)]))
    assert not any(verdicts(name, body, ["maybe", "text " + call(name)]))
    assert fmt.parse(answers[0], [TOOL], answer=True).message["content"] == "yes"
    none = body | {"tool_choice": "none"}
    assert verdicts(name, none, [*answers, call(name)]) == [True, False]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_calls_that_must_come_leave_no_room(choice):
    body = {"guided_choice": ["yes"], "tools": [TOOL], "tool_choice": choice}
    with pytest.raises(ValueError, match="guided_choice leaves no room for the calls that"):
        plan(body, format="hermes")


def test_a_structural_tag_is_the_whole_completion():
    body = {"structured_outputs": {"structural_tag": TAG}, "tools": [TOOL]}
    planned = plan(body, format="hermes", scope="always")
    assert not planned.is_answer
    assert planned.tools == (TOOL,)
    _, good, bad = KINDS["structural_tag"]
    assert all_of(verdicts("hermes", body, good))
    assert not any(verdicts("hermes", body, bad))


@pytest.mark.parametrize("kind", ["choice", "structural_tag"])
def test_thinking_comes_first(kind):
    body = {"structured_outputs": {kind: KINDS[kind][0]}}
    texts = ["<a> or so</think>\n\n" + KINDS[kind][1][1], "<a> or so"]
    assert verdicts("hermes", body, texts, reasoning=True) == [True, False]


def test_plans_are_remembered_by_these_fields_too():
    assert {"structured_outputs", "guided_json", "guided_regex"} <= set(FIELDS)
