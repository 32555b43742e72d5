"""What a request holds its answer to: ``response_format``, or vLLM's ``structured_outputs``.

``structured_outputs`` is an object with one of

* ``json``: a JSON Schema, as an object or as its text. It goes through ``grammar.schema``, as the
  schema of a ``response_format`` does: what the mask cannot hold the answer to, the guard does.
* ``json_object``: true, for any JSON object.
* ``regex``: the answer matches it as a whole (``grammar.regex_text``).
* ``grammar``: EBNF as xgrammar and llama.cpp write it, its root named ``root``; without a ``::=``
  it is read as Lark.
* ``choice``: a list of texts; the answer is one of them.
* ``structural_tag``: xgrammar's, as an object or as its text, of the form with ``format`` or the
  old one with ``structures`` and ``triggers``. It is the grammar of the whole completion, tool
  calls included. Its schemas are made sound as well, as far as a mask can; nothing validates the
  rest, and a warning says so.

``guided_json``, ``guided_regex``, ``guided_choice`` and ``guided_grammar`` are the old names of
four of these. A request has one constraint, under one name. Beside tools, an answer and calls share
a completion as under ``response_format``: tool_choice auto is one or the other. Where calls must
come (required, or named) a ``structured_outputs`` contradicts that, and is refused; vLLM refuses it
for a named tool. ``response_format`` gives way to the calls, as it does at OpenAI.
"""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError
from xgrammar.structural_tag import (
    ConstStringFormat,
    GrammarFormat,
    JSONSchemaFormat,
    OrFormat,
    QwenXMLParameterFormat,
    RegexFormat,
    StructuralTag,
)

from grammar import deadline
from grammar.regex_text import grammar_of
from grammar.schema import Options, Prepared, prepare, require

_ANY_OBJECT = {"type": "object"}
LONGEST_REGEX = 20_000
"""Characters of a regular expression. One of 180,000, all alternatives, stopped every thread of the
process for a second while xgrammar compiled it."""
LONGEST_GRAMMAR, MOST_RULES = 2**18, 2_000
"""Characters of a grammar, and its rules: a chain of 10,000 stopped every thread for 2.4 s."""
MOST_CHOICES = 5_000
"""Texts to choose from, and formats in a structural tag."""
LONGEST_REMEMBERED = 2**15
"""Characters of a schema beyond which what was made of it is not kept: 512 are."""


@dataclass(frozen=True)
class Answer:
    """What an answer is held to.

    Attributes:
        field: of the request, for messages: ``response_format``, ``structured_outputs.regex``.
        node: the grammar, one of xgrammar's formats.
        prepared: what became of its schema, or None where it has none.
        whole: the grammar is that of the completion, with whatever calls it holds.
        warnings: sentences for the caller.
    """

    field: str
    node: Any
    prepared: Prepared | None = None
    whole: bool = False
    warnings: tuple[str, ...] = ()


def read_answer(
    request_body: Mapping[str, Any], max_whitespace_cnt: int, aliases: bool
) -> Answer | None:
    """The one constraint on the answer of a request, or None.

    Args:
        request_body: its ``FIELDS`` count.
        max_whitespace_cnt, aliases: see ``grammar.policy.plan``.

    Raises:
        ValueError: more than one constraint, or one that cannot be meant; with the field.
        SchemaError: a schema that cannot be guaranteed.
        TooSlow: the deadline around this is over; with the field.
    """
    given = []
    for field, read in _FIELDS.items():
        if request_body.get(field) is None:
            continue
        with deadline.naming(field):
            answer = read(_Reading(field, max_whitespace_cnt, aliases), request_body[field])
        given += [] if answer is None else [answer]
    if len(given) > 1:
        raise ValueError(
            f"{given[0].field} and {given[1].field} both constrain the answer; give one of them"
        )
    return given[0] if given else None


