"""Make the bundled workload: ``python -m eval.bundle`` writes requests and reference.

300 requests, half with the tools as trained, half under changed conventions. Their text values are
held out from training wherever a pool has enough words for that; the labels are the generator's, in
K2VV's result format.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

_EXAMPLES = """examples:
  python -m eval.bundle
  python -m eval.bundle --output runs/bundle
"""
SEED = 300
MAX_TOKENS = 256
# What a group of 150 is made of: (kind of dialogue, tool_choice, parallel calls, how many).
PLAN = (
    ("call", "auto", True, 66),
    ("two_calls", "auto", True, 12),
    ("chat", "auto", True, 13),
    ("no_tool", "auto", True, 24),
    ("after_result", "auto", True, 4),
    ("call", "required", True, 10),
    ("call", "named", True, 8),
    ("call", "none", True, 7),
    ("two_calls", "auto", False, 6),
)


def requests() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Pairs of a chat-completions body and the assistant message that answers it well."""
    from sampler.nano.dialogues import dialogue

    rng = Random(SEED)
    entries = [
        (*entry[:3], change) for change in (False, True) for entry in PLAN for _ in range(entry[3])
    ]
    rng.shuffle(entries)
    for kind, choice, parallel, change in entries:
        drawn = dialogue(rng, kind=kind, change=change, held_out=True)
        reply, tool_choice = drawn.reply(), choice
        if choice == "named":
            tool_choice = {"type": "function", "function": {"name": drawn.calls[0]["name"]}}
        if choice == "none":
            reply = {"role": "assistant", "content": "I was asked not to call tools."}
        if not parallel:
            reply["tool_calls"] = reply["tool_calls"][:1]
        body = {
            "model": "nano",
            "messages": drawn.messages,
            "tools": drawn.tools,
            "tool_choice": tool_choice,
            **({} if parallel else {"parallel_tool_calls": False}),
            "temperature": 1.0,
            "max_tokens": MAX_TOKENS,
            "stream": False,
            "metadata": {
                "group": "changed" if change else "as_trained",
                "changes": ",".join(drawn.changes),
                "kind": kind,
            },
        }
        yield body, reply


def write(folder: Path) -> int:
    """Write requests.jsonl and reference.jsonl into `folder`; returns how many lines each has."""
    from eval.request_lines import RequestLine

    folder.mkdir(parents=True, exist_ok=True)
    lines: tuple[list[str], list[str]] = ([], [])
    for index, (body, reply) in enumerate(requests(), start=1):
        called = bool(reply.get("tool_calls"))
        reason = "tool_calls" if called else "stop"
        reference = {
            "data_index": index,
            "request": body,
            "extra_body": {},
            "response": {
                "id": f"reference-{index}",
                "object": "chat.completion",
                "created": 0,
                "model": "generator",
                "choices": [{"index": 0, "message": reply, "finish_reason": reason}],
            },
            "status": "success",
            "finish_reason": reason,
            "tool_calls_valid": True if called else None,
            "last_run_at": "2026-11-30T00:00:00",
            "duration_ms": 0,
            "hash": RequestLine(data_index=index, body=body).hash,
        }
        for out, value in zip(lines, (body, reference), strict=True):
            out.append(json.dumps(value, ensure_ascii=False) + "\n")
    for name, out in zip(("requests.jsonl", "reference.jsonl"), lines, strict=True):
        (folder / name).write_text("".join(out), encoding="utf-8")
    return len(lines[0])


def main(argv: list[str] | None = None) -> int:
    """Write the files; returns the exit code 0."""
    parser = argparse.ArgumentParser(
        prog="python -m eval.bundle",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).parent / "data",
        help="folder (default: eval/data of the checkout)",
    )
    args = parser.parse_args(argv)
    if args.output.is_file():
        parser.error(f"--output must be a folder, {args.output} is a file")
    print(f"{write(args.output)} requests written to {args.output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
