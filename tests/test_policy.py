"""``grammar.policy``: the scope and mode tables row by row, and every request that is refused."""

import jsonschema
import pytest

from grammar.formats import FORMATS, Format, get_format
from grammar.policy import plan
from grammar.schema import SchemaError

TAG, BAN, NOTHING = "tag", "ban", "nothing"


def tool(name="get_weather", strict=None, parameters=None):
    function = {"name": name, "parameters": parameters or {"type": "object", "properties": {}}}
    return {
        "type": "function",
        "function": function if strict is None else function | {"strict": strict},
    }


def outcome(result):
    if result.structural_tag is not None:
        assert result.ban is None
        return TAG
    return BAN if result.ban is not None else NOTHING


NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize("format", sorted(FORMATS))
@pytest.mark.parametrize(
    ("scope", "choice", "strict", "parallel", "tools", "wanted"),
    [
        # any scope: required and named
        ("auto", "required", None, None, True, TAG),
        ("always", "required", None, None, True, TAG),
        ("auto", NAMED, None, None, True, TAG),
        ("always", NAMED, None, None, True, TAG),
        # scope auto, choice auto: only with a strict tool or without parallel calls
        ("auto", "auto", None, None, True, NOTHING),
        ("auto", None, None, None, True, NOTHING),
        ("auto", "auto", False, True, True, NOTHING),
        ("auto", "auto", True, None, True, TAG),
        ("auto", None, True, None, True, TAG),
        ("auto", "auto", None, False, True, TAG),
        # scope always, choice auto
        ("always", "auto", None, None, True, TAG),
        ("always", None, None, None, True, TAG),
        ("always", "auto", False, True, True, TAG),
        # choice none
        ("auto", "none", None, None, True, BAN),
        ("always", "none", None, None, True, BAN),
        ("auto", "none", True, False, True, BAN),
        # no tools
        ("auto", "none", None, None, False, NOTHING),
        ("always", "none", None, None, False, NOTHING),
        ("auto", "auto", None, None, False, NOTHING),
        ("always", "auto", None, False, False, NOTHING),
        ("always", None, None, None, False, NOTHING),
    ],
)
def test_scope_table(format, scope, choice, strict, parallel, tools, wanted):
    body = {"tools": [tool(strict=strict), tool("get_news")] if tools else []}
    if choice is not None:
        body["tool_choice"] = choice
    if parallel is not None:
        body["parallel_tool_calls"] = parallel
    result = plan(body, format=format, scope=scope)
    assert outcome(result) == wanted
    assert result.warnings == ()


@pytest.mark.parametrize("body", [{}, {"tools": None}, {"tools": []}])
def test_no_tools_in_any_spelling(body):
    result = plan(body, format="hermes", scope="always")
    assert outcome(result) == NOTHING
    assert result.tools == ()


OWN = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANY = {"type": "object"}
SOUND = OWN | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("mode", "strict", "wanted"),
    [
        ("auto", True, SOUND),
        ("auto", None, ANY),
        ("auto", False, ANY),
        ("declared", True, SOUND),
        ("declared", None, SOUND),
        ("declared", False, ANY),
        ("strict", True, SOUND),
        ("strict", None, SOUND),
        ("strict", False, SOUND),
    ],
)
def test_schema_mode_table(mode, strict, wanted):
    body = {"tools": [tool(strict=strict, parameters=OWN)], "tool_choice": "required"}
    (only,) = plan(body, format="hermes", schema_mode=mode).constrained
    assert only.schema == wanted


def test_schema_modes_are_decided_tool_by_tool():
    tools = [tool("a", True, OWN), tool("b", None, OWN), tool("c", False, OWN)]
    result = plan({"tools": tools}, format="kimi_k2", scope="always", schema_mode="declared")
    assert [t.schema for t in result.constrained] == [SOUND, SOUND, ANY]
    assert {name: p.verdict for name, p in result.prepared.items()} == {"a": "exact", "b": "exact"}


