"""``grammar.compiler``: errors that name tool and place, the cache, limits, threads."""

import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import xgrammar

from grammar import diagnosis
from grammar.compiler import Compiler, GrammarError, GrammarTooLargeError, check_tools
from grammar.diagnosis import Fault, schema_fault
from grammar.formats import FORMATS, Tool
from grammar.policy import Plan, plan
from grammar.tokenizer import info_from_bytes, tokenizer_info
from tests.test_grammar_vocabularies import byte_level, width


def info(markers=()):
    tokenizer = byte_level(True)
    return tokenizer_info(tokenizer, vocab_size=width(tokenizer), markers=markers)


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def nested(depth):
    schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


GOOD = tool("good", a={"type": "integer"})
# A bad property, and where in the arguments' schema the fault is.
BAD = {
    "pattern": ({"type": "string", "pattern": "([a-z"}, "at /properties/a"),
    "reference": ({"$ref": "#/$defs/nowhere"}, "at /properties/a"),
    "range": ({"type": "integer", "minimum": 3, "maximum": 1}, "at /properties/a"),
    "type": ({"type": "strnig"}, "at /properties/a"),
    "no schema": ({"type": "array", "items": 5}, "at /properties/a/items"),
    "below": (
        {"type": "object", "properties": {"ok": {}, "x/~y": {"anyOf": [{}, {"enum": []}]}}},
        "at /properties/a/properties/x~1~0y/anyOf/1",
    ),
    "depth": (nested(300), "at its root"),
}


def required(*tools):
    body = {"tools": list(tools), "tool_choice": "required"}
    return plan(body, format="hermes", schema_mode="strict")


def as_written(*tools):
    """The plan of tools whose schemas have not been made sound: what the compiler may yet meet."""
    functions = [t["function"] for t in tools]
    constrained = tuple(Tool(f["name"], f["parameters"]) for f in functions)
    tag = FORMATS["hermes"].structural_tag(constrained, tool_choice="required")
    return Plan(tag, None, tools, None, (), "required", constrained)


@pytest.mark.parametrize(("schema", "where"), BAD.values(), ids=BAD)
def test_the_guilty_tool_is_named_and_the_place(schema, where):
    message = f"schema of tool 'bad' cannot be compiled, {re.escape(where)}: [^[]"
    with pytest.raises(GrammarError, match=message):
        Compiler(info()).compile(as_written(GOOD, tool("bad", a=schema)))
    assert issubclass(GrammarError, ValueError)


@pytest.mark.parametrize("case", ["pattern", "reference", "type", "no schema"])
def test_the_check_names_the_tool_and_the_place(case):
    schema, where = BAD[case]
    place = "#" + where.removeprefix("at ")
    with pytest.raises(ValueError, match=f"schema of tool 'bad' is refused at {place}: "):
        check_tools([GOOD, tool("bad", a=schema)])


def test_a_fault_behind_a_reference_is_found_where_it_is():
    """Also where the way there goes in a circle."""
    definitions = {
        "node": {
            "type": "object",
            "properties": {"next": {"$ref": "#/$defs/node"}, "leaf": {"$ref": "#/$defs/leaf"}},
        },
        "leaf": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "array"}]},
        "unused": {"type": "strnig"},
    }
    schema = {"$ref": "#/$defs/node", "$defs": definitions}
    assert schema_fault(schema) is None
    definitions["leaf"]["prefixItems"][1] = {"minItems": 3, "maxItems": 1, "type": "array"}
    fault = schema_fault(schema)
    assert fault.pointer == "/$defs/leaf/prefixItems/1"
    assert "minItems is greater than maxItems" in fault.reason


def test_the_search_for_a_fault_is_bounded(monkeypatch):
    monkeypatch.setattr(diagnosis, "_MAX_ATTEMPTS", 8)
    fine = {f"p{i}": {"type": "integer"} for i in range(9)}
    assert schema_fault({"type": "object", "properties": fine | {"bad": {"enum": []}}}) == Fault(
        "", "enum array must not be empty"
    )


def test_good_tools_pass_the_check():
    check_tools([GOOD, tool("other"), {"type": "function", "function": {"name": "bare"}}])
    check_tools([])


def test_the_check_covers_shape_and_names():
    with pytest.raises(ValueError, match=r"tools\[0\] and tools\[1\] are both 'good'"):
        check_tools([GOOD, GOOD])


def test_a_plan_without_constraint_is_none():
    assert Compiler(info()).compile(plan({}, format="hermes")) is None