@dataclass(frozen=True)
class _Reading:
    """One field being read; a method for each kind of constraint."""

    field: str
    max_whitespace_cnt: int
    aliases: bool

    def response_format(self, value: Any) -> Answer | None:
        kind = value.get("type") if isinstance(value, Mapping) else None
        if kind == "text":
            return None
        if kind == "json_object":
            return self._schema(_ANY_OBJECT)
        if kind == "structural_tag":
            return self.structural_tag(value)
        if kind != "json_schema":
            raise ValueError(
                "response_format must be an object with type text, json_object or json_schema (or"
                f" structural_tag); got {short(value)}"
            )
        inner = value.get("json_schema")
        if not isinstance(inner, Mapping) or "schema" not in inner:
            raise ValueError(
                "response_format.json_schema must be an object with name and schema; got"
                f" {short(inner)}"
            )
        return self._schema(inner["schema"], "response_format.json_schema.schema")

    def structured_outputs(self, value: Any) -> Answer:
        one_of = ", ".join(_KINDS)
        if not isinstance(value, Mapping):
            raise ValueError(
                f"{self.field} must be an object with one of {one_of}; got {short(value)}"
            )
        kinds = [kind for kind in value if value[kind] is not None and value[kind] is not False]
        for kind in kinds:
            if kind not in _KINDS:
                raise ValueError(f"{self.field}.{kind} is not supported; it takes one of {one_of}")
        if len(kinds) != 1:
            got = " and ".join(kinds) or "none"
            raise ValueError(f"{self.field} must have exactly one of {one_of}; got {got}")
        (kind,) = kinds
        return _KINDS[kind](replace(self, field=f"{self.field}.{kind}"), value[kind])

    def json(self, value: Any) -> Answer:
        if isinstance(value, str):
            value = self._loaded(value)
        if not isinstance(value, Mapping | bool):
            raise ValueError(
                f"{self.field} must be a JSON Schema, an object or its text; got {short(value)}"
            )
        return self._schema(value)

    def json_object(self, value: Any) -> Answer:
        if value is not True:
            raise ValueError(f"{self.field} must be true or false; got {short(value)}")
        return self._schema(_ANY_OBJECT)

    def regex(self, value: Any) -> Answer:
        pattern = self._text(value, "a regular expression, as a string")
        _check_sizes(self.field, [RegexFormat(pattern=pattern)])
        try:
            grammar = grammar_of(pattern)
        except ValueError as error:
            raise ValueError(f"{self.field} {short(pattern)} cannot be used: {error}") from None
        return Answer(self.field, GrammarFormat(grammar=grammar))

    def grammar(self, value: Any) -> Answer:
        grammar = self._text(value, "a grammar in EBNF or Lark, as a string")
        if not grammar.strip():
            raise ValueError(f"{self.field} must be a grammar in EBNF or Lark; it is empty")
        syntax = "ebnf" if "::=" in grammar else "lark"
        node = GrammarFormat(grammar=grammar, syntax=syntax)
        _check_sizes(self.field, [node])
        return Answer(self.field, node)

    def choice(self, value: Any) -> Answer:
        if not isinstance(value, list | tuple) or not value:
            raise ValueError(
                f"{self.field} must be a list of at least one string; got {short(value)}"
            )
        _check_most(self.field, len(value), MOST_CHOICES, "strings")
        texts = [
            replace(self, field=f"{self.field}[{i}]")._text(text, "a string")
            for i, text in enumerate(value)
        ]
        options = [ConstStringFormat(value=text) for text in dict.fromkeys(texts)]
        return Answer(self.field, options[0] if len(options) == 1 else OrFormat(elements=options))

    def structural_tag(self, value: Any) -> Answer:
        if isinstance(value, str):
            value = self._loaded(value)
        if not isinstance(value, Mapping):
            raise ValueError(
                f"{self.field} must be an object with format, or with structures and triggers; got"
                f" {short(value)}"
            )
        value = json.loads(self._dumped(value))
        if "format" not in value and ("structures" in value or "triggers" in value):
            value = self._modern(value)
        try:
            tag = StructuralTag.model_validate(value)
        except ValidationError as errors:
            error = errors.errors(include_url=False, include_context=False)[0]
            where = self._path(error["loc"])
            raise ValueError(f"{where}: {error['msg']}; got {short(error['input'])}") from None
        for path in _unknown(value, tag.model_dump()):
            raise ValueError(f"{self._path(path)} is not a field of xgrammar's structural tags")
        nodes = list(_nodes(tag.format, ("format",)))
        _check_sizes(self.field, [node for _, node in nodes])
        warnings = [w for path, node in nodes for w in self._sound(path, node)]
        return Answer(self.field, tag.format, whole=True, warnings=tuple(warnings))

    def _schema(self, schema: Any, where: str | None = None) -> Answer:
        text = self._dumped(schema, where)
        options = Options(undeclared_keys="allow", aliases=self.aliases)
        prepared = tightest(text, options, self.max_whitespace_cnt)
        require(prepared, f"the schema of {self.field}")
        if prepared.grammar is not None:
            return Answer(self.field, GrammarFormat(grammar=prepared.grammar), prepared)
        node = JSONSchemaFormat(
            json_schema=prepared.schema, max_whitespace_cnt=self.max_whitespace_cnt
        )
        return Answer(self.field, node, prepared)

    def _modern(self, tag: Mapping[str, Any]) -> dict[str, Any]:
        """The old form of a structural tag in the new one."""
        structures, triggers = tag.get("structures"), tag.get("triggers")
        if not isinstance(structures, list) or not all(isinstance(s, Mapping) for s in structures):
            raise ValueError(
                f"{self.field}.structures must be a list of objects with begin, schema and end; got"
                f" {short(structures)}"
            )
        if not isinstance(triggers, list) or not all(isinstance(t, str) for t in triggers):
            raise ValueError(
                f"{self.field}.triggers must be a list of strings; got {short(triggers)}"
            )
        tags = []
        for i, structure in enumerate(structures):
            begin, end = structure.get("begin"), structure.get("end")
            if not isinstance(begin, str) or not isinstance(end, str):
                raise ValueError(
                    f"{self.field}.structures[{i}] must have begin and end, strings; got"
                    f" {short(structure)}"
                )
            schema = structure.get("schema", True)
            if isinstance(schema, str):
                schema = replace(self, field=f"{self.field}.structures[{i}].schema")._loaded(schema)
            content = {"type": "json_schema", "json_schema": {} if schema is None else schema}
            tags.append({"type": "tag", "begin": begin, "content": content, "end": end})
        format = {"type": "triggered_tags", "triggers": triggers, "tags": tags}
        return {"type": tag.get("type", "structural_tag"), "format": format}

    def _sound(self, path: tuple[Any, ...], node: Any) -> Iterator[str]:
        """Put the sound schema in the place of a node's own; what is then still not enforced."""
        if not isinstance(node, JSONSchemaFormat | QwenXMLParameterFormat):
            return
        style = getattr(node, "style", "qwen_xml")
        options = Options(
            aliases=self.aliases, lengths="pattern" if style == "json" else "keywords"
        )
        where = f"{self._path(path)}.json_schema"
        found = require(
            prepared_schema(self._dumped(node.json_schema, where), options),
            f"the schema at {where}",
        )
        node.json_schema = found.schema
        if isinstance(node, JSONSchemaFormat) and node.max_whitespace_cnt is None:
            node.max_whitespace_cnt = self.max_whitespace_cnt
        if found.verdict == "guarded":
            reason = next(r for r in found.reasons if r.kind == "guarded")
            yield f"{where} is not enforced in full, nor validated, at {reason}"

    def _path(self, path: tuple[Any, ...]) -> str:
        return self.field + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)

    def _text(self, value: Any, what: str) -> str:
        if not isinstance(value, str):
            raise ValueError(f"{self.field} must be {what}; got {short(value)}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{self.field} must be text; {short(value)} has half of a surrogate pair"
            ) from None
        return value

    def _loaded(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.field} must be JSON; {error}") from None

    def _dumped(self, value: Any, where: str | None = None) -> str:
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False)
            text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{where or self.field} must be JSON; {error}") from None
        return text


