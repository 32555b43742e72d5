"""The remote engine against a stub, a process of its own that answers at once or fails as told."""

import json
import resource
import signal
import socket
import time
from base64 import b64encode
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import partial

import pytest
from xgrammar.structural_tag import StructuralTag

from eval import k2vv, retry
from eval.endpoint_request import EndpointRequests
from eval.engine_openai import OpenAIEngine
from eval.engines import Sampling
from eval.request_lines import RequestLine
from tests.endpoint_load import load
from tests.endpoints import (
    TOOL,
    body,
    k2vv_process,
    lines_of,
    seen,
    stub_endpoint,
    wait_until,
    write_requests,
)
from tests.stub_endpoint import USAGE

KEY = "sk-secret-4711"
POLICY = {"format": "hermes", "scope": "always", "schema_mode": "strict"}


@pytest.fixture(scope="module")
def stub():
    with stub_endpoint() as base_url:
        yield base_url


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(retry, "FIRST_WAIT", 0.001)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def ask(base_url, *bodies, requests=None, **options):
    """Rows by data_index, which counts from 1."""
    engine = OpenAIEngine(base_url, requests or EndpointRequests(), **options)
    lines = [RequestLine(data_index=i, body=one) for i, one in enumerate(bodies, 1)]
    try:
        rows = list(engine.run(lines))
    finally:
        engine.close()
    assert sorted(row.data_index for row in rows) == list(range(1, len(bodies) + 1))
    return {row.data_index: row for row in rows}


@pytest.mark.parametrize("streaming", [False, True])
class TestAnswers:
    def test_a_call_and_a_text(self, stub, streaming):
        call, text = body("hi there", stream=streaming), body("hi", stream=streaming, tools=[])
        rows = ask(stub, call, text)
        assert [rows[i].finish_reason for i in (1, 2)] == ["tool_calls", "stop"]
        assert rows[1].tool_calls_valid is True
        [made] = rows[1].message["tool_calls"]
        assert made["function"]["name"] == "say"
        assert json.loads(made["function"]["arguments"]) == {"text": "hi there"}
        assert rows[2].message["content"] == "hello"
        for row in rows.values():
            assert row.usage == USAGE
            assert row.masked_sampling["attempts"] == 1
            assert "error" not in row.response

    def test_a_call_that_does_not_fit_is_invalid(self, stub, streaming):
        tool = {"type": "function", "function": {"name": "f", "parameters": {"required": ["x"]}}}
        [row] = ask(stub, body("hi", stream=streaming, tools=[tool])).values()
        assert row.tool_calls_valid is False
        assert row.masked_sampling["failures"][0]["cause"] == "missing_key"

    def test_a_failure_takes_no_other_row_down(self, stub, streaming):
        words = ["ok", "html", "ok2", "drop", "refused400", "ok3", "no_choices"]
        rows = ask(stub, *(body(w, stream=streaming) for w in words), retries=0, concurrency=3)
        succeeded = [rows[i].succeeded for i in range(1, 8)]
        assert succeeded == [True, False, True, False, False, True, False]


FAULTS = [
    # what the endpoint does, streaming too?, error type, text, attempts with 3 retries
    ("always429", (False, True), "RateLimitError", "HTTP 429", 4),
    ("always500", (False, True), "InternalServerError", "HTTP 500: <html><body><h1>502 Bad", 4),
    ("refused400", (False, True), "BadRequestError", "HTTP 400", 1),
    ("html", (False, True), "BadAnswer", "not JSON", 1),
    ("not_json", (False,), "BadAnswer", "not JSON", 1),
    ("no_choices", (False,), "BadAnswer", "no choices", 1),
    ("null_reason", (False,), "BadAnswer", "no finish_reason", 1),
    ("null_reason", (True,), "BrokenStream", "without a finish_reason", 4),
    ("breaks_off", (True,), "BrokenStream", "without a finish_reason", 4),
    ("drop", (False,), "APIConnectionError", "no connection to http://127.0.0.1", 4),
    ("drop", (True,), "BrokenStream", "the connection broke after 3 chunks", 4),
    ("error_event", (True,), "BadAnswer", "the engine died", 1),
    ("bad_event", (True,), "BadAnswer", "the stream cannot be read", 1),
]