@pytest.mark.parametrize(
    ("parameters", "good", "bad"),
    [
        ("absent", [{}], [{"a": 1}, 5, []]),
        (None, [{}], [{"a": 1}, 5, []]),
        ({}, [{}, {"a": 1}], [5, [], None]),
        ({"properties": {"a": {}}}, [{}, {"a": 1}], [{"b": 1}, 5, []]),
        ({"type": ["object", "null"]}, [{}, {"a": 1}], [None]),
        ({"$ref": "#/$defs/a", "$defs": {"a": OWN}}, [{"city": "x"}], [{}, 5]),
        ({"$ref": "#/definitions/a", "definitions": {"a": {}},
          "$schema": "http://json-schema.org/draft-07/schema#"}, [{}, {"a": 1}], [5, None]),
        ({"anyOf": [OWN, {"type": "string"}]}, [{"city": "x"}], ["x", {}]),
    ],
)  # fmt: skip
def test_the_root_of_a_schema_is_an_object(parameters, good, bad):
    function = {"name": "f"} | ({} if parameters == "absent" else {"parameters": parameters})
    body = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    (only,) = plan(body, format="hermes", schema_mode="strict").constrained
    for value in good:
        jsonschema.validate(value, only.schema)
    for value in bad:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(value, only.schema)


def test_a_schema_that_cannot_be_guaranteed_is_refused_by_name():
    remote = {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}
    body = {"tools": [tool("fine"), tool("far", True, remote)]}
    with pytest.raises(SchemaError, match=r"tool 'far' is refused at #/properties/a: .*example"):
        plan(body, format="hermes")
    # Nothing is promised of it where nothing is enforced.
    assert outcome(plan({"tools": [tool("far", None, remote)]}, format="hermes")) == NOTHING


def test_what_only_validation_can_promise_is_said():
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    # Over a few values a grammar can keep count; in general it cannot.
    body = {"tools": [tool("f", True, OWN), tool("g", True, unique), tool("h", False, unique)]}
    result = plan(body, format="hermes")
    assert result.guarded == ("g",)
    assert set(result.prepared) == {"f", "g"}


def test_aliases_are_an_option():
    alias = {"type": "dict", "properties": {"a": {"type": "float"}}, "required": ["a"]}
    body = {"tools": [tool("f", True, {"type": "object", "properties": {"x": alias}})]}
    with pytest.raises(SchemaError, match="tool 'f'"):
        plan(body, format="hermes")
    (only,) = plan(body, format="hermes", type_aliases=True).constrained
    jsonschema.validate({"x": {"a": 1.5}}, only.schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"x": {"a": "1.5"}}, only.schema)


# What the prompt shows


@pytest.mark.parametrize("exclude", [True, False])
def test_tools_leave_the_prompt_with_choice_none_but_the_ban_stays(exclude):
    tools = [tool(), tool("get_news")]
    result = plan(
        {"tools": tools, "tool_choice": "none"},
        format="hermes",
        exclude_tools_when_tool_choice_none=exclude,
    )
    assert outcome(result) == BAN
    assert list(result.tools) == ([] if exclude else tools)


def test_the_prompt_is_the_same_for_every_choice():
    """With the tools kept for choice none, a cache of the prompt serves all choices."""
    tools = [tool(), tool("get_news")]
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]}
    for choice in ("none", "auto", "required", NAMED, allowed):
        result = plan(
            {"tools": tools, "tool_choice": choice},
            format="hermes",
            exclude_tools_when_tool_choice_none=False,
        )
        assert list(result.tools) == tools


# Choices of a tool or of some


@pytest.mark.parametrize("choice", [NAMED, {"type": "function", "name": "get_weather"}])
def test_both_shapes_of_a_named_choice(choice):
    body = {"tools": [tool("get_news"), tool()], "tool_choice": choice}
    result = plan(body, format="hermes")
    assert (result.forced_tool, result.tool_choice) == ("get_weather", "named")
    assert [t.name for t in result.constrained] == ["get_weather"]


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_both_shapes_of_allowed_tools(nested, mode):
    inner = {"mode": mode, "tools": [NAMED]}
    choice = {"type": "allowed_tools"} | ({"allowed_tools": inner} if nested else inner)
    body = {"tools": [tool("get_news"), tool()], "tool_choice": choice}
    result = plan(body, format="hermes")
    assert outcome(result) == TAG
    assert (result.forced_tool, result.tool_choice) == (None, mode)
    assert [t.name for t in result.constrained] == ["get_weather"]
    assert len(result.tools) == 2


def test_allowed_tools_that_are_all_the_tools_are_plain_auto():
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [NAMED]}
    assert outcome(plan({"tools": [tool()], "tool_choice": choice}, format="hermes")) == NOTHING


# Formats that cannot


class Wordless(Format):
    name, style, markers, banned = "wordless", None, (), ()

    def render(self, calls):
        return ""

    def _scan(self, text, parameters, out):
        out.text(text)


@pytest.mark.parametrize("choice", ["required", NAMED, "none"])
def test_a_format_without_a_grammar_is_one_warning_that_names_it(choice):
    result = plan({"tools": [tool()], "tool_choice": choice}, format=Wordless())
    assert outcome(result) == NOTHING
    (warning,) = result.warnings
    assert "wordless" in warning


