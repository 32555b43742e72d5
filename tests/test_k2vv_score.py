"""`score` and `compare` on files as K2VV's own tool writes them, on published counts, and on files
that are not what they should be."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from eval import k2vv_compare, k2vv_score
from eval.results_compare import compare
from eval.results_file import open_results
from eval.results_score import score
from eval.rows import ResultsError
from tests.k2vv_lines import (
    BAD,
    GOOD,
    PING,
    SEARCH,
    bare,
    call,
    failed,
    official,
    said,
    triggered,
    write,
)

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = (
    "model success_count failure_count finish_stop finish_tool_calls finish_others "
    "finish_others_detail schema_validation_error_count successful_tool_call_count usage "
    "eval_started_at eval_finished_at eval_duration_ms masked_sampling"
).split()


def scored(tmp_path, *lines, reference=(), **options):
    results = open_results(write(tmp_path / "results.jsonl", *lines))
    others = open_results(write(tmp_path / "official.jsonl", *reference)) if reference else None
    found = score(results, others, **options)
    json.dumps(found, allow_nan=False)
    return found


class TestPublishedFigures:
    @pytest.mark.parametrize(
        ("valid", "called", "percent"),
        [
            # K2-thinking, 2025-11-15: vLLM and SGLang. K2-0905: vLLM, SGLang.
            (1856, 2128, "87.22"),
            (1790, 1874, "95.52"),
            (1007, 1325, "76.00"),
            (928, 1269, "73.13"),
            # K2VV's issue 27; vLLM's first run of K2; 92 % without a grammar, 100 % with one.
            (1045, 1097, "95.26"),
            (218, 248, "87.90"),
            (46, 50, "92.00"),
            (50, 50, "100.00"),
        ],
    )
    def test_schema_accuracy(self, tmp_path, valid, called, percent):
        lines = [bare(i, "tool_calls", i <= valid) for i in range(1, called + 1)]
        lines += [bare(called + 1, "stop"), bare(called + 2, "length")]
        accuracy = scored(tmp_path, *lines)["schema_accuracy"]
        assert (accuracy["successful"], accuracy["triggered"]) == (valid, called)
        assert f"{100 * accuracy['accuracy']:.2f}" == percent
        expected = binomtest(valid, called).proportion_ci(method="wilson")
        assert accuracy["interval"] == pytest.approx(list(expected))

    def test_a_published_summary_is_counted_again_from_its_rows(self, tmp_path):
        # MoonshotAI/K2-Vendor-Verifier, issue 27.
        lines = [triggered(i, valid=i <= 753) for i in range(1, 840)]
        lines += [official(i) for i in range(840, 1472)]
        lines += [official(i, "length") for i in range(1472, 1478)]
        lines += [failed(i) for i in range(1478, 2001)]
        found = scored(tmp_path, *lines, expected=2000)
        summary = found["summary"]
        assert list(summary) == SUMMARY
        assert (summary["success_count"], summary["failure_count"]) == (1477, 523)
        assert (summary["finish_stop"], summary["finish_tool_calls"]) == (632, 839)
        assert (summary["finish_others"], summary["finish_others_detail"]) == (6, {"length": 6})
        assert summary["schema_validation_error_count"] == 86
        assert summary["successful_tool_call_count"] == 753
        assert set(summary["usage"].values()) == {0}
        assert summary["model"] == "kimi-k2-thinking"
        assert summary["eval_duration_ms"] == 1040
        assert summary["masked_sampling"]["adds_up"]
        assert found["failures"]["by_tool"] == {"search": {"type": 86}}
        assert found["verdicts"]["agree"] == 839

    def test_rows_that_vanished_are_counted(self, tmp_path):
        # vLLM's first run of Kimi K2: 3,705 + 248 + 44 of 4,000.
        reasons = ["stop"] * 3705 + ["tool_calls"] * 248 + ["length"] * 44
        lines = [bare(i, reason, i <= 3705 + 218) for i, reason in enumerate(reasons, 1)]
        found = scored(tmp_path, *lines, expected=4000)
        summary = found["summary"]
        assert summary["masked_sampling"]["missing_rows"] == 3
        assert (
            summary["successful_tool_call_count"] + summary["schema_validation_error_count"]
            == summary["finish_tool_calls"]
            == 248
        )
        assert found["incomplete"] == ["3 of the expected requests have no row"]

    @pytest.mark.parametrize(
        ("table", "f1", "accepted"),
        [
            # The official API's lowest of K2-thinking and of K2-0905; a vendor refused by both.
            ((94, 30, 30, 9), "75.81", [True, False]),
            ((110, 20, 26, 9), "82.71", [True, True]),
            ((13, 4, 6, 2), "72.22", [False, False]),
            ((19, 6, 6, 0), "76.00", [True, False]),
        ],
    )
    def test_trigger_f1_and_what_k2vv_accepts(self, tmp_path, table, f1, accepted):
        pairs = [
            pair
            for n, pair in zip(
                table,
                [("tool_calls", "tool_calls"), ("tool_calls", "stop"), ("stop", "tool_calls"),
                 ("length", "stop")],
                strict=True,
            )
            for _ in range(n)
        ]  # fmt: skip
        found = scored(
            tmp_path,
            *(bare(i, ours) for i, (ours, _) in enumerate(pairs, 1)),
            reference=[bare(i, theirs) for i, (_, theirs) in enumerate(pairs, 1)],
        )["trigger"]
        assert tuple(found[key] for key in ("TP", "FP", "FN", "TN")) == table
        assert f"{100 * found['f1']:.2f}" == f1
        assert [rerun["accepted"] for rerun in found["accepted"]] == accepted
        assert [rerun["model"] for rerun in found["accepted"]] == [
            "kimi-k2-thinking",
            "kimi-k2-0905-preview",
        ]

    def test_two_tables_with_one_f1_are_told_apart(self, tmp_path, capsys):
        # evalscope's example: ten requests, three triggered, F1 0.5; several tables give that.
        shown = []
        for tp, fp, fn, tn in ((2, 1, 3, 4), (3, 0, 6, 1)):
            ours = ["tool_calls"] * (tp + fp) + ["stop"] * (fn + tn)
            theirs = ["tool_calls"] * tp + ["stop"] * fp + ["tool_calls"] * fn + ["stop"] * tn
            results = write(tmp_path / "r.jsonl", *(bare(i, r) for i, r in enumerate(ours, 1)))
            other = write(tmp_path / "o.jsonl", *(bare(i, r) for i, r in enumerate(theirs, 1)))
            _, text = said(capsys, k2vv_score.main, results, "--reference", other)
            assert "50.0 %" in text
            assert f"{tp} / {fp} / {fn} / {tn}" in text
            shown.append(text)
        assert shown[0] != shown[1]

    def test_nothing_triggered_is_said_and_is_json(self, tmp_path, capsys):
        results = write(tmp_path / "r.jsonl", bare(1, "stop"), bare(2, "length"))
        other = write(tmp_path / "o.jsonl", bare(1, "stop"), bare(2, "stop"))
        code, text = said(capsys, k2vv_score.main, results, "--reference", other)
        assert code == 0
        assert "0.0 %*" in text
        assert "* undefined, 0 / 0" in text
        assert k2vv_score.main([str(results), "--reference", str(other), "--json"]) == 0
        found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert found["schema_accuracy"]["accuracy"] is None
        assert found["trigger"]["undefined"] == ["precision", "recall", "f1"]


def k2vv_says(one, tools):
    """K2VV's validate_tool_call, restated: anything that goes wrong is invalid."""
    try:
        schemas = [
            t["function"]["parameters"] for t in tools if t["function"]["name"] == one["name"]
        ]
        arguments = one["arguments"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        if not schemas or not schemas[0]:
            return False
        jsonschema.validate(arguments, schemas[0])
    except Exception:
        return False
    return True


class TestTheirEdges:
    @pytest.mark.parametrize(
        ("line", "valid", "cause"),
        [
            (call(name="find"), False, "unknown_tool"),
            (call("{}", "ping"), False, "other"),
            (call(""), False, "bad_json"),
            (call("queries: x"), False, "bad_json"),
            (call('{"queries": ["x"]'), False, "bad_json"),
            (call("{}"), False, "missing_key"),
            (call(BAD), False, "type"),
            (call({"queries": ["x"]}), True, None),
            (call(GOOD), True, None),
        ],
    )
    def test_a_call_is_judged_as_theirs_judges_it(self, tmp_path, line, valid, cause):
        tools = [SEARCH, PING]
        assert k2vv_says(line["function"], tools) == valid
        one = official(1, "tool_calls", line, valid=valid, asked={"tools": tools})
        found = scored(tmp_path, one)
        assert found["schema_accuracy"]["successful"] == valid
        assert found["failures"]["by_cause"] == ({cause: 1} if cause else {})
        assert found["verdicts"]["agree"] == 1
        assert found["inconsistencies"] == {}

    @settings(max_examples=80, deadline=None)
    @given(
        st.sampled_from(["search", "ping", "find", ""]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-3, 3) | st.text('ab"{', max_size=3),
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.sampled_from(["queries", "x"]), inner, max_size=2)
            ),
            max_leaves=6,
        ),
        st.booleans(),
    )
    def test_verdicts_are_theirs_on_objects(self, tmp_path_factory, name, arguments, as_text):
        # On arguments that are no object ours is stricter where the schema would take them.
        if not isinstance(arguments, dict):
            arguments = {"queries": arguments}
        tools = [SEARCH, PING]
        line = call(json.dumps(arguments) if as_text else arguments, name)
        folder = tmp_path_factory.mktemp("one")
        found = scored(folder, official(1, "tool_calls", line, asked={"tools": tools}))
        assert found["schema_accuracy"]["successful"] == k2vv_says(line["function"], tools)

    def test_tool_calls_without_calls_is_a_schema_error(self, tmp_path):
        # Their first tool called that valid, since all() of nothing is true.
        for claim in (None, True):
            found = scored(tmp_path, official(1, "tool_calls", valid=claim))
            assert found["summary"]["schema_validation_error_count"] == 1
            assert found["failures"]["by_cause"] == {"no_calls": 1}
            assert found["inconsistencies"]["triggered_without_calls"] == [1]
        assert found["verdicts"]["file_says_valid"] == [1]

    @pytest.mark.parametrize("reason", ["stop", "length"])
    def test_calls_under_another_finish_reason_are_not_triggered(self, tmp_path, reason):
        found = scored(tmp_path, official(1, reason, call()), reference=[triggered(1)])
        assert found["schema_accuracy"]["triggered"] == 0
        assert (found["trigger"]["TP"], found["trigger"]["FN"]) == (0, 1)
        odd = {"calls_not_triggered": [1]} if reason == "stop" else {}
        assert found["inconsistencies"] == odd

    def test_a_forced_tool_with_stop_and_calls_under_none_are_flagged(self, tmp_path):
        named = {"type": "function", "function": {"name": "search"}}
        found = scored(
            tmp_path,
            official(1, "stop", call(), asked={"tool_choice": named}),
            official(2, "tool_calls", call(), valid=True, asked={"tool_choice": "none"}),
            official(3, "stop", asked={"tool_choice": "required"}),
        )
        assert found["inconsistencies"] == {
            "calls_not_triggered": [1],
            "called_under_none": [2],
            "no_call_under_required": [3],
        }

    def test_failed_requests_are_in_no_finish_bucket(self, tmp_path):
        found = scored(tmp_path, failed(1), failed(2, finish_reason="tool_calls"), official(3))
        summary = found["summary"]
        assert (summary["success_count"], summary["failure_count"]) == (1, 2)
        assert (summary["finish_stop"], summary["finish_tool_calls"]) == (1, 0)
        assert found["incomplete"] == ["2 requests failed"]

    def test_identical_requests_share_a_hash_and_all_count(self, tmp_path, capsys):
        asked = {"messages": [{"role": "user", "content": "again"}]}
        lines = [triggered(i, valid=i != 3, asked=asked) for i in (1, 2, 3)]
        assert len({line["hash"] for line in lines}) == 1
        found = scored(tmp_path, *lines)
        assert found["schema_accuracy"]["triggered"] == 3
        assert found["same_request"] == {"requests": 1, "rows": 3}
        assert found["file"]["repeated"] == {}

    def test_raw_completions_without_tools_keep_their_verdict(self, tmp_path):
        # That mode renders messages and tools into a prompt, and drops them from the request.
        lines = [triggered(i, valid=i == 1) for i in (1, 2)]
        for line in lines:
            line["request"] = {"model": "m", "prompt": "<|im_system|>", "max_tokens": 9}
        found = scored(tmp_path, *lines)
        assert found["schema_accuracy"]["successful"] == 1
        assert found["failures"]["by_cause"] == {"other": 1}
        assert found["verdicts"]["taken_over"] == 2
        assert found["inconsistencies"] == {}

    def test_a_finish_reason_that_is_not_that_of_the_response(self, tmp_path):
        line = official(1, "stop") | {"finish_reason": "tool_calls"}
        assert "finish_reason_differs" in scored(tmp_path, line)["inconsistencies"]