@pytest.mark.parametrize(
    ("fault", "streaming", "kind", "text", "attempts"),
    [(f, s, kind, text, n) for f, both, kind, text, n in FAULTS for s in both],
)
def test_a_fault_is_a_failed_row_with_its_reason(stub, fault, streaming, kind, text, attempts):
    said = f"{kind} {streaming} {fault}"
    [row] = ask(stub, body(said, stream=streaming), retries=3).values()
    assert row.status == "failed"
    assert row.finish_reason is None
    assert row.tool_calls_valid is None
    assert set(row.response) == {"error_type", "error_message", "error"}
    assert row.response["error_type"] == kind
    assert text in row.response["error_message"]
    assert seen(stub)["attempts"][said] == attempts
    assert row.masked_sampling["attempts"] == attempts
    assert len(row.masked_sampling.get("retried", [])) == attempts - 1


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_attempts_are_one_and_the_retries(stub, retries):
    said = f"{retries} always429"
    [row] = ask(stub, body(said), retries=retries).values()
    assert seen(stub)["attempts"][said] == 1 + retries
    assert not row.succeeded
    assert "HTTP 429" in row.response["error"]


@pytest.mark.parametrize(
    ("fault", "streaming", "attempts"),
    [("twice429", False, 3), ("once500", True, 2), ("drop_once", False, 2), ("drop_once", True, 2)],
)
def test_what_passes_is_tried_again_and_recorded(stub, fault, streaming, attempts):
    [row] = ask(stub, body(f"{streaming} {fault}", stream=streaming)).values()
    assert row.succeeded
    assert row.masked_sampling["attempts"] == attempts
    assert len(row.masked_sampling["retried"]) == attempts - 1


def test_what_had_come_of_a_broken_stream_is_kept_and_is_no_answer(stub):
    [row] = ask(stub, body("a breaks_off", stream=True, tools=[]), retries=0).values()
    assert row.message == {}
    partial = row.masked_sampling["partial"]["choices"][0]
    assert partial["message"]["content"] == "hello"
    assert partial["finish_reason"] is None


def test_an_answer_too_deep_to_be_worked_on_takes_no_other_row_down(stub):
    rows = ask(stub, body("deep"), body("ok"), concurrency=1)
    assert rows[2].succeeded
    assert "nested too deeply" in rows[1].response["error_message"]
    for row in rows.values():
        json.loads(row.to_line())


def test_a_server_that_does_not_stream_is_read_all_the_same(stub):
    [row] = ask(stub, body("a unstreamed", stream=True)).values()
    assert row.finish_reason == "tool_calls"
    assert row.usage == USAGE


@pytest.mark.parametrize("streaming", [False, True])
def test_a_slow_answer_is_given_up(stub, streaming):
    started = time.monotonic()
    rows = ask(stub, body("slow", stream=streaming), body("ok"), timeout=0.5, retries=1)
    assert time.monotonic() - started < 20
    assert rows[2].succeeded
    assert rows[1].response["error_type"] == "TimeoutError"
    assert "no whole answer within 0.5 s" in rows[1].response["error_message"]
    assert rows[1].masked_sampling["attempts"] == 2
    assert rows[1].duration_ms >= 1000


def test_an_endpoint_that_is_down_fails_every_row():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://user:word@127.0.0.1:{free.getsockname()[1]}/v1"
    rows = ask(url, *[body("hi")] * 5, retries=1, concurrency=2)
    for row in rows.values():
        assert row.response["error_type"] == "APIConnectionError"
        assert "no connection to http://127.0.0.1" in row.response["error_message"]
        assert "word" not in json.dumps(row.response)


def test_no_more_requests_are_in_flight_than_concurrency():
    with stub_endpoint() as base_url:
        ask(base_url, *(body(f"keep {i}") for i in range(60)), concurrency=4)
        told = seen(base_url)
    assert told["count"] == 60
    assert told["most_flying"] <= 4