_KINDS = {
    "json": _Reading.json,
    "json_object": _Reading.json_object,
    "regex": _Reading.regex,
    "grammar": _Reading.grammar,
    "choice": _Reading.choice,
    "structural_tag": _Reading.structural_tag,
}
_FIELDS = {
    "response_format": _Reading.response_format,
    "structured_outputs": _Reading.structured_outputs,
    **{f"guided_{kind}": _KINDS[kind] for kind in ("json", "regex", "choice", "grammar")},
}
FIELDS = tuple(_FIELDS)
"""The fields of a request that are read here."""


def tightest(schema: str, options: Options, max_whitespace_cnt: int) -> Prepared:
    """For JSON text: by a schema, or by a grammar where that enforces what a schema cannot.

    Args:
        schema: as JSON.
    """
    prepared = prepared_schema(schema, options)
    if prepared.verdict != "guarded":
        return prepared
    rules = replace(options, target="grammar", max_whitespace=max_whitespace_cnt)
    ruled = prepared_schema(schema, rules)
    return ruled if ruled.verdict in ("exact", "rewritten") else prepared


def prepared_schema(schema: str, options: Options) -> Prepared:
    """``grammar.schema.prepare`` of a schema as JSON; one of no great size is remembered."""
    return (_remembered if len(schema) <= LONGEST_REMEMBERED else _prepared)(schema, options)


