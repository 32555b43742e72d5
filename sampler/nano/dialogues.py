"""Dialogues for the bundled model: requests, the tools on offer, and what a good assistant does.

Everything is drawn from one `random.Random`, so a seed is a data set. Training sees the inventory
as it stands (`as_trained`); evaluation also meets tools under other conventions (`changed`): other
names, other keys, other enum values, other required sets. The label says which.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from sampler.nano.slots import Choice, Record
from sampler.nano.tools import TOOLS, Tool

Kind = Literal["call", "two_calls", "chat", "no_tool", "after_result"]
CHANGES = ("name", "keys", "enum", "required")
_KINDS: dict[Kind, int] = {"call": 58, "two_calls": 14, "chat": 9, "no_tool": 15, "after_result": 4}

_SYSTEM = (
    "You are a helpful assistant.",
    "Use the tools when they help.",
    "You are a careful assistant. Call a tool only when it fits.",
)
_OPENERS = ("", "", "", "please ", "can you ", "could you ", "hey, ", "hi, ", "I need this: ")
_CLOSERS = ("", "", "", " please", ", thanks", ".", "!")
_LINKS = (" and then ", ", and also ", ". Then ", " and ")
# The assistant names the topic before it calls: whether the tools on offer have that topic is then
# a question of finding a word again, which a very small model can answer. Now and then it does not,
# so that a grammar which forbids the preamble does not lead to where training never was.
_SILENT = 0.06
_CHAT: tuple[tuple[tuple[str, ...], str], ...] = (
    (("hello", "hi there", "good morning", "hey"), "Hello! How can I help you?"),
    (("thank you", "thanks a lot", "many thanks", "great, thanks"), "You are welcome!"),
    (("how are you", "how are you doing today"), "I am fine, thank you."),
    (("who are you", "what are you"), "I am a small assistant that can call tools."),
    (("what can you do", "how can you help me"), "I can answer and call the tools I am given."),
    (("goodbye", "bye", "see you later"), "Goodbye!"),
    (("tell me a joke", "make me laugh"), "Why did the robot rest? It ran out of steam."),
    (("what is two plus two", "how much is 2 plus 2"), "It is 4."),
    (("what is the capital of France", "which city is the capital of France"), "It is Paris."),
    (("what is the capital of Japan", "which city is the capital of Japan"), "It is Tokyo."),
    (("how many days has a week", "how many days are in a week"), "A week has seven days."),
    (("what color is the sky", "which color has the sky"), "The sky is blue."),
    (("do you like music", "do you like movies"), "I do, but I prefer tools."),
    (("I am tired", "I had a long day"), "I hope you can rest soon."),
    (("never mind", "forget it", "ignore that"), "All right."),
    (("are you a robot", "are you human"), "I am a program."),
    (("what is a robot", "explain what a robot is"), "A robot is a machine that does tasks."),
    (("write a short poem", "give me a poem"), "The night is still, the stars are near."),
    (("is the earth round", "what shape is the earth"), "The earth is round."),
    (("that was wrong", "this is not right"), "I am sorry about that."),
)


@dataclass(frozen=True)
class Dialogue:
    """One request: OpenAI messages up to the turn in question, tools, and the right answer.

    `calls` is what should be called, in order: ``[{"name", "arguments": dict}]``; `answer` is the
    text before them, or the whole reply where there are none. `changes` is empty for tools as
    trained.
    """

    kind: Kind
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    answer: str
    changes: tuple[str, ...]

    def reply(self) -> dict[str, Any]:
        """The assistant message that ends this dialogue."""
        return assistant(self.calls, self.answer)


def assistant(calls: list[dict[str, Any]], content: str) -> dict[str, Any]:
    """An OpenAI assistant message: `content`, then `calls`; arguments become JSON strings."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{i}",
                "type": "function",
                "function": {
                    "name": call["name"],
                    "arguments": json.dumps(call["arguments"], ensure_ascii=False),
                },
            }
            for i, call in enumerate(calls)
        ]
    return message


def ask(tool: Tool, rng: Random, held_out: bool, omit: str = "") -> tuple[str, dict[str, Any]]:
    """A request for `tool` and the arguments it means, keys in the schema's order.

    `omit` names a top-level key that the request must not mention.
    """
    phrase = rng.choice(tool.phrases)
    phrase = re.sub(r"\((\w[^()|{}]*(?:\|[^()|{}]*)+)\)", lambda m: _pick(m[1], rng), phrase)

    def optional(match: re.Match) -> str:
        keep = rng.random() < 0.45 and not (omit and re.search(rf"{{{omit}\b", match[1]))
        return match[1] if keep else ""

    phrase = re.sub(r"\[([^\]]*)\]", optional, phrase)
    values: dict[str, Any] = {}

    def fill(match: re.Match) -> str:
        path = match[1].split(".")
        slot = tool.slots[path[0]]
        if len(path) == 1:
            for _ in range(8):  # nobody flies from Oslo to Oslo
                value, words = slot.draw(rng, held_out)
                if not (isinstance(value, str) and value in values.values()):
                    break
            values[path[0]] = value
        else:
            member, words = slot.members[path[1]].draw(rng, held_out)
            values.setdefault(path[0], {})[path[1]] = member
        return words

    words = re.sub(r"\{([\w.]+)\}", fill, phrase)
    return words, _in_schema_order(tool, values)


def _pick(options: str, rng: Random) -> str:
    return rng.choice(options.split("|"))


def _in_schema_order(tool: Tool, values: dict[str, Any]) -> dict[str, Any]:
    ordered = {}
    for key, slot in tool.slots.items():
        if key in values:
            value = values[key]
            if isinstance(slot, Record):
                value = {k: value[k] for k in slot.members if k in value}
            ordered[key] = value
    return ordered


