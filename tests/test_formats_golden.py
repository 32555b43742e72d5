"""The structural tag of each format, for each combination of what a request may ask for.

The tags are kept in ``tests/golden/<format>.json``. After a change that is meant, write them anew
with ``GOLDEN=write pytest tests/test_formats_golden.py`` and read the difference. What a tag lets
through is asserted beside it, so that a file written anew cannot bless a wrong one.
"""

import json
import os
from pathlib import Path

import pytest

from grammar.formats import FORMATS
from grammar.policy import plan
from tests.test_formats_tag import accepts

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("GOLDEN") == "write"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "at": {"type": "object", "properties": {"lat": {"type": "number"}}},
            },
            "required": ["city"],
        },
    },
}
STRICT = {
    "type": "function",
    "function": {
        "name": "set_mode",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"mode": {"enum": ["on", "off"]}},
            "required": ["mode"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, STRICT, NOW]
CHOICES = {
    "none": "none",
    "auto": "auto",
    "required": "required",
    "named": {"type": "function", "function": {"name": "get_weather"}},
}
CASES = {
    f"{choice}, {'many' if parallel else 'one'}, {mode}": (choice, parallel, mode)
    for choice in CHOICES
    for parallel in (True, False)
    for mode in ("auto", "declared", "strict")
}
EVERY = pytest.mark.parametrize("name", FORMATS)


def body(choice, parallel):
    return {"tools": TOOLS, "tool_choice": CHOICES[choice], "parallel_tool_calls": parallel}


def constraint(name, case, **options):
    choice, parallel, mode = CASES[case]
    made = plan(
        body(choice, parallel), format=name, scope="always", schema_mode=mode, **options
    ).constraint
    return None if made is None else made.model_dump(exclude_none=True)


@EVERY
def test_tags_are_those_on_file(name):
    thinking = "required, many, strict, thinking"
    tags = {case: constraint(name, case) for case in CASES}
    tags[thinking] = constraint(name, "required, many, strict", reasoning=True)
    tags = json.loads(json.dumps(tags))
    path = GOLDEN / f"{name}.json"
    if WRITE:
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(_file(tags))
    assert path.exists(), "no tags on file; write them with GOLDEN=write and read them"
    on_file = json.loads(path.read_text())
    assert on_file["cases"].keys() == tags.keys()
    for case, tag in tags.items():
        assert on_file["tags"][on_file["cases"][case]] == tag, case


def _file(tags):
    """Each different tag once, and which one each case has."""
    different = []
    for tag in tags.values():
        if tag not in different:
            different.append(tag)
    cases = {case: different.index(tag) for case, tag in tags.items()}
    content = {"cases": cases, "tags": different}
    return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def rendered(fmt, *calls):
    return fmt.render([{"function": {"name": n, "arguments": a}} for n, a in calls])


# Two formats put a frame around text too; a completion that may hold no call goes without.
FRAME = {
    "harmony": "<|channel|>final<|message|>{}",
    "kimi_k3": "{}<|close|>response<|sep|><|close|>message<|sep|>",
}
GOOD, WRONG = {"city": "Bern", "days": 3}, {"city": "Bern", "days": 99}


@EVERY
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("parallel", [True, False], ids=["many", "one"])
def test_what_each_combination_lets_through(name, choice, parallel):
    fmt = FORMATS[name]
    own, other = ("get_weather", GOOD), ("set_mode", {"mode": "on"})
    texts = {
        "prose": ("{}" if choice == "none" else FRAME.get(fmt.style, "{}")).format("If a < b: so."),
        "call": rendered(fmt, own),
        "other tool": rendered(fmt, other),
        "two calls": rendered(fmt, own, other),
        "unknown tool": rendered(fmt, ("get_wether", {})),
        "no tool's name": rendered(fmt, ("get_weather2", GOOD)),
    }
    let_through = {
        what
        for what, text in texts.items()
        if accepts(fmt, True, body(choice, parallel), text, schema_mode="strict")
    }
    wanted = {
        "none": {"prose"},
        "auto": {"prose", "call", "other tool", "two calls"},
        "required": {"call", "other tool", "two calls"},
        "named": {"call"},
    }[choice]
    assert let_through == (wanted if parallel else wanted - {"two calls"})


@EVERY
@pytest.mark.parametrize("mode", ["auto", "declared", "strict"])
def test_which_schema_each_mode_enforces(name, mode):
    """``get_weather`` says nothing of ``strict``; ``set_mode`` says true."""
    fmt = FORMATS[name]
    request = body("required", True)
    free = mode == "auto"
    calls = {
        "fits": (("get_weather", GOOD), True),
        "out of range": (("get_weather", WRONG), free),
        "required one missing": (("get_weather", {"days": 3}), free),
        "undeclared": (("get_weather", {"city": "Bern", "other": "x"}), free),
        "strict, fits": (("set_mode", {"mode": "off"}), True),
        "strict, none": (("set_mode", {"mode": "dim"}), False),
        "strict, undeclared": (("set_mode", {"mode": "on", "other": "x"}), False),
    }
    for what, (call, wanted) in calls.items():
        text = rendered(fmt, call)
        assert accepts(fmt, True, request, text, schema_mode=mode) is wanted, what


@EVERY
def test_a_tool_without_parameters(name):
    fmt = FORMATS[name]
    for mode in ("auto", "strict"):
        text = rendered(fmt, ("now", {}))
        assert accepts(fmt, True, body("required", True), text, schema_mode=mode)
    assert not accepts(fmt, True, body("required", True), rendered(fmt, ("now", {"a": "b"})))
