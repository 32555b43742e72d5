"""``prepare``: from a schema as written to one that xgrammar enforces."""

from typing import Any

from grammar.schema.document import Document
from grammar.schema.grammar_text import GrammarWriter
from grammar.schema.graph import Graph
from grammar.schema.judge import DRAFTS, draft_of
from grammar.schema.limits import Budget, Refused, check_size
from grammar.schema.reading import Reader
from grammar.schema.result import Options, Prepared, Reason
from grammar.schema.shapes import TRUE
from grammar.schema.spellings import modern
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
    """
    draft, judged, reader = "2020-12", schema, None
    try:
        check_size(schema, options)
        draft, lenient = _draft(schema, options)
        judged, renamed = modern(schema, aliases=options.aliases, lenient=lenient)
        document = Document(judged, "id" if draft == "4" else "$id", draft in ("4", "6", "7"))
        reader = Reader(document, options, draft, Budget(options))
        reader.reasons.update(dict.fromkeys(renamed))
        root = reader.conj(judged, document.root_base, "#")
        graph = Graph(reader, root)
        if root != TRUE and not graph.shapes[root]:
            raise Refused("#", "", "no value satisfies it")
        written = Writer(graph).document()
        grammar = None
        if options.target == "grammar":
            # What the schema has to leave out is no matter where the grammar keeps it.
            reader.reasons = dict.fromkeys(
                r for r in reader.reasons if r.kind != "guarded" or r.pointer != "#"
            )
            grammar = GrammarWriter(
                graph,
                max_whitespace=options.max_whitespace,
                any_order=options.key_order == "any",
            ).text()
    except Refused as refusal:
        reason = Reason(refusal.pointer, refusal.keyword, "refused", refusal.message)
        others = () if reader is None else tuple(reader.reasons)
        return Prepared(None, schema, "refused", (reason, *others), draft, None, judged)
    reasons = sorted(reader.reasons, key=lambda r: _SEVERITY[r.kind])
    kinds = {r.kind for r in reasons}
    verdict = next((k for k in ("guarded", "rewritten") if k in kinds), "exact")
    return Prepared(written, schema, verdict, tuple(reasons), draft, grammar, judged)


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