@dataclass(frozen=True)
class Convention:
    """How a tool is presented: as trained, or with some of its names changed."""

    tool: Tool
    name: str
    keys: dict[str, str]
    enum_style: str
    also_required: str
    changes: tuple[str, ...]

    def definition(self) -> dict[str, Any]:
        """The `tools` entry under this convention."""
        function = self.tool.definition()["function"]
        schema = function["parameters"]
        properties = {}
        for key, value in schema["properties"].items():
            if "enum" in value:
                value = value | {"enum": [self._enum(v) for v in value["enum"]]}
            properties[self.keys.get(key, key)] = value
        required = [self.keys.get(key, key) for key in schema["required"]]
        if self.also_required:
            required.append(self.keys.get(self.also_required, self.also_required))
        schema = schema | {"properties": properties, "required": required}
        return {
            "type": "function",
            "function": function | {"name": self.name, "parameters": schema},
        }

    def call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The call that means `arguments` (given as trained) under this convention.

        A key that only this convention requires gets a fixed value: the request has none.
        """
        if self.also_required and self.also_required not in arguments:
            value, _ = self.tool.slots[self.also_required].draw(Random(self.name), False)
            arguments = _in_schema_order(self.tool, arguments | {self.also_required: value})
        renamed = {}
        for key, value in arguments.items():
            if isinstance(self.tool.slots[key], Choice):
                value = self._enum(value)
            renamed[self.keys.get(key, key)] = value
        return {"name": self.name, "arguments": renamed}

    def _enum(self, value: str) -> str:
        return {"": value, "upper": value.upper(), "suffix": value + "_mode"}[self.enum_style]


def as_trained(tool: Tool) -> Convention:
    """A tool as the model was trained on it."""
    return Convention(tool, tool.name, {}, "", "", ())


def changed(tool: Tool, rng: Random) -> Convention:
    """`tool` under somebody else's conventions: at least one of `CHANGES`, usually two."""
    has_enum = any(isinstance(slot, Choice) for slot in tool.slots.values())
    spare = [
        k for k, s in tool.slots.items() if k not in tool.required and not isinstance(s, Record)
    ]
    possible = ["name", "keys"] + ["enum"] * has_enum + ["required"] * bool(spare)
    changes = [c for c in possible if rng.random() < 0.5] or [rng.choice(possible)]
    return Convention(
        tool,
        tool.other_name if "name" in changes else tool.name,
        tool.other_keys if "keys" in changes else {},
        rng.choice(("upper", "suffix")) if "enum" in changes else "",
        rng.choice(spare) if "required" in changes else "",
        tuple(changes),
    )


def dialogue(
    rng: Random,
    *,
    kind: Kind | None = None,
    change: bool = False,
    held_out: bool = False,
    turns: int = 1,
) -> Dialogue:
    """Draw a dialogue of `turns` requests; `kind` is the last one's, drawn too where None."""
    shown_count = rng.choices((1, 2, 3, 4), (2, 3, 3, 2))[0]
    tools = [
        changed(t, rng) if change else as_trained(t) for t in rng.sample(TOOLS, shown_count + 1)
    ]
    hidden, shown = tools[0], tools[1:]
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(_SYSTEM)})
    for turn in range(turns):
        last = turn == turns - 1
        drawn = kind if last and kind else rng.choices(list(_KINDS), list(_KINDS.values()))[0]
        user, asked, calls, answer = _turn(rng, drawn, shown, hidden, held_out)
        messages.append(user)
        if drawn == "after_result" or (calls and not last and rng.random() < 0.2):
            messages.append(assistant(calls, answer))
            result, answer = _result(rng)
            messages.append({"role": "tool", "tool_call_id": "call_0", "content": result})
            calls = []
        if not last:
            messages.append(assistant(calls, answer))
    concerned = asked if calls else shown
    changes = tuple(c for c in CHANGES if any(c in tool.changes for tool in concerned))
    return Dialogue(drawn, messages, [s.definition() for s in shown], calls, answer, changes)


def _turn(rng: Random, kind: Kind, shown, hidden, held_out: bool):
    """One request of a kind: its user message, the tools it asks for, the calls, the answer."""
    if kind == "chat":
        questions, answer = rng.choice(_CHAT)
        return _user(rng, rng.choice(questions), openers=("",)), [], [], answer
    if kind == "no_tool":
        words, _ = ask(hidden.tool, rng, held_out)
        return _user(rng, words), [], [], f"{hidden.tool.topic} is not among my tools."
    asked = [rng.choice(shown) for _ in range(2 if kind == "two_calls" else 1)]
    requests = [ask(c.tool, rng, held_out, omit=c.also_required) for c in asked]
    calls = [c.call(arguments) for c, (_, arguments) in zip(asked, requests, strict=True)]
    preamble = "" if rng.random() < _SILENT else f"{asked[0].tool.topic}:"
    user = _user(rng, rng.choice(_LINKS).join(words for words, _ in requests))
    return user, asked, calls, preamble


def _user(rng: Random, words: str, openers: tuple[str, ...] = _OPENERS) -> dict[str, str]:
    words = rng.choice(openers) + words + rng.choice(_CLOSERS)
    if rng.random() < 0.7:
        words = words[0].upper() + words[1:]
    return {"role": "user", "content": words}


def _result(rng: Random) -> tuple[str, str]:
    if rng.random() < 0.5:
        return json.dumps({"status": "ok"}), "Done."
    if rng.random() < 0.3:
        return json.dumps({"error": "not found"}), "Sorry, that did not work."
    number = rng.randint(1, 999)
    return json.dumps({"result": number}), f"The result is {number}."
