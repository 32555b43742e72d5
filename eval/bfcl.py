"""BFCL (Berkeley Function Calling Leaderboard, v4) questions as chat requests, with their answers.

A set of the leaderboard is two files of JSON lines, paired by ``id``: questions
``{id, question: [[message, ...], ...], function: [{name, description, parameters}, ...]}`` and
answers ``{id, ground_truth: [{name: {argument: [accepted value, ...]}}, ...]}``. Single-turn sets
only: those of several turns bring classes to run, not functions to call. The irrelevance sets have
no answers: there nothing should be called.

The answers come from people, and 18 of v4's 2,351 cannot be given within the schemas of their own
functions (a value that ``enum`` lacks, an argument that is not there): a run held to the schemas
gets those wrong.

Java's and JavaScript's sets are asked for in JSON's types, where the leaderboard asks for source
text: their figures do not compare with its own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval.bfcl_schema import parameters_schema, safe_names
from eval.chat_body import check_body
from eval.request_lines import JsonLines, RequestLine, read_json_lines
from eval.rows import ResultRow

_PREFIX = re.compile(r"BFCL_v\d+_")
_NUMBER = re.compile(r"_\d+(-\d+)*$")
_ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".json.gz")


def is_question(line: Any) -> bool:
    """Whether a line is a question, of whatever set."""
    return isinstance(line, dict) and "messages" not in line and "question" in line


def without_functions(lines: JsonLines) -> bool:
    """Whether these are questions, but none with functions to call: sets of several turns."""
    questions = [line for line in lines.values.values() if is_question(line)]
    return bool(questions) and not any("function" in question for question in questions)


def is_answer(line: Any) -> bool:
    """Whether a line is the answer to a question of another file."""
    return isinstance(line, dict) and "ground_truth" in line and "question" not in line


@dataclass
class Questions:
    """What a file of questions comes to; see `eval.workloads.Workload`."""

    requests: list[RequestLine] = field(default_factory=list)
    reference: list[ResultRow] = field(default_factory=list)
    answers: dict[int, list[dict[str, Any]]] = field(default_factory=dict)


def set_name(path: str | Path) -> str:
    """The set that a file holds: ``simple_python`` of ``BFCL_v4_simple_python.json``."""
    return _PREFIX.sub("", _stem(Path(path)))


def category(question: Mapping[str, Any], otherwise: str) -> str:
    """The set a question is from, by its id: ``live_simple`` of ``live_simple_3-1-0``."""
    name = str(question.get("id", ""))
    return _NUMBER.sub("", name) if _NUMBER.search(name) else otherwise


def is_irrelevance(name: str) -> bool:
    """Whether a set's questions call for no call."""
    return "irrelevance" in name


def has_answers(name: str) -> bool:
    """Whether the leaderboard has answers for a set; its relevance set only asks for some call."""
    return "relevance" not in name


def read_questions(lines: JsonLines, start: int, *, skip: bool, notes: list[str]) -> Questions:
    """The questions among lines, with their answers; the others join ``lines.bad``.

    An answer is in the line itself, as ``ground_truth``, or in the file beside that of the
    questions. What is missing is noted.

    Args:
        start: added to a line's number for its data_index.
        skip, notes: of `JsonLines.settle`, for the answers.
    """
    truths, where = _truths(lines, skip, notes)
    out, unanswered = Questions(), 0
    for number, line in lines.values.items():
        try:
            if not is_question(line):
                raise ValueError("a BFCL question must be an object with question and function")
            name = category(line, set_name(lines.name))
            body = chat_body(line, f"bfcl_{name}")
            truth = line.get("ground_truth", truths.get(str(line.get("id"))))
            expected = None
            if truth is not None and has_answers(name):
                expected = expected_calls(truth, body)
        except ValueError as error:
            lines.bad[number] = str(error)
            continue
        request = RequestLine(data_index=start + number, body=body)
        out.requests.append(request)
        out.reference.append(reference_row(request, expected))
        if expected:
            out.answers[request.data_index] = expected
        unanswered += expected is None and has_answers(name)
    if unanswered:
        notes.append(
            f"{lines.name}: {unanswered} of {len(out.requests)} questions have no answer ({where});"
            " argument accuracy leaves them out"
        )
    return out


def chat_body(question: Mapping[str, Any], group: str) -> dict[str, Any]:
    """A question as a chat-completions body: its first turn, tool_choice auto.

    ``metadata`` keeps the ``group``, BFCL's id, and in ``names`` what BFCL calls the tools whose
    names OpenAI's API would not take, by the names they have here.

    Raises:
        ValueError: names the field that is wrong, what was wanted, and what came.
    """
    turns, functions = question.get("question"), question.get("function")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], list):
        raise ValueError("question must be a list of turns, each a list of messages")
    if not isinstance(functions, list):
        raise ValueError(
            "function must be a list of functions; sets of several turns, with memory"
            " or with web search have none, and cannot be asked as single requests"
        )
    if not all(isinstance(f, dict) and isinstance(f.get("name"), str) for f in functions):
        raise ValueError("function must list objects with a name")
    names = safe_names(function["name"] for function in functions)
    tools = []
    for function in functions:
        inner = {"name": names[function["name"]]}
        if isinstance(function.get("description"), str):
            inner["description"] = function["description"]
        try:
            inner["parameters"] = parameters_schema(function.get("parameters"))
        except ValueError as error:
            raise ValueError(f"function {function['name']!r}: {error}") from None
        tools.append({"type": "function", "function": inner})
    body = {
        "messages": turns[0],
        # The API takes no empty list: four questions of live_irrelevance have no function.
        **({"tools": tools, "tool_choice": "auto"} if tools else {}),
        "metadata": {
            "group": group,
            "bfcl_id": question.get("id"),
            "names": {safe: name for name, safe in names.items() if safe != name},
        },
    }
    check_body(body)
    return body


