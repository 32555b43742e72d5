"""``grammar.plan_cache``: the plan that ``policy.plan`` would make, and only for equal requests."""

import copy
import json
from typing import ClassVar

import pytest

from grammar import plan_cache, policy
from grammar.formats import FORMATS
from grammar.plan_cache import FIELDS, PlanCache

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 1}, "b": {"const": 1}},
}


def body(**fields):
    function = {"name": "f", "parameters": copy.deepcopy(SCHEMA)}
    return {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
    } | fields


def plan(cache, request, **options):
    return cache.plan(request, **{"format": "hermes", "schema_mode": "strict"} | options)


@pytest.fixture
def calls(monkeypatch):
    """Requests that reached ``policy.plan``."""
    seen, original = [], policy.plan

    def counted(request, **options):
        seen.append(request)
        return original(request, **options)

    monkeypatch.setattr(plan_cache.policy, "plan", counted)
    return seen


def test_equal_requests_are_planned_once(calls):
    cache = PlanCache()
    first = plan(cache, body(messages=[{"role": "user", "content": "one"}], seed=1))
    again = plan(cache, json.loads(json.dumps(body(messages=[], user="x"))))
    assert again is first
    assert len(calls) == 1
    assert first == policy.plan(body(), format="hermes", schema_mode="strict")


def reordered():
    request = body()
    properties = request["tools"][0]["function"]["parameters"]["properties"]
    properties["a"] = properties.pop("a")
    return request


def changed(**values):
    request = body()
    request["tools"][0]["function"]["parameters"]["properties"]["b"]["const"] = values["const"]
    return request


DIFFERENT = {
    "choice": (body(tool_choice="auto"), {}),
    "parallel": (body(parallel_tool_calls=False), {}),
    "order of keys": (reordered(), {}),
    "true is not one": (changed(const=True), {}),
    "one is not 1.0": (changed(const=1.0), {}),
    "mode": (body(), {"schema_mode": "auto"}),
    "reasoning": (body(), {"reasoning": True}),
    "format": (body(), {"format": "kimi_k2"}),
}


@pytest.mark.parametrize(("request_body", "options"), DIFFERENT.values(), ids=DIFFERENT)
def test_different_requests_are_planned_apart(calls, request_body, options):
    cache = PlanCache()
    plan(cache, body())
    other = plan(cache, request_body, **options)
    assert len(calls) == 2
    assert other == policy.plan(
        request_body, **{"format": "hermes", "schema_mode": "strict"} | options
    )


def test_a_caller_who_changes_its_tools_changes_no_plan():
    cache, request = PlanCache(), body()
    first = plan(cache, request)
    request["tools"][0]["function"]["name"] = "g"
    assert plan(cache, body()) is first
    assert first.tools[0]["function"]["name"] == "f"
    assert plan(cache, request).tools[0]["function"]["name"] == "g"


def test_an_error_is_raised_each_time():
    cache = PlanCache()
    for _ in range(2):
        with pytest.raises(ValueError, match="tool_choice"):
            plan(cache, body(tool_choice="sometimes"))


def test_what_cannot_be_written_down_is_planned_each_time(calls):
    cache = PlanCache()
    for _ in range(2):
        assert plan(cache, body(), format=FORMATS["hermes"]).structural_tag is not None
    assert len(calls) == 2


def test_what_is_very_large_is_not_remembered(calls):
    cache, request = PlanCache(), body()
    request["tools"][0]["function"]["description"] = "x" * plan_cache.LARGEST
    assert plan(cache, request) == plan(cache, request)
    assert len(calls) == 2


def test_the_longest_unused_go_first(calls):
    cache = PlanCache(limit=2)
    requests = [body(tool_choice=choice) for choice in ("required", "auto", "none")]
    for request in (*requests[:2], requests[0], requests[2], requests[0], requests[1]):
        plan(cache, request, scope="always")
    assert [r["tool_choice"] for r in calls] == ["required", "auto", "none", "auto"]


class Watched(dict):
    """A request that remembers which fields were asked for."""

    read: ClassVar[set] = set()

    def get(self, key, default=None):
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self.read.add(key)
        return super().__contains__(key)


def test_a_plan_depends_on_no_other_field():
    for choice in ("none", "auto", "required"):
        policy.plan(Watched(body(tool_choice=choice)), format="hermes", scope="always")
    assert {"tools", "tool_choice", "parallel_tool_calls"} <= Watched.read <= set(FIELDS)
