"""The remote engine against a real server: ``transformers serve`` with the bundled model."""

import copy
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from transformers.utils.import_utils import is_serve_available

from eval import bundle, k2vv
from tests.endpoints import ENVIRONMENT, k2vv_process, lines_of, wait_until, write_requests

pytestmark = pytest.mark.skipif(
    not is_serve_available(), reason="transformers serve needs masked-sampling[test]"
)

# The bundled model writes calls as hermes does; this is how the server learns to read them.
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": "<|im_end|>", "content": "text"},
    },
}


class Server:
    """``transformers serve`` on a port of its own; can be killed and started again."""

    def __init__(self, model, log):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.options = ["--base-url", f"http://127.0.0.1:{self.port}/v1", "--model", str(model)]
        self.model, self.log = model, log

    def start(self):
        command = [Path(sys.executable).with_name("transformers"), "serve", self.model]
        options = ["--host", "127.0.0.1", "--port", self.port, "--device", "cpu"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(word) for word in (*command, *options, "--dtype", "float32")],
                cwd=self.log.parent,
                env={**ENVIRONMENT, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 120
        while not self.answers():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)

    def answers(self):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.port}/health", timeout=1) as answer:
                return answer.status == 200
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory, loaded):
    folder = tmp_path_factory.mktemp("model")
    loaded.model.save_pretrained(folder)
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.response_template = RESPONSE_TEMPLATE
    tokenizer.save_pretrained(folder)
    one = Server(folder, tmp_path_factory.mktemp("server") / "log")
    one.start()
    yield one
    one.kill()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


def bodies(count, **fields):
    """The first bundled requests; the server takes tool_choice and the like, and ignores them."""
    asked = [body for body, _ in bundle.requests()][:count]
    return [{**body, "temperature": 0, **fields} for body in asked]


def test_every_request_gets_a_row_and_streaming_makes_no_difference(server, tmp_path):
    found = {}
    for streaming in (False, True):
        path = write_requests(tmp_path / "r.jsonl", bodies(5, stream=streaming, max_tokens=80))
        out = tmp_path / f"out{streaming}"
        arguments = [str(path), *server.options, "--output", str(out)]
        assert k2vv.main([*arguments, "--concurrency", "3"]) == 0
        for mode in ("free", "constrained"):
            rows = {row["data_index"]: row for row in lines_of(out / mode / "results.jsonl")}
            assert sorted(rows) == list(range(1, 6))
            found[streaming, mode] = rows
            for row in rows.values():
                assert row["status"] == "success"
                usage = row["response"]["usage"]
                assert 0 < usage["completion_tokens"] <= 80
                assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
                assert row["duration_ms"] > 0
            summary = json.loads((out / mode / "summary.json").read_text())
            total = sum(row["response"]["usage"]["completion_tokens"] for row in rows.values())
            assert summary["usage"]["completion_tokens"] == total
    for mode in ("free", "constrained"):
        whole, streamed = found[False, mode], found[True, mode]
        assert sum(row["finish_reason"] == "tool_calls" for row in whole.values()) >= 2
        for index, row in whole.items():
            other = streamed[index]
            assert row["finish_reason"] == other["finish_reason"]
            assert row["tool_calls_valid"] == other["tool_calls_valid"]
            assert calls_of(row) == calls_of(other)
            assert row["response"]["usage"] == other["response"]["usage"]


def calls_of(row):
    calls = row["response"]["choices"][0]["message"].get("tool_calls") or []
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def test_a_parameter_that_the_server_refuses_is_its_own_reason(server, tmp_path, capsys):
    path = write_requests(tmp_path / "r.jsonl", bodies(1))
    arguments = [str(path), *server.options, "--output", str(tmp_path / "out")]
    code = k2vv.main([*arguments, "--mode", "free", "--top-k", "5", "--max-tokens", "4"])
    assert code == 1
    said = capsys.readouterr().err
    assert "HTTP 422" in said
    assert "top_k" in said


def test_a_server_that_dies_fails_the_rest_and_a_second_run_completes_them(server, tmp_path):
    count = 6
    path = write_requests(tmp_path / "r.jsonl", bodies(count, max_tokens=80))
    out = tmp_path / "out"
    arguments = [path, *server.options, "--mode", "free", "--output", out]
    arguments += ["--retries", 0, "--concurrency", 2]
    results = out / "free" / "results.jsonl"
    process = k2vv_process(*arguments)
    wait_until(lambda: results.exists() and results.read_bytes().count(b"\n") >= 1, process)
    server.kill()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    rows = lines_of(results)
    assert sorted(row["data_index"] for row in rows) == list(range(1, count + 1))
    failed = [row for row in rows if row["status"] == "failed"]
    assert 0 < len(failed) < count
    for row in failed:
        assert row["response"]["error_type"] == "APIConnectionError"
        assert "no connection to" in row["response"]["error_message"]
    server.start()
    assert k2vv.main([str(argument) for argument in arguments]) == 0
    again = lines_of(results)
    assert again[:count] == rows
    assert sorted(row["data_index"] for row in again[count:]) == sorted(
        row["data_index"] for row in failed
    )
    assert all(row["status"] == "success" for row in again[count:])
