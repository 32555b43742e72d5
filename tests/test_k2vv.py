"""`python -m eval.k2vv` as a user runs it: a whole run, its files, its resumption, bad input."""

import json
import signal
import subprocess
import sys
from types import ModuleType

import jsonschema
import pytest

from eval import bundle, k2vv
from tests.endpoints import ROOT, k2vv_process, lines_of, wait_until

LIMIT = 16


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of the first bundled requests, both modes: its folder and its exit code."""
    folder = tmp_path_factory.mktemp("run")
    code = k2vv.main(["--limit", str(LIMIT), "--output", str(folder)])
    return folder, code


def test_a_run_leaves_k2vvs_files_and_a_comparison(run):
    folder, code = run
    assert code == 0
    bodies = [body for body, _ in bundle.requests()][:LIMIT]
    for mode in ("free", "constrained"):
        rows = lines_of(folder / mode / "results.jsonl")
        assert sorted(row["data_index"] for row in rows) == list(range(1, LIMIT + 1))
        for row in rows:
            assert row["request"] == bodies[row["data_index"] - 1]
            assert row["status"] == "success"
            assert row["response"]["choices"][0]["finish_reason"] == row["finish_reason"]
        summary = json.loads((folder / mode / "summary.json").read_text())
        triggered = [row for row in rows if row["finish_reason"] == "tool_calls"]
        assert summary["success_count"] == LIMIT
        assert summary["finish_tool_calls"] == len(triggered)
        assert summary["finish_stop"] == sum(row["finish_reason"] == "stop" for row in rows)
        assert summary["usage"]["completion_tokens"] == sum(
            row["response"]["usage"]["completion_tokens"] for row in rows
        )
        assert summary["masked_sampling"]["adds_up"]
    comparison = json.loads((folder / "comparison.json").read_text())
    assert set(comparison["modes"]) == {"free", "constrained"}
    assert comparison["settings"]["temperature"] == 1.0
    assert comparison["settings"]["top_p"] == 1.0
    assert (folder / "schema_accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_every_verdict_is_what_jsonschema_says(run):
    folder, _ = run
    verdicts = {"free": [], "constrained": []}
    for mode, found in verdicts.items():
        for row in lines_of(folder / mode / "results.jsonl"):
            if row["finish_reason"] != "tool_calls":
                assert row["tool_calls_valid"] is None
                continue
            schemas = {
                tool["function"]["name"]: tool["function"]["parameters"]
                for tool in row["request"]["tools"]
            }
            valid = True
            for call in row["response"]["choices"][0]["message"]["tool_calls"]:
                schema = schemas.get(call["function"]["name"])
                try:
                    arguments = json.loads(call["function"]["arguments"])
                except ValueError:
                    arguments = None
                valid &= schema is not None and isinstance(arguments, dict)
                valid = valid and jsonschema.Draft202012Validator(schema).is_valid(arguments)
            assert row["tool_calls_valid"] == valid
            found.append(valid)
    assert all(verdicts["constrained"])
    assert len(verdicts["constrained"]) > 3
    assert not all(verdicts["free"])


def test_both_runs_agree_up_to_the_first_intervention(run):
    folder, _ = run
    coupling = json.loads((folder / "comparison.json").read_text())["coupling"]
    assert coupling["prefix"]["checked"] == LIMIT
    assert all(exception["explained"] for exception in coupling["prefix"]["exceptions"])
    assert all(exception["explained"] for exception in coupling["trigger"]["exceptions"])


def test_a_second_run_has_nothing_to_do(run, capsys):
    folder, _ = run
    before = (folder / "free" / "results.jsonl").read_bytes()
    assert k2vv.main(["--limit", str(LIMIT), "--output", str(folder)]) == 0
    assert (folder / "free" / "results.jsonl").read_bytes() == before
    assert "Schema accuracy" in capsys.readouterr().out


def test_other_settings_do_not_mix(run, capsys):
    folder, _ = run
    code = k2vv.main(["--limit", "2", "--output", str(folder), "--temperature", "0.5"])
    assert code == 2
    said = capsys.readouterr().err
    assert "temperature" in said
    assert "--overwrite" in said


@pytest.mark.parametrize("signal_sent", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_keeps_what_is_done_and_resumes(tmp_path, run, signal_sent):
    arguments = ("--mode", "free", "--limit", LIMIT, "--batch-size", 2, "--output", tmp_path)
    results = tmp_path / "free" / "results.jsonl"
    process = k2vv_process(*arguments)
    wait_until(lambda: results.exists() and results.read_bytes().count(b"\n") >= 4, process)
    process.send_signal(signal_sent)
    _, said = process.communicate(timeout=60)
    if signal_sent == signal.SIGINT:
        assert process.returncode == 130
        assert "interrupted" in said
        assert "Traceback" not in said
    kept = results.read_bytes()
    with results.open("ab") as file:
        file.write(b'{"data_index": 3, "requ')
    assert k2vv.main([str(argument) for argument in arguments]) == 0
    assert results.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])
    rows = lines_of(results)
    assert sorted(row["data_index"] for row in rows) == list(range(1, LIMIT + 1))
    whole = {
        row["data_index"]: row["masked_sampling"]["token_ids"]
        for row in lines_of(run[0] / "free" / "results.jsonl")
    }
    same = [row["masked_sampling"]["token_ids"] == whole[row["data_index"]] for row in rows]
    assert sum(same) >= LIMIT - 1


TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}
GOOD = {"messages": [{"role": "user", "content": "hello"}], "tools": [TOOL]}


def requests_file(tmp_path, *lines):
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((GOOD, "{not json"), "line 2"),
        ((GOOD, "", '"text"'), "line 3"),
        (({"tools": []},), "messages"),
    ],
)
def test_a_bad_line_is_named_and_nothing_runs(tmp_path, capsys, lines, said):
    path = requests_file(tmp_path, *lines)
    assert k2vv.main([str(path), "--output", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "/no/such/model"], "does not exist"),
        (["--tool-call-parser", "nonsense"], "nonsense"),
        (["no/such/file.jsonl"], "cannot read requests"),
        (["--reference", "no/such/file.jsonl"], "no/such/file.jsonl"),
        (["--temperature", "-1"], "temperature must be at least 0"),
        (["--top-p", "0"], "top_p must be in (0, 1]"),
        (["--max-tokens", "0"], "max_tokens must be at least 1"),
        (["--batch-size", "0"], "--batch-size must be at least 1"),
        (["--limit", "0"], "limit"),
        (["--dtype", "int3"], "dtype must be one of"),
        (["--device", "cuda:99"], "device"),
    ],
)
def test_bad_arguments_are_one_sentence_and_exit_2(tmp_path, capsys, arguments, said):
    assert k2vv.main([*arguments, "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) == 1


def test_a_schema_that_cannot_be_guaranteed_fails_its_own_request_alone(tmp_path, capsys):
    broken = json.loads(json.dumps(TOOL))
    broken["function"]["parameters"] = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/nowhere"}},
        "required": ["x"],
    }
    path = requests_file(tmp_path, GOOD, {**GOOD, "tools": [broken]}, GOOD)
    out = tmp_path / "out"
    assert k2vv.main([str(path), "--mode", "constrained", "--output", str(out)]) == 2
    error = capsys.readouterr().err
    assert "request 2 failed" in error
    assert "'f'" in error
    rows = {row["data_index"]: row for row in lines_of(out / "constrained" / "results.jsonl")}
    assert [rows[i]["status"] for i in (1, 2, 3)] == ["success", "failed", "success"]
    assert rows[2]["response"]["error_type"] == "SchemaError"
    assert rows[2]["finish_reason"] is None
    summary = json.loads((out / "constrained" / "summary.json").read_text())
    assert (summary["success_count"], summary["failure_count"]) == (2, 1)


def test_a_prompt_beyond_the_context_fails_alone(tmp_path, capsys):
    long = {"messages": [{"role": "user", "content": "word " * 3000}], "tools": [TOOL]}
    path = requests_file(tmp_path, GOOD, long)
    out = tmp_path / "out"
    assert k2vv.main([str(path), "--mode", "free", "--output", str(out)]) == 2
    assert "the model's context is 2,048" in capsys.readouterr().err
    rows = {row["data_index"]: row for row in lines_of(out / "free" / "results.jsonl")}
    assert [rows[i]["status"] for i in (1, 2)] == ["success", "failed"]


def test_a_file_of_requests_that_all_fail_still_ends_in_tables(tmp_path, capsys):
    path = requests_file(tmp_path, {**GOOD, "seed": 2**64})
    assert k2vv.main([str(path), "--mode", "free", "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert "seed must be a 64-bit integer" in said.err
    assert "Traceback" not in said.err
    assert (tmp_path / "out" / "comparison.json").exists()


def test_tool_choice_can_be_overridden(tmp_path):
    out = tmp_path / "out"
    arguments = ["--limit", "4", "--tool-choice", "required", "--mode", "constrained"]
    assert k2vv.main([*arguments, "--output", str(out)]) == 0
    rows = lines_of(out / "constrained" / "results.jsonl")
    assert {row["finish_reason"] for row in rows} <= {"tool_calls", "length"}
    assert all(row["request"]["tool_choice"] == "required" for row in rows)


def test_calls_can_be_made_to_end_in_their_budget(tmp_path):
    arguments = ["--mode", "constrained", "--tool-choice", "required", "--limit", "12"]
    arguments += ["--max-tokens", "24"]
    reasons, hurried = {}, {}
    for flag in ("--no-finish-in-budget", "--finish-in-budget"):
        folder = tmp_path / flag
        assert k2vv.main([*arguments, flag, "--output", str(folder)]) == 0
        rows = lines_of(folder / "constrained" / "results.jsonl")
        reasons[flag] = [row["finish_reason"] for row in rows]
        hurried[flag] = sum(row["masked_sampling"]["hurried"] for row in rows)
        for row in rows:
            if row["finish_reason"] == "tool_calls":
                assert row["tool_calls_valid"] is True
    assert "length" in reasons["--no-finish-in-budget"]
    assert reasons["--finish-in-budget"].count("length") < reasons["--no-finish-in-budget"].count(
        "length"
    )
    assert hurried["--no-finish-in-budget"] == 0 < hurried["--finish-in-budget"]


def test_an_unreadable_call_counts_as_one():
    from eval.engine_hf import answer
    from grammar.formats import get_format
    from sampler.params import Completion

    text = '<tool_call>\n{"name": "f", "arguments": {"x": }}\n</tool_call>'
    done = Completion("k", (1,), text, "stop", 1, 1, 0.0)
    message, reason = answer(done, get_format("hermes").parse(text))
    assert reason == "tool_calls"
    [call] = message["tool_calls"]
    assert call["function"]["name"] == "f"
    with pytest.raises(ValueError):
        json.loads(call["function"]["arguments"])
    cut = Completion("k", (1,), text[:30], "length", 1, 1, 0.0)
    assert answer(cut, get_format("hermes").parse(text[:30]))[1] == "length"


def test_thinking_that_is_never_closed_is_no_attempt_to_call():
    from eval.engine_hf import answer
    from grammar.formats import get_format
    from sampler.params import Completion

    for text in ("I think the user says hi.", ""):
        done = Completion("k", (1,), text, "stop", 1, 1, 0.0)
        parsed = get_format("hermes").parse(text, reasoning=True)
        message, reason = answer(done, parsed)
        assert reason == "stop"
        assert "tool_calls" not in message


@pytest.mark.parametrize("name", ["qwen3_coder", "glm_4_7", "minimax"])
def test_arguments_are_typed_by_the_tools_and_unknown_tools_are_calls(name):
    from grammar.formats import get_format

    fmt = get_format(name)
    parameters = {"type": "object", "properties": {"code": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    for called in ("f", "unknown"):
        function = {"name": called, "arguments": '{"code": "5"}'}
        text = fmt.render([{"id": "c", "type": "function", "function": function}])
        [call] = fmt.parse(text, tools, any_tool=True).tool_calls
        assert call["function"]["name"] == called
        if called == "f":
            assert json.loads(call["function"]["arguments"]) == {"code": "5"}
    assert fmt.parse(text, tools).tool_calls == []


def test_help_names_every_flag_and_loads_nothing_heavy():
    code = (
        "import sys\nfrom eval import k2vv\n"
        "try:\n    k2vv.main(['--help'])\nexcept SystemExit as done:\n    assert done.code == 0\n"
        "print(sorted({'torch', 'openai', 'pydantic', 'rich', 'jsonschema'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.endswith("[]\n"), done.stderr
    for flag in (
        "--engine --device --dtype --threads --limit --seed --temperature --top-p --top-k --min-p"
        " --max-tokens --batch-size --tool-call-parser --structural-tag-scope --incremental"
        " --structural-tag-schema --overwrite --base-url --api-key --concurrency --timeout"
        " --retries --extra-body --reference --skip-bad-lines --constrained-via"
    ).split():
        assert flag in done.stdout


@pytest.mark.parametrize("word", ["score", "compare"])
def test_the_first_word_may_be_another_command(monkeypatch, word):
    other, given = ModuleType(f"eval.k2vv_{word}"), []

    def main(argv):
        given.append(argv)
        return 7

    other.main = main
    monkeypatch.setitem(sys.modules, f"eval.k2vv_{word}", other)
    assert k2vv.main([word, "a.jsonl", "--help"]) == 7
    assert given == [["a.jsonl", "--help"]]


@pytest.mark.parametrize(
    "arguments", [["--incremental", "--overwrite"], ["--over"], ["--api-k", "x"]]
)
def test_flags_that_exclude_each_other_or_are_cut_short_are_refused(capsys, arguments):
    with pytest.raises(SystemExit) as done:
        k2vv.main(arguments)
    assert done.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
