"""Request to plan: which grammar, which ban, or nothing, and which tools the prompt shows.

| scope  | tool_choice     | condition                                         | plan    |
|--------|-----------------|---------------------------------------------------|---------|
| any    | required, named |                                                   | tag     |
| auto   | auto            | a tool has ``strict: true``, or no parallel calls | tag     |
| auto   | auto            | otherwise                                         | nothing |
| always | auto            | tools                                             | tag     |
| any    | none            | tools, and the format knows what to ban           | ban     |
| any    | none, auto      | no tools                                          | nothing |

``allowed_tools`` of mode auto is ``auto`` over a part of the tools, and always a tag: nothing
else keeps the model to that part. The prompt still shows every tool.

Schema modes, the schema that a tool's arguments are held to:

| mode     | ``strict: true`` | missing | ``strict: false`` |
|----------|------------------|---------|-------------------|
| auto     | its own          | object  | object            |
| declared | its own          | its own | object            |
| strict   | its own          | its own | its own           |

A ``response_format`` of type json_schema or json_object makes the answer JSON, and vLLM's
``structured_outputs`` what it says (see ``grammar.structured_outputs``). Beside tools, auto becomes
that answer or calls, and nothing else; required and named leave no room for an answer.

Schemas go through ``grammar.schema.prepare``: what cannot be guaranteed is refused here, by name.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from xgrammar.structural_tag import OrFormat, StructuralTag

from grammar import deadline
from grammar.formats import Format, Tool, get_format
from grammar.formats.base import MAX_WHITESPACE, NAME_PATTERN
from grammar.schema import Options, Prepared, require
from grammar.structured_outputs import Answer, prepared_schema, read_answer, short, tightest

Scope = Literal["auto", "always"]
SchemaMode = Literal["auto", "strict", "declared"]

_ANY_OBJECT = {"type": "object"}
_NO_ARGUMENTS = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Plan:
    """What to do with one request.

    Attributes:
        structural_tag: the grammar of the completion, or None.
        ban: a grammar of all text in which no call can start, or None. Never both.
        tools: the OpenAI tools that go into the prompt.
        forced_tool: the name in a named ``tool_choice``, or None.
        warnings: sentences for the caller, e.g. that a format cannot be constrained.
        tool_choice: ``none``, ``auto``, ``required`` or ``named``.
        constrained: the tools in the grammar with the schemas they are held to.
        prepared: by tool, what became of its own schema; not of tools that take any object.
        answer: what became of the schema that the answer is held to, or None.
        answer_field: the field of the request that the answer is held to by, or None where there is
            none or calls leave it no room.
        is_answer: a completion without calls is such an answer: what its strings spell is no call.
    """

    structural_tag: StructuralTag | None
    ban: StructuralTag | None
    tools: tuple[Mapping[str, Any], ...]
    forced_tool: str | None
    warnings: tuple[str, ...]
    tool_choice: Literal["none", "auto", "required", "named"]
    constrained: tuple[Tool, ...] = ()
    prepared: Mapping[str, Prepared] = field(default_factory=dict)
    answer: Prepared | None = None
    answer_field: str | None = None
    is_answer: bool = False

    @property
    def guarded(self) -> tuple[str, ...]:
        """What no grammar enforces and only validation can: tools, the field of the answer."""
        tools = [name for name, p in self.prepared.items() if p.verdict == "guarded"]
        answer = self.answer is not None and self.answer.verdict == "guarded"
        return (*tools, self.answer_field) if answer else tuple(tools)

    @property
    def constraint(self) -> StructuralTag | None:
        """The grammar to decode under: the tag, the ban, or None for free decoding."""
        return self.structural_tag or self.ban


def plan(
    request_body: Mapping[str, Any],
    *,
    format: str | Format,
    scope: Scope = "auto",
    schema_mode: SchemaMode = "auto",
    exclude_tools_when_tool_choice_none: bool = True,
    reasoning: bool = False,
    max_whitespace_cnt: int = MAX_WHITESPACE,
    type_aliases: bool = False,
) -> Plan:
    """Decide how an OpenAI chat-completions request is decoded (see the tables above).

    Args:
        request_body: of its fields ``tools``, ``tool_choice``, ``parallel_tool_calls`` and those of
            ``grammar.structured_outputs`` count.
        format: the model's tool-call format, or its name.
        scope, schema_mode: rows of the tables.
        exclude_tools_when_tool_choice_none: drop the tools from the prompt; the ban holds either
            way. False keeps the prompt the same for every ``tool_choice``, so that a KV cache can
            be reused.
        reasoning: the prompt opens a think block.
        max_whitespace_cnt: whitespace characters in a row between JSON tokens, at least 1.
        type_aliases: read ``dict``, ``float``, ``any`` and ``tuple`` as the types they stand for.

    Raises:
        ValueError: a request that cannot be meant, with the field at fault.
        SchemaError: a schema that cannot be guaranteed, with the tool, the place and the reason.
        TooSlow: the deadline around this (``grammar.deadline``) is over, with the tool whose turn
            it was. Nothing is remembered of what that cut short.
    """
    _one_of("scope", scope, ("auto", "always"))
    _one_of("schema_mode", schema_mode, ("auto", "strict", "declared"))
    if max_whitespace_cnt < 1:
        raise ValueError(
            f"max_whitespace_cnt must be at least 1; got {max_whitespace_cnt}: the standard"
            " spelling of JSON has a space after ':' and ','"
        )
    format = get_format(format)
    tools = read_tools(request_body.get("tools"), type_aliases=type_aliases)
    names = [t["function"]["name"] for t in tools]
    choice, allowed = _read_tool_choice(request_body.get("tool_choice"), names)
    parallel = request_body.get("parallel_tool_calls")
    if parallel is None:
        parallel = True
    _one_of("parallel_tool_calls", parallel, (True, False))

    forced = allowed[0] if choice == "named" else None
    shown = () if choice == "none" and exclude_tools_when_tool_choice_none else tools
    usable = [t["function"] for t in tools if t["function"]["name"] in allowed]
    answer = read_answer(request_body, max_whitespace_cnt, type_aliases)
    if choice in ("required", "named") and answer is not None:
        _must_give_way(answer.field, choice)
        answer = None
    result = functools.partial(Plan, tools=shown, forced_tool=forced, tool_choice=choice)
    held = {} if answer is None else _held(answer)
    if answer is not None and (answer.whole or choice == "none" or not tools):
        node = answer.node if answer.whole else format.answer(answer.node)
        tag = format.completion(node, reasoning=reasoning)
        return result(tag, None, warnings=answer.warnings, **held)
    if choice == "none" or not tools:
        ban = format.ban(reasoning=reasoning) if tools else None
        unbanned = tools and ban is None
        warning = f"format {format.name!r} knows no text to ban: decoding is free"
        return result(None, ban, warnings=(warning,) if unbanned else ())

    strict = any(function.get("strict") is True for function in usable)
    restricted = len(usable) < len(tools)
    free = choice == "auto" and scope == "auto" and not (strict or restricted or not parallel)
    if free and answer is None:
        return result(None, None, warnings=())
    prepared = {
        function["name"]: _arguments(
            function, type_aliases, format.json_strings, max_whitespace_cnt
        )
        for function in usable
        if has_own_schema(function, schema_mode)
    }
    constrained = tuple(
        _tool(function["name"], prepared.get(function["name"])) for function in usable
    )
    # Beside an answer, what is no answer is calls.
    tag = format.structural_tag(
        constrained,
        tool_choice=choice if answer is None else "required",
        parallel_tool_calls=parallel,
        reasoning=reasoning and answer is None,
        max_whitespace_cnt=max_whitespace_cnt,
    )
    if tag is None:
        warning = f"format {format.name!r} has no structural tag: decoding is free"
        return result(None, None, warnings=(warning,))
    if answer is not None:
        either = OrFormat(elements=[format.answer(answer.node), tag.format])
        tag = format.completion(either, reasoning=reasoning)
    return result(tag, None, warnings=(), constrained=constrained, prepared=prepared, **held)


def _must_give_way(field: str, choice: str) -> None:
    """A ``response_format`` is for the turn that answers; what else constrains is for this one."""
    if field != "response_format":
        raise ValueError(
            f"{field} leaves no room for the calls that tool_choice {choice!r} asks for; drop"
            " one of them, or say tool_choice 'auto'"
        )


def _held(answer: Answer) -> dict[str, Any]:
    """The fields of a plan that an answer fills."""
    return {
        "answer": answer.prepared,
        "answer_field": answer.field,
        "is_answer": not answer.whole,
    }


def read_tools(
    tools: Sequence[Mapping[str, Any]] | None, *, type_aliases: bool = False
) -> tuple[Mapping[str, Any], ...]:
    """Check the ``tools`` of a request; None is an empty list.

    Args:
        type_aliases: parameters of type ``dict`` are an object schema, too.

    Raises:
        ValueError: no function tool, a bad or repeated name, parameters that are no object schema.
    """
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise ValueError(f"tools must be a list of function tools; got {short(tools)}")
    seen: dict[str, int] = {}
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        if not isinstance(tool, Mapping) or tool.get("type") != "function":
            raise ValueError(
                f'{where} must be {{"type": "function", "function": {{...}}}}; got {short(tool)}'
            )
        function = tool.get("function")
        if not isinstance(function, Mapping):
            raise ValueError(f"{where}.function must be an object; got {short(function)}")
        name = function.get("name")
        if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
            raise ValueError(
                f"{where}.function.name must match {NAME_PATTERN}; got {short(name)}: names are"
                " written into the call unescaped, so rename the tool"
            )
        if name in seen:
            raise ValueError(
                f"tools must have distinct names; tools[{seen[name]}] and {where} are both {name!r}"
            )
        seen[name] = i
        if function.get("strict") not in (None, True, False):
            raise ValueError(
                f"{where}.function.strict must be a boolean; got {short(function['strict'])}"
            )
        objects = ("object", "dict") if type_aliases else ("object",)
        _check_parameters(f"{where}.function.parameters", function.get("parameters"), objects)
    return tuple(tools)


def _check_parameters(where: str, parameters: Any, objects: Sequence[str]) -> None:
    if parameters is None:
        return
    if not isinstance(parameters, Mapping):
        raise ValueError(f"{where} must be a JSON Schema object; got {short(parameters)}")
    try:
        json.dumps(parameters, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{where} must be JSON; {error}") from None
    declared = parameters.get("type", "object")
    if declared not in objects and not (isinstance(declared, list) and "object" in declared):
        raise ValueError(
            f"{where}.type must be 'object'; got {short(declared)}: the arguments of a call are an"
            " object, so wrap the value in one"
        )


def has_own_schema(function: Mapping[str, Any], mode: SchemaMode) -> bool:
    """Whether the arguments of a checked function are held to its own schema, or to any object."""
    strict = function.get("strict")
    return mode == "strict" or strict is True or (mode == "declared" and strict is None)


def arguments_schema(function: Mapping[str, Any], mode: SchemaMode) -> Mapping[str, Any]:
    """The schema that the grammar holds the arguments of a checked function to.

    Raises:
        SchemaError: its own schema cannot be guaranteed.
    """
    if not has_own_schema(function, mode):
        return _ANY_OBJECT
    return _arguments(function, aliases=False, json_strings=False).schema


def _tool(name: str, prepared: Prepared | None) -> Tool:
    if prepared is None:
        return Tool(name, _ANY_OBJECT)
    if prepared.grammar is None:
        return Tool(name, prepared.schema)
    # A schema of its own, for the grammar to be found by.
    return Tool(name, {**_ANY_OBJECT, "title": f"grammar of {name}"}, prepared.grammar)


def _arguments(
    function: Mapping[str, Any],
    aliases: bool,
    json_strings: bool,
    max_whitespace_cnt: int = MAX_WHITESPACE,
) -> Prepared:
    """The schema of a checked function's arguments, made sound; its root is an object."""
    parameters = function.get("parameters")
    schema = {**(_NO_ARGUMENTS if parameters is None else parameters), "type": "object"}
    if "$ref" in schema:
        # Up to draft 7 nothing counts beside a reference, the type included.
        others = schema.get("allOf", [])
        # What is no list is refused as it stands.
        if isinstance(others, list):
            schema["allOf"] = [*others, {"$ref": schema.pop("$ref")}]
    where = f"the schema of tool {function['name']!r}"
    text = json.dumps(schema)
    with deadline.naming(where):
        if json_strings:
            prepared = tightest(text, Options(aliases=aliases), max_whitespace_cnt)
        else:
            prepared = prepared_schema(text, Options(aliases=aliases, lengths="keywords"))
    return require(prepared, where)


