"""A chat request to a prompt and a grammar, and a completion back to a chat message."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from grammar.compiler import Compiler
from grammar.formats import FORMATS, Format, Parsed, StreamParser, get_format
from grammar.guard import Guard
from grammar.plan_cache import PlanCache
from grammar.policy import Plan
from grammar.tokenizer import tokenizer_info
from sampler.messages import read_messages, with_call_ids
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
        # What is not a variable of the template but an argument of the call that renders it.
        signature = inspect.signature(loaded.tokenizer.apply_chat_template)
        self._reserved = {"messages", *signature.parameters} - {"documents"}

    def prepare(self, body: Mapping[str, Any]) -> Prompt:
        """The prompt and the grammar of a chat body.

        Of its fields these count: `messages`, `chat_template_kwargs` (variables of the template, as
        `enable_thinking`), and those of `grammar.policy.plan`: `tools`, `tool_choice`,
        `parallel_tool_calls`, `response_format`, `structured_outputs`.

        Raises:
            ValueError: a request that cannot be meant, with the field, or what the chat template
                says of it, or a grammar that does not compile.
            SchemaError: a schema that cannot be guaranteed, with tool, place and reason.
        """
        if not isinstance(body, Mapping):
            raise ValueError(f"a chat request must be an object; got {type(body).__name__}")
        try:
            return self._prepare(body)
        except RecursionError:
            raise ValueError("the request nests too deeply") from None

    def _prepare(self, body: Mapping[str, Any]) -> Prompt:
        planned = self._plan(body)
        text = self.render(body.get("messages"), planned.tools, self._template_variables(body))
        opener = self.format.start_of_thinking
        reasoning = opener is not None and text.rstrip().endswith(opener.rstrip())
        if reasoning:
            planned = self._plan(body, reasoning=True)
        ids = self._tokens(text)
        grammar = self.compiler.compile(planned) if self.constrained else None
        guard = None
        if grammar is not None and (planned.prepared or planned.answer):
            guard = Guard(
                planned.prepared,
                answer=planned.answer,
                format=self.format,
                tools=body.get("tools"),
                reasoning=reasoning,
                calls=bool(planned.constrained),
            )
        return Prompt(tuple(ids), grammar, planned, reasoning, guard)

    def _plan(self, body: Mapping[str, Any], *, reasoning: bool = False) -> Plan:
        # A format is remembered by its name, if that is the name it goes by.
        name = self.format.name
        format = name if FORMATS.get(name) is self.format else self.format
        return self._plans.plan(body, format=format, reasoning=reasoning, **self.policy)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping],
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. Tools go into the system message where the template ignores them.

        Args:
            messages: see `sampler.messages`.
            tools: OpenAI's, checked.
            variables: further ones of the template.

        Raises:
            ValueError: messages that are none, or what the template says of them.
        """
        tokenizer = self.loaded.tokenizer
        messages = read_messages(messages, str(tokenizer.chat_template))
        messages = with_call_ids(messages, self.format.call_id)
        arguments = dict(variables or {})
        if tools and self.template_knows_tools:
            arguments["tools"] = list(tools)
        elif tools:
            messages = self._with_tools_in_system(messages, tools)
        try:
            return tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **arguments
            )
        except TemplateError as error:
            raise ValueError(f"the chat template refuses this request: {error}") from error
        except Exception as error:  # a template is a program, and not ours
            raise ValueError(
                f"the chat template fails on this request: {type(error).__name__}: {error}"
            ) from error

    def _template_variables(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        variables = body.get("chat_template_kwargs")
        if variables is None:
            return {}
        if not isinstance(variables, Mapping):
            raise ValueError(
                f"chat_template_kwargs must be an object; got {type(variables).__name__}"
            )
        for name in variables:
            if name in self._reserved:
                raise ValueError(
                    f"chat_template_kwargs must not hold {name!r}: it is not the request's to set"
                    " there (messages and tools are fields of their own)"
                )
        return variables

    def _tokens(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise ValueError(f"the prompt has half of a surrogate pair, {half!r}") from None
        ids = self.loaded.tokenizer(text, add_special_tokens=False).input_ids
        if not ids:
            raise ValueError("the chat template makes an empty prompt of this request")
        return ids

    def parse(
        self,
        text: str,
        prompt: Prompt,
        tools: Sequence[Mapping] | None = None,
        *,
        any_tool: bool = False,
    ) -> Parsed:
        """A completion of `prompt` as an OpenAI message, with its problems.

        With `tools`, a call of any other tool is malformed, not a call, unless `any_tool`; with an
        empty list, and under tool_choice none, all is content, word for word, less the markers
        between which a format writes it.
        Under a `response_format` or `structured_outputs` an answer is content, whatever its strings
        spell; under a structural tag of the request's own, calls are calls.

        The `parse_response` of transformers (5.24) is not used, even where the tokenizer has a
        response template: it closes what the text leaves open, so that a Qwen3.5 completion cut off
        after `<function=f>` is a call of `f` with `{}`; it lets later content replace earlier, and
        raises on what it cannot read.
        """
        parser = self.stream(prompt, tools, any_tool=any_tool)
        parser.finish(text)
        return parser.parsed

    def stream(
        self,
        prompt: Prompt,
        tools: Sequence[Mapping] | None = None,
        *,
        any_tool: bool = False,
    ) -> StreamParser:
        """As `parse`, for a completion that comes in pieces."""
        none = prompt.plan.tool_choice == "none" or (tools is not None and not tools)
        return StreamParser(
            self.format,
            tools,
            reasoning=prompt.reasoning,
            answer=prompt.plan.is_answer,
            any_tool=any_tool,
            calls=any_tool or not none,
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
