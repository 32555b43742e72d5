"""The check of an endpoint: its schemas, its verdicts, and a run against a server of ours."""

import json
import os
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from eval import serve_check
from eval.serve_client import Answer, Client
from eval.walle import read_cases, wrapped
from tests.serving import ROOT, running

SCHEMAS = [
    {"type": "string", "enum": ["", " ", "\n", "special\\chars"]},
    {
        "$defs": {
            "Node": {
                "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Node"}]}},
                "required": ["next"],
                "type": "object",
            }
        },
        "$ref": "#/$defs/Node",
    },
    {
        "type": "object",
        "properties": {"child": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["child"],
    },
    {
        "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}},
        "required": ["b"],
        "type": "object",
    },
    {"$id": "my-schema", "$defs": {"S": {"type": "boolean"}}, "anyOf": [{"$ref": "#/$defs/S"}]},
    {
        "definitions": {"x": {"const": {"$ref": "#"}}},
        "items": {"$ref": "#/definitions/x"},
        "type": "array",
    },
    {"properties": {"$ref": {"type": "integer"}}, "required": ["$ref"], "type": "object"},
    {"items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 3, "type": "array"},
]
VALUES = [
    None,
    True,
    0,
    1,
    "",
    "special\\chars",
    [],
    [1, 2],
    [{"$ref": "#"}],
    [True],
    {},
    {"next": None},
    {"next": {"next": None}},
    {"next": {"next": 1}},
    {"child": None},
    {"child": {"child": None}},
    {"child": {"child": 3}},
    {"b": 1},
    {"b": "1"},
    {"$ref": 1},
    {"$ref": "#"},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_a_wrapped_schema_accepts_what_the_schema_accepts(schema):
    Draft202012Validator.check_schema(wrapped(schema))
    own, around = Draft202012Validator(schema), Draft202012Validator(wrapped(schema))
    verdicts = [own.is_valid(value) for value in VALUES]
    assert [around.is_valid({"value": value}) for value in VALUES] == verdicts
    assert len(set(verdicts)) == 2
    assert not around.is_valid({})
    assert not around.is_valid({"value": VALUES[verdicts.index(True)], "more": 1})


def test_the_schemas_of_walle():
    folder = (
        Path(os.environ.get("MASKED_SAMPLING_SHARED", ROOT.parent / "shared")) / "data" / "walle"
    )
    if not folder.is_dir():
        pytest.skip("the walle schemas are not here: ../shared/data/walle")
    cases = read_cases(folder)
    assert len(cases) == 212
    for case in cases:
        schema = json.loads(
            (folder / f"{case.name.split(':')[0]}.jsonl")
            .read_text()
            .splitlines()[int(case.name.split(":")[1]) - 1]
        )
        own, around = Draft202012Validator(schema), Draft202012Validator(case.parameters)
        for value in VALUES:
            assert around.is_valid({"value": value}) == own.is_valid(value), case.name


def answer(arguments, *, reason="tool_calls", name="submit", **fields):
    calls = [{"function": {"name": name, "arguments": text}} for text in arguments]
    choice = {"message": {"content": "", "tool_calls": calls}, "finish_reason": reason}
    return Answer(200, (choice,), **fields)


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        (answer(['{"value": 2}']), "valid"),
        (answer(['{"value": 2}', '{"value": 3}']), "valid"),
        (answer(['{"value": "2"}']), "invalid"),
        (answer(['{"value": 2}', '{"value": "2"}']), "invalid"),
        (answer(['{"value": 2}'], name="other"), "invalid"),
        (answer(['{"value": 2']), "invalid"),
        (answer(['{"value": 2}'], reason="stop"), "invalid"),
        (answer([], reason="stop"), "invalid"),
        (answer([], reason="length"), "truncated"),
        (answer(['{"value": "2"}'], reason="length"), "invalid"),
        (Answer(400, error="no"), "refused"),
        (Answer(500, error="no"), "failed"),
        (Answer(200, error="the stream broke off"), "failed"),
    ],
)
def test_verdicts(given, outcome):
    assert serve_check.judged(given, wrapped({"type": "integer"}))["outcome"] == outcome


def test_counts():
    rows = [
        {
            "outcome": "valid",
            "guard": "redone=2; guarded=submit",
            "usage": {"completion_tokens": 5},
        },
        {"outcome": "valid", "guard": "guarded=submit", "usage": {}},
        {"outcome": "refused", "guard": "", "usage": {}, "detail": "why"},
    ]
    got = serve_check.summary(rows)
    assert (got["asked"], got["valid"], got["refused"], got["invalid"]) == (3, 2, 1, 0)
    assert (got["guarded"], got["redone"], got["tokens"]) == (2, 2, 5)
    assert got["refusals"] == {"why": 1}


