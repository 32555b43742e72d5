"""The comparison of two runs: its numbers, its tables at 80 columns, its figures."""

import io
import json
import math
import re
import subprocess
import sys

import pytest
from rich.console import Console

from eval import report, style
from eval.records import RequestLine, ResultRow

TOOL = {
    "type": "function",
    "function": {
        "name": "web_search",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "count": {"type": "integer"}},
            "required": ["query"],
            "additionalProperties": False,
        },
    },
}
GOOD, UNKNOWN, UNTYPED = (
    ("web_search", {"query": "x"}),
    ("search_web", {"query": "x"}),
    ("web_search", {"query": "x", "count": "3"}),
)
SETTINGS = {"temperature": 1.0, "top_p": 1.0, "seed": 0, "scope": "always", "schema_mode": "strict"}


def asked(index, group=None, **fields):
    body = {"messages": [{"role": "user", "content": str(index)}], "tools": [TOOL], **fields}
    return RequestLine(
        data_index=index, body=body | ({"metadata": {"group": group}} if group else {})
    )


def answer(request, reason, call=None, *, status="success", tokens=10, **ours):
    message = {"role": "assistant", "content": ""}
    if call is not None:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        message["tool_calls"] = [{"id": "c0", "type": "function", "function": function}]
    return ResultRow(
        data_index=request.data_index,
        request=request.body,
        response={
            "choices": [{"message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 100, "completion_tokens": tokens},
        },
        status=status,
        finish_reason=reason,
        hash=request.hash,
        masked_sampling=ours,
    )


def intervened(position, probability):
    return {"position": position, "log_removed": math.log(probability)}


@pytest.fixture
def runs():
    """Six requests: two good pairs, two mended by the grammar, one declined, one truncated."""
    requests = [
        asked(1, "as_trained"),
        asked(2, "as_trained", tool_choice="required"),
        asked(3, "changed"),
        asked(4, "changed"),
        asked(5, "as_trained"),
        asked(7, "changed"),
    ]
    r = {request.data_index: request for request in requests}
    free = [
        answer(r[1], "tool_calls", GOOD, token_ids=[1, 2, 3]),
        answer(r[2], "tool_calls", GOOD, token_ids=[1, 2, 3]),
        answer(r[3], "tool_calls", UNKNOWN, token_ids=[1, 5, 6]),
        answer(r[4], "tool_calls", UNTYPED, token_ids=[1, 2, 9]),
        answer(r[5], "stop", token_ids=[7]),
        answer(r[7], "tool_calls", GOOD, token_ids=[1, 2, 3]),
    ]
    constrained = [
        answer(r[1], "tool_calls", GOOD, token_ids=[1, 2, 3], interventions=[]),
        answer(r[2], "tool_calls", GOOD, token_ids=[1, 2, 3], interventions=[]),
        answer(
            r[3],
            "tool_calls",
            GOOD,
            token_ids=[1, 2, 3, 4],
            interventions=[intervened(3, 0.2), intervened(1, 0.9)],
        ),
        answer(r[4], "tool_calls", GOOD, token_ids=[1, 2, 3], interventions=[intervened(2, 0.5)]),
        answer(r[5], "stop", token_ids=[7], interventions=[]),
        answer(r[7], "length", token_ids=[1, 2, 3, 3], interventions=[]),
    ]
    reference = [
        answer(request, "stop" if index in (4, 5) else "tool_calls") for index, request in r.items()
    ]
    return requests, free, constrained, reference


@pytest.fixture
def comparison(runs):
    return report.compare(
        *runs,
        model="nano",
        settings=SETTINGS,
        seconds={"free": 71.25, "constrained": 80.0},
        notes=["Free text of the harness."],
    )


def printed(comparison, width=80):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    report.print_tables(comparison, console)
    return console.file.getvalue()


class TestCompare:
    def test_schema_accuracy_by_mode_and_group(self, comparison):
        free = comparison["modes"]["free"]["schema_accuracy"]
        constrained = comparison["modes"]["constrained"]["schema_accuracy"]
        assert (free["successful"], free["triggered"], free["accuracy"]) == (3, 5, 0.6)
        assert (constrained["successful"], constrained["triggered"]) == (4, 4)
        assert constrained["truncated"] == 1
        assert free["by_group"]["changed"]["successful"] == 1
        assert free["by_group"]["as_trained"]["accuracy"] == 1.0

    def test_trigger_is_over_requests_that_leave_the_choice(self, comparison):
        trigger = comparison["modes"]["free"]["trigger"]
        # Request 2 is required, so it is left out: 1, 3, 7 agree on a call, 4 is one too many.
        assert [trigger[key] for key in ("TP", "FP", "FN", "TN")] == [3, 1, 0, 1]
        assert trigger["by_group"]["as_trained"]["TP"] == 1
        assert comparison["modes"]["constrained"]["trigger"]["FN"] == 1

    def test_failures_truncated_tokens_and_seconds(self, comparison):
        free, constrained = (comparison["modes"][mode] for mode in report.MODES)
        assert free["failures"]["by_cause"] == {"unknown_tool": 1, "type": 1}
        assert constrained["failures"]["by_cause"] == {"truncated": 1}
        assert constrained["truncated"] == {"count": 1, "share": pytest.approx(1 / 6)}
        assert free["tokens"] == {"prompt": 600, "completion": 60}
        assert (free["seconds"], constrained["seconds"]) == (71.25, 80.0)
        assert free["missing"] == []

    def test_pairs(self, comparison):
        paired = comparison["paired"]
        assert [paired[key] for key in ("pairs", "both", "only_constrained")] == [4, 2, 2]
        assert paired["p_value"] == 0.5
        assert paired["triggered_only_free"] == 1
        assert paired["by_group"]["changed"]["only_constrained"] == 2

    def test_interventions(self, comparison):
        touched = comparison["interventions"]
        assert (touched["requests"], touched["with_intervention"], touched["total"]) == (6, 2, 3)
        assert touched["share"] == pytest.approx(1 / 3)
        assert touched["share_by_group"] == {"as_trained": 0.0, "changed": pytest.approx(2 / 3)}
        assert touched["mean_removed_at_first"] == pytest.approx((0.9 + 0.5) / 2)
        assert [(one["data_index"], one["position"]) for one in touched["first"]] == [
            (3, 1),
            (4, 2),
        ]

    def test_coupling(self, comparison):
        coupled = comparison["coupling"]
        assert coupled["prefix"]["agree"] == 5
        (one,) = coupled["prefix"]["exceptions"]
        assert one == {
            "data_index": 7,
            "position": 3,
            "first_intervention": None,
            "explained": False,
        }
        assert coupled["trigger"]["checked"] == 4
        assert [x["data_index"] for x in coupled["trigger"]["exceptions"]] == [7]

    @pytest.mark.parametrize(
        ("free_ids", "held_ids", "first", "ties", "expected"),
        [
            ([1, 2, 3], [1, 2, 3], None, {}, None),
            ([1, 2, 3], [1, 2, 4, 5], 2, {}, None),
            ([1, 2, 3], [1, 9, 4], 2, {}, (1, False)),
            ([1, 2, 3], [1, 9, 4], 2, {"held": [1]}, (1, True)),
            ([1, 2, 3], [1, 9, 4], 2, {"free": [{"position": 1, "gap": 1e-4}]}, (1, True)),
            ([1, 2, 3], [1, 9, 4], 2, {"free": [0, 2]}, (1, False)),
            ([1, 2], [1, 2, 3], None, {}, (2, False)),
            # The free run ended where the grammar would not let it.
            ([1, 2], [1, 2, 3], 2, {}, None),
            ([1], [1, 2, 3], 2, {}, (1, False)),
            ([], [], None, {}, None),
        ],
    )
    def test_prefix(self, free_ids, held_ids, first, ties, expected):
        request = asked(1)
        free = answer(request, "stop", token_ids=free_ids, near_ties=ties.get("free", []))
        held = answer(
            request,
            "stop",
            token_ids=held_ids,
            near_ties=ties.get("held", []),
            interventions=[] if first is None else [intervened(first, 0.5)],
        )
        prefix = report.compare([request], [free], [held])["coupling"]["prefix"]
        found = [(one["position"], one["explained"]) for one in prefix["exceptions"]]
        assert found == ([] if expected is None else [expected])

    @pytest.mark.parametrize(
        ("free_ids", "held_ids", "taken", "reason", "expected"),
        [
            ([1, 2, 3], [1, 2, 9], {"position": 2, "free_token": 3}, "stop", (1, 1, 0)),
            ([1, 2, 3], [1, 2, 9], {"position": 2, "free_token": 7}, "stop", (1, 0, 0)),
            ([1, 2, 3], [1, 5, 9], {"position": 2, "free_token": 3}, "stop", (1, 0, 0)),
            # The free run drew its stop token there, which is not among the ids.
            ([1, 2], [1, 2, 9], {"position": 2, "free_token": 99}, "tool_calls", (1, 1, 1)),
            ([1, 2], [1, 2, 9], {"position": 2, "free_token": 99}, "length", (1, 0, 0)),
            # The constrained run was made to stop.
            ([1, 2, 3], [1, 2], {"position": 2, "free_token": 3}, "stop", (1, 1, 0)),
            ([1, 2], [1, 2], None, "stop", (0, 0, 0)),
            ([1, 2], [1, 3], None, "stop", (1, 0, 0)),
            ([1, 2], [1, 2], {"position": 1, "free_token": 2}, "stop", (1, 0, 0)),
            ([1, 2], [1, 3], {"position": 1}, "stop", (0, 0, 0)),
        ],
    )
    def test_the_free_run_holds_the_token_that_was_taken(
        self, free_ids, held_ids, taken, reason, expected
    ):
        request = asked(1)
        free = answer(request, reason, token_ids=free_ids)
        held = answer(request, "stop", token_ids=held_ids, interventions=[taken] if taken else [])
        part = report.compare([request], [free], [held])["coupling"]["first_difference"]
        assert (part["checked"], part["agree"], part["ended"]) == expected
        assert len(part["exceptions"]) == part["checked"] - part["agree"]

    def test_identical_responses_and_where_the_others_part(self, comparison):
        part = comparison["responses"]
        assert (part["compared"], part["identical"]) == (6, 3)
        assert {one["data_index"]: one["position"] for one in part["first"]} == {3: 1, 4: 2, 7: 3}
        assert (part["recorded"], part["at_intervention"]) == (3, 2)
        assert part["median_removed"] == pytest.approx(0.7)

    def test_tokens_saved_and_spent(self):
        counts = {1: (10, 10), 2: (30, 12), 3: (5, 9), 4: (7, 8), 5: (3, None)}
        requests = [asked(i) for i in counts]
        free = [answer(r, "stop", tokens=counts[r.data_index][0]) for r in requests]
        held = [answer(r, "stop", tokens=counts[r.data_index][1], forced=2) for r in requests]
        tokens = report.compare(requests, free, held)["tokens"]
        assert (tokens["pairs"], tokens["uncounted"]) == (4, 1)
        assert (tokens["free"], tokens["constrained"], tokens["forced"]) == (52, 39, 8)
        assert tokens["saved"] == {"requests": 1, "tokens": 18}
        assert tokens["spent"] == {"requests": 2, "tokens": 5}
        assert tokens["same"] == 1
        assert tokens["by_difference"] == [[-18, 1], [0, 1], [1, 1], [4, 1]]
        saved, spent = tokens["saved"]["tokens"], tokens["spent"]["tokens"]
        assert tokens["constrained"] - tokens["free"] == spent - saved

    def test_runs_without_recorded_tokens_are_unchecked(self):
        request = asked(1)
        rows = [answer(request, "tool_calls", GOOD)]
        comparison = report.compare([request], rows, rows)
        assert comparison["coupling"]["unchecked"] == 1
        assert comparison["coupling"]["prefix"]["checked"] == 0
        assert comparison["interventions"]["share"] is None

    def test_rows_of_other_requests_are_left_out_and_missing_ones_named(self, runs):
        requests, free, _, _ = runs
        comparison = report.compare([*requests[:2], asked(99)], free)
        assert comparison["modes"]["free"]["rows"] == 2
        assert comparison["modes"]["free"]["missing"] == [99]

    def test_calls_that_could_not_be_read_are_counted(self):
        kinds = (["malformed", "repaired"], ["repaired"], [])
        requests = [asked(i) for i in (1, 2, 3)]
        rows = [
            answer(request, "stop", problems=[{"kind": kind, "detail": "x"} for kind in found])
            for request, found in zip(requests, kinds, strict=True)
        ]
        run = report.compare(requests, rows)["modes"]["free"]
        assert run["unreadable_calls"] == {"responses": 1, "by_kind": {"malformed": 1}}

    def test_inconsistencies_are_counted(self):
        rows = [answer(asked(1), "stop", GOOD)]
        comparison = report.compare([asked(1)], rows)
        found = comparison["modes"]["free"]["inconsistencies"]
        assert found["by_kind"] == {"calls_not_triggered": 1}
        assert "calls not triggered (1)" in printed(comparison)

    def test_arguments_against_ground_truth_in_both_runs(self, runs):
        pytest.importorskip("eval.answers")
        right = [{"web_search": {"query": ["x"]}}]
        comparison = report.compare(*runs, answers=dict.fromkeys((1, 3, 4, 5, 99), right))
        counts = {
            mode: (part["asked"], part["correct"], part["accuracy"])
            for mode, part in comparison["answers"].items()
        }
        assert counts == {"free": (4, 1, 0.25), "constrained": (4, 3, 0.75)}
        paired = comparison["answers_paired"]
        assert [paired[k] for k in ("pairs", "both", "only_free", "only_constrained")] == [
            4,
            1,
            0,
            2,
        ]
        assert paired["p_value"] == 0.5
        json.dumps(comparison, allow_nan=False)
        text = printed(comparison)
        assert "Arguments right" in text
        assert "4 requests with ground truth" in text
        assert max(map(len, text.splitlines())) <= 80

    def test_needs_a_run(self):
        with pytest.raises(ValueError, match="at least one run"):
            report.compare([asked(1)])


def degenerate():
    """Comparisons with as little in them as can be."""
    one, two = asked(1, "as_trained"), asked(2, "changed")
    stops = [answer(one, "stop", interventions=[], token_ids=[]), answer(two, "length")]
    failed = [answer(one, None, status="failed")]
    reference = [answer(one, "stop"), answer(two, "stop")]
    return {
        "free alone": report.compare([one, two], stops),
        "constrained alone": report.compare([one, two], constrained=stops),
        "nothing triggered": report.compare([one, two], stops, stops, reference),
        "all failed": report.compare([one, two], failed, failed, reference),
        "no rows": report.compare([one, two], [], [], []),
        "no requests": report.compare([], [], []),
        "one group": report.compare([asked(1)], [answer(asked(1), "tool_calls", GOOD)]),
        "removed unknown": report.compare(
            [one], constrained=[answer(one, "stop", interventions=[{"position": 0}])]
        ),
    }


class TestDegenerate:
    @pytest.mark.parametrize("name", degenerate())
    def test_is_json_without_nan_and_can_be_shown(self, name, tmp_path):
        comparison = json.loads(json.dumps(degenerate()[name], allow_nan=False))
        text = printed(comparison)
        assert "nan" not in text.lower().replace("nano", "")
        assert "Schema accuracy" in text
        for path in report.draw(comparison, tmp_path):
            assert path.stat().st_size > 1000

    def test_absent_parts_are_none(self):
        alone = degenerate()["free alone"]
        assert list(alone["modes"]) == ["free"]
        assert alone["paired"] is alone["coupling"] is alone["interventions"] is None
        assert alone["modes"]["free"]["trigger"] is None
        assert "Trigger" not in printed(alone)
        assert "McNemar" not in printed(alone)

    def test_undefined_trigger_is_marked(self):
        text = printed(degenerate()["nothing triggered"])
        assert "0.000*" in text
        assert "* undefined" in text


class TestTables:
    def test_all_is_there_at_80_columns(self, comparison):
        text = printed(comparison)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
        for part in (
            "K2VV, 6 requests to nano",
            "temperature 1.0, top p 1.0, seed 0, scope always, schema mode strict",
            "60.0 %",
            "3/5",
            "100.0 %",
            "as trained",
            "TP/FP/FN/TN",
            "3 / 1 / 0 / 1",
            "unknown tool",
            "1 (16.7 %)",
            "McNemar's exact test, two-sided: p = 0.5",
            "The grammar intervened in 2 of 6 requests (33.3 %)",
            "Free text of the harness.",
        ):
            assert part in text

    def test_thousands_of_requests_still_fit(self, comparison):
        for run in comparison["modes"].values():
            accuracy = run["schema_accuracy"]
            for part in (accuracy, *accuracy["by_group"].values()):
                part |= {"successful": 2000, "triggered": 2000, "accuracy": 1.0}
                part["interval"] = [0.9981, 1.0]
        text = printed(comparison)
        assert max(map(len, text.splitlines())) <= 80
        assert text.count("2000/2000") == 6
        assert "…" not in text

    @pytest.mark.parametrize(
        ("share", "shown"),
        [(1.0, "100.0 %"), (0.99999, ">99.9 %"), (0.0, "0.0 %"), (1e-6, "<0.1 %"), (0.5, "50.0 %")],
    )
    def test_nothing_reads_as_all_or_none_that_is_not(self, share, shown):
        assert style.percent(share) == shown

    @pytest.mark.parametrize(
        ("indices", "shown"),
        [
            ([], ""),
            ([3], "3"),
            ([1, 2, 3, 7, 9, 10], "1–3, 7, 9–10"),
            (range(2, 40, 2), "2, 4, 6, 8, 10, 12, 14, 16 and 11 more"),
        ],
    )
    def test_numbers_are_named_as_ranges(self, indices, shown):
        assert style.ranges(style.spans(indices)) == shown

    def test_what_a_model_wrote_is_fit_to_print(self):
        assert style.plain("a\x1b[31m\nb\ud83d 日本") == r"a\x1b[31m\nb\ud83d 日本"
        assert style.plain("x" * 99) == "x" * 59 + "…"


class TestFigures:
    def test_one_a_question(self, comparison, tmp_path):
        drawn = report.draw(comparison, tmp_path / "figures")
        names = [
            "schema_accuracy.png",
            "failure_causes.png",
            "trigger.png",
            "interventions.png",
            "tokens.png",
        ]
        assert [path.name for path in drawn] == names
        for path in drawn:
            assert path.read_bytes().startswith(b"\x89PNG")

    def test_none_of_what_there_was_nothing_of(self, comparison, tmp_path):
        report.draw(comparison, tmp_path)
        assert report.draw(degenerate()["no rows"], tmp_path) == []
        assert list(tmp_path.iterdir()) == []

    def test_same_comparison_same_bytes(self, comparison, tmp_path):
        once, again = (report.draw(comparison, tmp_path / name) for name in "ab")
        assert [path.read_bytes() for path in once] == [path.read_bytes() for path in again]

    def test_shown_again_from_its_json(self, comparison):
        assert printed(json.loads(json.dumps(comparison))) == printed(comparison)


class TestPage:
    def test_says_what_the_tables_say_and_shows_every_figure(self, comparison, tmp_path):
        path = report.write_report(comparison, tmp_path / "out")
        page = path.read_text()
        assert path == tmp_path / "out" / "report.md"
        for part in (
            "# K2VV, 6 requests to nano",
            "temperature 1.0, top p 1.0, seed 0",
            "| all | **60.0 %** (23.1–88.2), 3 of 5 | **100.0 %** (51.0–100.0), 4 of 4 |",
            "| free | 3 | 1 | 0 | 1 |",
            "| unknown tool | 1 | – |",
            "| constrained valid | 2 | 2 |",
            "McNemar's exact test, two-sided: p = 0.5.",
            "The grammar intervened in 2 of 6 requests",
            "3 of 6 responses are identical",
            "Free text of the harness.",
        ):
            assert part in page
        shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", page)
        assert sorted(shown) == sorted(p.name for p in path.parent.glob("*.png"))
        assert len(shown) == 5

    def test_every_table_line_has_as_many_cells_as_its_head(self, comparison, tmp_path):
        for run in comparison["modes"].values():
            run["failures"]["by_tool"] = {"a|b`c\n*d*": {"type": 2}, "\ud83d": {"enum": 1}}
        comparison["settings"]["odd | one"] = "x | y"
        comparison["provenance"] = {
            "command": "python -m eval.k2vv | tee",
            "versions": {"torch": None},
        }
        page = report.write_report(comparison, tmp_path).read_text()
        for block in page.split("\n\n"):
            if block.startswith("| "):
                bars = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
                assert len(bars) == 1
        assert "a&#124;b'c" in page

    def test_arguments_have_a_section_and_a_figure(self, runs, tmp_path):
        pytest.importorskip("eval.answers")
        right = [{"web_search": {"query": ["x"]}}]
        comparison = report.compare(*runs, answers=dict.fromkeys((1, 3, 4, 5), right))
        page = report.write_report(comparison, tmp_path).read_text()
        assert "## Arguments" in page
        assert "![Argument accuracy" in page
        assert "| constrained right | 1 | 2 |" in page
        assert "**75.0 %**" in page

    @pytest.mark.parametrize("name", degenerate())
    def test_of_as_little_as_there_can_be(self, name, tmp_path):
        comparison = json.loads(json.dumps(degenerate()[name]))
        page = report.write_report(comparison, tmp_path).read_text()
        assert page.startswith("# K2VV")
        assert "nan" not in page.lower().replace("nano", "")
        for figure in re.findall(r"\]\(([^)]+)\)", page):
            assert (tmp_path / figure).exists()

    def test_a_comparison_from_before_there_were_pages(self, comparison, tmp_path):
        for key in ("responses", "tokens", "answers", "answers_paired"):
            del comparison[key]
        for key in ("first_difference",):
            del comparison["coupling"][key]
        assert report.write_report(comparison, tmp_path).exists()
        assert "Schema accuracy" in printed(comparison)


def test_importing_the_report_loads_nothing_heavy():
    script = (
        "import sys\n"
        "from eval import records, report, scoring, workloads\n"
        "heavy = {'torch', 'transformers', 'matplotlib', 'pandas', 'numpy', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