def test_a_grammar_that_the_vocabulary_cannot_spell():
    letters = info_from_bytes([b"a", b"b", b"</s>"], vocab_size=3, stop_token_ids=[2])
    with pytest.raises(GrammarError, match="allows no first token"):
        Compiler(letters).compile(required(GOOD))


def test_equal_plans_share_one_grammar():
    compiler = Compiler(info())
    first = compiler.compile(required(GOOD))
    assert compiler.compile(required(GOOD)) is first
    assert compiler.compile(required(tool("other"))) is not first
    compiler.clear_cache()
    assert compiler.compile(required(GOOD)) is not first


def test_the_cache_is_bounded_and_drops_what_is_longest_unused():
    plans = [required(tool(f"t{i}", **{f"key{i}": {"type": "string"}})) for i in range(6)]
    one = Compiler(info()).compile(plans[0]).memory_size_bytes
    compiler = Compiler(info(), cache_limit_bytes=2 * int(3.5 * one))
    grammars = [compiler.compile(p) for p in plans[:3]]
    assert compiler.compile(plans[0]) is grammars[0]
    for p in plans[3:]:
        compiler.compile(p)
        assert compiler.compile(plans[0]) is grammars[0]
    assert compiler.compile(plans[1]) is not grammars[1]
    assert compiler.cache_bytes <= 2 * int(3.5 * one)


def test_a_grammar_larger_than_the_cache_still_compiles():
    assert Compiler(info(), cache_limit_bytes=2).compile(required(GOOD)) is not None


def test_the_weight_of_a_grammar_is_taken_anew_when_it_is_asked_for():
    """It grows as its masks are worked out: one that has outgrown the cache leaves it alone."""
    plans = [required(tool(f"t{i}", **{f"key{i}": {"type": "string"}})) for i in range(2)]
    vocabulary = info(FORMATS["hermes"].markers)
    sizes = [Compiler(vocabulary).compile(p).memory_size_bytes for p in plans]
    compiler = Compiler(vocabulary, cache_limit_bytes=2 * (sum(sizes) + 1))
    first, second = (compiler.compile(p) for p in plans)
    assert compiler.compile(plans[0]) is first
    matcher = xgrammar.GrammarMatcher(second)
    mask = xgrammar.allocate_token_bitmask(1, second.tokenizer_info.vocab_size)
    for token in byte_level(True).encode('<tool_call>\n{"name": "t1"'):
        matcher.fill_next_token_bitmask(mask)
        assert matcher.accept_token(token)
    assert second.memory_size_bytes > sizes[1] + 1
    assert compiler.compile(plans[1]) is second
    assert compiler.compile(plans[0]) is not first


def test_the_same_tag_over_two_vocabularies_is_two_grammars():
    letters = [bytes([b]) for b in range(256)]
    small = Compiler(info_from_bytes([*letters, b"</s>"], vocab_size=257, stop_token_ids=[256]))
    wide = Compiler(info())
    assert small.compile(required(GOOD)).tokenizer_info.vocab_size == 257
    assert wide.compile(required(GOOD)).tokenizer_info.vocab_size == width(byte_level(True))


# Size


def test_too_many_tools_and_too_large_a_tag_are_errors_of_their_own():
    compiler = Compiler(info(), max_tools=2, max_tag_bytes=2000)
    assert compiler.compile(required(GOOD, tool("b"))) is not None
    with pytest.raises(GrammarTooLargeError, match=r"at most 2 in one grammar; got 3.*max_tools"):
        compiler.compile(required(GOOD, tool("b"), tool("c")))
    long = tool("b", a={"enum": ["é" * 900]})
    size = len(required(GOOD, long).structural_tag.model_dump_json().encode())
    with pytest.raises(GrammarTooLargeError, match=rf"at most 2,000 bytes.*got {size:,}"):
        compiler.compile(required(GOOD, long))
    assert compiler.compile(required(GOOD)) is not None
    assert issubclass(GrammarTooLargeError, GrammarError)


# Time and threads


class Gate:
    """xgrammar's compiler, held up until it is opened."""

    def __init__(self, compiler, monkeypatch):
        self.started, self.open = [], threading.Event()
        self.inner = compiler._compiler
        monkeypatch.setattr(compiler, "_compiler", self)

    def compile_structural_tag(self, tag):
        self.started.append(tag)
        assert self.open.wait(30)
        return self.inner.compile_structural_tag(tag)


