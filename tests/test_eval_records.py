"""Requests and results files: read, refused, torn, resumed, summed up."""

import gzip
import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval import records
from eval.records import RequestLine, ResultRow, ResultsFile

TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
BODY = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
RUN = {"model": "nano", "mode": "free", "parameters": {"temperature": 1.0, "seed": 0}}
K2VV_LINE = (
    "data_index request extra_body response status finish_reason tool_calls_valid last_run_at "
    "duration_ms hash"
).split()
K2VV_SUMMARY = (
    "model success_count failure_count finish_stop finish_tool_calls finish_others "
    "finish_others_detail schema_validation_error_count successful_tool_call_count usage "
    "eval_started_at eval_finished_at eval_duration_ms"
).split()


def write_lines(path, *lines):
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


def deep(levels):
    """A request of so many levels of objects and lists."""
    lists = levels - 1
    return json.dumps(BODY)[:-1] + ', "extra": ' + "[" * lists + "]" * lists + "}"


def request(index=1, **fields):
    return RequestLine(data_index=index, body=BODY | fields)


def row(index=1, reason="stop", *, status="success", hash=None, **fields):
    """A result row of ``request(index)``."""
    response = {"choices": [{"message": {"content": "x"}, "finish_reason": reason}]}
    return ResultRow(
        data_index=index,
        request=BODY,
        response=response if status == "success" else {"error": "refused"},
        status=status,
        finish_reason=reason if status == "success" else None,
        hash=request(index).hash if hash is None else hash,
        **fields,
    )


def write_run(path, *rows):
    with ResultsFile(path, run_key=RUN) as file:
        for one in rows:
            file.append(one)
    return path


