"""The guard behind the mask: what was decoded is validated, and redone from where it went wrong.

Some keywords no grammar enforces (``uniqueItems`` at large, ``not``, ``contains``). Schemas with
them are *guarded*: the mask keeps the syntax, and each finished call is held to its schema by
jsonschema. The first call that fails is decoded again from its start, with the next noise stream.
The tokens before stay as they are, so each call is a draw from the model under the grammar, given
all before it and given that it is valid.

A call whose schema the mask was said to enforce (exact or rewritten) is validated all the same. If
it fails, that is a fault of ours and not of the model's: it is redone too, but counted apart. One
that nests deeper than jsonschema can follow (recursive schemas, a long answer) passes.
"""

from __future__ import annotations

import codecs
import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jsonschema.exceptions import best_match

from grammar.formats import Format, get_format, json_text
from grammar.schema.judge import Patience, patience

if TYPE_CHECKING:
    from grammar.schema import Prepared

MAX_RETRIES = 8
"""Of one completion. Half of all draws failing leaves 1 in 500 that are never valid."""

_SHOWN = 200


@dataclass(frozen=True)
class GuardFailure:
    """A finished call, or answer, that its schema refuses.

    Attributes:
        call: number of the call in the completion, or None for an answer under a
            ``response_format``.
        tool: its name, or None.
        pointer: JSON pointer to the value at fault, in the arguments or the answer.
        keyword: the keyword of the schema that it violates; empty where the text is no JSON.
        message: what is wrong, in jsonschema's words.
        kind: ``"guarded"``: what the guard is there for. ``"unsound"``: the mask was to rule this
            out; please report it. ``"unjudged"``: the validator itself failed.
        stream: the noise stream that the call was drawn with: retries before it.
    """

    call: int | None
    tool: str | None
    pointer: str
    keyword: str
    message: str
    kind: Literal["guarded", "unsound", "unjudged"]
    stream: int

    def __str__(self) -> str:
        what = "the answer" if self.call is None else f"call {self.call} of tool {self.tool!r}"
        return f"{what} is not valid at {self.pointer or 'its root'}: {self.message}"


@dataclass(frozen=True)
class Verdict:
    """What the guard says of a completion.

    Attributes:
        failures: what is not valid, in the order of the text; empty if all is well.
        restart_at: how many tokens to keep and decode on from, or None where nothing is to be
            redone: all is well, or there is no help.
    """

    failures: tuple[GuardFailure, ...] = ()
    restart_at: int | None = None

    @property
    def ok(self) -> bool:
        """Whether everything is valid."""
        return not self.failures

    @property
    def gives_up(self) -> bool:
        """Whether something is not, and is not to be redone either."""
        return bool(self.failures) and self.restart_at is None


