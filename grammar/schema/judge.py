"""jsonschema's validators: the judge of every instance, and of the draft a schema is written in.

They never fetch, and they are patient only so far. A schema of a few lines can keep jsonschema busy
for years: by a pattern that backtracks, or by references that lead twice to the next, forty times.
While a completion is judged a batch of rows waits, or an event loop; so all judging of one
completion has `SECONDS` (see `Patience`), and each pattern the time that `patterns` gives it.
"""

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import attrs
import jsonschema
import jsonschema_specifications
from jsonschema.validators import extend, validator_for

from grammar import deadline
from grammar.deadline import Deadline
from grammar.schema.evaluated import unevaluated_properties
from grammar.schema.patterns import found

SECONDS = 2.0
"""How long all judging of one completion may take."""

_VALIDATORS = {
    "4": jsonschema.Draft4Validator,
    "6": jsonschema.Draft6Validator,
    "7": jsonschema.Draft7Validator,
    "2019-09": jsonschema.Draft201909Validator,
    "2020-12": jsonschema.Draft202012Validator,
}
_DRAFTS = {validator: draft for draft, validator in _VALIDATORS.items()}
_DRAFTS[jsonschema.Draft3Validator] = "3"

DRAFTS = tuple(_VALIDATORS)


def draft_of(schema: Any) -> str | None:
    """The draft that ``$schema`` names, or None where it is absent or unknown."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("$schema"), str):
        return None
    return _DRAFTS.get(validator_for(schema, default=None))


def validator_of(schema: Any, draft: str) -> Any:
    """A validator that never fetches: it knows the published meta-schemas and nothing else.

    Its ``iter_errors`` and ``is_valid`` raise OutOfTime where a pattern takes too long on a string,
    or the deadline around them is over; other threads go on meanwhile.
    """
    return patient(_VALIDATORS[draft])(schema, registry=jsonschema_specifications.REGISTRY)


def accepts(schema: Any, value: Any, *, root: Any = None) -> bool:
    """Whether a value is valid, within what is left of the patience.

    Args:
        root: what ``schema`` is a part of: its references start there, and its ``$schema`` says
            the draft. 2020-12 where it says none.

    Raises:
        Exception: jsonschema's of a schema that cannot be used, OutOfTime among them.
    """
    root = schema if root is None else root
    draft = draft_of(root)
    validator = validator_of(root, draft if draft in _VALIDATORS else "2020-12")
    with patience().spent():
        return validator.evolve(schema=schema).is_valid(value)


class Patience:
    """Seconds that are left for judging one completion, over all its calls and values."""

    def __init__(self, seconds: float | None = None) -> None:
        self._left = SECONDS if seconds is None else seconds

    @contextmanager
    def spent(self) -> Iterator[None]:
        """Judge inside; what that takes is taken off, and once nothing is left it is OutOfTime."""
        began = time.monotonic()
        try:
            with deadline.within(Deadline(self._left)):
                yield
        except BaseException as error:
            # jsonschema keeps schemas in maps written in Rust, where a stack that is full is a
            # panic: no Exception, so that it would end the thread that judges.
            if type(error).__name__ == "PanicException":
                raise RecursionError(f"the schema or the value nests too deeply: {error}") from None
            raise
        finally:
            self._left = max(0.0, self._left - (time.monotonic() - began))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Let what is judged inside, by this thread, share this patience."""
        token = _patience.set(self)
        try:
            yield
        finally:
            _patience.reset(token)


_patience: ContextVar[Patience | None] = ContextVar("patience", default=None)


def patience() -> Patience:
    """That of the completion which is being read, or a new one."""
    return _patience.get() or Patience()


_patient: set[type] = set()


@functools.cache
def patient(kind: Any) -> Any:
    """A validator class of jsonschema that looks at the clock, in the place of one that does not.

    Its verdicts are the same, but for what `patterns` says. Those of the drafts are the same for
    every schema that they meet on their way, whatever ``$schema`` that has.
    """
    if kind in _patient:
        return kind
    ours = {name: keyword for name, keyword in _OURS.items() if name in kind.VALIDATORS}
    keywords = {**kind.VALIDATORS, **ours}
    made = extend(kind, {name: _watched(keyword) for name, keyword in keywords.items()})
    made.evolve = _evolve
    _patient.add(made)
    return made


def _watched(keyword: Callable[..., Any]) -> Callable[..., Any]:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        deadline.check()
        return keyword(validator, value, instance, schema)

    return checked


def _evolve(validator: Any, **changes: Any) -> Any:
    # jsonschema's own would go on with an impatient class where the schema has a ``$schema``.
    schema = changes.setdefault("schema", validator.schema)
    kind = type(validator)
    for name, argument in _fields(kind):
        if argument not in changes:
            changes[argument] = getattr(validator, name)
    return patient(validator_for(schema, default=kind))(**changes)


@functools.cache
def _fields(kind: type) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.alias) for field in attrs.fields(kind) if field.init)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not found(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, below in patterns.items():
        for key, value in instance.items():
            if found(pattern, key):
                yield from validator.descend(value, below, path=key, schema_path=pattern)


def _additional_properties(
    validator: Any, below: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    extras = [
        key
        for key in instance
        if key not in declared and not any(found(pattern, key) for pattern in patterns)
    ]
    if validator.is_type(below, "object"):
        for key in extras:
            yield from validator.descend(instance[key], below, path=key)
    elif not below and extras:
        listed, one = ", ".join(map(repr, sorted(extras, key=str))), len(extras) == 1
        if "patternProperties" in schema:
            known = ", ".join(map(repr, sorted(patterns)))
            verb = "does" if one else "do"
            message = f"{listed} {verb} not match any of the regexes: {known}"
        else:
            verb = "was" if one else "were"
            message = f"Additional properties are not allowed ({listed} {verb} unexpected)"
        yield jsonschema.ValidationError(message)


_OURS = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "unevaluatedProperties": unevaluated_properties,
}