class TestRequests:
    def test_data_index_is_the_line_number_and_blank_lines_count(self, tmp_path):
        path = write_lines(tmp_path / "r.jsonl", BODY, "", "  \r", BODY | {"seed": 1})
        assert [r.data_index for r in records.read_requests(path)] == [1, 4]

    def test_gzip_reads_like_plain(self, tmp_path):
        plain = write_lines(tmp_path / "r.jsonl", BODY)
        packed = tmp_path / "r.jsonl.gz"
        packed.write_bytes(gzip.compress(plain.read_bytes()))
        assert records.read_requests(packed) == records.read_requests(plain)

    def test_input_role_is_system_and_nothing_else_changes(self, tmp_path):
        body = {"messages": [{"role": "_input", "content": "s"}, *BODY["messages"]], "x_field": [1]}
        (read,) = records.read_requests(write_lines(tmp_path / "r.jsonl", body))
        assert [m["role"] for m in read.body["messages"]] == ["system", "user"]
        assert read.body["x_field"] == [1]

    def test_text_survives(self, tmp_path):
        # U+2028 ends a line for str.splitlines, not for JSON lines.
        body = {"messages": [{"role": "user", "content": "日本 🌍 a\u2028b\x85c"}]}
        path = tmp_path / "r.jsonl"
        path.write_text("\ufeff" + json.dumps(body, ensure_ascii=False) + "\n", encoding="utf-8")
        (read,) = records.read_requests(path)
        assert read.body == body

    def test_hash_ignores_key_order_and_sees_every_value(self):
        forwards = RequestLine(data_index=1, body={"a": 1, "b": {"c": 2, "d": 3}})
        backwards = RequestLine(data_index=9, body={"b": {"d": 3, "c": 2}, "a": 1})
        changed = RequestLine(data_index=1, body={"a": 1, "b": {"c": 2, "d": 4}})
        assert forwards.hash == backwards.hash != changed.hash
        # printf '{"a":1,"b":{"c":2,"d":3}}' | sha256sum
        assert forwards.hash == "932875ab5b23eb47bb2711f951d85ba23eef4b50c3e2eb6b5f3f9b9ac1217c6b"

    def test_frozen(self):
        with pytest.raises(ValueError, match="frozen"):
            request().data_index = 2

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("{", "not JSON"),
            ("[1]", "a chat request must be a JSON object; got [1]"),
            ('{"messages": [], "tools": []}', "messages must be a list of at least one"),
            ("{}", "messages must be a list of at least one message; it is missing"),
            ('{"messages": "hi"}', 'messages must be a list of at least one message; got "hi"'),
            ('{"messages": ["hi"]}', "messages[0] must be an object"),
            ('{"messages": [{"content": "x"}]}', "messages[0].role must be one of system"),
            ('{"messages": [{"role": "robot"}]}', 'got "robot"'),
            ('{"messages": [{"role": ["user"]}]}', 'got ["user"]'),
            ('{"messages": [{"role": "user", "content": 5}]}', "messages[0].content"),
            (
                '{"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}',
                "messages[0].tool_calls[0] must be a call with function.name",
            ),
            (BODY | {"tool_choice": "always"}, "tool_choice must be none, auto, required"),
            (BODY | {"tool_choice": {"type": "function"}}, "tool_choice must be"),
            (BODY | {"temperature": "hot"}, 'temperature must be a number; got "hot"'),
            (BODY | {"top_p": True}, "top_p must be a number; got true"),
            (BODY | {"max_tokens": 0}, "max_tokens must be an integer >= 1; got 0"),
            (BODY | {"seed": 1.5}, "seed must be an integer"),
            (BODY | {"stop": [1]}, "stop must be"),
            (BODY | {"parallel_tool_calls": "no"}, "parallel_tool_calls must be true or false"),
            (BODY | {"metadata": "as_trained"}, "metadata must be an object"),
            ('{"messages": [{"role": "user", "content": "x"}], "top_p": NaN}', "NaN is not JSON"),
            ("[" * 100_000, "nested too deeply"),
            (deep(201), "nested too deeply: more than 200 levels"),
        ],
    )
    def test_bad_line_is_named_with_wanted_and_got(self, tmp_path, line, said):
        path = write_lines(tmp_path / "r.jsonl", BODY, "", line, BODY)
        with pytest.raises(records.RequestError) as error:
            records.read_requests(path)
        assert said in str(error.value)
        assert "line 3: " in str(error.value)
        assert "1 of 3 lines" in str(error.value)

    def test_the_deepest_line_that_is_read_can_be_written_in_a_row_and_read_again(self, tmp_path):
        (line,) = records.read_requests(write_lines(tmp_path / "r.jsonl", deep(200)))
        odd = float("nan")
        made = ResultRow(
            data_index=1, request=line.body, status="failed", hash=line.hash, extra_body={"x": odd}
        )
        with ResultsFile(write_run(tmp_path / "results.jsonl", made), run_key=RUN) as file:
            (read,) = file.rows([line])
        assert read.request == line.body

    def test_every_bad_line_is_named_up_to_ten(self, tmp_path):
        path = write_lines(tmp_path / "r.jsonl", BODY, *["{}"] * 13)
        with pytest.raises(records.RequestError) as error:
            records.read_requests(path)
        named = [line for line in str(error.value).splitlines() if line.startswith("  line ")]
        assert len(named) == 10
        assert named[0].startswith("  line 2: ")
        assert str(error.value).endswith("and 3 more")

    def test_line_that_is_not_utf8(self, tmp_path):
        path = tmp_path / "r.jsonl"
        path.write_bytes(json.dumps(BODY).encode() + b'\n{"messages": "\xff"}\n')
        with pytest.raises(records.RequestError, match="line 2: not UTF-8"):
            records.read_requests(path)

    @pytest.mark.parametrize("content", [b"", b"\n \n", gzip.compress(b"", mtime=0)])
    def test_file_without_requests(self, tmp_path, content):
        path = tmp_path / "r.jsonl"
        path.write_bytes(content)
        with pytest.raises(records.RequestError, match="holds no requests"):
            records.read_requests(path)

    def test_file_that_cannot_be_read(self, tmp_path):
        torn = tmp_path / "torn.jsonl.gz"
        torn.write_bytes(gzip.compress(json.dumps(BODY).encode())[:-9])
        with pytest.raises(records.RequestError, match="No such file"):
            records.read_requests(tmp_path / "absent.jsonl")
        with pytest.raises(records.RequestError, match="broken gzip"):
            records.read_requests(torn)
        with pytest.raises(records.RequestError, match="directory"):
            records.read_requests(tmp_path)