def _read_tool_choice(choice: Any, names: Sequence[str]) -> tuple[Any, Sequence[str]]:
    """Normalised choice and the names that may be called."""
    if choice is None:
        choice = "auto"
    if isinstance(choice, str):
        _one_of("tool_choice", choice, ("none", "auto", "required"))
        if choice == "required" and not names:
            raise ValueError("tool_choice 'required' needs at least one tool; tools is empty")
        return choice, names
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "function":
        name = _reference_name("tool_choice", choice)
        _must_exist("tool_choice", name, names)
        return "named", [name]
    if kind == "allowed_tools":
        # Chat Completions nests the object, Responses does not.
        inner = choice.get("allowed_tools", choice)
        if not isinstance(inner, Mapping):
            raise ValueError(
                "tool_choice.allowed_tools must be an object with mode and tools; got"
                f" {short(inner)}"
            )
        mode, references = inner.get("mode", "auto"), inner.get("tools")
        _one_of("tool_choice.allowed_tools.mode", mode, ("auto", "required"))
        if not isinstance(references, Sequence) or not references:
            raise ValueError(
                "tool_choice.allowed_tools.tools must name at least one tool; got"
                f" {short(references)}: to allow none, use tool_choice 'none'"
            )
        allowed = []
        for i, reference in enumerate(references):
            where = f"tool_choice.allowed_tools.tools[{i}]"
            allowed.append(_reference_name(where, reference))
            _must_exist(where, allowed[-1], names)
        return mode, allowed
    raise ValueError(
        "tool_choice must be 'none', 'auto', 'required', a function"
        ' {"type": "function", "function": {"name": ...}} or allowed_tools; got ' + short(choice)
    )


def _reference_name(where: str, reference: Any) -> str:
    nested = reference.get("function", reference) if isinstance(reference, Mapping) else None
    name = nested.get("name") if isinstance(nested, Mapping) else None
    if not isinstance(name, str) or reference.get("type") != "function":
        raise ValueError(
            f'{where} must be {{"type": "function", "function": {{"name": ...}}}};'
            f" got {short(reference)}"
        )
    return name


def _must_exist(where: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        listed = ", ".join(names) or "no tools"
        raise ValueError(f"{where} names {name!r} but tools has {listed}; add it or name another")


def _one_of(argument: str, value: Any, wanted: Sequence[Any]) -> None:
    if not any(value is w or (isinstance(w, str) and value == w) for w in wanted):
        listed = ", ".join(map(repr, wanted))
        raise ValueError(f"{argument} must be one of {listed}; got {short(value)}")