def test_requests_are_taken_no_faster_than_rows_are(stub):
    taken = 0

    def lines():
        nonlocal taken
        for index in range(1, 501):
            taken += 1
            yield RequestLine(data_index=index, body=body("hi"))

    engine = OpenAIEngine(stub, EndpointRequests(), concurrency=4)
    try:
        rows = engine.run(lines())
        for got in range(1, 41):
            next(rows)
            if got % 20 == 0:
                time.sleep(0.3)
                # Those in the queue, those that wait to enter it, and those taken off its hands.
                assert taken <= got + 2 * 4
        rows.close()
    finally:
        engine.close()


def test_closing_gives_up_what_is_in_flight(stub):
    engine = OpenAIEngine(stub, EndpointRequests(), concurrency=2)
    rows = engine.run(RequestLine(data_index=i, body=body(t)) for i, t in ((1, "a"), (2, "slow")))
    assert next(rows).data_index == 1
    started = time.monotonic()
    rows.close()
    engine.close()
    engine.close()
    assert time.monotonic() - started < 10
    assert not engine._thread.is_alive()


class TestWhatIsSent:
    def sent(self, stub, request, **options):
        text = request["messages"][-1]["content"]
        [row] = ask(stub, request, requests=EndpointRequests(**options)).values()
        body = seen(stub)["bodies"][text]
        taken = {key for key, value in row.extra_body.items() if value is None}
        kept = {**row.request, **row.extra_body}
        assert body == {key: kept[key] for key in kept if key not in taken}
        return body, row

    def test_a_request_goes_as_it_is(self, stub):
        request = body("keep 1", temperature=0.3, unheard_of={"a": None}, stop=None)
        got, row = self.sent(stub, request)
        assert got == request == row.request
        assert row.extra_body == {}

    def test_free_takes_strict_away_and_constrained_adds_it(self, stub):
        strict = {**TOOL, "function": {**TOOL["function"], "strict": True}}
        got, _ = self.sent(stub, body("keep 2", tools=[strict, TOOL]))
        assert got["tools"] == [TOOL, TOOL]
        got, row = self.sent(stub, body("keep 3", tools=[strict, TOOL]), via="strict")
        assert got["tools"] == [strict, strict]
        assert row.masked_sampling["constrained_via"] == "strict"
        got, _ = self.sent(stub, body("keep 4", tools=[strict, TOOL]), via="server")
        assert got["tools"] == [strict, TOOL]

    def test_metadata_goes_where_it_is_texts_and_stays_in_the_row_where_not(self, stub):
        # OpenAI takes a map of texts; BFCL's requests have a map of names in theirs.
        texts = body("keep 5", metadata={"group": "a"})
        ask(stub, texts)
        assert seen(stub)["bodies"]["keep 5"]["metadata"] == {"group": "a"}
        nested = body("keep 6", metadata={"group": "a", "names": {"f": "f"}})
        row = ask(stub, nested)[1]
        assert "metadata" not in seen(stub)["bodies"]["keep 6"]
        assert row.request["metadata"] == nested["metadata"]

    @pytest.mark.parametrize("tools", [["say"], [{"type": "function"}], {"name": "say"}])
    def test_tools_that_are_none_fail_their_request_unsent(self, stub, tools):
        row = ask(stub, body("keep 7", tools=tools))[1]
        assert row.response["error_type"] == "ValueError"
        assert "tools" in row.response["error_message"]
        assert "keep 7" not in seen(stub)["bodies"]

    def test_settings_go_before_the_requests_own(self, stub):
        sampling = Sampling(0.5, 0.9, 40, 0.05, 99, base_seed=2)
        request = body("keep 5", temperature=1.0, max_tokens=7)
        got, row = self.sent(stub, request, model="other", sampling=sampling)
        assert got["model"] == "other"
        assert (got["temperature"], got["top_p"], got["max_tokens"]) == (0.5, 0.9, 99)
        assert row.extra_body == {"top_k": 40, "min_p": 0.05}
        assert got["seed"] == 2 * 1_000_003 + 1
        got, _ = self.sent(stub, body("keep 6", max_completion_tokens=7, seed=3), sampling=sampling)
        assert got["max_completion_tokens"] == 99
        assert "max_tokens" not in got
        assert got["seed"] == 3

    def test_extra_body_goes_over_everything_and_null_takes_away(self, stub):
        extra = {"temperature": 0.1, "metadata": None, "stream_options": None, "absent": None}
        request = body("keep 7", stream=True, metadata={"group": "g"})
        got, row = self.sent(stub, request, extra_body=extra)
        assert got["temperature"] == 0.1
        assert "metadata" not in got
        assert "stream_options" not in got
        assert row.extra_body == extra
        assert row.usage == {}

    def test_the_usage_of_a_stream_is_asked_for(self, stub):
        got, _ = self.sent(stub, body("keep 8", stream=True))
        assert got["stream_options"] == {"include_usage": True}
        options = {"include_usage": False, "x": 1}
        got, _ = self.sent(stub, body("keep 9", stream=True, stream_options=options))
        assert got["stream_options"] == options

    @pytest.mark.parametrize("choice", ["auto", "required", "named", "none"])
    def test_a_structural_tag_holds_what_the_request_asks_for(self, stub, choice):
        named = {"type": "function", "function": {"name": "say"}}
        asked = named if choice == "named" else choice
        request = body(f"keep {choice}", tool_choice=asked)
        got, row = self.sent(stub, request, via="structural-tag", policy=POLICY)
        assert set(row.extra_body) == {"structured_outputs"}
        tag = json.loads(got["structured_outputs"]["structural_tag"])
        assert tag["type"] == "structural_tag"
        StructuralTag.model_validate(tag)
        assert ('"say"' in json.dumps(tag).replace("\\", "")) == (choice != "none")
        # vLLM refuses a tag beside a named tool, and reads required in a way of its own.
        assert got["tool_choice"] == ("none" if choice == "none" else "auto")
        assert got["tools"] == [TOOL]

    def test_a_tag_takes_the_place_of_response_format(self, stub):
        form = {"type": "json_object"}
        request = body("keep form", response_format=form)
        got, _ = self.sent(stub, request, via="structural-tag", policy=POLICY)
        assert "response_format" not in got
        got, _ = self.sent(stub, body("keep form2", response_format=form), via="strict")
        assert got["response_format"] == form

    def test_a_schema_without_a_tag_fails_its_request_alone(self, stub):
        broken = json.loads(json.dumps(TOOL))
        broken["function"]["parameters"]["properties"]["text"] = {"$ref": "#/nowhere"}
        requests = EndpointRequests(via="structural-tag", policy=POLICY)
        rows = ask(stub, body("keep bad", tools=[broken]), body("keep ok"), requests=requests)
        assert rows[1].response["error_type"] == "SchemaError"
        assert rows[2].succeeded
        assert "keep bad" not in seen(stub)["bodies"]

    def test_it_is_described(self):
        requests = EndpointRequests(via="strict", sampling=Sampling(top_k=3), extra_body={"a": 1})
        described = requests.describe()
        assert described["sent"] == "strict: true on every tool"
        assert (described["top_k"], described["extra_body"]) == (3, {"a": 1})