class TestResultRow:
    def test_line_has_their_fields_in_their_order_then_ours(self):
        line = json.loads(row(masked_sampling={"token_ids": [1]}).to_line())
        assert list(line) == [*K2VV_LINE, "masked_sampling"]
        assert list(json.loads(row().to_line())) == K2VV_LINE

    def test_nothing_unwritable_in_a_line(self):
        odd = row(
            masked_sampling={"log_removed": float("-inf"), "pair": (1, float("nan"))},
            extra_body={"half": "\ud83d", "line": "a\u2028b"},
        )
        line = odd.to_line()
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        read = json.loads(line.decode("utf-8"), parse_constant=pytest.fail)
        assert read["masked_sampling"] == {"log_removed": None, "pair": [1, None]}
        assert read["extra_body"] == {"half": "\ud83d", "line": "a\u2028b"}

    def test_missing_fields_are_read_off_the_response(self):
        response = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
        read = ResultRow.model_validate({"data_index": 3, "response": response, "other": 1})
        assert (read.status, read.finish_reason, read.request) == ("success", "stop", {})
        assert ResultRow.model_validate({"data_index": 3}).status == "failed"

    def test_odd_responses_have_no_message(self):
        for response in (None, {}, {"choices": []}, {"choices": [None]}, {"choices": [{}]}):
            assert ResultRow(data_index=1, status="success", response=response).message == {}


class TestReadResults:
    LINES = (
        '{"data_index": 2, "status": "failed", "finish_reason": null, '
        '"last_run_at": "2026-01-01T00:00:00", "hash": "b"}',
        '{"data_index": 1, "status": "success", "finish_reason": "stop", '
        '"last_run_at": "2026-01-01T00:00:01", "hash": "a"}',
        '{"data_index": 2, "status": "success", "finish_reason": "tool_calls", '
        '"tool_calls_valid": true, "last_run_at": "2026-01-01T00:00:02", "hash": "b"}',
    )

    def test_newest_row_of_each_request_and_a_torn_last_line(self, tmp_path):
        path = write_lines(tmp_path / "r.jsonl", *self.LINES)
        with path.open("a") as file:
            file.write('{"data_index": 3, "status": "succ')
        notes = []
        read = records.read_results(path, notes)
        assert [(r.data_index, r.finish_reason) for r in read] == [(1, "stop"), (2, "tool_calls")]
        assert notes == [f"{path}: line 4 is not JSON; left out"]

    def test_later_time_wins_whatever_the_order_of_the_lines(self, tmp_path):
        path = write_lines(tmp_path / "r.jsonl", *reversed(self.LINES))
        assert [r.finish_reason for r in records.read_results(path)] == ["stop", "tool_calls"]

    @pytest.mark.parametrize(
        "times",
        [
            (None, None),
            ("2026-01-01T00:00:00", "2026-01-01T00:00:00"),
            ("2026-01-01T00:00:00+00:00", "2025-01-01T00:00:00"),
            ("soon", "later"),
        ],
    )
    def test_where_times_do_not_tell_the_later_line_wins(self, tmp_path, times):
        lines = [
            {"data_index": 1, "finish_reason": reason, "last_run_at": time}
            for reason, time in zip(("stop", "length"), times, strict=True)
        ]
        path = write_lines(tmp_path / "r.jsonl", *lines)
        assert [r.finish_reason for r in records.read_results(path)] == ["length"]

    def test_bad_lines_in_the_middle_are_left_out_and_named(self, tmp_path):
        path = write_lines(tmp_path / "r.jsonl", self.LINES[0], '{"status": 1}', *self.LINES[1:])
        notes = []
        assert len(records.read_results(path, notes)) == 2
        assert "line 2 is not a result row (data_index: Field required)" in notes[0]

    def test_gzip(self, tmp_path):
        path = tmp_path / "r.jsonl.gz"
        path.write_bytes(gzip.compress("\n".join(self.LINES).encode()))
        assert len(records.read_results(path)) == 2

    def test_a_file_of_something_else_is_refused(self, tmp_path):
        path = write_lines(tmp_path / "r.jsonl", BODY)
        with pytest.raises(records.ResultsError, match=r"not a results file: line 1 .*data_index"):
            records.read_results(path)
        with pytest.raises(records.ResultsError, match="No such file"):
            records.read_results(tmp_path / "absent.jsonl")


