"""Serve a model over OpenAI's chat-completions protocol.

SIGTERM or Ctrl-C: what runs is finished, new requests get a 503; a second one stops at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

_KEY = "MASKED_SAMPLING_API_KEY"

_EXAMPLES = """examples:
  python -m sampler.serve --model nano --port 8000
  python -m sampler.serve --model path/to/model --device cuda --structural-tag-schema strict

then:
  curl localhost:8000/v1/models
"""


def build_parser() -> argparse.ArgumentParser:
    """The arguments of the server."""
    parser = argparse.ArgumentParser(
        prog="python -m sampler.serve",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument_group("model").add_argument
    add("--model", default="nano", help="nano, smollm2-135m, a folder, a .gguf, or a Hub id")
    add("--served-model-name", help="what clients call it (default: the model's own name)")
    add("--device", default="cpu")
    add("--dtype", default="float32")
    add("--threads", type=int, help="torch's threads")
    add = parser.add_argument_group("grammar").add_argument
    add(
        "--tool-call-parser",
        default="auto",
        metavar="NAME",
        help="format of the calls; auto: the one that the chat template writes (default: auto)",
    )
    add(
        "--structural-tag",
        choices=("on", "off"),
        default="on",
        help="decode under the grammar that a request asks for, or freely (default: on)",
    )
    add(
        "--structural-tag-scope",
        choices=("auto", "always"),
        default="auto",
        help="constrain tool_choice auto only where a tool is strict, or always (default: auto)",
    )
    add(
        "--structural-tag-schema",
        choices=("auto", "strict", "declared"),
        default="auto",
        help="hold arguments to the schema of strict tools, of all, or of all not declared"
        " otherwise (default: auto)",
    )
    add(
        "--exclude-tools-when-tool-choice-none",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="leave the tools out of the prompt for tool_choice none",
    )
    add(
        "--finish-in-budget",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="where a grammar allows it, steer to an end within max_tokens",
    )
    add = parser.add_argument_group("limits").add_argument
    add("--max-batch-size", type=int, default=16, help="rows decoded together (default: 16)")
    add(
        "--max-cache-tokens",
        type=int,
        help="of the KV cache, over all rows (default: what half of the free memory holds)",
    )
    add("--max-queue", type=int, default=256, help="rows that may wait beyond them (default: 256)")
    add("--max-body-bytes", type=int, default=8 * 2**20, help="of a request (default: 8 MiB)")
    add("--max-tools", type=int, default=512, help="in a request (default: 512)")
    add("--max-tokens-limit", type=int, default=131_072, help="most max_tokens (default: 131072)")
    add("--max-schema-bytes", type=int, default=2**20, help="of one schema (default: 1 MiB)")
    add(
        "--max-prepare-seconds",
        type=float,
        default=20.0,
        help="for the schemas and grammars of one request (default: 20)",
    )
    add = parser.add_argument_group("network").add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000, help="0 takes a free one, and says which")
    add("--api-key", help=f"what clients must send (default: the environment's {_KEY}, if set)")
    add("--drain-seconds", type=int, default=120, help="for what runs, at the end (default: 120)")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Serve until told to stop; returns the exit code: 0, 1 (the port), 2 (bad input)."""
    args = build_parser().parse_args(argv)
    try:
        return _serve(args)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ImportError) as error:
        print(f"serve: error: {error}", file=sys.stderr)
        return 2


def _serve(args: argparse.Namespace) -> int:
    if not 0 <= args.port < 2**16:
        raise ValueError(f"--port must be in [0, 65535], got {args.port}")
    if args.threads is not None and args.threads < 1:
        raise ValueError(f"--threads must be at least 1, got {args.threads}")
    try:
        import uvicorn  # noqa: F401

        from sampler.serve.app import create_app
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; install masked-sampling[serve]") from error
    from sampler.serve.limits import Limits
    from sampler.serve.run import Server
    from sampler.serve.service import Service

    limits = Limits(
        batch_size=args.max_batch_size,
        queue=args.max_queue,
        body_bytes=args.max_body_bytes,
        tools=args.max_tools,
        schema_bytes=args.max_schema_bytes,
        tokens=args.max_tokens_limit,
        cache_tokens=args.max_cache_tokens,
        prepare_seconds=args.max_prepare_seconds,
    )
    chat = _chat(args)
    limits = limits.fitted(chat.loaded.model)
    if limits.cache_tokens is not None:
        print(f"serve: the cache holds {limits.cache_tokens:,} tokens", file=sys.stderr)
    service = Service(
        chat, limits, name=args.served_model_name, finish_in_budget=args.finish_in_budget
    )
    api_key = args.api_key or os.environ.get(_KEY)
    if not api_key and args.host not in ("127.0.0.1", "::1", "localhost"):
        print("serve: no --api-key: whoever reaches this port may use it", file=sys.stderr)
    app = create_app(service, api_key=api_key)
    server = Server(app, service, args.host, args.port, drain_seconds=args.drain_seconds)
    server.run()
    return 0 if server.started else 1


def _chat(args: argparse.Namespace) -> Any:
    from grammar.formats import get_format
    from sampler.chat import Chat
    from sampler.model import load
    from sampler.serve.detect import guess_format

    format = None if args.tool_call_parser == "auto" else get_format(args.tool_call_parser)
    loaded = load(args.model, device=args.device, dtype=args.dtype, threads=args.threads)
    why = "as told"
    if format is None:
        format, why = guess_format(loaded.tokenizer)
    for note in loaded.notes:
        print(f"serve: {note}", file=sys.stderr)
    print(f"serve: tool calls are written as {format.name} ({why})", file=sys.stderr)
    return Chat(
        loaded,
        format=format,
        constrained=args.structural_tag == "on",
        scope=args.structural_tag_scope,
        schema_mode=args.structural_tag_schema,
        exclude_tools_when_tool_choice_none=args.exclude_tools_when_tool_choice_none,
    )


if __name__ == "__main__":
    sys.exit(main())
