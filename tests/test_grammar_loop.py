"""What goes wrong in decoding loops, on the side of the grammar: each a fault that users of other
software have reported, asked of every format where it has one.

The models here are preferences: of the allowed tokens, the one they like best. The worst of them
likes blanks.
"""

import json

import jsonschema
import pytest

from grammar.compiler import Compiler
from grammar.formats import FORMATS
from grammar.matcher import MatcherBatch
from grammar.policy import plan
from grammar.tokenizer import token_bytes, tokenizer_info
from tests.test_grammar_vocabularies import allowed_ids, byte_level, width

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
EVERY = pytest.mark.parametrize("fmt", dict.fromkeys(FORMATS.values()), ids=lambda f: f.name)


def tool(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def grammar(fmt, tools, choice="required", **options):
    tokenizer = byte_level(True)
    info = tokenizer_info(tokenizer, vocab_size=width(tokenizer), markers=fmt.markers)
    body = {"tools": tools, "tool_choice": choice}
    options = {"schema_mode": "strict", "scope": "always"} | options
    return Compiler(info).compile(plan(body, format=fmt, **options))


def named(name):
    return {"type": "function", "function": {"name": name}}


def batch(compiled):
    return MatcherBatch([compiled], vocab_size=width(byte_level(True)))


def follow(row, likes, limit):
    """Text of a model that takes the best allowed token by ``likes(piece)``, and its token count.

    Where nothing it likes is allowed, it takes what ends soonest: the shortest closing token.
    """
    tokenizer = byte_level(True)
    pieces, ids = token_bytes(tokenizer), []

    def rank(i):
        text = pieces[i].decode(errors="replace")
        closes = text[:1] in '"}]\n</0123456789'
        return (likes(text), i == tokenizer.eos_token_id, closes, -len(text), -i)

    while not row.is_terminated(0) and len(ids) < limit:
        ids.append(max(allowed_ids(row.fill()[0], row.vocab_size), key=rank))
        assert row.accept(0, ids[-1])
    text = b"".join(pieces[i] for i in ids if i != tokenizer.eos_token_id).decode()
    return text, len(ids)


def accepts(compiled, text, end=True):
    """Whether each token of a text is allowed in turn, and the stop token after it."""
    tokenizer, row = byte_level(True), batch(compiled)
    ids = tokenizer.encode(text, add_special_tokens=False)
    return all(row.accept(0, i) for i in ids) and row.is_completed(0) is end


@EVERY
def test_a_model_that_likes_blanks_still_writes_a_call(fmt):
    """Without a bound on whitespace it writes nothing else until its budget is spent."""
    # Inside a string blanks are text, and the grammar has no say.
    names = {"enum": ["Ada Lovelace", "Bo"]}
    schema = {**PERSON, "properties": {**PERSON["properties"], "name": names}}
    row = batch(grammar(fmt, [tool("person", schema)], named("person")))
    text, _ = follow(row, lambda piece: 2 * piece.isspace(), 500)
    assert row.is_terminated(0), text
    assert sum(map(str.isspace, text)) >= 10
    (call,) = fmt.parse(text, [tool("person", schema)]).tool_calls
    jsonschema.validate(json.loads(call["function"]["arguments"]), schema)


@EVERY
def test_indented_json_passes_where_the_bound_allows_it(fmt):
    arguments = {"name": "Ada", "age": 36}
    call = [{"function": {"name": "person", "arguments": json.dumps(arguments)}}]
    text, plain = fmt.render(call), json.dumps(arguments)
    if plain not in text:
        pytest.skip(f"{fmt.name} does not write arguments as JSON")
    indented = text.replace(plain, json.dumps(arguments, indent=4))
    assert accepts(grammar(fmt, [tool("person", PERSON)]), text)
    assert not accepts(grammar(fmt, [tool("person", PERSON)]), indented, end=False)
    assert accepts(grammar(fmt, [tool("person", PERSON)], max_whitespace_cnt=8), indented)


@EVERY
def test_a_full_list_closes_although_the_model_wants_another_item(fmt):
    """The comma is masked; what is left must not be blanks for ever."""
    items = {"type": "array", "maxItems": 1, "minItems": 1, "items": {"type": "integer"}}
    schema = {"type": "object", "properties": {"l": items}, "required": ["l"]}
    row = batch(grammar(fmt, [tool("full", schema)], named("full")))
    text, _ = follow(row, lambda piece: 3 * ("," in piece) + piece.isspace(), 500)
    assert row.is_terminated(0), text
    (call,) = fmt.parse(text, [tool("full", schema)]).tool_calls
    assert len(json.loads(call["function"]["arguments"])["l"]) == 1


@EVERY
def test_required_is_never_prose(fmt):
    """Prose alone is refused, and so is prose before the call: as xgrammar's own tags have it."""
    compiled = grammar(fmt, [tool("person", PERSON)])
    call = fmt.render(
        [{"function": {"name": "person", "arguments": json.dumps({"name": "Ada", "age": 36})}}]
    )
    assert accepts(compiled, call)
    assert not accepts(compiled, "I cannot help.")
    assert not accepts(compiled, "Sure. " + call)
    if fmt.name == "harmony":
        call = "<|channel|>commentary<|message|>Sure.<|end|><|start|>assistant" + call
    else:
        call = "Sure. " + call
    assert accepts(grammar(fmt, [tool("person", PERSON)], choice="auto"), call)


@EVERY
def test_a_call_cut_by_the_budget_is_no_call(fmt):
    """Wherever it is cut: not executable, and reported as incomplete."""
    body = "#!/usr/bin/env python3\nprint('{}')\n"
    schema = {"type": "object", "properties": {"content": {"type": "string"}}}
    tools, tokenizer = [tool("write", schema)], byte_level(True)
    call = fmt.render([{"function": {"name": "write", "arguments": json.dumps({"content": body})}}])
    row, ids = batch(grammar(fmt, tools)), tokenizer.encode(call, add_special_tokens=False)
    (whole,) = fmt.parse(call, tools).tool_calls
    assert json.loads(whole["function"]["arguments"]) == {"content": body}
    incomplete = 0
    for n, i in enumerate(ids):
        parsed = fmt.parse(tokenizer.decode(ids[:n]), tools)
        assert parsed.tool_calls in ([], [whole])
        if n and not parsed.tool_calls:
            assert {p.kind for p in parsed.problems} <= {"incomplete"}
            incomplete += bool(parsed.problems)
        assert row.accept(0, i)
    assert row.is_completed(0)
    assert incomplete > len(ids) // 2


@EVERY
def test_the_first_token_is_masked_like_any_other(fmt):
    """Whatever the prompt's cache holds: the mask is there before anything is accepted."""
    row = batch(grammar(fmt, [tool("person", PERSON)]))
    pieces = token_bytes(byte_level(True))
    arguments = json.dumps({"name": "Ada", "age": 36})
    call = fmt.render([{"function": {"name": "person", "arguments": arguments}}]).lstrip()
    first = [pieces[i] for i in allowed_ids(row.fill()[0], row.vocab_size)]
    assert any(call.encode().startswith(piece) for piece in first)
    assert all(call.encode().startswith(piece) or piece.isspace() for piece in first)


@EVERY
def test_the_end_of_thinking_and_blank_lines_belong_to_the_grammar(fmt):
    """Nothing has to be kept from the matcher: it is given every token from the first on."""
    if fmt.end_of_thinking is None:
        pytest.skip("its thinking is a message like others")
    compiled = grammar(fmt, [tool("person", PERSON)], reasoning=True)
    call = fmt.render(
        [{"function": {"name": "person", "arguments": json.dumps({"name": "Ada", "age": 36})}}]
    )
    for gap in ("", "\n", "\n\n"):
        assert accepts(compiled, f"Hm\n\n{fmt.end_of_thinking}{gap}{call}")
    assert not accepts(compiled, f"Hm\n\n{fmt.end_of_thinking} So. {call}")
    assert not accepts(compiled, f"Hm\n\n{call}")


@pytest.mark.parametrize("anew", ["reset", "swap_in"])
def test_a_second_request_starts_anew(anew):
    """The state of a finished request is not the next one's: reset it, or give the row away."""
    compiled = grammar(FORMATS["hermes"], [tool("person", PERSON)])
    row = batch(compiled)
    texts = []
    for _ in range(2):
        text, _ = follow(row, lambda piece: 0, 200)
        texts.append(text)
        assert row.is_terminated(0)
        assert not row.accept(0, 0)
        row.reset(0) if anew == "reset" else row.swap_in(0, compiled)
    assert texts[0] == texts[1]
    assert texts[0].startswith("<tool_call>")


@EVERY
def test_a_name_that_would_need_escaping_is_refused(fmt):
    """Names are pasted into the call; a quote in one would make the grammar accept broken JSON."""
    for name in ('say"hi', "a\\b", "a\nb", "<tool_call>", "é", ""):
        with pytest.raises(ValueError, match=r"tools\[0\]\.function\.name must match"):
            plan({"tools": [tool(name, PERSON)]}, format=fmt)
