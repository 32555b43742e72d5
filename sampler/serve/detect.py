"""Which tool-call format a model writes, told from its chat template.

The template is asked to write one call. The format that writes it letter for letter is the one;
failing that, the one that writes it but for whitespace; failing that, the one that reads it back.
Where the template writes no calls, the formats whose openers stand in its source are left. A
template that knows no tools leaves the choice to the prompt, which then shows the model an example
(`sampler.chat.Chat`): hermes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from grammar.formats import FORMATS, Format

DEFAULT = "hermes"

_QUESTION = "What is the weather in Bern?"
_ARGUMENTS = {"city": "Bern"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
# Kimi's ids have a meaning, Mistral's have a length.
_IDS = ("functions.probe_weather:0", "a1b2c3d4e")


def guess_format(tokenizer: Any) -> tuple[Format, str]:
    """The format, and a sentence that says why.

    Raises:
        ValueError: the template shows none, or several, with the names to choose from.
    """
    source = tokenizer.chat_template
    if isinstance(source, dict):
        source = "\n".join(source.values())
    if "tools" not in source:
        return FORMATS[DEFAULT], "the chat template knows no tools: the prompt shows an example"
    written = _written_call(tokenizer)
    if written is not None:
        for why, holds in (
            ("the chat template writes calls so", _writes),
            ("the chat template writes calls so, but for whitespace", _nearly_writes),
            ("it reads the calls that the chat template writes", _reads),
        ):
            found = [fmt for fmt in FORMATS.values() if holds(fmt, written)]
            if found:
                return _only(found), why
    marked = [fmt for fmt in FORMATS.values() if any(text in source for text in fmt.banned)]
    if not marked:
        raise ValueError(
            "--tool-call-parser auto: the chat template shows no calls of a known format; name"
            f" one: {', '.join(FORMATS)}"
        )
    return _only(marked), "its markers stand in the chat template"


def _only(found: list[Format]) -> Format:
    """The first of formats whose texts differ by whitespace only; others are no answer."""
    call = {"id": _IDS[0], "function": {"name": "f", "arguments": "{}"}}
    texts = {_bare(fmt.render([call])) for fmt in found}
    if len(texts) > 1:
        raise ValueError(
            "--tool-call-parser auto: the chat template fits several formats; name one:"
            f" {', '.join(fmt.name for fmt in found)}"
        )
    return found[0]


def _written_call(tokenizer: Any) -> str | None:
    """What the template writes behind the question, when the answer is a call; None if it fails."""
    for call_id in _IDS:
        for arguments in (_ARGUMENTS, json.dumps(_ARGUMENTS)):
            call = _call(call_id, arguments)
            messages = [
                {"role": "user", "content": _QUESTION},
                {"role": "assistant", "content": "", "tool_calls": [call]},
            ]
            try:
                text = tokenizer.apply_chat_template(messages, tools=[_TOOL], tokenize=False)
            except Exception:  # a template raises whatever it likes
                continue
            return text.rpartition(_QUESTION)[2]
    return None


def _call(call_id: str, arguments: Any) -> dict[str, Any]:
    function = {"name": _TOOL["function"]["name"], "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _renderings(fmt: Format) -> Iterable[str]:
    for call_id in _IDS:
        yield fmt.render([_call(call_id, json.dumps(_ARGUMENTS))])


def _writes(fmt: Format, written: str) -> bool:
    return any(text.strip() in written for text in _renderings(fmt))


def _nearly_writes(fmt: Format, written: str) -> bool:
    return any(_bare(text) in _bare(written) for text in _renderings(fmt))


def _reads(fmt: Format, written: str) -> bool:
    calls = fmt.parse(written, [_TOOL]).tool_calls
    return [json.loads(call["function"]["arguments"]) for call in calls] == [_ARGUMENTS]


def _bare(text: str) -> str:
    return re.sub(r"\s", "", text)