class TestScore:
    def test_the_newest_row_counts_and_what_is_odd_is_named(self, tmp_path, capsys):
        # The newest of a data_index, whatever the order; a torn last line.
        path = write(
            tmp_path / "results.jsonl",
            failed(2, last_run_at="2026-01-01T00:00:00"),
            triggered(1, last_run_at="2026-01-01T00:00:01"),
            triggered(2, valid=False, last_run_at="2026-01-01T00:00:02"),
            "",
            official(7),
            json.dumps(official(8))[:200],
            end="",
        )
        found = score(open_results(path))
        assert found["file"]["repeated"] == {"2": 2}
        assert found["file"]["gaps"] == [[3, 6]]
        assert found["file"]["left_out"] == ["line 6 is not JSON"]
        assert found["summary"]["failure_count"] == 0
        assert found["schema_accuracy"]["triggered"] == 2
        code, text = said(capsys, k2vv_score.main, path)
        assert code == 1
        assert "line 6 is not JSON; left out" in text
        assert "1 data_index have several rows, of which the newest counts: 2." in text
        assert "4 data_index have no row, lost or blank lines of the requests: 3–6." in text

    def test_failures_by_cause_tool_and_group(self, tmp_path, capsys):
        group = {"asked": {"metadata": {"group": "live"}}}
        path = write(
            tmp_path / "r.jsonl",
            official(1, "tool_calls", call("{}"), call(BAD), **group),
            official(2, "tool_calls", call(name="find|it")),
            official(3, "length", **group),
            triggered(4),
        )
        found = score(open_results(path))
        assert found["failures"]["invalid"] == 2
        assert found["failures"]["by_tool"] == {
            "search": {"missing_key": 1, "type": 1},
            "find|it": {"unknown_tool": 1},
        }
        by_group = found["schema_accuracy"]["by_group"]
        assert {name: part["triggered"] for name, part in by_group.items()} == {
            "live": 1,
            "ungrouped": 2,
        }
        code, text = said(capsys, k2vv_score.main, path, "--output", tmp_path / "out")
        assert code == 0
        assert "33.3 %" in text
        assert "missing key 1, type 1" in text
        page = (tmp_path / "out" / "score.md").read_text()
        (line,) = (line for line in page.splitlines() if "find" in line)
        assert len(re.findall(r"(?<!\\)\|", line)) == 3

    def test_a_verdict_that_we_do_not_share_is_named(self, tmp_path, capsys):
        lines = [triggered(i) for i in range(1, 5)]
        lines[1]["response"]["choices"][0]["message"]["tool_calls"] = [call(BAD)]
        lines[2]["tool_calls_valid"] = False
        del lines[3]["tool_calls_valid"]
        path = write(tmp_path / "r.jsonl", *lines)
        verdicts = score(open_results(path))["verdicts"]
        assert verdicts == {
            "agree": 1,
            "absent": 1,
            "taken_over": 0,
            "file_says_valid": [2],
            "file_says_invalid": [3],
        }
        _, text = said(capsys, k2vv_score.main, path)
        assert "The file calls valid what is not: 1 (2)." in text
        assert "75.0 %" in text

    def test_indices_of_one_file_and_other_requests_are_listed_not_guessed(self, tmp_path):
        changed = {"messages": [{"role": "user", "content": "something else"}]}
        found = scored(
            tmp_path,
            *(triggered(i) for i in (1, 2, 3)),
            failed(4),
            reference=[
                # Another model, other settings and other ids of calls: the same request.
                triggered(1, model="official", asked={"temperature": 0.6, "stream": False}),
                triggered(2, asked=changed),
                triggered(4),
                triggered(5),
            ],
        )["trigger"]
        assert (found["TP"], found["FP"], found["FN"], found["TN"]) == (1, 0, 0, 0)
        assert found["only_in_results"] == [3]
        assert found["only_in_reference"] == [5]
        assert found["other_request"] == [2]
        assert found["undecided"] == [4]

    def test_requests_that_force_the_choice_are_shown_apart(self, tmp_path):
        lines = [
            triggered(1),
            triggered(2, asked={"tool_choice": "required"}),
            official(3, asked={"tool_choice": "none"}),
        ]
        found = scored(tmp_path, *lines, reference=lines)["trigger"]
        assert (found["TP"], found["TN"]) == (2, 1)
        assert (found["auto"]["TP"], found["auto"]["TN"]) == (1, 0)
        assert scored(tmp_path, lines[0], reference=lines[:1])["trigger"]["auto"] is None

    def test_gzip_and_folders_read_like_the_file(self, tmp_path, capsys):
        path = write(tmp_path / "results.jsonl", triggered(1), official(2))
        plain = score(open_results(path))
        folder = tmp_path / "run"
        folder.mkdir()
        (folder / "results.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        packed = score(open_results(folder))
        assert {**packed, "file": 0} == {**plain, "file": 0}

    def test_output_holds_the_summary_the_score_and_a_page(self, tmp_path, capsys):
        path = write(tmp_path / "r.jsonl", triggered(1), triggered(2, valid=False))
        assert k2vv_score.main([str(path), "--output", str(tmp_path / "out")]) == 0
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= 80
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert summary["successful_tool_call_count"] == 1
        saved = json.loads((tmp_path / "out" / "score.json").read_text())
        assert saved["schema_accuracy"]["accuracy"] == 0.5
        assert saved["provenance"]["command"].startswith("python -m eval.k2vv score ")
        page = (tmp_path / "out" / "score.md").read_text()
        assert page.startswith("# K2VV score of ")
        assert "50.0 %" in page

    def test_json_is_all_that_is_printed(self, tmp_path, capsys):
        lone = triggered(1, asked={"tools": []})
        lone["response"]["choices"][0]["message"]["tool_calls"] = [call(name="\ud83d")]
        path = write(tmp_path / "r.jsonl", json.dumps(lone))
        assert k2vv_score.main([str(path), "--json", "--output", str(tmp_path / "out")]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["failures"]["by_tool"] == {"\ud83d": {"unknown_tool": 1}}
        assert "\\ud83d" in (tmp_path / "out" / "score.md").read_text()
        assert said(capsys, k2vv_score.main, path)[0] == 0

    def test_expected_says_what_is_missing(self, tmp_path, capsys):
        path = write(tmp_path / "r.jsonl", official(1), official(2))
        assert said(capsys, k2vv_score.main, path, "--expected", 2)[0] == 0
        code, text = said(capsys, k2vv_score.main, path, "--expected", 3)
        assert (code, "1 of the expected requests have no row" in text) == (1, True)
        code, text = said(capsys, k2vv_score.main, path, "--expected", 1)
        assert (code, "1 more rows than requests were expected" in text) == (1, True)
        assert said(capsys, k2vv_score.main, path, "--expected", 0)[0] == 2


ODD_KEYS = st.sampled_from(
    "messages tools tool_choice metadata group choices message tool_calls function name arguments "
    "finish_reason parameters type allowed_tools mode usage completion_tokens content model prompt "
    "parallel_tool_calls interventions position log_removed token_ids text".split()
)
ODD_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**9) | st.sampled_from(["", "x", "auto", "{}"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(ODD_KEYS, inner, max_size=3),
    max_leaves=12,
)
ODD_OBJECT = st.dictionaries(ODD_KEYS, ODD_JSON, max_size=4)
ODD_CHOICE = st.builds(lambda choice: {"choices": [choice]}, ODD_OBJECT)


class TestBadFiles:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "is empty"),
            (b"\n \n", "is empty"),
            (gzip.compress(b"", mtime=0), "is empty"),
            (json.dumps(official(1)["request"]).encode(), "it holds requests"),
            (b'{"prompt": "x"}\n', "it holds requests"),
            (b'{"id": "simple_0", "question": [[]], "function": []}', "it holds questions"),
            (
                json.dumps({"model": "m", "schema_validation_error_count": 1}, indent=2).encode(),
                "it is a summary",
            ),
            (json.dumps({"model": "m", "modes": {}}, indent=2).encode(), "it is a comparison"),
            (b"PK\x03\x04\xff\xfe\x00", "line 1 is not JSON"),
            (b'"text"\n', "line 1 is not a result row"),
            (b'{"data_index": "one"}\n', "line 1 is not a result row (data_index"),
            (gzip.compress(b"x" * 999, mtime=0)[:-9], "broken gzip"),
        ],
    )
    def test_what_is_no_results_file_is_said_in_one_line(self, tmp_path, capsys, content, message):
        path = tmp_path / "r.jsonl"
        path.write_bytes(content)
        with pytest.raises(ResultsError, match=r"r\.jsonl"):
            open_results(path)
        assert k2vv_score.main([str(path)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.strip().splitlines()) == 1
        good = write(tmp_path / "good.jsonl", official(1))
        assert k2vv_score.main([str(good), "--reference", str(path)]) == 2
        assert k2vv_compare.main([str(good), str(path)]) == 2

    def test_paths_that_lead_nowhere(self, tmp_path, capsys):
        for path, message in ((tmp_path / "none.jsonl", "No such file"), (tmp_path, "is a folder")):
            code, text = said(capsys, k2vv_score.main, path)
            assert (code, message in text) == (2, True)

    def test_one_bad_line_takes_down_no_other(self, tmp_path, capsys):
        path = tmp_path / "r.jsonl"
        good = [json.dumps(triggered(i), ensure_ascii=False).encode() for i in (1, 9)]
        bad = [
            b'{"data_index": 2, "response": "text"}',
            b'{"data_index": 3, "request": ["text"]}',
            b'{"data_index": 4, "status": "success", "finish_reason": "st\xff\xfeop"}',
            b'{"data_index": null}',
            b"[1, 2]",
            b"[" * 100_000,
        ]
        path.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join([good[0], *bad, good[1]]))
        found = score(open_results(path))
        assert found["schema_accuracy"]["successful"] == 2
        assert len(found["file"]["left_out"]) == len(bad)
        code, text = said(capsys, k2vv_score.main, path)
        assert code == 1
        assert "line 2 is not a result row (response" in text

    @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.lists(
            st.fixed_dictionaries(
                {"data_index": st.integers(0, 3)},
                optional={
                    "request": ODD_OBJECT,
                    "response": ODD_OBJECT | ODD_CHOICE,
                    "masked_sampling": ODD_OBJECT,
                    "finish_reason": st.sampled_from(["stop", "tool_calls", "length", "", None]),
                    "status": st.sampled_from(["success", "failed", "other", None]),
                    "tool_calls_valid": st.sampled_from([True, False, None]),
                    "last_run_at": st.sampled_from(["2026-01-01", "2026-01-01T00:00:00Z", "x"]),
                    "duration_ms": st.sampled_from([0, 1e300, -5, None]),
                    "hash": st.sampled_from(["", "a", "bb"]),
                },
            ),
            min_size=1,
            max_size=4,
        )
    )
    def test_no_row_is_odd_enough_to_break_the_score(self, tmp_path_factory, lines):
        path = write(tmp_path_factory.mktemp("odd") / "r.jsonl", *lines)
        try:
            results = open_results(path)
        except ResultsError:
            return
        from eval import blocks, compare_page, score_page

        found = score(results, results)
        json.dumps(found, allow_nan=False)
        assert blocks.as_markdown(score_page.page(found))
        both = compare(results, results)
        json.dumps(both, allow_nan=False)
        assert blocks.as_markdown(compare_page.page(both))
        assert both["not_paired"] == 0