def expected_calls(ground_truth: Any, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The ground truth of a question, by the names that its tools have in the request body.

    Returns:
        One ``{name: {argument: [accepted value, ...]}}`` for each call.

    Raises:
        ValueError: it is of another shape, or calls a function that the question does not have.
    """
    if not isinstance(ground_truth, list) or not ground_truth:
        raise ValueError("ground_truth must be a list of at least one call")
    original = body["metadata"]["names"]
    tools = [tool["function"]["name"] for tool in body.get("tools", [])]
    safe = {original.get(name, name): name for name in tools}
    calls = []
    for call in ground_truth:
        if not isinstance(call, dict) or len(call) != 1:
            raise ValueError("ground_truth must list calls, {name: {argument: [value, ...]}}")
        ((name, arguments),) = call.items()
        if name not in safe:
            raise ValueError(f"ground_truth calls {name!r}, which is not a function of the line")
        if not isinstance(arguments, dict):
            raise ValueError(f"ground_truth must give the arguments of {name!r} as an object")
        calls.append({safe[name]: {key: accepted(value) for key, value in arguments.items()}})
    return calls


def accepted(value: Any) -> list[Any]:
    """What BFCL takes for an argument or a key. One value may stand for a list of it alone.

    Where it lists nothing at all an empty array is meant: so it is in each such place of v4, all
    of them required arrays.
    """
    if not isinstance(value, list):
        return [value]
    return value or [[]]


def reference_row(request: RequestLine, expected: list[dict[str, Any]] | None) -> ResultRow:
    """When to call, as a row of a results file: never in an irrelevance set, else always.

    With its calls, where they are known: each argument's first accepted value.
    """
    called = not is_irrelevance(request.body["metadata"]["group"])
    reason = "tool_calls" if called else "stop"
    message: dict[str, Any] = {"role": "assistant", "content": None if called else ""}
    response = None
    if expected or not called:
        if expected:
            message["tool_calls"] = _calls(expected, request.body["tools"])
        response = {
            "id": f"reference-{request.data_index}",
            "object": "chat.completion",
            "created": 0,
            "model": "BFCL",
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        }
    return ResultRow(
        data_index=request.data_index,
        request=request.body,
        response=response,
        status="success",
        finish_reason=reason,
        hash=request.hash,
    )


def first_values(arguments: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """An object that ground truth accepts: of each key the first value that is one.

    ``""`` and null are passed over where ``""``, which makes a key optional, is among the values;
    a key without any other is left out, but for one that the schema requires.
    """
    schema = schema if isinstance(schema, dict) else {}
    values = {}
    for key, value in arguments.items():
        candidates = accepted(value)
        if "" in candidates:
            candidates = [one for one in candidates if one not in ("", None)]
        if candidates:
            values[key] = _plain(candidates[0], schema.get("properties", {}).get(key))
        elif key in schema.get("required", ()):
            values[key] = ""
    return values


def answers_beside(path: Path) -> Path | None:
    """The answers file that goes with a questions file, or None.

    The leaderboard keeps it under the same name in ``possible_answer``; ``NAME.answers.jsonl``
    beside it is found too. Either may be gzipped.
    """
    stem = _stem(path)
    candidates = [path.parent / "possible_answer" / path.name]
    candidates += [path.parent / "possible_answer" / f"{stem}{ending}" for ending in _ENDINGS]
    candidates += [path.parent / f"{stem}.answers{ending}" for ending in _ENDINGS]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def is_answers_file(path: Path) -> bool:
    """Whether a file is named as the answers of another."""
    return _stem(path).endswith(".answers")


def _truths(lines: JsonLines, skip: bool, notes: list[str]) -> tuple[dict[str, Any], str]:
    """Ground truth by id from the file beside that of the questions, and what to say of it."""
    if lines.unit == "row":
        return {}, "no ground_truth in their rows"
    questions = Path(lines.name)
    path = answers_beside(questions)
    if path is None:
        stem = _stem(questions)
        return {}, f"no possible_answer/{questions.name} or {stem}.answers.jsonl beside it"
    found = read_json_lines(path)
    truths = {}
    for number, line in found.values.items():
        if is_answer(line) and isinstance(line.get("id"), str):
            truths[line["id"]] = line["ground_truth"]
        else:
            found.bad[number] = "an answer must be an object with id and ground_truth"
    found.settle("BFCL answers", skip=skip, notes=notes)
    return truths, f"not in {path}"


def _stem(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    return name.removesuffix(".jsonl").removesuffix(".json")


def _calls(expected: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    calls = []
    for i, call in enumerate(expected):
        ((name, arguments),) = call.items()
        function = {"name": name, "arguments": first_values(arguments, schemas[name])}
        calls.append({"id": f"call_{i}", "type": "function", "function": function})
    return calls


def _plain(value: Any, schema: Any) -> Any:
    schema = schema if isinstance(schema, dict) else {}
    if isinstance(value, dict):
        return first_values(value, schema)
    if isinstance(value, list):
        return [_plain(item, schema.get("items")) for item in value]
    return value
