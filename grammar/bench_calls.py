"""Tools and calls to time grammars with: the Berkeley leaderboard's, or some made up here."""

import gzip
import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grammar.formats.base import NAME_PATTERN

# BFCL names types as Python does. `any` is no type at all.
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_FILES = ("simple_python", "multiple", "live_simple", "live_multiple")


@dataclass(frozen=True)
class Sample:
    """Tools of one request, and a call that answers it.

    Attributes:
        tools: OpenAI tools.
        name, arguments: the call.
    """

    tools: tuple[Mapping[str, Any], ...]
    name: str
    arguments: Mapping[str, Any]


def bfcl(folder: Path) -> list[Sample]:
    """Requests of BFCL v4 with one call as answer, aliases of types translated.

    Of the answers that count as right the first is taken, its arguments in the schema's order.
    """
    samples = []
    for file in _FILES:
        answers = {line["id"]: line["ground_truth"] for line in _lines(folder, f"{file}.answers")}
        for line in _lines(folder, file):
            truth = answers.get(line["id"], ())
            tools = tuple(
                _tool(f) for f in line["function"] if re.fullmatch(NAME_PATTERN, f["name"])
            )
            if len(truth) != 1 or len(tools) < len(line["function"]):
                continue
            ((name, options),) = truth[0].items()
            schema = next(
                (t["function"]["parameters"] for t in tools if t["function"]["name"] == name), None
            )
            if schema is not None:
                samples.append(Sample(tools, name, _chosen(options, schema)))
    return samples


def synthetic(count: int = 200, seed: int = 0) -> list[Sample]:
    """Requests with a tool of one to six parameters of all types, and a call of random values."""
    rng = random.Random(seed)
    return [_synthetic(i, rng) for i in range(count)]


def distinct_tools(samples: list[Sample]) -> list[Mapping[str, Any]]:
    """Every tool once, by name, in order."""
    tools: dict[str, Mapping[str, Any]] = {}
    for sample in samples:
        for tool in sample.tools:
            tools.setdefault(tool["function"]["name"], tool)
    return list(tools.values())


def _lines(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    function = {**function, "parameters": json_schema(function["parameters"])}
    return {"type": "function", "function": function}


def json_schema(value: Any) -> Any:
    """A schema with BFCL's names of types replaced by JSON Schema's."""
    if isinstance(value, list):
        return [json_schema(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    schema = {key: json_schema(item) for key, item in value.items()}
    if isinstance(schema.get("type"), str):
        schema["type"] = _TYPES.get(schema["type"], schema["type"])
        if schema["type"] == "any":
            del schema["type"]
    return schema


def _chosen(options: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """One value a parameter: "" among the options says that it may be left out."""
    properties = schema.get("properties", {})
    chosen = {}
    for name in [*properties, *(n for n in options if n not in properties)]:
        values = [v for v in options.get(name, ()) if v != ""]
        if values:
            value, below = values[0], properties.get(name, {})
            chosen[name] = _chosen(value, below) if _is_options(value) else value
    return chosen


def _is_options(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(v, list) for v in value.values())


_WORDS = "north harbour 上海 invoice blue Zürich quarterly café ticket résumé seven lantern".split()


def _synthetic(number: int, rng: random.Random) -> Sample:
    properties, arguments = {}, {}
    for i in range(rng.randint(1, 6)):
        schema, value = _parameter(rng)
        name = f"{rng.choice(_WORDS[-3:])}_{i}"
        properties[name], arguments[name] = schema, value
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    name = f"{rng.choice(('get', 'set', 'find'))}_{rng.choice(('order', 'trip', 'file'))}_{number}"
    function = {"name": name, "description": f"Tool {number}.", "parameters": parameters}
    return Sample(({"type": "function", "function": function},), name, arguments)


def _parameter(rng: random.Random) -> tuple[dict[str, Any], Any]:
    text = " ".join(rng.choices(_WORDS, k=rng.randint(1, 8)))
    low = rng.randint(0, 50)
    point = {"x": {"type": "number"}, "y": {"type": "number"}}
    return rng.choice(
        [
            ({"type": "string"}, text),
            ({"type": "integer", "minimum": low, "maximum": 10 * low + 9}, low + 3),
            ({"type": "number"}, round(rng.uniform(-100, 100), 3)),
            ({"type": "boolean"}, rng.random() < 0.5),
            ({"enum": ["metric", "imperial", "nautical"]}, "imperial"),
            ({"type": "array", "items": {"type": "string"}}, text.split()),
            (
                {"type": "object", "properties": point, "required": ["x", "y"]},
                {"x": rng.randint(0, 9), "y": 0.5},
            ),
        ]
    )
