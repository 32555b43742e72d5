"""`compare` of two results files: what is paired, what is counted, where responses part."""

import json
from pathlib import Path

import pytest
from scipy.stats import binomtest

from eval import k2vv_compare
from eval.results_compare import _labels, compare
from eval.results_file import open_results
from tests.k2vv_lines import bare, call, failed, official, said, triggered, write


def ours(index, ids, *, reason="stop", **fields):
    """A line of ours, with tokens and whatever else the sampler recorded."""
    line = official(index, reason, *([call()] if reason == "tool_calls" else []))
    return line | {"masked_sampling": {"token_ids": ids, "text": "", **fields}}


def compared(tmp_path, first, second, **options):
    runs = [
        open_results(write(tmp_path / f"{name}.jsonl", *lines))
        for name, lines in (("first", first), ("second", second))
    ]
    found = compare(*runs, **options)
    json.dumps(found, allow_nan=False)
    return found


class TestCompare:
    def test_paired_table_and_mcnemar(self, tmp_path):
        kinds = {"good": triggered, "bad": lambda i: triggered(i, valid=False), "no": official}
        pairs = (
            [("good", "good")] * 3
            + [("good", "bad")] * 1
            + [("bad", "good")] * 7
            + [("bad", "bad")] * 2
            + [("good", "no"), ("no", "bad"), ("no", "no"), ("no", "no")]
        )
        runs = [[kinds[p[side]](i) for i, p in enumerate(pairs, 1)] for side in (0, 1)]
        found = compared(tmp_path, *runs)
        paired = found["paired"]
        assert [paired[k] for k in ("pairs", "both", "only_a", "only_b", "neither")] == [
            13,
            3,
            1,
            7,
            2,
        ]
        assert paired["p_value"] == pytest.approx(binomtest(1, 8).pvalue)
        assert (paired["triggered_only_a"], paired["triggered_only_b"]) == (1, 1)
        trigger = found["trigger"]
        assert (trigger["agree"], trigger["pairs"]) == (15, 17)
        assert trigger["f1"] == pytest.approx(2 * 13 / (2 * 13 + 2))
        expected = binomtest(15, 17).proportion_ci(method="wilson")
        assert trigger["interval"] == pytest.approx(list(expected))
        assert found["schema_accuracy"]["a"]["successful"] == 5

    def test_only_the_same_request_is_paired(self, tmp_path):
        other = {"messages": [{"role": "user", "content": "else"}]}
        history = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "tool_calls": [call(number=0)]},
            {"role": "tool", "tool_call_id": "functions.search:0", "content": "r"},
        ]
        renamed = json.loads(json.dumps(history).replace("functions.search:0", "search:0"))
        found = compared(
            tmp_path,
            [
                official(1),
                official(2),
                official(3),
                official(4),
                official(5, asked={"messages": history}),
            ],
            [
                official(1, model="another", asked={"temperature": 0.0, "max_tokens": 5}),
                official(2, asked=other),
                official(3, asked={"tool_choice": "required"}),
                official(6),
                official(5, model="another", asked={"messages": renamed, "tool_choice": "auto"}),
            ],
        )
        assert found["pairs"] == 2
        assert found["other_request"] == [2, 3]
        assert found["only_in"] == {"a": [4], "b": [6]}
        assert found["not_paired"] == 4
        assert found["unverified"] == []

    def test_rows_without_requests_are_paired_by_hash_or_named_as_unverified(self, tmp_path):
        first = [
            bare(i, "stop") | {"hash": h} for i, h in ((1, "aa"), (2, "aa"), (3, "aa"), (4, ""))
        ]
        second = [
            bare(i, "stop") | {"hash": h} for i, h in ((1, "aa"), (2, "bb"), (3, "b"), (4, "a"))
        ]
        found = compared(tmp_path, first, second)
        assert found["other_request"] == [2]
        assert found["unverified"] == [3, 4]
        assert found["pairs"] == 3

    def test_identical_responses_and_where_the_others_part_in_tokens(self, tmp_path):
        removed = {
            "position": 2,
            "free_token": 3,
            "token": 9,
            "log_removed": -0.5,
            "kind": "forbidden",
        }
        found = compared(
            tmp_path,
            [ours(1, [1, 2, 3]), ours(2, [1, 2, 3]), ours(3, [1, 2]), ours(4, [1, 2]), failed(5)],
            [
                ours(1, [1, 2, 3], interventions=[]),
                ours(2, [1, 2, 9, 4], interventions=[removed]),
                ours(3, [1, 2, 9], interventions=[removed]),
                ours(4, [1, 2], reason="length", interventions=[]),
                official(5),
            ],
        )["responses"]
        assert (found["compared"], found["identical"], found["unseen"]) == (4, 1, 1)
        where = {one["data_index"]: (one["position"], one["removed"]) for one in found["first"]}
        assert where == {
            2: (2, pytest.approx(0.60653, abs=1e-5)),
            3: (2, pytest.approx(0.60653, abs=1e-5)),
            4: (2, None),
        }
        assert (found["at_intervention"], found["recorded"]) == (2, 3)
        assert found["by_unit"] == {"token": 3}
        assert found["median_removed"] == pytest.approx(0.60653, abs=1e-5)

    def test_where_they_part_in_characters(self, tmp_path):
        def told(index, content, *calls):
            line = official(index, "tool_calls" if calls else "stop", *calls)
            line["response"]["choices"][0]["message"]["content"] = content
            return line

        found = compared(
            tmp_path,
            [told(1, "Hello"), told(2, "Hello"), told(3, "", call('{"queries": ["a"]}', number=1)),
             told(4, "Sure.", call())],
            [told(1, "Hello"), told(2, "Help"), told(3, "", call('{"queries": ["b"]}', number=7)),
             told(4, "Sure.")],
        )["responses"]  # fmt: skip
        where = {one["data_index"]: one["position"] for one in found["first"]}
        assert where == {2: 3, 3: len('search {"queries": ["'), 4: len("Sure.")}
        assert found["by_unit"] == {"character": 3}
        assert found["recorded"] == 0

    def test_labels_are_the_shortest_that_tell_apart(self):
        cases = {
            ("runs/free/results.jsonl", "runs/constrained/results.jsonl"): ("free", "constrained"),
            ("vllm.jsonl", "sglang.jsonl.gz"): ("vllm", "sglang"),
            ("a/x/results.jsonl", "b/x/results.jsonl.gz"): ("a/x", "b/x"),
            ("same.jsonl", "same.jsonl"): ("a", "b"),
        }
        for (first, second), labels in cases.items():
            assert _labels(Path(first), Path(second)) == labels

    def test_command_prints_and_writes(self, tmp_path, capsys):
        first = write(tmp_path / "vllm.jsonl", triggered(1), triggered(2, valid=False), official(4))
        second = write(tmp_path / "sglang.jsonl", triggered(1), triggered(2), official(3))
        out = tmp_path / "out"
        code, text = said(capsys, k2vv_compare.main, first, second, "--output", out)
        assert code == 1
        for part in (
            "vllm against sglang, 2 paired requests",
            "In vllm alone: 1 (4).",
            "In sglang alone: 1 (3).",
            "1 of 2 responses are identical",
            "validity p = 1, calling p = 1",
        ):
            assert part in text
        assert json.loads((out / "compare.json").read_text())["labels"]["a"] == "vllm"
        assert (out / "schema_accuracy.png").read_bytes().startswith(b"\x89PNG")
        assert "schema_accuracy.png" in (out / "compare.md").read_text()
        assert k2vv_compare.main([str(first), str(first), "--labels", "x", "y"]) == 0
        assert "x against y" in capsys.readouterr().out
        assert k2vv_compare.main([str(first), str(first), "--labels", "x", "x"]) == 2
