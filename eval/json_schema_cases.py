"""Schemas and their instances, read from the files in which people keep them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.plain_or_gzip import read_bytes

_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
# A JSON object with none of these says nothing about a value, so it is likely no schema at all.
_KEYWORDS = frozenset(
    "$ref $dynamicRef $schema $defs definitions type enum const properties patternProperties"
    " additionalProperties propertyNames required dependencies dependentRequired dependentSchemas"
    " minProperties maxProperties unevaluatedProperties items prefixItems additionalItems contains"
    " minItems maxItems uniqueItems unevaluatedItems minimum maximum exclusiveMinimum"
    " exclusiveMaximum multipleOf minLength maxLength pattern format allOf anyOf oneOf not if then"
    " else description title default".split()
)


class CasesError(ValueError):
    """A path that holds no schemas; the message says what was found instead."""


@dataclass(frozen=True)
class Test:
    """One instance and whether it is said to be valid."""

    data: Any
    valid: bool


@dataclass(frozen=True)
class Case:
    """One schema.

    Attributes:
        name: file, and what tells the schema apart in it.
        schema: as it was written.
        tests: its instances, or None for a bare schema: random walks stand in for them.
        tool: the schema is that of a tool's arguments.
    """

    name: str
    schema: Any
    tests: tuple[Test, ...] | None = None
    tool: bool = False


def read_cases(paths: Sequence[Path]) -> tuple[list[Case], list[str]]:
    """Read files, and folders of files, plain or gzip, of any of these shapes.

    * MaskBench: an object with ``schema`` and ``tests`` of ``valid`` and ``data``, one a line or
      one a file;
    * JSON-Schema-Test-Suite: a list of such objects with a ``description``;
    * tools: an OpenAI tool, a list of them, a request with ``tools``, or BFCL's with ``function``;
    * bare schemas, one a file or one a line.

    Returns:
        The cases, and sentences about what was left out: bare schemas that came before, and files
        of a folder that hold no schema.

    Raises:
        CasesError: a path cannot be read, or holds no schema.
    """
    cases: list[Case] = []
    empty: list[str] = []
    for path in paths:
        inside = path.is_dir()
        for file in _files(path):
            name = file.relative_to(path).as_posix() if inside else file.name
            try:
                cases += _read_file(file, name)
            except CasesError:
                if not inside:
                    raise
                empty.append(name)
    if not cases:
        raise CasesError(f"{', '.join(map(str, paths))}: no schemas; {_WANTED}")
    notes = [f"no schemas in {', '.join(empty)}; left out"] if empty else []
    kept = list(_without_repeats(cases))
    if len(kept) < len(cases):
        notes.append(f"{len(cases) - len(kept):,} bare schemas are the same as one before")
    return kept, notes


_WANTED = (
    "give MaskBench lines, a file of JSON-Schema-Test-Suite, tools, or schemas, as .json or .jsonl,"
    " plain or .gz"
)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(p for p in path.rglob("*") if p.is_file() and p.name.endswith(_SUFFIXES))


def _read_file(path: Path, name: str) -> Iterator[Case] | list[Case]:
    try:
        data = read_bytes(path)
    except OSError as error:
        raise CasesError(f"cannot read {path}: {error.strerror}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CasesError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    cases = []
    for where, value in _values(path, text):
        found = _cases(f"{name}{where}", value)
        if found is None:
            raise CasesError(f"{path}{where} is neither a schema nor tools; {_WANTED}")
        cases += found
    return cases


def _values(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """The JSON values of a file, each with what tells it apart: one value, or one a line."""
    try:
        yield "", json.loads(text)
        return
    except RecursionError:
        raise CasesError(f"{path} is nested too deeply to be read") from None
    except ValueError:
        if "\n" not in text.strip():
            raise CasesError(f"{path} is not JSON; {_WANTED}") from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield f":{number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                raise CasesError(f"{path}: line {number} is not JSON: {error}") from None


def _cases(name: str, value: Any) -> list[Case] | None:
    if isinstance(value, bool):
        return [Case(name, value)]
    if isinstance(value, list):
        many = [_cases(f"{name}#{n}", item) for n, item in enumerate(value)]
        return None if None in many or not many else [case for found in many for case in found]
    if not isinstance(value, dict):
        return None
    if isinstance(tests := value.get("tests"), list) and "schema" in value:
        label = value.get("file") or value.get("description")
        name = value["file"] if "file" in value else f"{name.split('#')[0]}: {label}"
        return [Case(name, value["schema"], tuple(Test(t["data"], t["valid"]) for t in tests))]
    for key in ("tools", "function"):
        if isinstance(value.get(key), list):
            return [case for tool in value[key] if (case := _tool(name, tool))]
    if tool := _tool(name, value):
        return [tool]
    return None if value and not value.keys() & _KEYWORDS else [Case(name, value)]


def _tool(name: str, value: Any) -> Case | None:
    function = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("parameters"), dict):
        return None
    return Case(f"{name} {function.get('name')}", function["parameters"], tool=True)


def _without_repeats(cases: Sequence[Case]) -> Iterator[Case]:
    seen = set()
    for case in cases:
        if case.tests is None:
            # The order of keys counts: xgrammar asks for the declared one.
            key = (case.tool, json.dumps(case.schema))
            if key in seen:
                continue
            seen.add(key)
        yield case
