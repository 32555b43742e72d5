"""Are the calls of a response the right ones? BFCL's question, asked of result rows.

A response is right when its calls and the calls that the ground truth lists pair off, in any order:
the same tool, and for each argument one of the accepted values. The rules are those of BFCL's AST
checker (ShishirPatil/gorilla, ``ast_checker.py`` of v4):

* an argument whose accepted values hold ``""`` may be left out, unless the tool requires it; any
  other that is listed may not, and one that is not listed may not be given;
* strings are compared without case, spaces and ``,./-_*^``, and ``'`` is ``"``;
* an array is one of the accepted arrays, element by element, and where it may be left out it may be
  empty; an object is one of the accepted objects, whose keys each list their accepted values;
* true is not 1.

Where a verdict differs from BFCL's, it is the laxer one:

* numbers are equal by value, in arrays too (BFCL took no ``[12]`` for ``[12.0]``: gorilla #1049),
  and 12.0 is the integer 12, as it is in JSON;
* objects inside objects and arrays inside arrays follow the same rules, and each string does,
  whatever the type that the schema declares;
* calls pair off if they can at all, where BFCL takes the first fit;
* what the ground truth asks for against the tool's own schema is right all the same, and where it
  accepts nothing at all for an array, the empty one (`eval.bfcl.accepted`): BFCL lets no answer
  to those questions pass.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from eval.bfcl import accepted
from eval.calls import called_name
from eval.chat_body import load_json
from eval.intervals import wilson
from eval.rows import ResultRow
from eval.scoring import is_triggered, is_truncated
from eval.workloads import group_of

Cause = Literal[
    "no_call",
    "truncated",
    "wrong_count",
    "wrong_tool",
    "unreadable",
    "missing_argument",
    "unexpected_argument",
    "wrong_type",
    "wrong_value",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)

_IGNORED = str.maketrans("'", '"', " ,./-_*^")


@dataclass(frozen=True)
class Mismatch:
    """One way in which calls are not the expected ones.

    tool: the tool that was expected, None where the calls as a whole are wrong.
    argument: of that tool, None where the call as a whole is wrong.
    detail: one sentence fragment.
    """

    cause: Cause
    detail: str
    tool: str | None = None
    argument: str | None = None


def argument_accuracy(rows: Iterable[ResultRow], answers: Mapping[int, Any]) -> dict[str, Any]:
    """How many responses make the right calls, ready for JSON.

    Over the rows that succeeded and have an answer: a failed request was not asked.

    Args:
        answers: `eval.workloads.Workload.answers`.

    Returns:
        asked: responses; triggered: those with finish_reason tool_calls; correct: those whose calls
        are right. accuracy: correct / asked, with Wilson's 95 % interval; accuracy_of_triggered:
        correct / triggered; None for 0 / 0. wrong: responses by cause, each once under each of its
        causes. correct_indices: data_index. by_group: the same for each ``metadata.group``.
    """
    judged: dict[str, list[_Judged]] = defaultdict(list)
    for row in rows:
        if row.succeeded and row.data_index in answers:
            one = _judge(row, answers[row.data_index])
            judged[group_of(row.request)].append(one)
    everything = [one for part in judged.values() for one in part]
    by_group = {name: _totals(part) for name, part in judged.items()}
    return _totals(everything) | {"by_group": by_group}


def match_calls(
    calls: Any, expected: Sequence[Mapping[str, Mapping[str, Any]]], tools: Any
) -> list[Mismatch]:
    """What keeps an assistant message's calls from being the expected ones; empty if they are.

    Args:
        calls: the ``tool_calls`` of an OpenAI message, arguments as text or already parsed.
        expected: calls, each ``{name: {argument: [accepted value, ...]}}``.
        tools: the request's ``tools``: what they require, and of which type.
    """
    if not isinstance(calls, list) or not calls:
        return [Mismatch("no_call", "there is no call")]
    if len(calls) != len(expected):
        return [Mismatch("wrong_count", f"{len(calls)} calls where {len(expected)} are right")]
    schemas = _schemas(tools)
    table = [[_compare(call, right, schemas) for call in calls] for right in expected]
    paired = _pair_off([[not found for found in row] for row in table])
    free = [j for j in range(len(calls)) if j not in paired.values()]
    found = []
    for i, row in enumerate(table):
        if i not in paired:
            closest = min(free, key=lambda j: (_is_other_tool(row[j]), len(row[j])))
            free.remove(closest)
            found += row[closest]
    return found


@dataclass(frozen=True)
class _Judged:
    data_index: int
    triggered: bool
    mismatches: list[Mismatch]


def _judge(row: ResultRow, expected: Any) -> _Judged:
    if is_truncated(row):
        cut = Mismatch("truncated", "the token limit ended the response")
        return _Judged(row.data_index, False, [cut])
    triggered = is_triggered(row)
    calls = row.message.get("tool_calls") if triggered else None
    return _Judged(
        row.data_index, triggered, match_calls(calls, expected, row.request.get("tools"))
    )


def _totals(judged: Sequence[_Judged]) -> dict[str, Any]:
    correct = sorted(one.data_index for one in judged if not one.mismatches)
    triggered = sum(one.triggered for one in judged)
    wrong = Counter(cause for one in judged for cause in {m.cause for m in one.mismatches})
    return {
        "asked": len(judged),
        "triggered": triggered,
        "correct": len(correct),
        "accuracy": len(correct) / len(judged) if judged else None,
        "interval": list(wilson(len(correct), len(judged))) if judged else None,
        "accuracy_of_triggered": len(correct) / triggered if triggered else None,
        "wrong": {cause: wrong[cause] for cause in CAUSES if wrong[cause]},
        "correct_indices": correct,
    }


def _schemas(tools: Any) -> dict[str, Mapping[str, Any]]:
    schemas: dict[str, Mapping[str, Any]] = {}
    for tool in tools if isinstance(tools, list) else []:
        if (name := called_name(tool)) is not None:
            parameters = tool["function"].get("parameters")
            schemas.setdefault(name, parameters if isinstance(parameters, dict) else {})
    return schemas


def _compare(
    call: Any, right: Mapping[str, Mapping[str, Any]], schemas: Mapping[str, Mapping[str, Any]]
) -> list[Mismatch]:
    ((tool, values),) = right.items()
    name = called_name(call)
    arguments = _arguments(call)
    if name and name != tool:
        return [Mismatch("wrong_tool", f"{name!r} is called", tool)]
    if not name or arguments is None:
        return [Mismatch("unreadable", "there is no name, or no object of arguments", tool)]
    schema = schemas.get(tool, {})
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    found = [
        Mismatch("unexpected_argument", "the answer does not have it", tool, key)
        for key in arguments
        if key not in values
    ]
    for key, value in values.items():
        options = accepted(value)
        if key in arguments:
            cause = _against(arguments[key], options, properties.get(key))
            if cause:
                detail = f"{_short(arguments[key])} is not among {_short(options)}"
                found.append(Mismatch(cause, detail, tool, key))
        elif "" not in options or key in required:
            found.append(Mismatch("missing_argument", "it is not given", tool, key))
    return found


def _arguments(call: Any) -> dict[str, Any] | None:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str):
        try:
            arguments = load_json(arguments)
        except ValueError:
            return None
    return arguments if isinstance(arguments, dict) else None


def _against(value: Any, options: Sequence[Any], schema: Any) -> Cause | None:
    """Why a value is none of the accepted ones, or None if it is one."""
    declared = schema.get("type") if isinstance(schema, dict) else None
    types = declared if isinstance(declared, list) else [declared] if declared else []
    given = [option for option in options if option != ""]
    if not types or "string" in types or any(isinstance(option, str) for option in given):
        # Anywhere else "" is no value, and but says that there may be none.
        given = options
    if "array" in types and "" in options:
        given = [*given, []]
    if any(_equal(value, option) for option in given):
        return None
    wanted = set(types) | {_kind(option) for option in given}
    kind = _kind(value)
    fits = kind in wanted or (kind == "integer" and "number" in wanted) or not wanted
    return "wrong_value" if fits else "wrong_type"


def _equal(value: Any, option: Any) -> bool:
    """Whether a value is the accepted one."""
    if isinstance(value, str) and isinstance(option, str):
        return _plain(value) == _plain(option)
    if isinstance(value, list) and isinstance(option, list):
        return len(value) == len(option) and all(map(_equal, value, option))
    if isinstance(value, dict) and isinstance(option, dict):
        return _equal_objects(value, option)
    if isinstance(value, bool) or isinstance(option, bool):
        return value is option
    # Numbers by value, and null; values of two kinds are never equal.
    return value == option


def _equal_objects(value: Mapping[str, Any], option: Mapping[str, Any]) -> bool:
    if not value.keys() <= option.keys():
        return False
    for key, listed in option.items():
        options = accepted(listed)
        if key not in value:
            if "" not in options:
                return False
        elif not any(_equal(value[key], one) for one in options):
            return False
    return True


def _plain(text: str) -> str:
    return text.translate(_IGNORED).lower()


def _kind(value: Any) -> str:
    """The JSON Schema type of a value; integer where it is a whole number."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == value // 1 else "number"
    return {str: "string", list: "array", dict: "object"}[type(value)]


def _pair_off(fits: Sequence[Sequence[bool]]) -> dict[int, int]:
    """A largest matching of rows and columns that fit: row to column (Kuhn's algorithm)."""
    row_of: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column, fit in enumerate(fits[row]):
            if fit and column not in tried:
                tried.add(column)
                if column not in row_of or place(row_of[column], tried):
                    row_of[column] = row
                    return True
        return False

    for row in range(len(fits)):
        place(row, set())
    return {row: column for column, row in row_of.items()}


def _is_other_tool(found: Sequence[Mismatch]) -> bool:
    return any(mismatch.cause == "wrong_tool" for mismatch in found)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}..."
