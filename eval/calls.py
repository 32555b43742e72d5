"""Do the tool calls of a message fit the tools? K2VV's verdict, and the causes behind it.

A call is valid when it names a listed tool and its arguments, a JSON object as text or already
parsed, satisfy the tool's ``parameters``: jsonschema, no format checker, the draft that ``$schema``
names, else 2020-12. Like K2VV's validator, and unlike what one might expect:

* the first of several tools with one name counts;
* every call to a tool whose ``parameters`` are missing or empty (``{}``) is invalid;
* a schema that is itself invalid, or a ``$ref`` that leads nowhere, makes its calls invalid.

Stricter than K2VV's, each time on what is not a call at all: arguments must be an object even where
the schema would take something else, ``NaN`` and ``Infinity`` are not JSON, and no schema is
fetched from the network.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry

from eval.chat_body import load_json
from grammar.schema.judge import Patience, patient

Cause = Literal[
    "unknown_tool",
    "bad_json",
    "not_object",
    "double_encoded",
    "missing_key",
    "extra_key",
    "type",
    "enum",
    "bounds",
    "other",
    "no_calls",
    "truncated",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)
_SECONDS = 10.0
"""How long one call may be judged: a pattern may backtrack for ever, and so may a $ref."""

_CAUSE_OF_KEYWORD: dict[str, Cause] = {
    "required": "missing_key",
    "dependentRequired": "missing_key",
    "additionalProperties": "extra_key",
    "unevaluatedProperties": "extra_key",
    "propertyNames": "extra_key",
    "type": "type",
    "enum": "enum",
    "const": "enum",
    "minimum": "bounds",
    "maximum": "bounds",
    "exclusiveMinimum": "bounds",
    "exclusiveMaximum": "bounds",
    "minLength": "bounds",
    "maxLength": "bounds",
    "minItems": "bounds",
    "maxItems": "bounds",
    "minProperties": "bounds",
    "maxProperties": "bounds",
}


@dataclass(frozen=True)
class Failure:
    """One thing wrong with a call.

    tool: the name that the call gives, None where there is none.
    detail: one sentence fragment.
    pointer: JSON Pointer (RFC 6901) into the arguments; "" is the whole of them.
    call: 0-based position among the calls of the message.
    """

    cause: Cause
    tool: str | None
    detail: str
    pointer: str = ""
    call: int = 0


def check_calls(message: Mapping[str, Any], tools: Any) -> list[Failure]:
    """Everything wrong with the calls of an OpenAI assistant message; empty means valid.

    A message without calls fails with ``no_calls``: the question is only asked of a response that
    claims to have made some.

    tools: the request's ``tools``, as they came.
    """
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return [Failure("no_calls", None, "the message holds no calls")]
    declared = _declared(tools)
    return [failure for i, call in enumerate(calls) for failure in _check_call(call, i, declared)]


def verdict(
    finish_reason: str | None, message: Mapping[str, Any], tools: Any
) -> tuple[bool | None, list[Failure]]:
    """K2VV's ``tool_calls_valid`` for a response, and what is wrong with it.

    None unless finish_reason is tool_calls and there are calls; a response that claims calls and
    has none is None there too, and counts as a schema error all the same.
    """
    if finish_reason != "tool_calls":
        return None, []
    failures = check_calls(message, tools)
    if any(failure.cause == "no_calls" for failure in failures):
        return None, failures
    return not failures, failures


def can_check(request: Mapping[str, Any]) -> bool:
    """Whether a request body says which tools there were.

    One of K2VV's raw-completions mode does not: its tools are rendered into a ``prompt``.
    """
    return "messages" in request or "tools" in request


def called_name(call: Any) -> str | None:
    """``function.name`` of a call, a tool or a named tool_choice; None where there is none."""
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _declared(tools: Any) -> dict[str, Mapping[str, Any]]:
    declared: dict[str, Mapping[str, Any]] = {}
    for tool in tools if isinstance(tools, list) else []:
        if (name := called_name(tool)) is not None:
            declared.setdefault(name, tool["function"])
    return declared


def _check_call(call: Any, index: int, declared: Mapping[str, Mapping[str, Any]]) -> list[Failure]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return [Failure("other", None, "the call names no function", call=index)]
    name = called_name(call) or None
    arguments, flaw = _read_arguments(function)

    def failed(cause: Cause, detail: str, pointer: str = "") -> Failure:
        return Failure(cause, name, _short(detail), pointer, index)

    flaws = [failed(*flaw)] if flaw else []
    if name is None:
        # What could not be read as a call at all comes without a name: its text says more.
        return flaws or [failed("other", "the call names no function")]
    if name not in declared:
        known = ", ".join(declared) or "no tools"
        return [failed("unknown_tool", f"{name!r} is not among {known}"), *flaws]
    if flaws:
        return flaws
    schema = declared[name].get("parameters")
    if not schema:
        return [failed("other", "the tool has no parameters schema, so no call fits it")]
    return [failed(*problem) for problem in _violations(schema, arguments)]


def _read_arguments(function: Mapping[str, Any]) -> tuple[Any, tuple[Cause, str] | None]:
    """The arguments of a call as a value, and what keeps that from being an object."""
    if "arguments" not in function:
        return None, ("bad_json", "the call has no arguments")
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            arguments = load_json(arguments)
        except ValueError as error:
            return None, ("bad_json", str(error))
    if isinstance(arguments, dict):
        return arguments, None
    cause: Cause = "double_encoded" if _is_encoded_object(arguments) else "not_object"
    return arguments, (cause, f"the arguments are {json.dumps(arguments)}, not an object")


def _violations(schema: Any, arguments: dict[str, Any]) -> list[tuple[Cause, str, str]]:
    try:
        with Patience(_SECONDS).spent():
            errors = list(_validator(json.dumps(schema)).iter_errors(arguments))
    except SchemaError as error:
        return [("other", f"the tool's own schema is invalid: {error.message}", "")]
    except Exception as error:
        # A dangling or endless $ref, a pattern that is none, or one that takes too long: as many
        # exceptions.
        return [("other", f"the tool's schema cannot be applied: {error}", "")]
    return [(_cause(error), error.message, _pointer(error.absolute_path)) for error in errors]


@lru_cache(maxsize=4096)
def _validator(schema: str) -> Validator:
    schema = json.loads(schema)
    kind = validator_for(schema, default=Draft202012Validator)
    kind.check_schema(schema)
    # An empty registry: the default one would fetch a remote $ref.
    return patient(kind)(schema, registry=Registry())


def _cause(error: ValidationError) -> Cause:
    """Cause of an error, for anyOf and oneOf that of the branch that came closest."""
    leaf = best_match([error])
    if not leaf.context:
        return _CAUSE_OF_KEYWORD.get(leaf.validator, "other")
    causes = {_cause(branch) for branch in leaf.context}
    return causes.pop() if len(causes) == 1 else "other"


def _is_encoded_object(value: Any) -> bool:
    try:
        return isinstance(value, str) and isinstance(load_json(value), dict)
    except ValueError:
        return False


def _pointer(path: Iterator[str | int]) -> str:
    steps = (str(step).replace("~", "~0").replace("/", "~1") for step in path)
    return "".join(f"/{step}" for step in steps)


def _short(text: str, limit: int = 240) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
