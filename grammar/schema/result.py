"""What ``prepare`` takes and gives: options, reasons, verdicts, and the error of a refusal."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["exact", "rewritten", "guarded", "refused"]
"""``exact``: the grammar takes valid values alone. ``rewritten``: so does the grammar of an
equivalent schema. ``guarded``: it may take an invalid value, so the finished text must be
validated. ``refused``: nothing can be promised."""

Kind = Literal["note", "rewritten", "guarded", "refused"]


@dataclass(frozen=True)
class Reason:
    """Why a verdict is not ``exact``, at one place.

    Attributes:
        pointer: JSON pointer into the original schema, ``#`` first.
        keyword: the keyword at fault, or an empty string for the schema as a whole.
        kind: what it did to the verdict; a ``note`` leaves it as it was.
        message: a sentence for the owner of the schema.
    """

    pointer: str
    keyword: str
    kind: Kind
    message: str

    def __str__(self) -> str:
        return f"{self.pointer}: {self.message}"


@dataclass(frozen=True)
class Options:
    """How a schema is read, and what preparing it may cost.

    Attributes:
        undeclared_keys: what an object may hold where neither ``additionalProperties`` nor
            ``patternProperties`` says: ``forbid`` (a tool that did not declare a key does not want
            it) or ``allow`` (JSON Schema's own reading).
        aliases: read the type names that agents write by hand (``dict``, ``float``, ``any``,
            ``tuple`` ...) as those of JSON Schema. Each is reported.
        draft: ``4``, ``6``, ``7``, ``2019-09`` or ``2020-12``; None asks ``$schema``, and where
            that is absent takes 2020-12 along with the spellings of older drafts.
        target: what the verdict is about: ``schema``, for every style of xgrammar, or ``grammar``,
            for JSON text alone, where rules enforce what no schema for xgrammar can say.
        lengths: how bounds on the length of a string are written: as a ``pattern`` of what JSON
            writes without an escape, or as ``keywords``, for styles whose strings are plain text.
        key_order: whether keys come in the order of the schema or in any; the grammar alone knows
            ``any``.
        max_whitespace: whitespace characters in a row between the tokens of the grammar.
        max_bytes: size of the schema written as JSON.
        max_depth: nesting of the schema, and of what it is rewritten to.
        max_growth: steps of rewriting, each about one small schema built.
        max_seconds: processor time for rewriting.
    """

    undeclared_keys: Literal["forbid", "allow"] = "forbid"
    aliases: bool = False
    draft: str | None = None
    target: Literal["schema", "grammar"] = "schema"
    lengths: Literal["pattern", "keywords"] = "pattern"
    key_order: Literal["declared", "any"] = "declared"
    max_whitespace: int = 2
    max_bytes: int = 1_000_000
    max_depth: int = 100
    max_growth: int = 100_000
    max_seconds: float = 4.0


@dataclass(frozen=True)
class Prepared:
    """A schema made ready for xgrammar.

    Attributes:
        schema: what to compile, or None where refused or where the grammar was asked for. It stands
            alone: references lead to its own ``$defs``, and ``additionalProperties`` is written
            out, so ``strict_mode`` is moot.
        original: the schema as given, read under ``options``.
        verdict: see ``Verdict``.
        reasons: why, one for each place, most serious first.
        draft: whose validator judges.
        grammar: EBNF of the JSON text, where ``options.target`` asks for it; its root is ``root``.
    """

    schema: Mapping[str, Any] | bool | None
    original: Any
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()
    draft: str = "2020-12"
    grammar: str | None = field(default=None, repr=False)
    judged: Any = field(default=None, repr=False)
    """The schema that ``validator`` holds values to."""

    @functools.cached_property
    def validator(self) -> Any:
        """The jsonschema validator of the original, built once.

        References that leave the schema raise; nothing is ever fetched.
        """
        from grammar.schema.judge import validator_of

        return validator_of(self.judged, self.draft)

    def is_valid(self, instance: Any) -> bool:
        """Whether a value is valid under the original schema. Formats are not checked."""
        return self.validator.is_valid(instance)


class SchemaError(ValueError):
    """A schema that was refused; the message has the place and the reason."""


def require(prepared: Prepared, where: str) -> Prepared:
    """Return ``prepared``, or raise where it was refused.

    Args:
        where: what the schema is, for the message: ``"the schema of tool 'weather'"``.

    Raises:
        SchemaError: the verdict is ``refused``.
    """
    if prepared.verdict == "refused":
        reason = next(r for r in prepared.reasons if r.kind == "refused")
        raise SchemaError(f"{where} is refused at {reason.pointer}: {reason.message}")
    return prepared
