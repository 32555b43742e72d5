"""Workloads: files of two kinds, folders, datasets; what is refused, skipped and noted."""

import gzip
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

from eval import hub
from eval.chat_body import check_body, check_tools
from eval.request_lines import RequestError, RequestLine, read_requests
from eval.workloads import bundled_requests, groups, limited, load_workload

SHARED = Path(os.environ.get("MASKED_SAMPLING_SHARED", Path(__file__).parents[2] / "shared"))
DATA = SHARED / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data")
needs_datasets = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None, reason="needs datasets"
)

TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}


def question(n, name="simple_python", function="math.add", **fields):
    parameters = {"type": "dict", "properties": {"a": {"type": "float"}}, "required": ["a"]}
    return {
        "id": f"{name}_{n}",
        "question": [[{"role": "user", "content": f"add {n}"}]],
        "function": [{"name": function, "description": "adds", "parameters": parameters}],
        **fields,
    }


def answer(n, name="simple_python", function="math.add"):
    return {"id": f"{name}_{n}", "ground_truth": [{function: {"a": [n, n + 0.5]}}]}


def write(path, *lines, packed=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


class TestKinds:
    def test_none_is_the_bundled_requests_with_their_reference(self):
        workload = load_workload(None)
        assert workload.kind == "k2vv"
        assert workload.requests == read_requests(bundled_requests())
        assert {row.data_index for row in workload.reference} == set(range(1, 301))
        assert workload.answers is None

    def test_chat_requests(self, tmp_path):
        path = write(tmp_path / "samples.jsonl", CHAT, "", CHAT | {"seed": 1})
        workload = load_workload(str(path))
        assert (workload.kind, workload.reference, workload.answers) == ("k2vv", None, None)
        assert [r.data_index for r in workload.requests] == [1, 3]
        assert workload.requests == read_requests(path)
        assert workload.notes == []

    @pytest.mark.parametrize("packed", [False, True])
    @pytest.mark.parametrize(
        ("questions", "answers"),
        [
            ("BFCL_v4_simple_python.json", "possible_answer/BFCL_v4_simple_python.json"),
            ("simple_python.jsonl.gz", "simple_python.answers.jsonl.gz"),
            ("simple_python.jsonl", "simple_python.answers.json"),
            ("simple_python.jsonl.gz", "possible_answer/simple_python.jsonl"),
        ],
    )
    def test_questions_find_their_answers(self, tmp_path, questions, answers, packed):
        path = write(tmp_path / questions, question(1), "", question(2), packed=packed)
        # By id, not by place.
        write(tmp_path / answers, answer(2), answer(1), packed=not packed)
        workload = load_workload(path)
        assert workload.kind == "bfcl"
        assert workload.notes == []
        assert groups(workload.requests) == {1: "bfcl_simple_python", 3: "bfcl_simple_python"}
        assert workload.answers == {
            1: [{"math_add": {"a": [1, 1.5]}}],
            3: [{"math_add": {"a": [2, 2.5]}}],
        }
        first, second = workload.reference
        assert (first.data_index, first.finish_reason) == (1, "tool_calls")
        assert first.hash == workload.requests[0].hash
        (call,) = second.message["tool_calls"]
        assert call["function"] == {"name": "math_add", "arguments": {"a": 2}}

    def test_answers_that_are_missing_are_noted(self, tmp_path):
        path = write(tmp_path / "a.jsonl", question(1), question(2))
        workload = load_workload(path)
        assert workload.answers is None
        assert [row.finish_reason for row in workload.reference] == ["tool_calls"] * 2
        (note,) = workload.notes
        assert "2 of 2 questions have no answer" in note
        assert "possible_answer/a.jsonl or a.answers.jsonl" in note
        write(tmp_path / "a.answers.jsonl", answer(2))
        workload = load_workload(path)
        assert list(workload.answers) == [2]
        assert "1 of 2 questions have no answer" in workload.notes[0]

    def test_answers_may_stand_in_the_line_itself(self, tmp_path):
        line = question(1) | {"ground_truth": answer(1)["ground_truth"]}
        assert list(load_workload(write(tmp_path / "a.jsonl", line)).answers) == [1]

    @pytest.mark.parametrize("name", ["irrelevance", "live_irrelevance"])
    def test_irrelevance_calls_for_no_call_and_lacks_nothing(self, tmp_path, name):
        workload = load_workload(write(tmp_path / "a.jsonl", question("0-0-0", name)))
        (row,) = workload.reference
        assert row.finish_reason == "stop"
        assert "tool_calls" not in row.message
        assert (workload.answers, workload.notes) == (None, [])

    def test_relevance_calls_for_some_call(self, tmp_path):
        workload = load_workload(write(tmp_path / "a.jsonl", question("0-0-0", "live_relevance")))
        (row,) = workload.reference
        assert row.finish_reason == "tool_calls"
        assert (workload.answers, workload.notes) == (None, [])


class TestFolders:
    def test_files_are_numbered_on_in_the_order_of_their_names(self, tmp_path):
        write(tmp_path / "BFCL_v4_multiple.json", question(1, "multiple"), question(2, "multiple"))
        write(tmp_path / "BFCL_v4_irrelevance.json", "", question(1, "irrelevance"))
        write(
            tmp_path / "BFCL_v4_multi_turn_base.json", {"id": "x_0", "question": [[]], "path": []}
        )
        write(tmp_path / "BFCL_v4_format_sensitivity.json", {"simple_python": ["id"]})
        write(tmp_path / "possible_answer/BFCL_v4_multiple.json", answer(2, "multiple"))
        write(tmp_path / "README.md", "# BFCL")
        workload = load_workload(tmp_path)
        assert groups(workload.requests) == {
            2: "bfcl_irrelevance",
            3: "bfcl_multiple",
            4: "bfcl_multiple",
        }
        assert list(workload.answers) == [4]
        assert [row.data_index for row in workload.reference] == [2, 3, 4]
        left_out = [note for note in workload.notes if "left out: " in note]
        assert ["format_sensitivity" in left_out[0], "multi_turn" in left_out[1]] == [True, True]
        assert any("1 of 2 questions have no answer" in note for note in workload.notes)

    def test_folder_of_chat_requests(self, tmp_path):
        write(tmp_path / "a.jsonl", CHAT)
        write(tmp_path / "b.jsonl.gz", CHAT, packed=True)
        assert [r.data_index for r in load_workload(tmp_path).requests] == [1, 2]

    def test_bad_line_stops_it_and_names_the_file(self, tmp_path):
        write(tmp_path / "a.jsonl", question(1))
        bad = write(tmp_path / "b.jsonl", question(1), question(2, function=5))
        with pytest.raises(RequestError, match="1 of 2 lines are not BFCL questions") as raised:
            load_workload(tmp_path)
        assert str(raised.value).startswith(str(bad))
        workload = load_workload(tmp_path, skip_bad_lines=True)
        assert [r.data_index for r in workload.requests] == [1, 2]
        assert any(note.startswith(f"{bad}: skipped 1 of 2 lines") for note in workload.notes)


class TestBadInput:
    @pytest.mark.parametrize(
        ("lines", "said"),
        [
            (
                [CHAT, question(1)],
                "mixes chat requests (PATH, line 1) with BFCL questions (PATH, l",
            ),
            ([answer(1)], "holds answers of BFCL's; give the file of questions"),
            (["", " "], "holds no requests"),
            ([CHAT, "", {"messages": []}], "line 3: messages must be a list of at least one"),
            ([CHAT, "{"], "line 2: not JSON"),
            ([{"type": "object"}, {}], "2 of 2 lines are not chat requests or BFCL questions"),
            ([question(1), answer(1)], "line 2: a BFCL question must be an object with question"),
            ([question(1), [1]], "line 2: a BFCL question must be an object with question"),
            (
                [question(1), question(2, function=None)],
                "line 2: function must list objects with",
            ),
            (
                [question(1), question(1) | {"ground_truth": [{"sub": {}}]}],
                "line 2: ground_truth calls 'sub', which is not a function of the line",
            ),
            (
                [{"id": "multi_turn_base_0", "question": [[{"role": "user", "content": "x"}]]}],
                "sets of several turns, with memory or with web search have none",
            ),
        ],
    )
    def test_is_named_before_anything_runs(self, tmp_path, lines, said):
        path = write(tmp_path / "r.jsonl", *lines)
        with pytest.raises(RequestError) as error:
            load_workload(path)
        assert said.replace("PATH", str(path)) in str(error.value)

    def test_skipped_lines_are_counted_and_named(self, tmp_path):
        path = write(tmp_path / "r.jsonl", CHAT, "{", {"messages": []}, CHAT)
        workload = load_workload(path, skip_bad_lines=True)
        assert [r.data_index for r in workload.requests] == [1, 4]
        (note,) = workload.notes
        assert "skipped 2 of 4 lines that are not chat requests: line 2: not JSON" in note
        assert "line 3: messages must be a list" in note

    def test_of_many_skipped_lines_ten_are_named(self, tmp_path):
        path = write(tmp_path / "r.jsonl", CHAT, *["{}"] * 13)
        (note,) = load_workload(path, skip_bad_lines=True).notes
        assert note.count("line ") == 10
        assert note.endswith("and 3 more")

    def test_a_file_with_nothing_left_is_refused_all_the_same(self, tmp_path):
        path = write(tmp_path / "r.jsonl", "{", "[")
        with pytest.raises(RequestError, match="2 of 2 lines are not"):
            load_workload(path, skip_bad_lines=True)

    def test_a_bad_answers_file_stops_it_too(self, tmp_path):
        path = write(tmp_path / "a.jsonl", question(1))
        write(tmp_path / "a.answers.jsonl", answer(1), {"id": 5, "ground_truth": []})
        with pytest.raises(RequestError, match="line 2: an answer must be an object with id"):
            load_workload(path)
        workload = load_workload(path, skip_bad_lines=True)
        assert list(workload.answers) == [1]
        assert "skipped 1 of 2 lines that are not BFCL answers" in workload.notes[0]

    @pytest.mark.parametrize("name", ["absent.jsonl", "folder/absent.json", "a/b/c/d", "absent"])
    def test_no_such_file(self, name):
        with pytest.raises(RequestError, match=f"cannot read requests from {name}: No such file"):
            load_workload(name)

    @needs_data
    @pytest.mark.parametrize("folder", ["walle", "json_schema_test_suite", "maskbench"])
    def test_other_data_is_refused(self, folder):
        with pytest.raises(RequestError, match="chat request"):
            load_workload(DATA / folder)


BAD_TOOLS = [
    ({"ping": 1}, "tools must be a list of function tools"),
    ({}, "tools must be a list of function tools"),
    ("ping", "tools must be a list of function tools"),
    ("", "tools must be a list of function tools"),
    (0, "tools must be a list of function tools"),
    (False, "tools must be a list of function tools"),
    (["ping"], "tools[0] must be"),
    ([None], "tools[0] must be"),
    ([TOOL, []], "tools[1] must be"),
    ([{"type": "web_search"}], "tools[0] must be"),
    ([{"name": "ping", "parameters": {}}], "tools[0] must be"),
    ([{"function": {"name": "ping"}}], "tools[0] must be"),
    ([{"type": "function"}], "tools[0].function must be an object"),
    ([{"type": "function", "function": "ping"}], "tools[0].function must be an object"),
    ([{"type": "function", "function": {}}], "tools[0].function.name must"),
    ([{"type": "function", "function": {"name": ""}}], "tools[0].function.name must"),
    ([{"type": "function", "function": {"name": ["ping"]}}], "tools[0].function.name must"),
    (
        [TOOL, {"type": "function", "function": {"name": "a", "parameters": []}}],
        "tools[1].function.parameters must be a JSON Schema object",
    ),
    (
        [{"type": "function", "function": {"name": "a", "parameters": True}}],
        "tools[0].function.parameters must be a JSON Schema object",
    ),
]


class TestTools:
    @pytest.mark.parametrize(("tools", "said"), BAD_TOOLS)
    def test_bad_tools_fail_their_request_and_not_its_file(self, tmp_path, chats, tools, said):
        body = CHAT | {"tools": tools}
        check_body(body)
        (line,) = read_requests(write(tmp_path / "r.jsonl", body))
        for check in (check_tools, chats["free"].prepare, chats["constrained"].prepare):
            with pytest.raises(ValueError) as error:
                check(line.body)
            assert said in str(error.value)

    @pytest.mark.parametrize("tools", [None, [], [TOOL], [TOOL | {"x": 1}]])
    def test_good_tools_pass(self, tools):
        check_tools(CHAT | {"tools": tools})
        check_tools(CHAT)

    def test_the_engine_fails_that_row_alone(self, loaded, tmp_path):
        from eval.engine_hf import HfEngine
        from eval.engines import Sampling

        lines = [CHAT | {"tools": tools} for tools, _ in BAD_TOOLS]
        path = write(tmp_path / "r.jsonl", *lines, CHAT | {"tool_choice": "none"})
        engine = HfEngine(
            loaded,
            weights="",
            constrained=True,
            sampling=Sampling(max_tokens=2),
            batch_size=4,
            policy={"scope": "always", "schema_mode": "strict"},
        )
        rows = {row.data_index: row for row in engine.run(load_workload(path).requests)}
        assert len(rows) == len(BAD_TOOLS) + 1
        for index, (_, said) in enumerate(BAD_TOOLS, 1):
            assert rows[index].status == "failed"
            assert rows[index].response["error_type"] == "ValueError"
            assert said in rows[index].response["error_message"]
        assert rows[len(BAD_TOOLS) + 1].succeeded


class TestParts:
    def requests(self, **sizes):
        names = [name for name, size in sizes.items() for _ in range(size)]
        return [
            RequestLine(data_index=i, body={"metadata": {"group": name}})
            for i, name in enumerate(names, 1)
        ]

    def test_per_group_is_evenly_spaced_and_in_order(self):
        chosen = limited(self.requests(a=10, b=3, c=1), per_group=4)
        assert [r.data_index for r in chosen] == [1, 3, 6, 8, 11, 12, 13, 14]

    def test_limit_comes_after(self):
        requests = self.requests(a=10, b=3)
        assert [r.data_index for r in limited(requests, 3, 2)] == [1, 6, 11]
        assert [r.data_index for r in limited(requests, 3)] == [1, 2, 3]
        assert limited(requests) == limited(requests, None, 99) == requests

    @pytest.mark.parametrize("numbers", [{"limit": 0}, {"per_group": 0}, {"per_group": -1}])
    def test_no_less_than_one(self, numbers):
        with pytest.raises(ValueError, match=f"{next(iter(numbers))} must be an integer >= 1"):
            limited(self.requests(a=2), **numbers)


class TestHub:
    @pytest.mark.parametrize(
        ("source", "is_one"),
        [
            ("org/name", True),
            ("org/name:test", True),
            ("org/name/config", True),
            ("org-1/na.me_2/config:train[:10%]", True),
            ("name", False),
            ("data/samples.jsonl", False),
            ("data/samples.jsonl.gz", False),
            ("./org/name", False),
            ("/org/name", False),
            ("a/b/c/d", False),
            ("org/name:", False),
        ],
    )
    def test_what_reads_as_a_dataset(self, source, is_one):
        assert hub.is_dataset_id(source) == is_one

    def test_without_the_package_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "datasets", None)
        with pytest.raises(RequestError) as error:
            load_workload("org/name")
        assert "org/name is no file here" in str(error.value)
        assert "pip install 'masked-sampling[hub]'" in str(error.value)

    @needs_datasets
    def test_a_path_that_exists_wins(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        write(tmp_path / "org" / "name", CHAT)
        assert load_workload("org/name").kind == "k2vv"

    @needs_datasets
    def test_chat_requests_from_a_dataset(self, monkeypatch):
        asked = self.serve(
            monkeypatch,
            [
                CHAT | {"tools": [TOOL], "seed": None},
                # Arrow gives all rows the keys of each.
                CHAT | {"tools": [self.tool("a", x="string")], "seed": 4},
                CHAT | {"tools": [self.tool("b", y="integer")], "seed": 5},
            ],
        )
        workload = load_workload("org/name/config:train")
        assert asked == [("org/name", "config", "train")]
        assert (workload.kind, workload.notes) == ("k2vv", [])
        assert [r.data_index for r in workload.requests] == [1, 2, 3]
        first, second, third = (r.body for r in workload.requests)
        assert first == CHAT
        assert second == CHAT | {"tools": [self.tool("a", x="string")], "seed": 4}
        assert third["tools"] == [self.tool("b", y="integer")]

    @needs_datasets
    def test_columns_of_json_text_are_read(self, monkeypatch):
        tool = self.tool("a", x="string")
        tool["function"]["parameters"]["default"] = None
        texts = {name: json.dumps(value) for name, value in (CHAT | {"tools": [tool]}).items()}
        self.serve(monkeypatch, [texts])
        (request,) = load_workload("org/name").requests
        assert request.body == CHAT | {"tools": [tool]}

    @needs_datasets
    def test_bfcl_from_a_dataset_with_its_answers(self, monkeypatch):
        rows = [question(n) | {"ground_truth": answer(n)["ground_truth"]} for n in (1, 2)]
        self.serve(monkeypatch, rows)
        workload = load_workload("org/name:test")
        assert workload.kind == "bfcl"
        assert workload.answers[2] == [{"math_add": {"a": [2, 2.5]}}]

    @needs_datasets
    def test_bad_rows_are_named(self, monkeypatch):
        self.serve(monkeypatch, [CHAT, CHAT | {"messages": []}])
        with pytest.raises(
            RequestError, match="org/name: 1 of 2 rows are not chat requests\n  row 2"
        ):
            load_workload("org/name")

    @needs_datasets
    def test_one_split_is_chosen_or_asked_for(self, monkeypatch):
        import datasets

        made = datasets.Dataset.from_list([CHAT])
        splits = datasets.DatasetDict(train=made, test=made)
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: splits)
        assert len(load_workload("org/name").requests) == 1
        splits = datasets.DatasetDict(train=made, validation=made)
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: splits)
        with pytest.raises(RequestError, match="has the splits train, validation; name one, as in"):
            load_workload("org/name")

    @needs_datasets
    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (ConnectionError("Couldn't reach 'org/name' on the Hub"), "ConnectionError: Couldn't"),
            (FileNotFoundError("Dataset 'org/name' doesn't exist"), "doesn't exist"),
            (
                ValueError("BuilderConfig 'x' not found.\nAvailable: ['a']"),
                "'x' not found.; give an",
            ),
            (RuntimeError(""), "RuntimeError: no reason given"),
        ],
    )
    def test_what_the_package_raises_is_told_in_a_line(self, monkeypatch, error, said):
        import datasets

        def fail(*_, **__):
            raise error

        monkeypatch.setattr(datasets, "load_dataset", fail)
        with pytest.raises(RequestError) as raised:
            load_workload("org/name")
        assert said in str(raised.value)
        assert "cannot load dataset org/name" in str(raised.value)
        assert "\n" not in str(raised.value)

    @needs_datasets
    def test_folders_that_datasets_wrote(self, tmp_path):
        import datasets

        made = datasets.Dataset.from_list([CHAT, CHAT])
        made.save_to_disk(tmp_path / "saved")
        assert len(load_workload(tmp_path / "saved").requests) == 2
        made.to_parquet(tmp_path / "parquet" / "train.parquet")
        assert len(load_workload(tmp_path / "parquet").requests) == 2

    @needs_datasets
    def test_empty_folder(self, tmp_path):
        with pytest.raises(RequestError, match="cannot load dataset"):
            load_workload(tmp_path)

    def tool(self, name, **properties):
        schema = {"type": "object", "properties": {k: {"type": v} for k, v in properties.items()}}
        return {"type": "function", "function": {"name": name, "parameters": schema}}

    def serve(self, monkeypatch, rows):
        """Let ``load_dataset`` give these rows, as Arrow keeps them; returns what it is asked."""
        import datasets

        asked = []

        def load_dataset(name, config=None, *, split=None):
            asked.append((name, config, split))
            made = datasets.Dataset.from_list(rows)
            return made if split else datasets.DatasetDict(train=made)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return asked
