"""Real vocabularies through the masks: what may be sampled where, for every id of each.

What is expected comes from decoding each id with the tokenizer itself, and from the ids that the
models' own tokenizer files give their control tokens.
"""

import functools
import json

import numpy as np
import pytest
import xgrammar
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from grammar import registry_tokenizers
from grammar.compiler import Compiler
from grammar.formats import FORMATS
from grammar.policy import plan
from grammar.registry_tokenizers import NAMES, load
from grammar.tokenizer import tokenizer_info

# Ids of control tokens, the stop ids among them.
CONTROL = {
    "qwen3.6": {*range(248_044, 248_058), *range(248_060, 248_066), *range(248_070, 248_077)},
    "qwen": set(range(151_643, 151_851)),
    "deepseek-v4": {0, 1, 2, *range(128_000, 129_280)}
    - {128_821, 128_822, 128_825, 128_840, 128_841},
    "mistral": set(range(1000)),
}
# Added tokens that are text: thinking and calls.
ADDED_TEXT = {
    "qwen3.6": {
        "<tool_call>": 248_058,
        "</tool_call>": 248_059,
        "<tool_response>": 248_066,
        "</tool_response>": 248_067,
        "<think>": 248_068,
        "</think>": 248_069,
    },
    "qwen": {},
    "deepseek-v4": {"<think>": 128_821, "</think>": 128_822, "｜DSML｜": 128_825},
    "mistral": {},
}
WIDTH = {"qwen3.6": 248_320, "qwen": 151_936, "deepseek-v4": 129_280, "mistral": 131_072}
STOPS = {
    "qwen3.6": {248_046, 248_044},
    "qwen": {151_645, 151_643},
    "deepseek-v4": {1},
    "mistral": {2},
}


def marks(name):
    missing = not registry_tokenizers.installed(name)
    return pytest.mark.skipif(missing, reason=f"the package of {name!r} is not installed")


REAL = pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in NAMES])
QWEN, DEEPSEEK = marks("qwen3.6"), marks("deepseek-v4")


@functools.cache
def info(name, markers=()):
    loaded = load(name)
    return tokenizer_info(
        loaded.tokenizer,
        vocab_size=loaded.vocab_size,
        stop_token_ids=loaded.stop_token_ids,
        markers=markers,
    )


@functools.cache
def texts(name):
    """What each id says, by the tokenizer's own decoder."""
    backend = load(name).tokenizer.backend_tokenizer
    ids = [[i] for i in range(len(load(name).tokenizer))]
    return backend.decode_batch(ids, skip_special_tokens=False)


class Row:
    """A matcher and its mask, read bit by bit."""

    def __init__(self, info, *, ebnf=None, schema=None, tag=None):
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, enable_dynamic_compilation=True)
        if ebnf:
            compiled = compiler.compile_grammar(ebnf)
        elif schema:
            compiled = compiler.compile_json_schema(schema)
        else:
            compiled = compiler.compile_structural_tag(tag)
        self.matcher = xgrammar.GrammarMatcher(compiled)
        self.mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)
        self.vocab_size = info.vocab_size

    def allowed(self):
        self.matcher.fill_next_token_bitmask(self.mask)
        octets = self.mask.numpy().view(np.uint8)
        return set(np.flatnonzero(np.unpackbits(octets, bitorder="little")[: self.vocab_size]))

    def write(self, ids):
        """Accept tokens, each of which the mask must allow."""
        for i in ids:
            assert i in self.allowed()
            assert self.matcher.accept_token(i)
        return self


def encode(name, text):
    return load(name).tokenizer.encode(text, add_special_tokens=False)


@REAL
def test_free_text_allows_every_token_of_text_and_no_control_token(name):
    allowed = Row(info(name), ebnf=r"root ::= [^\0]*").allowed()
    whole = {
        i
        for i, text in enumerate(texts(name))
        if text and "\ufffd" not in text and "\0" not in text and i not in CONTROL[name]
    }
    assert whole <= allowed
    assert len(whole) > 0.95 * len(texts(name)) - len(CONTROL[name])
    assert allowed & CONTROL[name] == STOPS[name]
    assert max(allowed) < len(texts(name)) <= WIDTH[name]
    assert set(ADDED_TEXT[name].values()) <= allowed


@REAL
def test_strings_allow_every_token_without_quotes_and_no_control_token(name):
    row = Row(info(name), schema={"type": "string"})
    allowed = row.write(encode(name, '"')).allowed()
    plain = {
        i
        for i, text in enumerate(texts(name))
        if text and not any(c in '"\\\ufffd' or c < " " for c in text) and i not in CONTROL[name]
    }
    assert plain <= allowed
    assert not allowed & CONTROL[name]
    raw = {i for i, text in enumerate(texts(name)) if any(c < " " for c in text)}
    # A line break may only follow the string's end.
    assert all('"' in texts(name)[i] for i in allowed & raw)
    assert max(allowed) < len(texts(name))


@REAL
def test_after_a_whole_text_only_the_stop_ids_are_allowed_and_each_of_them_ends_it(name):
    for stop in STOPS[name]:
        row = Row(info(name), ebnf='root ::= "a"').write(encode(name, "a"))
        assert row.allowed() == STOPS[name]
        assert row.write([stop]).matcher.is_terminated()


