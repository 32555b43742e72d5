"""python -m grammar.schema FILE...: what becomes of each schema, and why.

A file is a JSON Schema, a list of OpenAI tools, a request with ``tools`` or ``response_format``, or
JSONL with one of these a line; ``-`` is standard input.

Exit status: 0 every schema is exact or rewritten, 1 one is guarded, 2 one is refused or a file
cannot be read.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grammar.schema.judge import DRAFTS
from grammar.schema.preparation import prepare
from grammar.schema.result import Options, Prepared

_EXAMPLES = """examples:
  python -m grammar.schema tools.json
  python -m grammar.schema --undeclared-keys allow --json --show schema.json
  python -m grammar.schema --aliases - < requests.jsonl

exit status: 0 all exact or rewritten, 1 something guarded, 2 something refused
"""
_STYLES = {"exact": "green", "rewritten": "cyan", "guarded": "yellow", "refused": "red"}
_STATUS = {"exact": 0, "rewritten": 0, "guarded": 1, "refused": 2}


def main(argv: Sequence[str] | None = None) -> int:
    """Read, prepare, report; returns the exit status."""
    args = _parser().parse_args(argv)
    options = Options(
        undeclared_keys=args.undeclared_keys,
        aliases=args.aliases,
        draft=args.draft,
        target=args.target,
    )
    rows: list[tuple[str, Prepared]] = []
    status = 0
    for name in args.files:
        try:
            for where, schema in schemas(_read(name), "stdin" if name == "-" else Path(name).name):
                rows.append((where, prepare(schema, options=options)))
        except (OSError, ValueError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            status = 2
    if args.json:
        for where, prepared in rows:
            print(json.dumps(_record(where, prepared, args.show), ensure_ascii=False))
    else:
        _print_table(rows)
    return max([status, *(_STATUS[p.verdict] for _, p in rows)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grammar.schema",
        description="Say of each JSON Schema whether a grammar can guarantee it, and why not.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a schema, an OpenAI tools list, a request, or JSONL of these; - for standard input",
    )
    parser.add_argument(
        "--undeclared-keys",
        choices=["forbid", "allow"],
        default="forbid",
        help="where additionalProperties is absent (default: %(default)s, as for tool calls)",
    )
    parser.add_argument(
        "--aliases",
        action="store_true",
        help="read type names of other languages: dict, float, any, tuple, ...",
    )
    parser.add_argument("--draft", choices=DRAFTS, help="default: $schema, else 2020-12")
    parser.add_argument(
        "--target",
        choices=["schema", "grammar"],
        default="grammar",
        help="judge the grammar of the JSON text, or the schema for xgrammar's other styles"
        " (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a schema")
    parser.add_argument(
        "--show", action="store_true", help="with --json: the prepared schema or grammar as well"
    )
    return parser


def _read(name: str) -> str:
    return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")


def schemas(text: str, name: str) -> Iterator[tuple[str, Any]]:
    """The schemas of a file, each with where it stands.

    Raises:
        ValueError: it is neither JSON nor JSONL.
    """
    try:
        yield from _inside(json.loads(text), name)
        return
    except json.JSONDecodeError as error:
        lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
        if len(lines) < 2:
            raise ValueError(f"it is not JSON: {error}") from None
    for number, line in lines:
        try:
            found = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is not JSON: {error}") from None
        yield from _inside(found, f"{name}:{number}")


def _inside(found: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(found, list):
        for i, entry in enumerate(found):
            yield from _inside(entry, f"{where}[{i}]")
        return
    if not isinstance(found, dict):
        yield where, found
        return
    function = found.get("function")
    if isinstance(function, dict) and isinstance(function.get("name"), str):
        yield f"{where} {function['name']}", function.get("parameters", {"type": "object"})
        return
    if isinstance(found.get("name"), str) and isinstance(found.get("parameters"), dict):
        yield f"{where} {found['name']}", found["parameters"]
        return
    response = found.get("response_format")
    if isinstance(found.get("tools"), list) or isinstance(response, dict):
        for i, tool in enumerate(found.get("tools") or []):
            yield from _inside(tool, f"{where} tools[{i}]")
        wanted = response.get("json_schema") if isinstance(response, dict) else None
        if isinstance(wanted, dict):
            yield f"{where} response_format", wanted.get("schema", {})
        return
    yield where, found


def _record(where: str, prepared: Prepared, show: bool) -> dict[str, Any]:
    record = {
        "where": where,
        "verdict": prepared.verdict,
        "draft": prepared.draft,
        "reasons": [
            {"pointer": r.pointer, "keyword": r.keyword, "kind": r.kind, "message": r.message}
            for r in prepared.reasons
        ],
    }
    if show:
        record |= {"schema": prepared.schema, "grammar": prepared.grammar}
    return record


def _print_table(rows: Sequence[tuple[str, Prepared]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("schema", "verdict", "why", show_lines=False)
    for where, prepared in rows:
        why = "\n".join(map(str, prepared.reasons[:5]))
        if len(prepared.reasons) > 5:
            why += f"\nand {len(prepared.reasons) - 5} more"
        table.add_row(Text(where), Text(prepared.verdict, _STYLES[prepared.verdict]), Text(why))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