class TestWaits:
    @pytest.mark.parametrize(
        ("headers", "least", "most"),
        [
            ({"retry-after": "7"}, 7, 7.7),
            ({"retry-after": "0"}, 0, 0),
            ({"retry-after-ms": "250", "retry-after": "7"}, 0.25, 0.275),
            ({"retry-after": "86400"}, 120, 132),
            ({"retry-after": "soon"}, 2, 4),
            ({"retry-after": "-3"}, 2, 4),
            ({"retry-after": "nan"}, 2, 4),
            ({}, 2, 4),
        ],
    )
    def test_the_server_is_heeded_within_a_bound(self, monkeypatch, headers, least, most):
        monkeypatch.setattr(retry, "FIRST_WAIT", 0.5)
        assert least <= retry.retry_wait(3, headers) <= most

    def test_a_date_is_a_wait_until_then(self):
        now = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
        then = format_datetime(now.replace(second=20), usegmt=True)
        assert 20 <= retry.retry_wait(0, {"retry-after": then}, now=now) <= 22
        past = format_datetime(now.replace(hour=11), usegmt=True)
        assert retry.retry_wait(0, {"retry-after": past}, now=now) == 0

    def test_waits_double_up_to_a_bound_and_are_not_all_the_same(self, monkeypatch):
        monkeypatch.setattr(retry, "FIRST_WAIT", 0.5)
        for n in range(12):
            waits = [retry.retry_wait(n) for _ in range(50)]
            top = min(0.5 * 2**n, 30)
            assert top / 2 <= min(waits) < max(waits) <= top
            assert max(waits) - min(waits) > top / 8