class Guard:
    """Validates the completions of one request. Holds no state: it may serve many at once.

    Args:
        prepared: the schemas of the tools' arguments by name. Calls of other tools pass.
        answer: the schema that a completion without calls is held to (``response_format``).
        format: how calls and answers are written; None for an answer that is the whole text.
        tools: OpenAI tools, for formats whose parser reads arguments by their declared types.
        reasoning: the prompt opens a think block.
        calls: False: no text is a call, as under tool_choice none.
        max_retries: of a completion, over all its calls.
    """

    def __init__(
        self,
        prepared: Mapping[str, Prepared] | None = None,
        *,
        answer: Prepared | None = None,
        format: str | Format | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        reasoning: bool = False,
        calls: bool = True,
        max_retries: int = MAX_RETRIES,
    ) -> None:
        if prepared and format is None:
            raise ValueError("format must name the format that the tools are called in; got None")
        if max_retries < 0:
            raise ValueError(f"max_retries must be at least 0; got {max_retries}")
        self._prepared, self._answer = prepared or {}, answer
        self._tools, self._reasoning, self._calls = tools, reasoning, calls
        self._format = None if format is None else get_format(format)
        self.max_retries = max_retries

    def without_retries(self) -> Guard:
        """One that objects to the same, and has nothing decoded again."""
        strict = copy.copy(self)
        strict.max_retries = 0
        return strict

    def check(self, pieces: Sequence[bytes], *, retries: int = 0, ended: bool = True) -> Verdict:
        """Validate what was decoded.

        Args:
            pieces: the bytes of each token, the stop token left out.
            retries: of this completion so far.
            ended: the model ended it. Where a budget or a stop text did, only what is finished is
                validated: the calls that are closed, and an answer if it is a whole JSON text.
        """
        text = b"".join(pieces).decode(errors="replace")
        with Patience().kept():
            found = list(self._failures(text, retries, ended))
        failures = tuple(failure for _, failure in found)
        starts = [start for start, failure in found if failure.kind != "unjudged"]
        if not starts or retries >= self.max_retries:
            return Verdict(failures)
        return Verdict(failures, restart_index(pieces, starts[0]))

    def _failures(self, text: str, stream: int, ended: bool) -> Iterator[tuple[int, GuardFailure]]:
        """Each failure, and the character at which what failed starts."""
        calls, spans, content = [], [], text
        if self._format is not None:
            parsed = self._format.parse(
                text,
                self._tools,
                reasoning=self._reasoning,
                answer=self._answer is not None,
                calls=self._calls,
            )
            calls, spans = parsed.tool_calls, parsed.spans
            content = parsed.message["content"]
        for n, (call, span) in enumerate(zip(calls, spans, strict=True)):
            name = call["function"]["name"]
            if name in self._prepared:
                value = json_text.loads(call["function"]["arguments"])
                yield from (
                    (span[0], GuardFailure(n, name, *fault, stream))
                    for fault in _faults(self._prepared[name], value)
                )
        if calls or self._answer is None:
            return
        start = max(text.rfind(content.strip()), 0)
        try:
            value = json_text.loads(content)
        except ValueError as error:
            if ended:
                message = f"the answer is no JSON: {error}"
                yield start, GuardFailure(None, None, "", "", message, "unsound", stream)
            return
        for fault in _faults(self._answer, value):
            yield start, GuardFailure(None, None, *fault, stream)


def restart_index(pieces: Iterable[bytes], start: int) -> int:
    """The most tokens that can be kept so that the text from character ``start`` on is redone.

    A token may straddle ``start``. It is redone whole, and the characters that it has before
    ``start`` with it: those may come out differently, what comes before them may not.

    Args:
        pieces: the bytes of each token; bytes that are not UTF-8 count as they are decoded, with
            ``errors="replace"``.
        start: index into the text that the bytes decode to.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    kept = characters = 0
    for n, piece in enumerate(pieces, 1):
        characters += len(decoder.decode(piece))
        # A character that is broken off here counts: part of it is in the token.
        if characters + bool(decoder.getstate()[0]) > start:
            break
        kept = n
    return kept


def _faults(prepared: Prepared, value: Any) -> Iterator[tuple[str, str, str, str]]:
    """Pointer, keyword, message and kind of the fault that says most, if there is one."""
    kind = "guarded" if prepared.verdict == "guarded" else "unsound"
    try:
        with patience().spent():
            if prepared.is_valid(value):
                return
            error = best_match(prepared.validator.iter_errors(value))
    except Exception as problem:  # endless recursion, a pattern that is none, too slow a schema
        # A list of some hundred links is deeper than jsonschema can follow. That is no fault of the
        # value's, and the mask has seen to its schema.
        if isinstance(problem, RecursionError) and kind == "unsound":
            return
        yield "", "", f"{type(problem).__name__}: {problem}"[:_SHOWN], "unjudged"
        return
    if error is None:
        yield "", "format", "a format is not met", kind
        return
    steps = (str(step).replace("~", "~0").replace("/", "~1") for step in error.absolute_path)
    pointer = "".join(f"/{step}" for step in steps)
    message = error.message
    if len(message) > _SHOWN:
        message = message[: _SHOWN - 3] + "..."
    yield pointer, str(error.validator), message, kind
