"""``prepare``: from a schema as written to one that xgrammar enforces."""

from dataclasses import replace
from typing import Any

from grammar.schema.document import Document
from grammar.schema.grammar_text import GrammarWriter
from grammar.schema.graph import Graph
from grammar.schema.judge import DRAFTS, draft_of
from grammar.schema.limits import Budget, OverBudget, Refused, check_size
from grammar.schema.reading import Reader
from grammar.schema.result import Options, Prepared, Reason
from grammar.schema.shapes import TRUE
from grammar.schema.spellings import may_be_old, modern
from grammar.schema.writing import Writer

_DEFAULT = Options()
_SEVERITY = {"refused": 0, "guarded": 1, "rewritten": 2, "note": 3}


def prepare(schema: Any, *, options: Options = _DEFAULT, pointer: str = "") -> Prepared:
    """Make a schema ready for xgrammar.

    Nothing is fetched, and no schema takes longer than ``options`` allow.

    Args:
        schema: a JSON Schema, as a dict or a boolean.
        options: how it is read, and what it may cost.
        pointer: where it stands in something larger, for the reasons.

    Returns:
        The schema to compile, its verdict, and the reasons. Whatever is wrong with the schema is a
        verdict, never an exception.

    Raises:
        OutOfTime: the deadline around this (``grammar.deadline``) is over: that is no verdict.
    """
    draft, judged = "2020-12", schema
    try:
        text = check_size(schema, options)
        draft, lenient = _draft(schema, options)
        lenient = lenient and may_be_old(text)
        judged, renamed = modern(schema, aliases=options.aliases, lenient=lenient)
        named = '"id"' in text or '"$id"' in text or "nchor" in text
        document = Document(
            judged, "id" if draft == "4" else "$id", draft in ("4", "6", "7"), named=named
        )
        try:
            written, grammar, found = _rewritten(document, judged, options, draft, coarse=False)
        except OverBudget:
            written, grammar, found = _rewritten(document, judged, options, draft, coarse=True)
    except (Refused, RecursionError) as error:
        refusal = error if isinstance(error, Refused) else Refused("#", "", "it nests too deeply")
        reason = Reason(pointer + refusal.pointer, refusal.keyword, "refused", refusal.message)
        return Prepared(None, schema, "refused", (reason,), draft, None, judged)
    reasons = sorted([*renamed, *found], key=lambda r: _SEVERITY[r.kind])
    if pointer:
        reasons = [replace(r, pointer=pointer + r.pointer) for r in reasons]
    kinds = {r.kind for r in reasons}
    verdict = next((k for k in ("guarded", "rewritten") if k in kinds), "exact")
    return Prepared(written, schema, verdict, tuple(reasons), draft, grammar, judged)


def _rewritten(
    document: Document, schema: Any, options: Options, draft: str, coarse: bool
) -> tuple[Any, str | None, list[Reason]]:
    """The schema and the grammar, and why they are not the schema as it was."""
    with Budget(options, share=0.5) as budget:
        reader = Reader(document, options, draft, budget, coarse)
        root = reader.conj(schema, document.root_base, "#")
        graph = Graph(reader, root)
        if root != TRUE and not graph.shapes[root]:
            raise Refused("#", "", "no value satisfies it")
        if options.target == "schema":
            written = Writer(graph).document()
            return written, None, list(reader.reasons)
        grammar = GrammarWriter(
            graph, max_whitespace=options.max_whitespace, any_order=options.key_order == "any"
        ).text()
        return None, grammar, list(reader.reasons)


def _draft(schema: Any, options: Options) -> tuple[str, bool]:
    """The draft to read and judge by, and whether spellings of older ones count as well."""
    if options.draft is not None:
        if options.draft not in DRAFTS:
            raise Refused(
                "#", "$schema", f"draft must be one of {', '.join(DRAFTS)}; got {options.draft!r}"
            )
        return options.draft, False
    found = draft_of(schema)
    return (found, False) if found in DRAFTS else ("2020-12", True)