def _prepared(schema: str, options: Options) -> Prepared:
    return prepare(json.loads(schema), options=options)


_remembered = functools.lru_cache(maxsize=512)(_prepared)


def short(value: Any) -> str:
    """A value as a message shows it."""
    try:
        text = repr(value)
    except RecursionError:
        return "what nests too deeply to be shown"
    return text if len(text) <= 80 else text[:77] + "..."


def _check_sizes(field: str, nodes: Sequence[Any]) -> None:
    """What all nodes of a constraint have together."""
    regexes = [node.pattern for node in nodes if isinstance(node, RegexFormat)]
    grammars = [node for node in nodes if isinstance(node, GrammarFormat)]
    # Lark has a colon a rule; those in its texts make no difference worth reading them for.
    signs = {"ebnf": "::=", "lark": ":"}
    rules = sum(node.grammar.count(signs[node.syntax]) for node in grammars)
    _check_most(field, len(nodes), MOST_CHOICES, "formats")
    _check_most(field, sum(map(len, regexes)), LONGEST_REGEX, "characters of regular expressions")
    _check_most(
        field, sum(len(node.grammar) for node in grammars), LONGEST_GRAMMAR, "characters of grammar"
    )
    _check_most(field, rules, MOST_RULES, "rules")


def _check_most(field: str, got: int, most: int, what: str) -> None:
    if got > most:
        raise ValueError(f"{field} must have at most {most:,} {what}; got {got:,}")


def _nodes(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], BaseModel]]:
    """The formats that a format is put together from, itself first, and where they are."""
    if isinstance(value, BaseModel):
        yield path, value
        for name in type(value).model_fields:
            yield from _nodes(getattr(value, name), (*path, name))
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _nodes(item, (*path, i))


def _unknown(given: Any, known: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where ``given`` has keys that were not read: xgrammar ignores those without a word."""
    if isinstance(given, Mapping):
        for key, value in given.items():
            if key not in known:
                yield (*path, key)
            else:
                yield from _unknown(value, known[key], (*path, key))
    elif isinstance(given, list):
        for i, item in enumerate(given):
            yield from _unknown(item, known[i], (*path, i))
