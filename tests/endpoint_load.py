"""Load: many requests to the stub endpoint, killed and resumed.

``python -m tests.endpoint_load 4000 64 3`` (requests, concurrency, kills) prints what it found.
"""

import json
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.endpoints import body, k2vv_process, lines_of, seen, stub_endpoint, write_requests


def load(folder, requests, concurrency, kills):
    """Run them, killing the harness after equal shares; the rows, seconds and memory it took."""
    texts = (f"request {i}, " + "word " * 200 for i in range(requests))
    path = write_requests(folder / "requests.jsonl", [body(text) for text in texts])
    results = folder / "out" / "free" / "results.jsonl"
    rss, killed = [], 0
    with stub_endpoint() as base_url:
        for part in range(1, kills + 2):
            target = requests * part // (kills + 1)
            process = k2vv_process(
                *(path, "--base-url", base_url, "--concurrency", concurrency),
                *("--mode", "free", "--output", folder / "out"),
            )
            begun = None
            while process.poll() is None:
                done = results.read_bytes().count(b"\n") if results.exists() else 0
                if begun is None and done > requests * (part - 1) // (kills + 1):
                    begun = time.monotonic(), done
                if begun and done < requests:
                    rss.append((part, done, resident_mb(process.pid)))
                if done >= target and part <= kills:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    killed += 1
                elif done < requests:
                    last = time.monotonic(), done
                time.sleep(0.02)
            process.communicate()
        count = seen(base_url)["count"]
    rows = lines_of(results)
    mine = [mb for part, _, mb in rss if part == kills + 1 and mb is not None]
    return {
        "requests": requests,
        "concurrency": concurrency,
        "kills": killed,
        "asked": count,
        "rows": len(rows),
        "distinct": len({row["data_index"] for row in rows}),
        "succeeded": sum(row["status"] == "success" for row in rows),
        "exit": process.returncode,
        "ms_a_request": round(1000 * (last[0] - begun[0]) / max(1, last[1] - begun[1]), 2),
        "rss_mb": [round(mine[len(mine) // 10]), round(mine[-1])] if mine else None,
        "rss_growth_mb": round(mine[-1] - mine[len(mine) // 10]) if mine else None,
    }


def resident_mb(pid):
    """Resident memory in MB; None once the process has gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    lines = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(lines[0].split()[1]) / 1024 if lines else None


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(load(Path(folder), *map(int, sys.argv[1:])), indent=1))