@pytest.mark.parametrize("module", ["eval.k2vv_score", "eval.k2vv_compare"])
def test_a_run_imports_no_model_and_help_is_help(module, tmp_path):
    path = write(tmp_path / "r.jsonl", triggered(1))
    paths = [str(path)] * (2 if module.endswith("compare") else 1)
    script = (
        "import sys\n"
        f"from {module} import main\n"
        f"assert main({paths!r}) == 0\n"
        "heavy = {'torch', 'transformers', 'matplotlib', 'pandas', 'numpy', 'scipy'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    shown = subprocess.run(
        [sys.executable, "-m", "eval.k2vv", module.rsplit("_", 1)[1], "--help"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.startswith(f"usage: python -m eval.k2vv {module.rsplit('_', 1)[1]}")


SET = [
    {
        "id": f"simple_{i}",
        "question": [[{"role": "user", "content": f"look up {word}"}]],
        "function": [
            {
                "name": "web.search",
                "description": "Searches.",
                "parameters": {
                    "type": "dict",
                    "properties": {"query": {"type": "string"}},
                    "required": ["query"],
                },
            }
        ],
    }
    for i, word in enumerate(("a", "b", "c"))
]
TRUTH = [
    {"id": one["id"], "ground_truth": [{"web.search": {"query": [word]}}]}
    for one, word in zip(SET, ("a", "b", "c"), strict=True)
]


class TestAnswers:
    """`--answers`: BFCL's ground truth, found by the id that a request carries."""

    @pytest.mark.parametrize("given", ["simple.jsonl", "simple.answers.jsonl"])
    def test_are_paired_by_id_from_either_file(self, tmp_path, capsys, given):
        pytest.importorskip("eval.answers")
        from eval.workloads import load_workload

        write(tmp_path / "simple.jsonl", *SET)
        write(tmp_path / "simple.answers.jsonl", *TRUTH)
        requests = load_workload(tmp_path / "simple.jsonl").requests
        rows = []
        for request, query in zip(requests, ("a", "x", "c"), strict=True):
            name = request.body["tools"][0]["function"]["name"]
            line = official(
                request.data_index + 40,
                "tool_calls",
                call(json.dumps({"query": query}), name),
                valid=True,
                asked=request.body,
            )
            rows.append(line)
        path = write(tmp_path / "r.jsonl", *rows)
        assert k2vv_score.main([str(path), "--answers", str(tmp_path / given), "--json"]) == 0
        answers = json.loads(capsys.readouterr().out)["answers"]
        assert (answers["asked"], answers["correct"]) == (3, 2)
        assert answers["correct_indices"] == [41, 43]
        assert (
            "Arguments right"
            in said(capsys, k2vv_score.main, path, "--answers", tmp_path / given)[1]
        )

    def test_of_other_requests_are_refused(self, tmp_path, capsys):
        pytest.importorskip("eval.answers")
        answers = write(tmp_path / "simple.answers.jsonl", *TRUTH)
        path = write(tmp_path / "r.jsonl", triggered(1))
        code, text = said(capsys, k2vv_score.main, path, "--answers", answers)
        assert (code, "answers none of these requests" in text) == (2, True)
