"""``python -m grammar.schema``: what it reads, what it prints, and its exit status."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grammar.schema import Options, prepare
from grammar.schema.__main__ import main
from tests.test_schema_masks import compiled, takes

EXACT = {"type": "object", "properties": {"a": {"type": "string"}}}
REWRITTEN = {"oneOf": [{"type": "string"}, {"type": "null"}]}
GUARDED = {"type": "array", "uniqueItems": True}
REFUSED = {"$ref": "https://example.com/x"}


def tool(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def run(tmp_path, capsys, text, *more):
    path = tmp_path / "given.json"
    path.write_text(text)
    status = main([str(path), *more])
    return status, capsys.readouterr()


@pytest.mark.parametrize(
    ("schema", "status"), [(EXACT, 0), (REWRITTEN, 0), (GUARDED, 1), (REFUSED, 2), (False, 2)]
)
def test_the_exit_status_is_that_of_the_worst(tmp_path, capsys, schema, status):
    assert run(tmp_path, capsys, json.dumps(schema))[0] == status


def test_a_tools_list_and_requests_name_their_tools(tmp_path, capsys):
    tools = [tool("first", EXACT), tool("second", GUARDED)]
    status, printed = run(tmp_path, capsys, json.dumps(tools), "--json")
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert status == 1
    assert [(r["where"], r["verdict"]) for r in rows] == [
        ("given.json[0] first", "exact"),
        ("given.json[1] second", "guarded"),
    ]
    assert rows[1]["reasons"][0]["keyword"] == "uniqueItems"
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": REFUSED}}
    lines = [{"tools": tools}, {"messages": [], "response_format": wanted}]
    status, printed = run(tmp_path, capsys, "\n".join(map(json.dumps, lines)), "--json")
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert status == 2
    assert [r["where"] for r in rows] == [
        "given.json:1 tools[0] first",
        "given.json:1 tools[1] second",
        "given.json:2 response_format",
    ]


def test_the_table_has_the_place_and_the_reason(tmp_path, capsys):
    _, printed = run(tmp_path, capsys, json.dumps({"properties": {"a": GUARDED}}))
    assert "guarded" in printed.out
    assert "uniqueItems" in printed.out


def test_standard_input_and_unreadable_files(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(EXACT)))
    assert main(["-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["where"] == "stdin"
    assert main(["/nowhere/at/all.json"]) == 2
    assert "all.json" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("{broken"))
    assert main(["-"]) == 2
    assert "not JSON" in capsys.readouterr().err


def test_help_needs_neither_torch_nor_xgrammar():
    code = (
        "import runpy, sys\n"
        "sys.argv = ['schema', '--help']\n"
        "try:\n    runpy.run_module('grammar.schema', run_name='__main__')\n"
        "except SystemExit as error:\n    assert error.code == 0\n"
        "assert not {'torch', 'xgrammar', 'transformers'} & set(sys.modules)\n"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout


SHARED = Path(os.environ.get("MASKED_SAMPLING_SHARED", Path(__file__).parents[2] / "shared"))
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder ../shared is absent")


@needs_shared
@pytest.mark.parametrize("target", ["schema", "grammar"])
def test_the_restated_faults_of_others(target):
    for line in (SHARED / "cases" / "schema.jsonl").read_text().splitlines():
        case = json.loads(line)
        given = case["input"]
        forbid = case["id"] == "schema-any-order-loses-required-and-unique"
        options = Options(
            target=target,
            undeclared_keys="forbid" if forbid else "allow",
            aliases=True,
            key_order="any" if target == "grammar" else "declared",
        )
        prepared = prepare(given["schema"], options=options)
        if prepared.verdict == "refused":
            assert case["id"] in ("schema-ref-without-hash", "schema-ref-cycle-no-base")
            continue
        grammar = compiled(prepared)
        for text in given["invalid"]:
            if takes(grammar, text):
                assert prepared.verdict == "guarded", (case["id"], text)
                assert not prepared.is_valid(json.loads(text))
        if target == "grammar":
            for text in given["valid"]:
                assert takes(grammar, text), (case["id"], text)


@needs_shared
def test_every_tool_schema_of_walle_is_usable():
    for path in sorted((SHARED / "data" / "walle").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            if line.strip():
                for target in ("schema", "grammar"):
                    prepared = prepare(json.loads(line), options=Options(target=target))
                    assert prepared.verdict in ("exact", "rewritten"), line


@needs_shared
@pytest.mark.parametrize("target", ["schema", "grammar"])
def test_no_invalid_instance_of_the_official_suite_is_taken(target):
    """The cheapest files of each kind; all of them are run by ``python -m eval.json_schema``."""
    taken = 0
    for name in (
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "const",
        "dependentRequired",
        "additionalProperties",
    ):
        path = SHARED / "data" / "json_schema_test_suite" / f"{name}.json"
        for group in json.loads(path.read_text()):
            options = Options(target=target, undeclared_keys="allow", key_order="any")
            prepared = prepare(group["schema"], options=options)
            if prepared.verdict == "refused":
                assert not any(t["valid"] for t in group["tests"])
                continue
            grammar = compiled(prepared)
            for test in group["tests"]:
                accepted = takes(grammar, json.dumps(test["data"]))
                taken += accepted
                if accepted and not test["valid"]:
                    assert prepared.verdict == "guarded", group["description"]
                    assert not prepared.is_valid(test["data"])
    assert taken > 80
