"""The work that every way of decoding is given: prompts, grammars, and the tokens to come.

Timing several ways on the tokens that each would draw by itself compares different work: other
lengths, other masks. So the tokens are settled first, and every way is told them after it has drawn
its own, which it does in full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval.calls import check_calls
from eval.records import read_requests, read_results
from eval.workloads import bundled_reference, bundled_requests, group_of
from grammar.matcher import MatcherBatch
from sampler.chat import Chat, Prompt
from sampler.params import Completion, Request, SamplingParams


@dataclass(frozen=True)
class Item:
    """One request of the work.

    Attributes:
        body: the OpenAI chat-completions body.
        prompt: what the model reads, and the grammar of a call.
        params: how it is sampled.
        answer: a good assistant's message, or None where nobody knows one.
    """

    body: Mapping[str, Any]
    prompt: Prompt
    params: SamplingParams
    answer: Mapping[str, Any] | None

    def request(self, key: int, *, constrained: bool = True, **changes: Any) -> Request:
        """The request of the decoding loop."""
        params = SamplingParams(**{**vars(self.params), **changes})
        return Request(
            self.prompt.ids, params, self.prompt.grammar if constrained else None, key=key
        )


def bundled_bodies(limit: int, tools: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Bodies that all begin alike, with the same tools and no system message, and their answers.

    Taken from the bundled requests, of those that call one tool and know it as it was trained; the
    tools are those that are called most.
    """
    answers = {row.data_index: row.message for row in read_results(bundled_reference())}
    found = []
    for line in read_requests(bundled_requests()):
        calls = answers[line.data_index].get("tool_calls") or []
        if len(calls) != 1 or group_of(line.body) != "as_trained":
            continue
        name = calls[0]["function"]["name"]
        tool = next(t for t in line.body["tools"] if t["function"]["name"] == name)
        messages = [m for m in line.body["messages"] if m["role"] != "system"]
        found.append((name, tool, messages, answers[line.data_index]))
    names = [name for name, _ in Counter(name for name, *_ in found).most_common(tools)]
    shown = {name: tool for name, tool, *_ in found if name in names}
    bodies = [
        ({"messages": messages, "tools": [shown[n] for n in names]}, answer)
        for name, _, messages, answer in found
        if name in names
    ]
    if limit > len(bodies):
        raise ValueError(
            f"--limit must be at most {len(bodies)} for {tools} tools, got {limit}; raise --tools"
        )
    return bodies[:limit]


def items_of(
    chat: Chat,
    bodies: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]],
    *,
    params: Mapping[str, Any],
    seed: int,
) -> list[Item]:
    """Every body with tool_choice required and one call, prepared.

    Raises:
        ValueError: a body without tools, or one that cannot be meant.
    """
    items = []
    for n, (body, answer) in enumerate(bodies):
        body = {**body, "tool_choice": "required", "parallel_tool_calls": False}
        if not body.get("tools"):
            raise ValueError(f"request {n + 1} has no tools; every one must, to be constrained")
        sampling = SamplingParams(**params, seed=seed + n)
        items.append(Item(body, chat.prepare(body), sampling, answer))
    return items


def script_from_answer(chat: Chat, item: Item) -> tuple[int, ...]:
    """The tokens of the item's answer, its stop token at the end, cut at max_tokens.

    Raises:
        ValueError: there is none, or the grammar refuses it.
    """
    if item.answer is None or not item.answer.get("tool_calls"):
        raise ValueError("--script answers needs requests whose answers are known: the bundled")
    tokenizer = chat.loaded.tokenizer
    text = chat.format.render(item.answer["tool_calls"])
    tokens = [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    tokens = tokens[: item.params.max_tokens]
    matchers = MatcherBatch([item.prompt.grammar], vocab_size=chat.loaded.vocab_size)
    for at, token in enumerate(tokens):
        if not matchers.accept(0, token):
            raise ValueError(f"the grammar refuses token {at} of the answer {text!r}")
    return tuple(tokens)


def script_from_completion(completion: Completion) -> tuple[int, ...]:
    """The tokens of a completion, its stop token included."""
    stop = (completion.stop,) if isinstance(completion.stop, int) else ()
    return (*completion.token_ids, *stop)


def valid_call(chat: Chat, item: Item, completion: Completion) -> bool:
    """Whether it is one call that the tool's schema accepts, by jsonschema."""
    message = chat.parse(completion.text, item.prompt, item.body["tools"]).message
    calls = message.get("tool_calls") or ()
    return len(calls) == 1 and not check_calls(message, item.body["tools"])