class TestCommand:
    def run(self, stub, tmp_path, *bodies, options=(), mode="both"):
        path = write_requests(tmp_path / "requests.jsonl", bodies)
        out = tmp_path / "out"
        arguments = [str(path), "--base-url", stub, "--mode", mode, "--output", str(out), *options]
        return k2vv.main(arguments), out

    def test_both_modes_end_in_tables_that_say_what_was_sent(self, stub, tmp_path, capsys):
        bodies = [body("one"), body("two", stream=True), body("three", tools=[])]
        code, out = self.run(stub, tmp_path, *bodies)
        assert code == 0
        said = " ".join(capsys.readouterr().out.split())
        assert f"constrained: sent to {stub}: strict: true on every tool." in said
        assert "free: sent to" in said
        for mode, via in (("free", None), ("constrained", "strict")):
            rows = {row["data_index"]: row for row in lines_of(out / mode / "results.jsonl")}
            assert sorted(rows) == [1, 2, 3]
            assert [rows[i]["finish_reason"] for i in (1, 2, 3)] == [*["tool_calls"] * 2, "stop"]
            summary = json.loads((out / mode / "summary.json").read_text())
            assert summary["usage"] == {key: 3 * n for key, n in USAGE.items()}
            assert summary["masked_sampling"]["engine"]["constrained_via"] == via
        settings = json.loads((out / "comparison.json").read_text())["settings"]
        assert settings["constrained_via"] == "strict"
        assert "max_tokens" not in settings  # the endpoint's own default is not known

    @pytest.mark.parametrize("address", ["plain", "with a password"])
    def test_the_key_is_written_nowhere(self, stub, tmp_path, capsys, address):
        options = ["--api-key", KEY, "--retries", "0"]
        if address == "with a password":
            options += ["--base-url", stub.replace("//", "//user:pass-word@")]
        code, out = self.run(stub, tmp_path, body("say quotes_key"), options=options)
        assert code == 1
        said = capsys.readouterr()
        written = [file.read_bytes() for file in out.rglob("*") if file.is_file()]
        assert len(written) >= 5
        for text in (said.out.encode(), said.err.encode(), *written):
            assert KEY.encode() not in text
            assert b"pass-word" not in text
            assert b64encode(b"user:pass-word") not in text
        assert "bad key: B" in said.err
        assert "[secret]" in said.err
        assert (
            "--api-key ..."
            in json.loads((out / "comparison.json").read_text())["provenance"]["command"]
        )

    def test_the_key_of_the_environment_is_used(self, stub, tmp_path, capsys, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        self.run(stub, tmp_path, body("me quotes_key"), options=("--retries", "0"), mode="free")
        said = capsys.readouterr().err
        assert "Bearer [secret]" in said
        assert KEY not in said

    def test_failed_requests_are_tried_again_by_the_same_command(self, stub, tmp_path):
        bodies = [body("first"), body("cmd once500"), body("last")]
        code, out = self.run(stub, tmp_path, *bodies, options=("--retries", "0"), mode="free")
        assert code == 1
        results = out / "free" / "results.jsonl"
        before = results.read_bytes()
        again = ("--retries", "0", "--incremental")
        code, _ = self.run(stub, tmp_path, *bodies, options=again, mode="free")
        assert code == 0
        assert results.read_bytes().startswith(before)
        assert [row["data_index"] for row in lines_of(results)][3:] == [2]

    def test_rows_of_another_way_to_constrain_do_not_mix(self, stub, tmp_path, capsys):
        self.run(stub, tmp_path, body("one"), mode="constrained")
        options = ("--constrained-via", "structural-tag")
        code, _ = self.run(stub, tmp_path, body("one"), options=options, mode="constrained")
        assert code == 2
        assert 'constrained_via was "strict", is "structural-tag"' in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--engine", "openai"], "--base-url"),
            (["--base-url", "localhost:8000/v1"], "http://localhost:8000/v1"),
            (["--base-url", "http://x", "--extra-body", "[1]"], "--extra-body must be a JSON"),
            (["--base-url", "http://x", "--extra-body", "{"], "--extra-body must be a JSON"),
            (["--base-url", "http://x", "--concurrency", "0"], "--concurrency must be at least"),
            (["--base-url", "http://x", "--concurrency", "5000"], "at most 1,000"),
            (["--base-url", "http://x", "--retries", "-1"], "--retries must be at least 0"),
            (["--base-url", "http://x", "--timeout", "0"], "--timeout must be"),
            (["--base-url", "http://x", "--timeout", "nan"], "--timeout must be"),
            (["--base-url", "http://x", "--constrained-via", "server"], "--mode free"),
            (
                "--base-url http://x --constrained-via structural-tag --tool-call-parser n".split(),
                "'n'",
            ),
        ],
    )
    def test_bad_arguments_are_one_sentence(self, tmp_path, capsys, options, said):
        assert k2vv.main([*options, "--output", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert len(error.strip().splitlines()) == 1
        assert not (tmp_path / "out").exists()

    def test_requests_without_a_model_need_one(self, stub, tmp_path, capsys):
        code, out = self.run(stub, tmp_path, body("one"), body("two", model=None))
        assert code == 2
        assert "1 of 2 requests name no model" in capsys.readouterr().err
        assert not out.exists()
        code, out = self.run(stub, tmp_path, body("two", model=None), options=["--model", "mine"])
        assert code == 0
        assert [row["request"]["model"] for row in lines_of(out / "free" / "results.jsonl")] == [
            "mine"
        ]

    def test_a_full_disk_is_said_and_the_run_goes_on_later(self, stub, tmp_path):
        path = write_requests(tmp_path / "r.jsonl", [body(f"{i} " + "x" * 900) for i in range(60)])
        out = tmp_path / "out"
        arguments = [path, "--base-url", stub, "--mode", "free", "--output", out]
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (60_000, 60_000))
        process = k2vv_process(*arguments, preexec_fn=limit)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 2
        assert "Traceback" not in said
        assert "results.jsonl: File too large; the rows before it are whole: make room" in said
        kept = lines_of(out / "free" / "results.jsonl")
        assert 0 < len(kept) < 60
        assert k2vv.main([str(argument) for argument in arguments]) == 0
        rows = lines_of(out / "free" / "results.jsonl")
        assert rows[: len(kept)] == kept
        assert sorted(row["data_index"] for row in rows) == list(range(1, 61))

    def test_ctrl_c_keeps_what_is_done(self, stub, tmp_path):
        bodies = [*(body(f"r{i}") for i in range(8)), *[body("slow")] * 8]
        path = write_requests(tmp_path / "requests.jsonl", bodies)
        out = tmp_path / "out"
        process = k2vv_process(path, "--base-url", stub, "--mode", "free", "--output", out)
        results = out / "free" / "results.jsonl"
        wait_until(lambda: results.exists() and results.read_bytes().count(b"\n") == 8, process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 130
        assert "interrupted" in said
        assert "Traceback" not in said
        assert {row["data_index"] for row in lines_of(results)} == set(range(1, 9))
        summary = json.loads((out / "free" / "summary.json").read_text())
        assert summary["masked_sampling"]["missing_rows"] == 8


def test_many_requests_killed_and_resumed_leave_a_row_each_and_flat_memory(tmp_path):
    found = load(tmp_path, requests=400, concurrency=32, kills=1)
    assert found["rows"] == found["distinct"] == found["succeeded"] == 400
    assert found["kills"] == 1
    # A row here is some 2 kB: all of them together are under 1 MB.
    assert found["rss_growth_mb"] < 40
