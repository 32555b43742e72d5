"""eval.json_schema: what it reads, how it counts, and that no schema can take it down."""

import gzip
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from eval.json_schema import build_parser, main
from eval.json_schema_cases import CasesError, read_cases
from eval.json_schema_judge import _escaped
from eval.json_schema_pool import Failure, StartError, run_jobs
from eval.json_schema_report import summarise, unsound

NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}

# Each with what xgrammar 0.2.9 makes of it, from the table of what it enforces.
MASKBENCH = [
    ("passes", NUMBER, [({"a": 1}, True), ({"a": "x"}, False), ({}, False)]),
    ("unsound", UNIQUE, [([1, 2], True), ([1, 1], False)]),
    ("narrow", {"type": "integer"}, [(1, True), (1.0, True), ("1", False)]),
    ("broken", False, [(1, False)]),
    # xgrammar copes; jsonschema's matching of the pattern takes 2**40 steps.
    ("hangs", {"type": "string", "pattern": "^(a+)+$"}, [("a" * 40 + "!", False)]),
    ("bare", {"type": "null"}, []),
]


def write_maskbench(path: Path) -> Path:
    lines = [
        {"file": f, "schema": s, "tests": [{"valid": v, "data": d} for d, v in tests]}
        for f, s, tests in MASKBENCH
    ]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    return path


