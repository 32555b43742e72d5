"""`python -m eval.decoding`: a small run on the bundled model, its numbers, and bad input."""

import csv
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from eval import decoding, decoding_runs
from eval.decoding_peers import call_schema
from eval.decoding_runs import ScriptedDecoder, Timing, Work, WrongTokens
from eval.decoding_summary import row_of, steps_of, summarise
from eval.decoding_work import bundled_bodies, items_of, script_from_answer
from eval.shapes import load_shape
from sampler.chat import Chat

ROOT = Path(__file__).resolve().parent.parent
TOLD = ["free", "dense", "masked", "forced", "mixed", "generate", "generate_ours"]
TOLD += ["generate_xgrammar"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two rounds of every way that needs nothing more, four rows of up to 18 tokens."""
    folder = tmp_path_factory.mktemp("decoding")
    options = "--rounds 2 --batch-size 4 --tokens 18 --temperature 0.8".split()
    ways = [*TOLD, "generate_outlines"]
    code = decoding.main([*options, "--ways", *ways, "--output", str(folder)])
    assert code == 0
    with (folder / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    return rows, json.loads((folder / "summary.json").read_text()), folder


def test_every_way_ran_in_every_round_on_the_same_tokens(run):
    rows, summary, _ = run
    told = [row for row in rows if row["way"] in TOLD]
    assert [(row["round"], row["way"]) for row in told] == [(r, w) for r in "12" for w in TOLD]
    assert len({row["tokens"] for row in told}) == 1
    tokens = int(told[0]["tokens"])
    assert 4 <= tokens <= 4 * 18
    for row in told:
        assert (int(row["forced"]) > 0) == (row["way"] == "forced")
        assert float(row["ms_token"]) == pytest.approx(1e3 * float(row["decode_s"]) / tokens)
    ways = summary["ways"]
    steps = {ways[w]["forwards"] for w in TOLD if w != "forced"}
    assert len(steps) == 1
    assert ways["forced"]["forwards"] <= steps.pop()


def test_the_summary_says_what_was_checked_and_where_it_comes_from(run):
    _, summary, folder = run
    checks = summary["checks"]
    assert checks["compared"] == 12
    assert checks["same"] + checks["near_ties"] == 12
    assert checks["wrong"] == []
    assert checks["ended"] + checks["cut"] == 4
    assert checks["valid"] == checks["ended"]
    assert summary["provenance"]["command"].startswith("python -m eval.decoding --rounds 2")
    absent = [note for note in summary["notes"] if "outlines is not installed" in note]
    assert (
        bool(absent)
        == (find_spec("outlines") is None)
        == ("generate_outlines" not in summary["ways"])
    )
    assert (folder / "decoding.png").read_bytes().startswith(b"\x89PNG")


def test_jump_forward_is_said_to_change_what_is_produced(run):
    _, summary, _ = run
    jump = summary["checks"]["jump"]
    assert 0 < jump["jumped"] < jump["tokens"] <= 4 * 18
    assert 0 <= jump["same_tokens"] <= jump["same_text"] <= 4
    assert jump["valid"] == jump["ended"]


def test_shares_are_of_the_whole(run):
    _, summary, _ = run
    for name, way in summary["ways"].items():
        shares = [way[f"{p}_share"] for p in ("forward", "head", "sampling", "grammar")]
        if name.startswith("generate"):
            assert shares[:3] == [None] * 3
        else:
            assert 0.5 < sum(share["median"] for share in shares) < 1.05


def test_shared_beginnings_are_counted(run):
    _, summary, _ = run
    rows = {
        (row["share_prefixes"], row["exclude_tools_when_tool_choice_none"]): row
        for row in summary["prefixes"]
    }
    assert rows[False, True]["computed"] == rows[False, True]["prompt_tokens"]
    assert rows[False, False]["computed"] == rows[False, False]["prompt_tokens"]
    # Twelve prompts with the same tools: the last eleven only add what differs.
    assert rows[True, False]["computed"] < 0.5 * rows[False, False]["computed"]
    assert rows[True, True]["computed"] < rows[False, True]["computed"]


def made(way, round, step_ms, tokens=100, forced=0, decode_s=1.0, prompt_s=0.5):
    timing = Timing(
        prompt_s=prompt_s,
        steps_s=[step_ms / 1e3] * 10,
        decode_s=decode_s,
        tokens=tokens,
        forced=forced,
        forwards=10,
        parts_s={"forward": 0.6 * decode_s, "head": 0.2 * decode_s, "grammar": 0.0},
    )
    return row_of(round, way, timing)


def test_ratios_are_taken_within_a_round():
    # In the second round the machine is three times as slow: of 0.8, 0.8 and 0.9 the median is 0.8,
    # where the ratio of the medians would be 100 / 120.
    rows = [
        *(made("free", n, ms) for n, ms in ((1, 100.0), (2, 360.0), (3, 120.0))),
        *(made("masked", n, ms) for n, ms in ((1, 80.0), (2, 288.0), (3, 108.0))),
    ]
    summary = summarise(rows)
    assert summary["rounds"] == 3
    assert summary["ways"]["masked"]["ms_step"] == {"median": 108.0, "low": 80.0, "high": 288.0}
    ratio = summary["ratios"]["step_to_free"]["masked"]
    assert ratio["median"] == pytest.approx(0.8)
    assert (ratio["low"], ratio["high"]) == pytest.approx((0.8, 0.9))
    assert summary["ratios"]["step_to_free"]["free"]["high"] == 1.0
    assert "rate_to_xgrammar" not in summary["ratios"]


def test_steps_are_compared_one_by_one():
    # The machine is slow for two steps, of two ways; a way without steps has no ratio.
    free, masked, forced = made("free", 1, 0.0), made("masked", 1, 0.0), made("forced", 1, 0.0)
    free["steps_ms"] = (100.0, 50.0, 400.0, 100.0, 10.0)
    masked["steps_ms"] = (90.0, 40.0, 80.0, 900.0, 8.0)
    forced["steps_ms"] = ()
    ratios = summarise([free, masked, forced])["ratios"]["step_to_free"]
    assert ratios["masked"]["median"] == pytest.approx(0.8)
    assert ratios["free"]["median"] == 1.0
    assert ratios["forced"] is None
    assert steps_of([free])[2] == {"round": 1, "way": "free", "step": 3, "ms": 400.0}


def test_only_steps_are_compared_with_other_tokens():
    rows = [made("free", 1, 100.0), made("generate_outlines", 1, 90.0, tokens=50)]
    rows[1]["told"] = False
    ratios = summarise(rows)["ratios"]
    assert ratios["step_to_free"]["generate_outlines"]["median"] == pytest.approx(0.9)
    assert "generate_outlines" not in ratios["token_to_free"]


def test_metrics_of_a_row():
    row = made("forced", 1, 20.0, tokens=40, forced=8, decode_s=0.8, prompt_s=0.4)
    assert row["ms_step"] == pytest.approx(20.0)
    assert row["ms_token"] == pytest.approx(20.0)
    assert row["ms_token_with_prompt"] == pytest.approx(30.0)
    assert row["tokens_per_s"] == pytest.approx(50.0)
    assert row["forward_share"] == pytest.approx(0.6)
    assert row["head_share"] == pytest.approx(0.2)
    assert row["sampling_share"] is None


def test_counts_must_be_those_of_every_round():
    rows = [made("free", 1, 10.0), made("free", 2, 10.0, tokens=99)]
    with pytest.raises(ValueError, match=r"tokens of free must not differ.*\[99, 100\]"):
        summarise(rows)


@pytest.fixture(scope="module")
def chat(loaded):
    return Chat(loaded, scope="always", schema_mode="strict")


@pytest.fixture(scope="module")
def items(chat):
    return items_of(chat, bundled_bodies(3, 2), params={"max_tokens": 64}, seed=0)


def test_answers_make_scripts_that_end(chat, items, loaded):
    names = {tool["function"]["name"] for tool in items[0].body["tools"]}
    assert len(names) == 2
    for item in items:
        assert item.body["tools"] == items[0].body["tools"]
        *tokens, stop = script_from_answer(chat, item)
        assert stop in loaded.stop_token_ids
        [call] = chat.parse(loaded.tokenizer.decode(tokens), item.prompt).message["tool_calls"]
        assert call["function"]["name"] in names
        assert json.loads(call["function"]["arguments"])


def test_rows_are_told_their_tokens(chat, items):
    scripts = [script_from_answer(chat, item) for item in items]
    work = Work(chat, items, scripts, batch_size=2)
    ways, notes = decoding_runs.ways(chat, ["free", "forced", "jump", "generate_xgrammar"])
    assert notes == []
    timings = {name: way(work) for name, way in ways.items()}
    for timing in timings.values():
        assert timing.tokens == sum(map(len, scripts))
    jump, forced = timings["jump"], timings["forced"]
    assert jump.jumped > forced.forced
    assert jump.forwards < forced.forwards


def test_other_tokens_than_told_are_an_error(chat, items, monkeypatch):
    work = Work(chat, items, [script_from_answer(chat, item) for item in items], batch_size=3)
    # It takes what it has drawn.
    monkeypatch.setattr(ScriptedDecoder, "_take", ScriptedDecoder.__base__._take)
    with pytest.raises(WrongTokens, match="request 1 gave other tokens"):
        decoding_runs.ways(chat, ["free"])[0]["free"](work)


def test_the_schema_that_peers_are_given(items):
    schema = call_schema(items)
    names = [one["properties"]["name"]["const"] for one in schema["anyOf"]]
    assert names == [tool["function"]["name"] for tool in items[0].body["tools"]]
    parameters = items[0].body["tools"][1]["function"]["parameters"]
    assert schema["anyOf"][1]["properties"]["arguments"] == parameters


def test_a_shape_that_nobody_knows():
    with pytest.raises(ValueError, match=r"shape must be one of qwen2.5-0.5b, got 'qwen9'"):
        load_shape("qwen9")


def test_help_comes_at_once_and_without_torch():
    code = "import sys; from eval import decoding; decoding.main(['--help'])"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--rounds" in done.stdout
    assert "eval.decoding_summary" in done.stderr
    assert " torch" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["--limit", "4000"], "--limit must be at most"),
        (["--shape", "qwen9"], "shape must be one of"),
        (["--model", "nowhere"], "model 'nowhere' does not exist"),
        (["--tool-call-parser", "nix"], "format must be one of"),
        (["absent.jsonl"], "cannot read requests from absent.jsonl"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(arguments, message, tmp_path, capsys):
    assert decoding.main([*arguments, "--output", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_requests_without_tools_are_named(tmp_path, capsys):
    file = tmp_path / "requests.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}]}) + "\n")
    assert decoding.main([str(file), "--output", str(tmp_path)]) == 2
    assert "request 1 has no tools" in capsys.readouterr().err
    assert decoding.main([str(file), "--script", "answers"]) == 2
    assert "--script answers wants the bundled requests" in capsys.readouterr().err


def test_a_failed_check_is_code_1(tmp_path, capsys, monkeypatch):
    from eval import decoding_checks

    monkeypatch.setattr(decoding_checks, "valid_call", lambda chat, item, completion: False)
    options = "--rounds 1 --batch-size 2 --tools 1 --tokens 48".split()
    assert decoding.main([*options, "--output", str(tmp_path)]) == 1
    assert "check failed: only 0 of" in capsys.readouterr().err
