"""A server of its own for a test module, and what its answers should be."""

import json
import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections import deque
from contextlib import contextmanager
from pathlib import Path

from sampler.chat import Chat
from sampler.decoding import generate
from sampler.params import SamplingParams

ROOT = Path(__file__).resolve().parent.parent
STRICT = ("--structural-tag-scope", "always", "--structural-tag-schema", "strict")
_READY = re.compile(r"serving \S+ on (http://\S+)/v1")


class Running:
    """A server process.

    Attributes:
        url: where it listens, without `/v1`.
        process: its process.
        log: the last lines it wrote.
    """

    def __init__(self, *flags, **env):
        command = [sys.executable, "-m", "sampler.serve", "--port", "0", "--threads", "1", *flags]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.log = deque(maxlen=400)
        for line in self.process.stdout:
            self.log.append(line)
            if found := _READY.search(line):
                self.url = found[1]
                break
        else:
            raise RuntimeError(f"the server did not start:\n{''.join(self.log)}")
        # Its pipe must not fill up.
        self._reader = threading.Thread(target=self.log.extend, args=(self.process.stdout,))
        self._reader.start()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return answer.read().decode()

    def metric(self, name):
        """The value of a metric; without labels in its name, the sum over them."""
        labels = "" if "{" in name else r"(?:{.*})?"
        pattern = rf"^masked_sampling_{re.escape(name)}{labels} (\S+)$"
        return sum(map(float, re.findall(pattern, self.get("/metrics"), re.M)))

    def resident_bytes(self):
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(120)
        finally:
            self.process.kill()
            self._reader.join(10)
            self.process.stdout.close()


@contextmanager
def running(*flags, **env):
    server = Running(*flags, **env)
    try:
        yield server
    finally:
        server.stop()


def library_answers(loaded, bodies, **options):
    """What the decoding loop answers without a server: message, finish reason and near-ties.

    Args:
        bodies: requests with a seed of their own.
        options: of `Chat`.
    """
    chat = Chat(loaded, **{"scope": "always", "schema_mode": "strict", **options})
    prompts = [chat.prepare(body) for body in bodies]
    fields = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "stop")
    requests = [
        prompt.request(
            SamplingParams(
                **{name: body[name] for name in fields if name in body}, finish_in_budget=True
            ),
            n,
        )
        for n, (prompt, body) in enumerate(zip(prompts, bodies, strict=True))
    ]
    done = generate(
        loaded.model,
        requests,
        tokenizer=loaded.tokenizer,
        stop_token_ids=loaded.stop_token_ids,
        trace=True,
    )
    answers = {}
    for completion in done:
        n = completion.key
        none = prompts[n].plan.tool_choice == "none"
        parsed = chat.parse(
            completion.text, prompts[n], [] if none else bodies[n].get("tools") or []
        )
        called = parsed.tool_calls and completion.finish_reason == "stop"
        reason = "tool_calls" if called else completion.finish_reason
        answers[n] = (plain(parsed.message), reason, bool(completion.near_ties))
    return [answers[n] for n in range(len(bodies))]


def plain(message):
    """A message as what it says: content, reasoning and calls, without ids."""
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]
    return message.get("content") or "", message.get("reasoning_content") or "", calls


def reassembled(chunks):
    """Streamed chunks (dicts) as `choices` of an answer, put together as clients do it."""
    choices = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = choices.setdefault(
                part["index"],
                {
                    "message": {"content": "", "tool_calls": []},
                    "logprobs": [],
                    "finish_reason": None,
                },
            )
            assert choice["finish_reason"] is None, "a chunk after the last"
            delta, message = part["delta"], choice["message"]
            message["content"] += delta.get("content") or ""
            if delta.get("reasoning_content"):
                message.setdefault("reasoning_content", "")
                message["reasoning_content"] += delta["reasoning_content"]
            for call in delta.get("tool_calls") or []:
                if call["index"] == len(message["tool_calls"]):
                    assert call["id"] and call["type"] == "function" and call["function"]["name"]
                    message["tool_calls"].append(
                        {
                            "id": call["id"],
                            "function": {"name": call["function"]["name"], "arguments": ""},
                        }
                    )
                else:
                    assert not call.get("id") and not call["function"].get("name")
                known = message["tool_calls"][call["index"]]
                known["function"]["arguments"] += call["function"].get("arguments") or ""
            choice["logprobs"] += (part.get("logprobs") or {}).get("content") or []
            choice["finish_reason"] = part["finish_reason"]
    return [choices[i] for i in sorted(choices)]