def write_json(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def rows_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


# Reading.


def test_maskbench_lines_are_read(tmp_path):
    cases, notes = read_cases([write_maskbench(tmp_path / "dev.jsonl.gz")])
    assert [case.name for case in cases] == [name for name, *_ in MASKBENCH]
    assert [(t.data, t.valid) for t in cases[0].tests] == MASKBENCH[0][2]
    assert cases[-1].tests == () and notes == []


def test_the_official_suite_is_read(tmp_path):
    groups = [
        {
            "description": "no others",
            "schema": {"additionalProperties": False},
            "tests": [{"description": "one", "data": {"b": 1}, "valid": False}],
        }
    ]
    cases, _ = read_cases([write_json(tmp_path / "properties.json", groups)])
    assert [(c.name, c.schema) for c in cases] == [
        ("properties.json: no others", {"additionalProperties": False})
    ]
    assert cases[0].tests[0].data == {"b": 1} and cases[0].tests[0].valid is False


TOOL = {"type": "function", "function": {"name": "f", "parameters": NUMBER}}


@pytest.mark.parametrize(
    "value",
    [
        TOOL,
        [TOOL],
        {"model": "m", "messages": [], "tools": [TOOL]},
        {"id": "simple_0", "question": [], "function": [TOOL["function"]]},
    ],
    ids=["tool", "tools", "request", "bfcl"],
)
def test_tools_are_read(tmp_path, value):
    cases, _ = read_cases([write_json(tmp_path / "x.json", value)])
    assert [(case.schema, case.tests, case.tool) for case in cases] == [(NUMBER, None, True)]
    assert cases[0].name.endswith(" f")


def test_bare_schemas_are_read_one_a_line_and_repeats_are_dropped(tmp_path):
    path = tmp_path / "schemas.jsonl"
    path.write_text('{"type": "null"}\ntrue\n\n{"type": "null"}\n{}\n')
    cases, notes = read_cases([path])
    assert [(c.name, c.schema) for c in cases] == [
        ("schemas.jsonl:1", {"type": "null"}),
        ("schemas.jsonl:2", True),
        ("schemas.jsonl:5", {}),
    ]
    assert all(case.tests is None and not case.tool for case in cases)
    assert notes == ["1 bare schemas are the same as one before"]


def test_a_folder_is_read_and_what_holds_no_schema_in_it_is_named(tmp_path):
    write_json(tmp_path / "a" / "one.json", {"type": "null"})
    write_json(tmp_path / "answers.json", {"id": 3, "ground_truth": []})
    (tmp_path / "notes.txt").write_text("not read")
    cases, notes = read_cases([tmp_path])
    assert [case.name for case in cases] == ["a/one.json"]
    assert len(notes) == 1 and "answers.json" in notes[0] and "left out" in notes[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ('{"type": "null"}\n{"type":\n', "line 2 is not JSON"),
        ('{"id": 3, "ground_truth": []}', "neither a schema nor tools"),
        ("[]", "neither a schema nor tools"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_without_schemas_is_refused_with_what_is_wrong(tmp_path, text, said):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(CasesError, match=said):
        read_cases([path])


def test_unreadable_bytes_are_refused(tmp_path):
    (tmp_path / "x.json").write_bytes(b'"\xff"')
    with pytest.raises(CasesError, match="not UTF-8"):
        read_cases([tmp_path / "x.json"])
    (tmp_path / "x.json.gz").write_bytes(b"\x1f\x8b broken")
    with pytest.raises(CasesError, match="broken gzip"):
        read_cases([tmp_path / "x.json.gz"])


# Worker processes.


def make_worker():
    def do(job, stage):
        kind, value = job
        stage(kind)
        if kind == "sleep":
            time.sleep(value)
        elif kind == "die":
            os.kill(os.getpid(), value)
        elif kind == "exit":
            os._exit(value)
        elif kind == "raise":
            raise ValueError("too\nbad")
        elif kind == "hog":
            return len(bytearray(value))
        return value

    return do


def make_nothing():
    raise ValueError("the package is not installed")


def make_and_die():
    os._exit(7)


def run(jobs, make=make_worker, **options):
    options = {"workers": 2, "timeout_s": 60.0} | options
    return dict(run_jobs(make, jobs, **options))


def test_a_job_that_dies_or_raises_has_an_end_of_its_own():
    jobs = [
        ("echo", 1),
        ("die", signal.SIGSEGV),
        ("echo", 2),
        ("exit", 3),
        ("raise", None),
        ("echo", 3),
    ]
    assert run(jobs) == {
        0: 1,
        1: Failure("crash", "die", "the process was ended by SIGSEGV"),
        2: 2,
        3: Failure("crash", "exit", "the process ended with status 3"),
        4: Failure("error", "raise", "ValueError: too bad"),
        5: 3,
    }


def test_a_job_that_hangs_is_ended_and_the_next_one_has_a_process_of_its_own():
    jobs = [("sleep", 3600), ("echo", 1), ("sleep", 3600), ("echo", 2)]
    ended = run(jobs, workers=1, timeout_s=1.0)
    assert ended[0] == ended[2] == Failure("timeout", "sleep", "not done within 1 s")
    assert (ended[1], ended[3]) == (1, 2)


def test_memory_is_limited():
    gigabyte = 2**30
    result = run([("hog", 4 * gigabyte), ("echo", 1)], workers=1, memory_bytes=2 * gigabyte)
    assert result[0].kind == "error" and "MemoryError" in result[0].message
    assert result[1] == 1


@pytest.mark.parametrize(
    ("make", "said"), [(make_nothing, "not installed"), (make_and_die, "ended with status 7")]
)
def test_workers_that_cannot_start_end_the_run(make, said):
    with pytest.raises(StartError, match=said):
        run([("echo", 1)], make=make, workers=1)


def test_no_jobs_need_no_workers():
    assert run([]) == {}


# Counting.


def row(outcome, verdict=None, mask=((), ()), guard=((), ()), **more):
    levels = {
        level: {"valid_rejected": list(found[0]), "invalid_accepted": list(found[1])}
        for level, found in (("mask", mask), ("guard", guard))
    }
    judged = levels if outcome in ("passed", "failed") else {}
    return {"outcome": outcome, "verdict": verdict, **judged, **more}


def test_counts_are_of_schemas_and_the_two_levels_are_apart():
    rows = [
        row("passed", "exact", prepare_ms=1.0),
        row("failed", "exact", mask=([0], [1, 2]), guard=([0], [1, 2]), prepare_ms=3.0),
        row("passed", "guarded", mask=([], [0]), prepare_ms=2.0),
        row("failed", "guarded", mask=([1], []), guard=([1], []), prepare_ms=4.0),
        row("refused", "refused"),
        row("timeout"),
    ]
    summary = summarise(rows)
    assert summary["schemas"] == 6
    assert (summary["refused"], summary["timeout"], summary["crash"]) == (1, 1, 0)
    assert summary["mask"] == {"passing": 1, "valid_rejected": 2, "invalid_accepted": 2}
    assert summary["guard"] == {"passing": 2, "valid_rejected": 2, "invalid_accepted": 1}
    assert list(summary["by_verdict"]) == ["exact", "guarded", "refused"]
    assert summary["by_verdict"]["guarded"]["guard"]["passing"] == 1
    assert summary["prepare_ms"] == {"p50": 2.0, "p99": 4.0, "max": 4.0}
    assert [unsound(r) for r in rows] == [False, True, False, False, False, False]


def test_a_mask_that_claims_to_be_sound_is_held_to_it_though_a_guard_stands_behind():
    assert unsound(row("failed", "rewritten", mask=([], [0])))
    assert not unsound(row("passed", "guarded", mask=([], [0])))
    assert unsound(row("failed", None, guard=([], [0])))


# The command.


def test_a_run_counts_what_the_tables_say_and_outlives_a_schema_that_hangs(tmp_path, capsys):
    path = write_maskbench(tmp_path / "dev.jsonl.gz")
    options = ["--engine", "xgrammar", "--workers", "1", "--timeout", "5"]
    code = main([str(path), *options, "--output", str(tmp_path / "out")])
    assert code == 1
    rows = {r["name"]: r for r in rows_of(tmp_path / "out")}
    assert list(rows) == [name for name, *_ in MASKBENCH]
    assert {name: r["outcome"] for name, r in rows.items()} == {
        "passes": "passed",
        "unsound": "passed",
        "narrow": "failed",
        "broken": "error",
        "hangs": "timeout",
        "bare": "passed",
    }
    assert rows["unsound"]["mask"] == {"valid_rejected": [], "invalid_accepted": [1]}
    assert rows["unsound"]["guard"] == {"valid_rejected": [], "invalid_accepted": []}
    assert rows["narrow"]["mask"] == {"valid_rejected": [1], "invalid_accepted": []}
    assert (rows["broken"]["stage"], rows["hangs"]["stage"]) == ("compile", "tests")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    counts = summary["engines"]["xgrammar"]
    assert counts["mask"] == {"passing": 2, "valid_rejected": 1, "invalid_accepted": 1}
    assert counts["guard"] == {"passing": 3, "valid_rejected": 1, "invalid_accepted": 0}
    assert (counts["error"], counts["timeout"]) == (1, 1)
    assert counts["first_mask_ms"]["p50"] > 0
    assert summary["provenance"]["command"].startswith("python -m eval.json_schema ")
    printed = capsys.readouterr()
    assert "invalid accepted, after guard" in printed.out
    assert "hangs: timeout (tests)" in printed.err


def test_walks_find_what_a_mask_lets_through(tmp_path, capsys):
    write_json(tmp_path / "in" / "sound.json", NUMBER)
    write_json(tmp_path / "in" / "unsound.json", {**UNIQUE, "minItems": 2, "maxItems": 4})
    options = ["--engine", "xgrammar", "--workers", "1", "--walks", "60"]
    code = main([str(tmp_path / "in"), *options, "--output", str(tmp_path / "out")])
    rows = {r["name"]: r for r in rows_of(tmp_path / "out")}
    # jsonschema stands behind the engine that has no guard of its own.
    assert code == 0
    assert rows["sound.json"]["mask"]["invalid_accepted"] == []
    assert rows["sound.json"]["walks"] > 30
    assert rows["unsound.json"]["mask"]["invalid_accepted"]
    found = json.loads(rows["unsound.json"]["texts"][0])
    assert len(set(found)) < len(found)
    assert rows["unsound.json"]["guard"]["invalid_accepted"] == []


def test_llguidance_is_asked_the_same_way(tmp_path):
    pytest.importorskip("llguidance")
    path = write_json(
        tmp_path / "x.json",
        {
            "schema": NUMBER,
            "tests": [
                {"valid": True, "data": {"a": 1, "é": []}},
                {"valid": False, "data": {"a": 0.5}},
            ],
        },
    )
    assert main([str(path), "--engine", "llguidance", "--output", str(tmp_path / "out")]) == 0
    assert rows_of(tmp_path / "out")[0]["outcome"] == "passed"


def test_what_llguidance_cannot_do_is_said(tmp_path, capsys):
    pytest.importorskip("llguidance")
    path = write_json(tmp_path / "x.json", NUMBER)
    options = ["--engine", "llguidance", "--undeclared-keys", "forbid"]
    assert main([str(path), *options, "--output", str(tmp_path / "out")]) == 2
    assert "llguidance cannot forbid undeclared keys" in capsys.readouterr().err


def test_ours_says_its_verdicts(tmp_path):
    pytest.importorskip("grammar.schema")
    path = write_maskbench(tmp_path / "dev.jsonl.gz")
    main([str(path), "--limit", "2", "--workers", "1", "--output", str(tmp_path / "out")])
    passes, unsound_row = rows_of(tmp_path / "out")
    assert passes["outcome"] == unsound_row["outcome"] == "passed"
    assert passes["verdict"] in ("exact", "rewritten")
    assert unsound_row["verdict"] == "guarded"
    assert unsound_row["mask"]["invalid_accepted"] == [1]
    assert unsound_row["reasons"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.json"], "cannot read missing.json"),
        (["x.json", "--timeout", "0"], "--timeout must be above 0"),
        (["x.json", "--workers", "-1"], "--workers must be above 0"),
    ],
)
def test_bad_input_ends_with_2_before_any_worker_starts(
    tmp_path, monkeypatch, capsys, arguments, said
):
    monkeypatch.chdir(tmp_path)
    write_json(Path("x.json"), NUMBER)
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_the_undeclared_keys_of_tools_are_forbidden_unless_asked():
    args = build_parser().parse_args(["x"])
    assert args.undeclared_keys is None and args.timeout == 15.0
    with pytest.raises(SystemExit):
        build_parser().parse_args(["x", "--engine", "outlines"])


def test_an_escaped_spelling_says_the_same():
    data = {"ab": ["", "x\n", "é", "😀", 1.5, None], "": {'"': "\\"}}
    text = _escaped(data)
    assert json.loads(text) == data
    assert text.startswith('{"\\u0061b":["","\\u0078\\n"')


class AnyText:
    """A matcher that allows ``"``, ``[``, ``]`` and the end, in any order."""

    def reset(self):
        self.text = b""

    def allowed(self):
        import numpy as np

        mask = np.zeros(257, dtype=bool)
        mask[[*b'"[]', 256]] = True
        return mask

    def accept(self, token):
        if not self.allowed()[token]:
            return False
        self.text += bytes([token]) if token < 256 else b""
        return True


def test_a_walk_returns_what_the_matcher_accepted_and_only_that():
    from eval.json_schema_walks import Walker

    walker, matcher = Walker({"enum": ["[]"]}, random.Random(1)), AnyText()
    texts = set()
    for _ in range(50):
        text = walker.walk(matcher)
        assert text == matcher.text and set(text) <= set(b'"[]')
        texts.add(text)
    assert len(texts) > 5
