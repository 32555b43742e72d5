"""A chat request to a prompt and a grammar, and a completion back to a chat message."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from grammar.compiler import Compiler
from grammar.formats import FORMATS, Format, Parsed, get_format
from grammar.guard import Guard
from grammar.plan_cache import PlanCache
from grammar.policy import Plan
from grammar.tokenizer import tokenizer_info
from sampler.model import LoadedModel
from sampler.params import Request, SamplingParams

_PREAMBLE = (
    "You may call functions. Their signatures are JSON Schemas:\n<tools>\n{tools}\n</tools>\n"
    "To call one, write exactly this, with its name and arguments:\n{example}"
)


@dataclass(frozen=True)
class Prompt:
    """A chat request, ready to decode.

    Attributes:
        ids: the prompt's token ids.
        grammar: a compiled grammar, or None to decode freely.
        plan: what the policy decided, its warnings included.
        reasoning: the prompt ends inside a think block.
        guard: validates what the grammar let through, or None where nothing is promised.
    """

    ids: tuple[int, ...]
    grammar: Any | None
    plan: Plan
    reasoning: bool
    guard: Guard | None = None

    def request(self, params: SamplingParams, key: Any = None) -> Request:
        """What the decoding loop takes."""
        return Request(self.ids, params, self.grammar, key, self.guard)


class Chat:
    """Turns OpenAI chat-completions bodies into requests of the decoding loop, for one model.

    Args:
        loaded: the model.
        format: name of a tool-call format, or the format.
        constrained: decode under the grammar that the policy asks for, or freely.
        scope, schema_mode, exclude_tools_when_tool_choice_none: see `grammar.policy.plan`.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        format: str | Format = "hermes",
        constrained: bool = True,
        scope: str = "auto",
        schema_mode: str = "auto",
        exclude_tools_when_tool_choice_none: bool = True,
    ) -> None:
        self.loaded, self.constrained = loaded, constrained
        self.format = get_format(format)
        self.policy = {
            "scope": scope,
            "schema_mode": schema_mode,
            "exclude_tools_when_tool_choice_none": exclude_tools_when_tool_choice_none,
        }
        info = tokenizer_info(
            loaded.tokenizer,
            vocab_size=loaded.vocab_size,
            stop_token_ids=loaded.stop_token_ids,
            markers=self.format.markers,
        )
        self.compiler, self._plans = Compiler(info), PlanCache()
        self.template_knows_tools = "tools" in loaded.tokenizer.chat_template

    def prepare(self, body: Mapping[str, Any]) -> Prompt:
        """The prompt and the grammar of a chat body.

        Raises:
            ValueError: a request that cannot be meant, or a grammar that does not compile.
        """
        planned = self._plan(body)
        text = self.render(body["messages"], planned.tools)
        opener = self.format.start_of_thinking
        reasoning = opener is not None and text.rstrip().endswith(opener.rstrip())
        if reasoning:
            planned = self._plan(body, reasoning=True)
        ids = self.loaded.tokenizer(text, add_special_tokens=False).input_ids
        grammar = self.compiler.compile(planned) if self.constrained else None
        guard = None
        if grammar is not None and (planned.prepared or planned.answer):
            guard = Guard(
                planned.prepared,
                answer=planned.answer,
                format=self.format,
                tools=body.get("tools"),
                reasoning=reasoning,
            )
        return Prompt(tuple(ids), grammar, planned, reasoning, guard)

    def _plan(self, body: Mapping[str, Any], *, reasoning: bool = False) -> Plan:
        # A format is remembered by its name, if that is the name it goes by.
        name = self.format.name
        format = name if FORMATS.get(name) is self.format else self.format
        return self._plans.plan(body, format=format, reasoning=reasoning, **self.policy)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping]) -> str:
        """The prompt's text. Tools go into the system message where the template ignores them."""
        messages = [_with_parsed_arguments(message) for message in messages]
        arguments = {}
        if tools and self.template_knows_tools:
            arguments["tools"] = list(tools)
        elif tools:
            messages = self._with_tools_in_system(messages, tools)
        return self.loaded.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **arguments
        )

    def parse(
        self,
        text: str,
        prompt: Prompt,
        tools: Sequence[Mapping] | None = None,
        *,
        any_tool: bool = False,
    ) -> Parsed:
        """A completion of `prompt` as an OpenAI message, with its problems.

        With `tools`, a call of any other tool is malformed, not a call, unless `any_tool`.
        Under a `response_format` an answer is content, whatever its strings spell.

        The `parse_response` of transformers (5.24) is not used, even where the tokenizer has a
        response template: it closes what the text leaves open, so that a Qwen3.5 completion cut off
        after `<function=f>` is a call of `f` with `{}`; it lets later content replace earlier, and
        raises on what it cannot read.
        """
        answer = prompt.plan.answer is not None
        return self.format.parse(
            text, tools, reasoning=prompt.reasoning, answer=answer, any_tool=any_tool
        )

    def _with_tools_in_system(self, messages: list[dict], tools: Sequence[Mapping]) -> list[dict]:
        example = {
            "type": "function",
            "function": {"name": "NAME", "arguments": '{"KEY": "VALUE"}'},
        }
        text = _PREAMBLE.format(
            tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools),
            example=self.format.render([example]),
        )
        if messages and messages[0]["role"] == "system":
            first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
            return [first, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]


def _with_parsed_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    # Templates print arguments with tojson: a JSON string would come out quoted twice.
    message = dict(message)
    if message.get("content") is None:
        message["content"] = ""
    elif isinstance(message["content"], list):
        message["content"] = "".join(
            part.get("text", "") for part in message["content"] if isinstance(part, Mapping)
        )
    if not message.get("tool_calls"):
        message.pop("tool_calls", None)
        return message
    calls = []
    for call in message["tool_calls"]:
        function = dict(call["function"])
        with suppress(TypeError, ValueError):
            function["arguments"] = json.loads(function.get("arguments") or "{}")
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}