def test_a_run_against_a_server(tmp_path, capsys):
    refused = {"type": "object", "properties": {"x": {"$ref": "#/nowhere"}}}
    lines = [*SCHEMAS, refused]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(s) + "\n" for s in lines))
    output = tmp_path / "out" / "check.json"
    with running("--structural-tag-schema", "strict") as server:
        code = serve_check.main(
            [
                *("--base-url", f"{server.url}/v1", "--output", str(output)),
                *("--max-tokens", "256", str(tmp_path)),
            ]
        )
        assert Client(f"{server.url}/v1").model() == "nano"
    report = json.loads(output.read_text())
    assert code == 0, report
    for mode in ("plain", "streamed"):
        got = report["summary"][mode]
        assert (got["asked"], got["refused"]) == (len(lines), 1)
        assert got["valid"] + got["truncated"] == len(SCHEMAS)
        assert got["valid"] >= len(SCHEMAS) - 2
        ((reason, _),) = got["refusals"].items()
        assert "'submit'" in reason
    assert report["differ"] == []
    tokens = [report["summary"][mode]["tokens"] for mode in ("plain", "streamed")]
    assert tokens[0] == tokens[1] > 0
    assert "refused, 1: " in capsys.readouterr().out


def test_answers_that_nest_deep_are_judged(tmp_path, monkeypatch):
    """Deeper than jsonschema follows of itself, and not taken on trust."""
    link = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
    }
    (tmp_path / "some.jsonl").write_text(json.dumps(link))
    output = tmp_path / "check.json"

    def ask(self, body):
        end = "7" if body.get("stream") else "null"
        return answer(['{"value": ' + '{"next": ' * 700 + end + "}" * 701])

    monkeypatch.setattr(Client, "ask", ask)
    arguments = ["--output", str(output), "--base-url", "http://127.0.0.1:9/v1", "--model", "m"]
    limit = sys.getrecursionlimit()
    assert serve_check.main([*arguments, str(tmp_path)]) == 1
    assert sys.getrecursionlimit() == limit
    outcomes = [row["outcome"] for row in json.loads(output.read_text())["rows"]]
    assert outcomes == ["valid", "invalid"]


def test_a_check_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    """Asks what has no answer yet, and what failed; another endpoint is asked for everything."""
    (tmp_path / "some.jsonl").write_text('{"type": "integer"}\n' * 3)
    output, asked = tmp_path / "check.json", []
    part = tmp_path / "check.json.part"

    def run(broken, endpoint="http://127.0.0.1:9/v1"):
        def ask(self, body):
            asked.append((body["seed"], bool(body.get("stream"))))
            if len(asked) > broken:
                return Answer(0, error="ConnectionRefusedError: nobody there")
            return answer(['{"value": 2}'], usage={"completion_tokens": 7})

        asked.clear()
        monkeypatch.setattr(Client, "ask", ask)
        arguments = ["--output", str(output), "--base-url", endpoint, "--model", "m"]
        return serve_check.main([*arguments, "--concurrency", "1", str(tmp_path)])

    everything = [(seed, streamed) for seed in range(3) for streamed in (False, True)]
    assert run(4) == 1
    assert asked == everything
    assert json.loads(output.read_text())["summary"]["plain"]["failed"] == 1
    part.write_text(part.read_text()[:-9])
    assert run(1) == 1
    assert asked == everything[3:]
    assert run(9, "http://127.0.0.1:10/v1") == 0
    assert asked == everything
    assert not part.exists()
    report = json.loads(output.read_text())
    assert [row["outcome"] for row in report["rows"]] == ["valid"] * 6
    assert report["summary"]["streamed"]["tokens"] == 21
    assert capsys.readouterr().err == "serve_check: 3 answers are there from before\n"


def test_bad_arguments_are_one_line(tmp_path, capsys):
    output = ["--output", str(tmp_path / "x.json")]
    assert serve_check.main(output) == 2
    assert serve_check.main([*output, "--base-url", "ftp://x", str(tmp_path)]) == 2
    (tmp_path / "a.jsonl").write_text("{\n")
    assert serve_check.main([*output, "--base-url", "http://127.0.0.1:9/v1", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    assert "line 1: not JSON" in errors[2]