def until(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("waited 30 s in vain")


def test_a_compilation_that_takes_too_long_is_given_up_and_its_result_kept(monkeypatch):
    compiler = Compiler(info(), timeout_s=0.05)
    gate = Gate(compiler, monkeypatch)
    for _ in range(2):
        with pytest.raises(GrammarError, match=r"not compiled within 0.05 s.*raise timeout_s"):
            compiler.compile(required(GOOD))
    assert len(gate.started) == 1, "the second request joins what still runs"
    gate.open.set()
    until(lambda: len(compiler._cache._grammars) == 1)
    assert compiler.compile(required(GOOD)) is not None
    assert len(gate.started) == 1


def test_compilations_given_up_are_bounded_in_number(monkeypatch):
    compiler = Compiler(info(), timeout_s=0.05, max_compilations=2)
    gate = Gate(compiler, monkeypatch)
    for name in ("a", "b"):
        with pytest.raises(GrammarError, match="not compiled within"):
            compiler.compile(required(tool(name)))
    before = threading.active_count()
    for name in ("c", "d", "e"):
        with pytest.raises(GrammarError, match=r"2 other compilations.*max_compilations"):
            compiler.compile(required(tool(name)))
    assert len(gate.started) == 2
    assert threading.active_count() == before
    gate.open.set()
    until(lambda: len(compiler._cache._grammars) == 2)
    compiler._timeout_s = 30
    assert compiler.compile(required(tool("c"))) is not None


def test_threads_that_ask_for_the_same_tag_compile_once(monkeypatch):
    compiler = Compiler(info())
    gate = Gate(compiler, monkeypatch)
    with ThreadPoolExecutor(8) as pool:
        same = [pool.submit(compiler.compile, required(GOOD)) for _ in range(7)]
        other = pool.submit(compiler.compile, required(tool("other")))
        until(lambda: len(gate.started) == 2)
        gate.open.set()
        grammars = {id(future.result(30)) for future in same}
        assert len(grammars) == 1
        assert id(other.result(30)) not in grammars
    assert len(gate.started) == 2


def test_a_failure_is_that_of_its_own_request(monkeypatch):
    """Requests beside it are served, and the next one of the same tag fails anew."""
    compiler = Compiler(info())
    gate = Gate(compiler, monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        bad = [pool.submit(compiler.compile, as_written(tool("bad", a={"enum": []})))] * 2
        good = pool.submit(compiler.compile, required(GOOD))
        until(lambda: len(gate.started) == 2)
        gate.open.set()
        assert good.result(30) is not None
        for future in bad:
            with pytest.raises(GrammarError, match="tool 'bad'"):
                future.result(30)
    with pytest.raises(GrammarError, match="tool 'bad'"):
        compiler.compile(as_written(tool("bad", a={"enum": []})))
    assert len(gate.started) == 3


def test_many_threads_and_many_tags():
    compiler = Compiler(info(), max_compilations=2)
    plans = [required(tool(f"t{i}", a={"type": "integer"})) for i in range(6)] * 4
    random.Random(3).shuffle(plans)
    with ThreadPoolExecutor(8) as pool:
        grammars = list(pool.map(compiler.compile, plans))
    by_tag = {}
    for p, grammar in zip(plans, grammars, strict=True):
        by_tag.setdefault(p.structural_tag.model_dump_json(), set()).add(id(grammar))
    assert sorted(map(len, by_tag.values())) == [1] * 6


@pytest.mark.parametrize("timeout_s", [None, 30.0])
def test_masks_are_those_of_a_grammar_compiled_ahead(timeout_s):
    """Masks worked out on demand are the same bits."""
    tokenizer = byte_level(True)
    result = required(GOOD, tool("named", s={"type": "string"}, l={"type": "array"}))
    vocabulary = info(FORMATS["hermes"].markers)
    lazy = Compiler(vocabulary, timeout_s=timeout_s).compile(result)
    eager = xgrammar.GrammarCompiler(vocabulary).compile_structural_tag(result.structural_tag)
    text = '<tool_call>\n{"name": "named", "arguments": {"s": "é <tool", "l": []}}\n</tool_call>'
    one, two = xgrammar.GrammarMatcher(lazy), xgrammar.GrammarMatcher(eager)
    masks = [xgrammar.allocate_token_bitmask(1, width(tokenizer)) for _ in range(2)]
    for token in tokenizer.encode(text, add_special_tokens=False):
        one.fill_next_token_bitmask(masks[0])
        two.fill_next_token_bitmask(masks[1])
        assert masks[0].equal(masks[1])
        assert one.accept_token(token)
        assert two.accept_token(token)
    assert one.is_completed()