def test_unknown_format():
    names = ", ".join(sorted(FORMATS))
    with pytest.raises(ValueError, match=f"format must be one of {names}; got 'x'"):
        get_format("x")


# Requests that cannot be meant


def body(tools=None, **fields):
    return {"tools": [tool()] if tools is None else tools} | fields


def function(**fields):
    return {"type": "function", "function": {"name": "f"} | fields}


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        (body(tool_choice={"type": "function", "function": {"name": "get_wether"}}),
         "tool_choice names 'get_wether' but tools has get_weather"),
        (body([], tool_choice=NAMED), "tool_choice names 'get_weather' but tools has no tools"),
        (body([], tool_choice="required"), "tool_choice 'required' needs at least one tool"),
        ({"tool_choice": "required"}, "tool_choice 'required' needs at least one tool"),
        (body([tool("f"), tool("g"), tool("f")]), r"tools\[0\] and tools\[2\] are both 'f'"),
        (body([tool('say"hi')]), r"tools\[0\].function.name must match .*; got 'say\"hi'"),
        (body([tool("with space")]), "names are written into the call unescaped"),
        (body([tool("名")]), "rename the tool"),
        (body([tool("x" * 65)]), r"\{1,64\}"),
        (body([tool("")]), "got ''"),
        (body([{"type": "function", "function": {}}]), "got None"),
        (body([{"type": "function"}]), r"tools\[0\].function must be an object"),
        (body([{"type": "web_search"}]), r"tools\[0\] must be"),
        (body("get_weather"), "tools must be a list"),
        (body([function(parameters=[])]), r"parameters must be a JSON Schema object; got \[\]"),
        (body([function(parameters={"type": "array"})]), "must be 'object'; got 'array'"),
        (body([function(parameters={"enum": {1}})]), "parameters must be JSON; .*set"),
        (body([function(parameters={"const": "\ud800"})]), "parameters must be JSON; .*surrogate"),
        (body([function(parameters={"minimum": float("nan")})]), "parameters must be JSON"),
        (body([function(strict="yes")]), r"tools\[0\].function.strict must be a boolean"),
        (body(tool_choice="any"), "one of 'none', 'auto', 'required'; got 'any'"),
        (body(tool_choice=7), "tool_choice must be 'none', .*; got 7"),
        (body(tool_choice={"type": "tool"}), "tool_choice must be 'none'"),
        (body(tool_choice={"type": "function"}), 'tool_choice must be {"type": "function"'),
        (body(tool_choice={"type": "function", "function": "f"}), "tool_choice must be"),
        (body(tool_choice={"type": "allowed_tools", "mode": "auto", "tools": []}),
         "must name at least one tool; got .*use tool_choice 'none'"),
        (body(tool_choice={"type": "allowed_tools", "mode": "none", "tools": [NAMED]}),
         "mode must be one of 'auto', 'required'; got 'none'"),
        (body(tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "x"}]}),
         r"allowed_tools.tools\[0\] must be"),
        (body(tool_choice={"type": "allowed_tools", "mode": "auto",
                           "tools": [{"type": "function", "name": "f"}]}),
         r"allowed_tools.tools\[0\] names 'f'"),
        (body(tool_choice={"type": "allowed_tools", "allowed_tools": [1]}),
         r"tool_choice.allowed_tools must be an object with mode and tools; got \[1\]"),
        (body([function(strict=True, parameters={"$ref": "#", "allOf": 5})]),
         "tool 'f' is refused"),
        (body(parallel_tool_calls="no"), "parallel_tool_calls must be one of True, False"),
    ],
)  # fmt: skip
def test_refused_requests(request_body, message):
    with pytest.raises(ValueError, match=message):
        plan(request_body, format="hermes", scope="always")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"scope": "never"}, "scope must be one of 'auto', 'always'; got 'never'"),
        ({"schema_mode": "lax"}, "schema_mode must be one of 'auto', 'strict', 'declared'"),
        ({"max_whitespace_cnt": 0}, "max_whitespace_cnt must be at least 1; got 0"),
        ({"format": "herms"}, "format must be one of"),
    ],
)
def test_refused_options(option, message):
    with pytest.raises(ValueError, match=message):
        plan(body(), **{"format": "hermes"} | option)


@pytest.mark.parametrize("name", ["list-files", "ns.tool_2", "A", "x" * 64, "0", "functions.f"])
def test_names_that_are_fine(name):
    assert plan(body([tool(name)], tool_choice="required"), format="kimi_k2").structural_tag
