"""Processes that several tests start: the stub endpoint, and ``python -m eval.k2vv``."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# No proxy stands between a test and this machine.
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "NO_PROXY": "127.0.0.1,localhost"}
TOOL = {
    "type": "function",
    "function": {
        "name": "say",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
    },
}


def body(text, **fields):
    """A request that lets the stub call `say`."""
    messages = [{"role": "user", "content": text}]
    return {"model": "m", "messages": messages, "tools": [TOOL], **fields}


def write_requests(path, bodies):
    path.write_text("".join(json.dumps(one) + "\n" for one in bodies))
    return path


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def k2vv_process(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "eval.k2vv", *map(str, arguments)],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def wait_until(happened, process, seconds=120.0):
    """Wait for something that a running process does."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"nothing within {seconds} s"
        time.sleep(0.02)


@contextmanager
def stub_endpoint(port=0):
    """The base URL of a stub that runs as a process of its own."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "stub_endpoint.py"), str(port)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def seen(base_url):
    """What the stub tells about itself: count, most_flying, attempts, bodies."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        base_url.removesuffix("/v1") + "/seen"
    ) as answer:
        return json.load(answer)
