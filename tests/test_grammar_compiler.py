"""``grammar.compiler``: errors that name the tool, the cache, the time limit."""

import time

import pytest
import xgrammar

from grammar.compiler import Compiler, GrammarError, check_tools
from grammar.formats import FORMATS
from grammar.policy import plan
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
BAD = {
    "pattern": tool("bad", a={"type": "string", "pattern": "([a-z"}),
    "reference": tool("bad", a={"$ref": "#/$defs/nowhere"}),
    "range": tool("bad", a={"type": "integer", "minimum": 3, "maximum": 1}),
    "type": tool("bad", a={"type": "strnig"}),
    "depth": tool("bad", a=nested(300)),
}


def required(*tools):
    body = {"tools": list(tools), "tool_choice": "required"}
    return plan(body, format="hermes", schema_mode="strict")


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_the_guilty_tool_is_named(bad):
    with pytest.raises(GrammarError, match=r"schema of tool 'bad' cannot be compiled: [^[]"):
        Compiler(info()).compile(required(GOOD, bad))
    with pytest.raises(GrammarError, match=r"schema of tool 'bad' cannot be compiled: [^[]"):
        check_tools([GOOD, bad])
    assert issubclass(GrammarError, ValueError)


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


def test_a_compilation_that_takes_too_long_is_given_up(monkeypatch):
    compiler = Compiler(info(), timeout_s=0.05)

    class Slow:
        def compile_structural_tag(self, tag):
            time.sleep(0.5)

    monkeypatch.setattr(compiler, "_compiler", Slow())
    with pytest.raises(GrammarError, match=r"not compiled within 0.05 s.*raise timeout_s"):
        compiler.compile(required(GOOD))


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