@REAL
def test_the_mask_is_as_wide_as_the_logits(name):
    """248,077 ids but 248,320 columns: 7,760 words, where the ids alone would take 7,753."""
    row = Row(info(name), ebnf=r"root ::= [^\0]*")
    assert row.mask.shape == (1, -(-WIDTH[name] // 32))
    padding = range(len(texts(name)), WIDTH[name])
    assert not row.allowed() & set(padding)
    assert not any(row.matcher.accept_token(i) for i in padding)


@REAL
def test_text_is_accepted_token_by_token(name):
    """Quotes, escapes, layout, characters that are split between tokens, and the added tokens."""
    value = {"q": 'a\nb "quoted" \\ 上海 👩‍🚀 Ünï\t', "n": [1, -2.5e3, None, True], "": {}}
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=2)):
        row = Row(info(name), schema={"type": "object", "additionalProperties": True})
        row.write(encode(name, text)).write([min(STOPS[name])])
    for token, i in ADDED_TEXT[name].items():
        assert encode(name, token) == [i]
        row = Row(info(name), ebnf=f'root ::= "{token}."').write([i])
        assert row.write(encode(name, ".")).allowed() == STOPS[name]


@DEEPSEEK
def test_markers_of_a_format_keep_their_text():
    """Any control token may be one; no other control token comes with it."""
    name = "deepseek-v4"
    marker = {i: load(name).tokenizer.convert_ids_to_tokens(i) for i in sorted(CONTROL[name])[5:7]}
    allowed = Row(info(name, tuple(marker.values())), ebnf=r"root ::= [^\0]*").allowed()
    assert allowed & CONTROL[name] == STOPS[name] | set(marker)


@DEEPSEEK
def test_control_tokens_inside_deepseeks_parameters():
    """Beginning of text, padding and the role markers; here the format's own builder of xgrammar,
    whose tags on this vocabulary as it is allow all four in text and in strings."""
    name, forbidden = "deepseek-v4", {0, 2, 128_803, 128_804}
    properties = {"q": {"type": "string"}, "n": {"type": "integer"}}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    tag = xgrammar.get_model_structural_tag(
        "deepseek_v4",
        tools=[{"type": "function", "function": function}],
        tool_choice="auto",
        reasoning="disabled",
    )
    call = (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="{}" string="{}">'
    )
    places = {
        "free text": "",
        "string": call.format("q", "true"),
        "integer": call.format("n", "false"),
    }
    bare = xgrammar.TokenizerInfo.from_huggingface(load(name).tokenizer)
    for place, text in places.items():
        row = Row(info(name, ("｜DSML｜",)), tag=tag).write(encode(name, text))
        assert not row.allowed() & (CONTROL[name] - STOPS[name]), place
        if place != "free text":
            assert not row.allowed() & STOPS[name]
        seen = Row(bare, tag=tag).write(encode(name, text)).allowed() & forbidden
        assert seen == (set() if place == "integer" else forbidden), "xgrammar has changed"


@DEEPSEEK
def test_tokens_added_after_training():
    """Beyond the logits that the model had: refused until they are widened, then known."""
    shared = load("deepseek-v4").tokenizer
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=shared.backend_tokenizer, eos_token=shared.eos_token
    )
    tokenizer.add_tokens([AddedToken("<my_tool>", normalized=False)])
    tokenizer.add_special_tokens({"additional_special_tokens": ["[mine]"]})
    with pytest.raises(ValueError, match=r"vocab_size covers 129,280 ids but .* has 129,282"):
        tokenizer_info(tokenizer, vocab_size=129_280)
    wide = tokenizer_info(tokenizer, vocab_size=129_344)
    allowed = Row(wide, ebnf=r"root ::= [^\0]*").allowed()
    assert 129_280 in allowed
    assert not allowed & set(range(129_281, 129_344))
    assert Row(wide, ebnf='root ::= "<my_tool>"').write([129_280]).allowed() == {1}


@QWEN
@pytest.mark.parametrize("spelled", [False, True])
def test_the_end_of_thinking_is_one_token_or_several(spelled):
    """Grammar and parser agree: the text counts, whatever its tokens."""
    name, fmt = "qwen3.6", FORMATS["hermes"]
    properties = {"city": {"type": "string"}}
    tools = [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "parameters": {"type": "object", "properties": properties, "required": ["city"]},
            },
        }
    ]
    body = {"tools": tools, "tool_choice": "required"}
    compiled = Compiler(info(name, fmt.markers)).compile(
        plan(body, format=fmt, schema_mode="strict", reasoning=True)
    )
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    pieces = ["Hm", "\n\n", "</think>", "\n\n", call]
    ids = [encode(name, piece) for piece in pieces]
    assert ids[2] == [248_069]
    if spelled:
        ids[2] = [i for part in ("</", "think", ">") for i in encode(name, part)]
        assert len(ids[2]) == 3
    matcher = xgrammar.GrammarMatcher(compiled)
    flat = [i for part in ids for i in part]
    assert all(matcher.accept_token(i) for i in flat)
    assert matcher.is_completed()
    text = load(name).tokenizer.decode(flat)
    assert text == "".join(pieces)
    parsed = fmt.parse(text, tools, reasoning=True)
    assert parsed.message["reasoning_content"] == "Hm"
    assert [c["function"]["arguments"] for c in parsed.tool_calls] == ['{"city": "Bern"}']
    assert not parsed.problems