class TestResultsFile:
    def test_rows_come_back(self, tmp_path):
        rows = [row(2), row(1, "tool_calls", masked_sampling={"token_ids": [5]})]
        path = write_run(tmp_path / "deep" / "results.jsonl", *rows)
        with ResultsFile(path, run_key=RUN) as file:
            assert file.rows() == [rows[1], rows[0]]
            assert file.notes == []
        assert records.read_results(path) == [rows[1], rows[0]]

    def test_done_is_keyed_on_index_and_hash(self, tmp_path):
        twins = [request(1), request(2), request(3), request(4, seed=7)]
        assert twins[0].hash == twins[1].hash
        with ResultsFile(tmp_path / "results.jsonl", run_key=RUN) as file:
            file.append(row(1))
            file.append(row(3, status="failed"))
            file.append(row(4))
            assert file.done(twins) == {1}
            file.append(row(3))
            file.append(row(4, hash=twins[3].hash))
            assert file.done(twins) == {1, 3, 4}

    def test_newest_row_wins_and_a_changed_request_keeps_its_own(self, tmp_path):
        with ResultsFile(tmp_path / "results.jsonl", run_key=RUN) as file:
            old, new = row(1, "stop"), row(1, "length", hash="changed")
            file.append(row(1, status="failed"))
            file.append(old)
            file.append(new)
            assert file.rows() == [new]
            assert file.rows([request(1), request(2)]) == [old]
            file.append(old)
            assert file.rows() == [old]

    def test_order_of_lines_decides_even_if_the_clock_was_set_back(self, tmp_path):
        late = row(status="failed", last_run_at="2026-01-01T12:00:00+00:00")
        early = row(last_run_at="2026-01-01T11:00:00+00:00")
        with ResultsFile(write_run(tmp_path / "r.jsonl", late, early), run_key=RUN) as file:
            assert file.done([request()]) == {1}

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"model": "other"}, 'model was "nano", is "other"'),
            (
                {"parameters": {"temperature": 0.6, "seed": 0}},
                "parameters.temperature was 1.0, is 0.6",
            ),
            ({"scope": "always"}, 'scope was absent, is "always"'),
        ],
    )
    def test_rows_of_another_run_refuse_to_mix(self, tmp_path, change, said):
        path = write_run(tmp_path / "results.jsonl", row())
        with path.open("ab") as file:
            file.write(b'{"torn')
        before = path.read_bytes()
        with pytest.raises(records.RunMismatch) as error:
            ResultsFile(path, run_key=RUN | change)
        assert said in str(error.value)
        assert "--overwrite" in str(error.value)
        assert path.read_bytes() == before
        with ResultsFile(path, run_key=RUN | change, overwrite=True) as file:
            assert file.rows() == []
        ResultsFile(path, run_key=RUN | change).close()

    def test_same_key_in_other_words_is_the_same_run(self, tmp_path):
        path = tmp_path / "results.jsonl"
        with ResultsFile(path, run_key={"a": (1, 2), "b": {"x": 1}}) as file:
            file.append(row())
        ResultsFile(path, run_key={"b": {"x": 1}, "a": [1, 2]}).close()

    @pytest.mark.parametrize("run_file", [None, "", "[]", '{"model'])
    def test_rows_that_nobody_signed_are_refused(self, tmp_path, run_file):
        path = write_run(tmp_path / "results.jsonl", row())
        signature = tmp_path / "run.json"
        signature.unlink()
        if run_file is not None:
            signature.write_text(run_file)
        with pytest.raises(records.RunMismatch, match=r"run\.json"):
            ResultsFile(path, run_key=RUN)

    def test_a_run_that_left_no_row_is_nobodys(self, tmp_path):
        ResultsFile(tmp_path / "results.jsonl", run_key=RUN).close()
        other = RUN | {"model": "other"}
        with ResultsFile(tmp_path / "results.jsonl", run_key=other) as file:
            file.append(row())
        assert json.loads((tmp_path / "run.json").read_text()) == other

    def test_two_writers_at_once_are_refused(self, tmp_path):
        path = tmp_path / "results.jsonl"
        with (
            ResultsFile(path, run_key=RUN),
            pytest.raises(records.RunMismatch, match="another process"),
        ):
            ResultsFile(path, run_key=RUN)
        ResultsFile(path, run_key=RUN).close()

    def test_torn_last_line_is_cut_off_and_said_once(self, tmp_path):
        path = write_run(tmp_path / "results.jsonl", row(1), row(2))
        whole = path.read_bytes()
        path.write_bytes(whole + row(3).to_line()[:-20])
        requests = [request(i) for i in (1, 2, 3)]
        with ResultsFile(path, run_key=RUN) as file:
            assert len(file.notes) == 1
            assert "torn last line" in file.notes[0]
            assert file.done(requests) == {1, 2}
        assert path.read_bytes() == whole
        with ResultsFile(path, run_key=RUN) as file:
            assert file.notes == []

    def test_unreadable_line_in_the_middle_runs_again(self, tmp_path):
        path = write_run(tmp_path / "results.jsonl", row(1), row(2))
        first, second = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(first + b"\0" * 30 + b"\n" + second)
        with ResultsFile(path, run_key=RUN) as file:
            assert "line 2 is not JSON" in file.notes[0]
            assert len(file.rows()) == 2

    def test_cut_at_every_byte_no_row_is_lost_and_none_doubled(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "fsync", lambda fd: None)  # thousands of them, and no kill
        rows = [row(1), row(2, "tool_calls", extra_body={"é": "日本"}), row(3, status="failed")]
        path = write_run(tmp_path / "results.jsonl", *rows)
        whole = path.read_bytes()
        ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
        for cut in range(len(whole) + 1):
            path.write_bytes(whole[:cut])
            # A row is complete from its closing brace on; its newline may be what is missing.
            complete = sum(end - 1 <= cut for end in ends)
            with ResultsFile(path, run_key=RUN) as file:
                assert file.rows() == rows[:complete], cut
                assert len(file.notes) == (cut not in {0, *ends, *(end - 1 for end in ends)})
                file.append(row(9))
            lines = path.read_bytes().splitlines()
            assert [json.loads(line)["data_index"] for line in lines] == [*[1, 2, 3][:complete], 9]

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_killed_again_and_again_a_run_still_ends_with_every_row(self, tmp_path_factory, data):
        path = tmp_path_factory.mktemp("run") / "results.jsonl"
        requests = [request(i) for i in range(1, 6)]
        newest = {}
        for _ in range(data.draw(st.integers(1, 4))):
            with ResultsFile(path, run_key=RUN) as file:
                done = file.done(requests)
                assert done == {i for i, status in newest.items() if status == "success"}
                for index in sorted({1, 2, 3, 4, 5} - done):
                    status = data.draw(st.sampled_from(["success", "failed"]))
                    file.append(row(index, status=status))
            # A kill tears the line being written: the last one, if only its newline.
            content = path.read_bytes()
            last = content[:-1].rfind(b"\n") + 1
            cut = data.draw(st.integers(last, len(content)))
            path.write_bytes(content[:cut])
            kept = content if cut >= len(content) - 1 else content[:last]
            newest = {r["data_index"]: r["status"] for r in map(json.loads, kept.splitlines())}
        with ResultsFile(path, run_key=RUN) as file:
            for index in {1, 2, 3, 4, 5} - file.done(requests):
                file.append(row(index))
            assert file.done(requests) == {1, 2, 3, 4, 5}
        assert [r.status for r in records.read_results(path)] == ["success"] * 5

    def test_a_full_disk_leaves_no_half_line(self, tmp_path, monkeypatch):
        path = tmp_path / "results.jsonl"
        with ResultsFile(path, run_key=RUN) as file:
            file.append(row(1))

            def half(data, write=file._file.write):
                write(bytes(data[: len(data) // 2]))
                raise OSError(28, "No space left on device")

            class Full:
                def __getattr__(self, name, real=file._file):
                    return half if name == "write" else getattr(real, name)

            with monkeypatch.context() as patch:
                patch.setattr(file, "_file", Full())
                with pytest.raises(OSError, match="No space"):
                    file.append(row(2))
            file.append(row(3))
        assert [r.data_index for r in records.read_results(path)] == [1, 3]
        assert len(path.read_bytes().splitlines()) == 2

    def test_an_interrupt_after_the_write_leaves_file_and_memory_agreed(
        self, tmp_path, monkeypatch
    ):
        def interrupted(fd):
            raise KeyboardInterrupt

        with ResultsFile(tmp_path / "results.jsonl", run_key=RUN) as file:
            file.append(row(1))
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    file.append(row(2))
            assert [r.data_index for r in file.rows()] == [1, 2]
            file.append(row(3))
            assert [r.data_index for r in file.rows()] == [1, 2, 3]

    def test_appended_rows_survive_a_kill(self, tmp_path):
        path = tmp_path / "results.jsonl"
        script = (
            "import os, signal\n"
            "from eval.records import ResultRow, ResultsFile\n"
            f"file = ResultsFile({str(path)!r}, run_key={RUN!r})\n"
            "for i in range(1, 6):\n"
            "    file.append(ResultRow(data_index=i, status='success', hash='h'))\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], check=False)
        assert done.returncode == -9
        with ResultsFile(path, run_key=RUN) as file:
            assert [r.data_index for r in file.rows()] == [1, 2, 3, 4, 5]


class TestSummary:
    def summarise(self, rows, **kwargs):
        return records.summarise(rows, model="m", started_at=None, finished_at=None, **kwargs)

    def test_their_fields_in_their_order_then_ours(self):
        summary = records.summarise(
            [row()],
            model="m",
            started_at="2026-01-01T00:00:00",
            finished_at="2026-01-01T00:01:00.250000",
        )
        assert list(summary) == [*K2VV_SUMMARY, "masked_sampling"]
        assert list(summary["usage"]) == ["prompt_tokens", "completion_tokens", "total_tokens"]
        assert summary["eval_duration_ms"] == 60_250
        json.dumps(summary, allow_nan=False)

    def test_totals_that_do_not_add_up_are_exposed(self):
        # vLLM's first published Kimi K2 run: 3,705 + 248 + 44 of 4,000, 218 valid and 30 not.
        reasons = ["stop"] * 3705 + ["tool_calls"] * 248 + ["length"] * 44
        rows = [
            ResultRow(data_index=i, status="success", finish_reason=reason)
            for i, reason in enumerate(reasons, 1)
        ]
        rows[3705:3923] = [r.model_copy(update={"tool_calls_valid": True}) for r in rows[3705:3923]]
        summary = self.summarise(rows, expected=4000)
        assert summary["finish_stop"] == 3705
        assert summary["finish_tool_calls"] == 248
        assert summary["finish_others_detail"] == {"length": 44}
        assert summary["successful_tool_call_count"] == 218
        assert summary["schema_validation_error_count"] == 30
        ours = summary["masked_sampling"]
        assert ours["missing_rows"] == 3
        assert ours["adds_up"] is False
        assert ours["schema_accuracy"] == pytest.approx(0.879, abs=5e-4)

    def test_missing_rows_are_named_when_the_requests_are_known(self):
        ours = self.summarise([row(1), row(3)], expected={1, 2, 3, 7})["masked_sampling"]
        assert (ours["missing_rows"], ours["missing"]) == (2, [2, 7])
        assert self.summarise([row(1)], expected=[1])["masked_sampling"]["adds_up"] is True

    def test_triggered_without_a_verdict_is_a_schema_error(self):
        summary = self.summarise(
            [row(1, "tool_calls"), row(2, "tool_calls", tool_calls_valid=True)]
        )
        assert summary["schema_validation_error_count"] == 1
        assert summary["successful_tool_call_count"] == 1

    def test_answer_that_broke_off_is_no_stop(self):
        summary = self.summarise([row(1, None)], expected=1)
        assert summary["finish_stop"] == summary["finish_others"] == 0
        assert summary["masked_sampling"]["no_finish_reason"] == 1
        assert summary["masked_sampling"]["adds_up"] is False

    def test_failed_requests_are_in_no_finish_bucket(self):
        summary = self.summarise([row(1, status="failed"), row(2)], expected=2)
        assert (summary["success_count"], summary["failure_count"]) == (1, 1)
        assert summary["finish_stop"] == 1
        assert summary["finish_others_detail"] == {}
        assert summary["masked_sampling"]["adds_up"] is True

    def test_usage_adds_up_what_is_given(self):
        usages = [{"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}, None, {"x": "y"}]
        rows = [
            ResultRow(data_index=i, finish_reason="stop", response={"choices": [], "usage": usage})
            for i, usage in enumerate(usages, 1)
        ]
        expected = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        assert self.summarise(rows)["usage"] == expected

    def test_nothing_at_all(self):
        ours = self.summarise([])["masked_sampling"]
        assert ours["schema_accuracy"] is None
