"""One deadline for a request: whose turn it was is named, and nothing cut short is remembered."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from grammar import deadline, structured_outputs
from grammar.compiler import Compiler, GrammarError
from grammar.deadline import Deadline, OutOfTime, TooSlow, within
from grammar.plan_cache import PlanCache
from grammar.policy import plan
from grammar.schema import automaton, language, prepare
from tests.test_grammar_compiler import Gate, info, required, tool, until

# Needs automata, negation and products, and is done in a moment.
SLOW = {
    "type": "object",
    "properties": {
        "a": {"allOf": [{"pattern": "^[ab]{2}a.c"}, {"pattern": "(ab|ba)+c?$"}]},
        "b": {
            "oneOf": [
                {"properties": {k: {"type": "string"} for k in f"pq{i}"}, "required": [str(i)]}
                for i in range(3)
            ]
        },
    },
    "required": ["a"],
}


class Looks(Deadline):
    """Over once it has been looked at so many times."""

    def __init__(self, looks):
        super().__init__(20.0)
        self.looks = looks

    def left(self):
        self.looks -= 1
        return 1.0 if self.looks >= 0 else 0.0


def tools(*names):
    return [
        {"type": "function", "function": {"name": name, "parameters": {**SLOW, "title": name}}}
        for name in names
    ]


def forget():
    structured_outputs._remembered.cache_clear()
    for module in (automaton, language):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def expired():
    late = Deadline(20.0)
    late.expire()
    return late


def test_time_runs_out_once_and_for_all():
    late = expired()
    assert late.left() == 0
    late.restart()
    assert late.left() == 0
    with within(Deadline(1e6)):
        deadline.check()
        assert deadline.current().seconds == 1e6
        with within(late), pytest.raises(OutOfTime):
            deadline.check()
        deadline.check()
    assert deadline.current() is None


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"tools": tools("f", "g"), "tool_choice": "required"}, "the schema of tool 'f'"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SLOW}}},
            "response_format",
        ),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
    ],
)
def test_what_was_being_prepared_is_named_with_the_limit_and_a_remedy(body, named):
    cache = PlanCache()
    with within(expired()), pytest.raises(TooSlow) as caught:
        cache.plan(body, format="hermes", schema_mode="strict")
    assert str(caught.value).startswith(f"{named} was not prepared within the 20 s")
    assert "simplify" in str(caught.value)
    assert cache.plan(body, format="hermes", schema_mode="strict").structural_tag is not None


def test_wherever_time_runs_out_the_next_to_ask_is_told_the_truth():
    body = {"tools": tools("f", "g"), "tool_choice": "required"}
    options = {"format": "hermes", "schema_mode": "strict"}
    forget()
    whole = plan(body, **options)
    forget()
    cache, cut, looks, done = PlanCache(), set(), 0, None
    while done is None:
        forget()
        with within(Looks(looks)):
            try:
                done = cache.plan(body, **options)
            except TooSlow as error:
                cut.add(str(error).split("'")[1])
        # What is remembered from the attempt is as good as new.
        assert plan(body, **options) == whole
        looks += max(1, looks // 2)
    assert done == whole
    assert cut == {"f", "g"}


def test_a_deadline_is_no_verdict():
    many = {"properties": {f"k{i}": {"type": "string"} for i in range(200)}}
    assert prepare(many).verdict != "refused"
    with within(Looks(0)), pytest.raises(OutOfTime):
        prepare(many)


def test_compiling_ends_with_the_request(monkeypatch):
    compiler = Compiler(info())
    gate = Gate(compiler, monkeypatch)
    late = required(tool("late"))
    with within(expired()), pytest.raises(GrammarError, match="not compiled within 20 s"):
        compiler.compile(late)
    gate.open.set()
    assert compiler.compile(late) is not None


def test_one_who_gives_up_waiting_for_room_does_not_speak_for_another(monkeypatch):
    compiler = Compiler(info(), max_compilations=1)
    gate = Gate(compiler, monkeypatch)
    first, second = required(tool("first")), required(tool("second"))
    leaver = Deadline(60.0)

    def leaving():
        with within(leaver):
            return compiler.compile(second)

    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(compiler.compile, first)
        until(lambda: gate.started)
        leaves = pool.submit(leaving)
        until(lambda: len(compiler._running) == 2)
        stays = pool.submit(compiler.compile, second)
        leaver.expire()
        with pytest.raises(GrammarError, match="1 other compilations"):
            leaves.result(60)
        gate.open.set()
        assert running.result(60) is not None
        assert stays.result(60) is not None
