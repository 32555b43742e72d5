"""Load: many requests to the stub endpoint, killed and resumed.

``python -m tests.endpoint_load 4000 64 3`` (requests, concurrency, kills) prints what it found.
"""

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.endpoints import body, k2vv_process, lines_of, seen, stub_endpoint, write_requests

_TICK = 1 / os.sysconf("SC_CLK_TCK")


def load(folder, requests, concurrency, kills):
    """Run them, killing the harness after equal shares.

    The last part, the one that is not killed, is measured from its first tenth to its end:
    ``ms_a_request`` is wall time, ``cpu_ms_a_request`` the harness's own processor time, and
    ``rss_growth_mb`` by how much its resident memory grew.
    """
    texts = (f"request {i}, " + "word " * 200 for i in range(requests))
    path = write_requests(folder / "requests.jsonl", [body(text) for text in texts])
    results, killed = folder / "out" / "free" / "results.jsonl", 0
    arguments = (path, "--concurrency", concurrency, "--mode", "free", "--output", folder / "out")
    with stub_endpoint() as base_url:
        for part in range(1, kills + 2):
            size = results.stat().st_size if results.exists() else 0
            begun, samples = count(results), []
            process = k2vv_process(*arguments, "--base-url", base_url)
            while process.poll() is None:
                time.sleep(0.05)
                if not results.exists() or results.stat().st_size == size:
                    continue
                size, done = results.stat().st_size, count(results)
                if done < requests and (sample := usage(process.pid)):
                    samples.append((done, time.monotonic(), *sample))
                if part <= kills and done >= requests * part // (kills + 1):
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    killed += 1
            process.communicate()
        asked = seen(base_url)["count"]
    tenth = begun + (requests - begun) // 10
    first, last = next(one for one in samples if one[0] >= tenth), samples[-1]
    rows, made = lines_of(results), max(1, last[0] - first[0])
    return {
        "requests": requests,
        "concurrency": concurrency,
        "kills": killed,
        "asked": asked,
        "rows": len(rows),
        "distinct": len({row["data_index"] for row in rows}),
        "succeeded": sum(row["status"] == "success" for row in rows),
        "exit": process.returncode,
        "measured_rows": made,
        "ms_a_request": round(1000 * (last[1] - first[1]) / made, 2),
        "cpu_ms_a_request": round(1000 * (last[2] - first[2]) / made, 2),
        "rss_mb": [round(first[3]), round(last[3])],
        "rss_growth_mb": round(last[3] - first[3], 1),
    }


def count(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def usage(pid):
    """Processor seconds and resident MB of a process; None once it has gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return (int(stat[11]) + int(stat[12])) * _TICK, pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(load(Path(folder), *map(int, sys.argv[1:])), indent=1))
