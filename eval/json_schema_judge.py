"""One case asked of one engine: which instances pass the mask, and which the guard behind it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

from eval.json_schema_cases import Case
from eval.json_schema_engines import END
from eval.json_schema_pool import described
from eval.json_schema_walks import Walker

_SHOWN = 3
# What BFCL and hand-written agents write for the names of JSON's types.
_ALIASES = {"dict": "object", "float": "number", "tuple": "array"}


def ask(
    engine: Any,
    case: Case,
    *,
    walks: int,
    seed: int,
    aliases: bool,
    stage: Callable[[str], None],
) -> dict[str, Any]:
    """The row of one case: what became of it, and how long it took.

    An instance is spelled as MaskBench spells it, ``json.dumps(data, ensure_ascii=False)``. It
    passes the mask when each of its bytes is allowed, and then the end token. Behind the mask
    stands the guard of a guarded schema; an engine without verdicts gets jsonschema behind it.
    An invalid instance that comes through in another spelling only is in ``respelled``.

    Args:
        stage: told what comes next: ``prepare``, ``compile``, ``tests``.
    """
    row: dict[str, Any] = {"verdict": None, "reasons": [], "stage": ""}

    def begin(name: str) -> None:
        row["stage"] = name
        stage(name)

    try:
        _fill(row, engine, case, begin, walks=walks, seed=seed, aliases=aliases)
    except Exception as error:  # what is known by then stays in the row
        return row | {"outcome": "error", "error": described(error)}
    del row["stage"]
    return row


def _fill(
    row: dict[str, Any],
    engine: Any,
    case: Case,
    begin: Callable[[str], None],
    *,
    walks: int,
    seed: int,
    aliases: bool,
) -> None:
    """Fill the row, as far as it comes."""
    clock = _Clock()
    begin("prepare")
    prepared = engine.prepare(case.schema)
    row |= clock.since_start("prepare")
    row |= {"verdict": prepared.verdict, "reasons": list(prepared.reasons)}
    if prepared.verdict == "refused":
        row["outcome"] = "refused"
        return

    begin("compile")
    matcher = engine.compile(prepared.schema)
    matcher.allowed()
    row |= clock.since_start("first_mask")

    begin("tests")
    # Aliases may mean more than names of types; what they were read as is the engine's to say.
    reads = prepared.reads if aliases else None
    judge = reads or judge_of(case.schema, aliases=aliases)
    guard = judge if prepared.verdict is None else prepared.is_valid
    if case.tests is None:
        row |= _walks(matcher, case, guard, judge, walks, seed)
    else:
        row |= _tests(matcher, case, guard, judge)
    row["outcome"] = "failed" if any(row["guard"].values()) else "passed"


class _Clock:
    """Wall and processor time; on a busy machine only the second says what something costs."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def since_start(self, name: str) -> dict[str, float]:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {f"{name}_ms": 1e3 * wall, f"{name}_cpu_ms": 1e3 * cpu}


def _tests(matcher: Any, case: Case, guard: Any, judge: Any) -> dict[str, Any]:
    row = _blank(len(case.tests))
    row |= {"valid": sum(test.valid for test in case.tests), "disputed": [], "respelled": []}
    for n, test in enumerate(case.tests):
        masked = _accepts(matcher, json.dumps(test.data, ensure_ascii=False))
        through = guard is None or _says(guard, test.data) is not False
        guarded = masked and through
        for level, accepted in (("mask", masked), ("guard", guarded)):
            if accepted != test.valid:
                row[level]["valid_rejected" if test.valid else "invalid_accepted"].append(n)
        if through and not (test.valid or masked):
            others = (_compact(test.data), _escaped(test.data))
            if any(_accepts(matcher, text) for text in others):
                row["respelled"].append(n)
        if _says(judge, test.data) is (not test.valid):
            row["disputed"].append(n)
    return row


def _walks(
    matcher: Any, case: Case, guard: Any, judge: Any, walks: int, seed: int
) -> dict[str, Any]:
    walker = Walker(case.schema, random.Random(f"{seed} {case.name}"))
    row = _blank(walks) | {"walks": 0, "texts": []}
    for n in range(walks):
        text = walker.walk(matcher)
        if text is None:
            continue
        row["walks"] += 1
        try:
            data = json.loads(text)
            valid = judge(data)
        except (ValueError, RecursionError):
            data, valid = None, False
        if valid:
            continue
        row["mask"]["invalid_accepted"].append(n)
        if guard is None or _says(guard, data) is not False:
            row["guard"]["invalid_accepted"].append(n)
        if len(row["texts"]) < _SHOWN:
            row["texts"].append(text.decode(errors="backslashreplace"))
    if walks and not row["walks"]:
        raise RuntimeError(f"none of {walks} random walks came to an end")
    return row


def _blank(tests: int) -> dict[str, Any]:
    levels = {level: {"valid_rejected": [], "invalid_accepted": []} for level in ("mask", "guard")}
    return {"tests": tests, **levels}


def _accepts(matcher: Any, text: str) -> bool:
    matcher.reset()
    data = text.encode("utf-8", "surrogatepass")
    return all(matcher.accept(byte) for byte in data) and matcher.accept(END)


def _compact(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _escaped(data: Any) -> str:
    """JSON in which each string and key starts with an escape."""
    if isinstance(data, list):
        return f"[{','.join(map(_escaped, data))}]"
    if isinstance(data, dict):
        members = (f"{_escaped(key)}:{_escaped(value)}" for key, value in data.items())
        return f"{{{','.join(members)}}}"
    if isinstance(data, str) and data and data[0].isascii():
        return f'"\\u{ord(data[0]):04x}{json.dumps(data[1:])[1:]}'
    return json.dumps(data)


def _says(judge: Callable[[Any], bool], data: Any) -> bool | None:
    """What a judge says, or None where it cannot."""
    try:
        return judge(data)
    except Exception:  # an unresolvable reference, a pattern that is none, endless recursion
        return None


def judge_of(schema: Any, *, aliases: bool = False) -> Callable[[Any], bool]:
    """jsonschema's ``is_valid`` for the draft that the schema names, 2020-12 if none.

    Nothing is fetched: a reference to elsewhere raises. Formats are annotations.

    Args:
        aliases: read ``dict``, ``float``, ``tuple`` and ``any`` as types.
    """
    import jsonschema
    from jsonschema_specifications import REGISTRY

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    if aliases:
        checker = kind.TYPE_CHECKER.redefine("any", lambda *_: True)
        for alias, name in _ALIASES.items():
            checker = checker.redefine(
                alias, lambda checker, value, name=name: checker.is_type(value, name)
            )
        kind = jsonschema.validators.extend(kind, type_checker=checker)
    return kind(schema, registry=REGISTRY).is_valid
