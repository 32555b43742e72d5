"""JSON Schema made sound: exact, rewritten, guarded, or refused with a reason.

xgrammar accepts text that the schema refuses wherever it drops a keyword, mostly without a warning.
``prepare`` gives it an equivalent schema that it does enforce, and says where there is none.
"""

from grammar.schema.preparation import prepare
from grammar.schema.result import Options, Prepared, Reason, SchemaError, Verdict, require

__all__ = ["Options", "Prepared", "Reason", "SchemaError", "Verdict", "prepare", "require"]
