"""The masks in `model.generate`: against our own loop, and against xgrammar's own processor."""

import doctest
import json

import jsonschema
import pytest
import torch
import xgrammar
from transformers import LogitsProcessor
from xgrammar.contrib.hf import LogitsProcessor as XgrammarProcessor

import sampler.logits_processor
from grammar.compiler import Compiler
from grammar.policy import plan
from grammar.tokenizer import tokenizer_info
from sampler.logits_processor import GrammarLogitsProcessor
from tests.looping import decoded, requests_of

TOOL = {
    "type": "function",
    "function": {
        "name": "count",
        "parameters": {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "minimum": 0, "maximum": 99},
                "word": {"enum": ["yes", "no"]},
            },
            "required": ["n", "word"],
            "additionalProperties": False,
        },
    },
}
BODY = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}


def padded(loaded, prompts):
    width = max(map(len, prompts))
    pad = loaded.tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    return {"input_ids": ids, "attention_mask": mask}


def completions(loaded, out, width):
    """Generated ids of each row, up to and with its first stop token."""
    rows = []
    for row in out[:, width:].tolist():
        ends = [i for i, token in enumerate(row) if token in loaded.stop_token_ids]
        rows.append(tuple(row[: ends[0] + 1] if ends else row))
    return rows


def run(loaded, prompts, processors, max_new_tokens=40, **options):
    inputs = padded(loaded, prompts)
    out = loaded.model.generate(
        **inputs,
        logits_processor=processors,
        max_new_tokens=max_new_tokens,
        **{"do_sample": False, **options},
    )
    return completions(loaded, out, inputs["input_ids"].shape[1])


def prompts_of(loaded, *texts):
    return [tuple(loaded.tokenizer(text).input_ids) for text in texts]


def valid(loaded, tokens):
    text = loaded.tokenizer.decode(tokens, skip_special_tokens=True)
    call = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    assert call["name"] == "count"
    jsonschema.validate(call["arguments"], TOOL["function"]["parameters"])
    return call["arguments"]


@pytest.fixture(scope="module")
def compiler(loaded):
    info = tokenizer_info(
        loaded.tokenizer,
        vocab_size=loaded.vocab_size,
        stop_token_ids=loaded.stop_token_ids,
        markers=("<tool_call>", "</tool_call>"),
    )
    return Compiler(info)


@pytest.fixture(scope="module")
def grammar(compiler):
    return compiler.compile(plan(BODY, format="hermes", schema_mode="strict"))


@pytest.fixture
def processor(grammar):
    return GrammarLogitsProcessor(grammar)


def test_the_example_in_the_docstring(loaded):
    names = {"model": loaded.model, "tokenizer": loaded.tokenizer}
    failed, tried = doctest.testmod(sampler.logits_processor, extraglobs=names)
    assert (failed, tried) == (0, 9)


def test_greedy_tokens_are_those_of_our_own_loop(loaded, chats, dialogues):
    requests = requests_of(chats["constrained"], dialogues[:5], temperature=0.0, max_tokens=60)
    requests += requests_of(chats["free"], dialogues[9:11], temperature=0.0, max_tokens=60)
    requests = [type(r)(r.prompt, r.params, r.grammar, n) for n, r in enumerate(requests)]
    ours, _ = decoded(loaded, requests, trace=True)
    processor = GrammarLogitsProcessor([r.grammar for r in requests])
    theirs = run(loaded, [r.prompt for r in requests], [processor], max_new_tokens=60)
    ties = 0
    for key, tokens in enumerate(theirs):
        own = (*ours[key].token_ids, *([] if ours[key].stop is None else [ours[key].stop]))
        if own != tokens:
            at = next(i for i, (a, b) in enumerate(zip(own, tokens, strict=False)) if a != b)
            assert at in {tie.position for tie in ours[key].near_ties}
            ties += 1
    assert ties <= 1


def test_greedy_tokens_are_those_of_xgrammars_processor(loaded, chats, dialogues):
    requests = requests_of(chats["constrained"], dialogues[:6])
    prompts, grammars = [r.prompt for r in requests], [r.grammar for r in requests]
    ours = run(loaded, prompts, [GrammarLogitsProcessor(grammars)])
    theirs = run(loaded, prompts, [XgrammarProcessor(grammars)])
    assert ours == theirs
    # Rows end at different steps, so the earlier ones were given padding.
    assert len({len(tokens) for tokens in ours}) > 2


def test_a_processor_serves_any_number_of_calls(loaded, grammar, processor):
    prompts = prompts_of(loaded, "How many?", "Count the words, please: one two three")
    for batch in (prompts, prompts[::-1], prompts[:1], prompts[:1]):
        again = run(loaded, batch, [processor])
        assert again == run(loaded, batch, [GrammarLogitsProcessor(grammar)])
        for tokens in again:
            valid(loaded, tokens)


def test_a_call_that_was_cut_leaves_nothing_behind(loaded, grammar, processor):
    prompts = prompts_of(loaded, "How many?")
    whole = run(loaded, prompts, [processor])
    assert run(loaded, prompts, [processor], max_new_tokens=7) == [whole[0][:7]]
    assert run(loaded, prompts, [processor]) == whole


def test_a_text_that_was_cut_goes_on_where_it_was(loaded, processor):
    (prompt,) = prompts_of(loaded, "How many?")
    whole = run(loaded, [prompt], [processor])
    made = ()
    while len(made) < len(whole[0]):
        made += run(loaded, [prompt + made], [processor], max_new_tokens=5)[0]
    assert made == whole[0]


def test_the_next_turn_of_a_chat_is_a_new_prompt(loaded, processor):
    (prompt, more) = prompts_of(loaded, "How many?", "\nAnd of the others, how many?")
    first = run(loaded, [prompt], [processor])[0]
    second = run(loaded, [prompt + first + more], [processor])[0]
    valid(loaded, first)
    valid(loaded, second)


def test_sampled_sequences_are_valid_calls(loaded, grammar):
    processor = GrammarLogitsProcessor([None, grammar], sequences_per_prompt=6)
    torch.manual_seed(3)
    rows = run(
        loaded,
        prompts_of(loaded, "Hello", "How many?"),
        [processor],
        do_sample=True,
        top_k=0,
        num_return_sequences=6,
    )
    ended = [tokens for tokens in rows[6:] if tokens[-1] in loaded.stop_token_ids]
    assert len(ended) >= 4
    assert len({valid(loaded, tokens)["n"] for tokens in ended}) > 1
    assert not any(loaded.tokenizer.decode(tokens).startswith("<tool_call>") for tokens in rows[:6])


def test_bodies_none_and_one_for_all(loaded):
    processor = GrammarLogitsProcessor.for_requests(loaded.model, loaded.tokenizer, [BODY, None])
    called, free = run(loaded, prompts_of(loaded, "How many?", "How many?"), [processor])
    valid(loaded, called)
    one_for_all = GrammarLogitsProcessor.for_requests(loaded.model, loaded.tokenizer, BODY)
    assert run(loaded, prompts_of(loaded, "How many?"), [one_for_all]) == [called]
    assert not loaded.tokenizer.decode(free).startswith("<tool_call>")
    with pytest.raises(ValueError, match=r"format must be one of .*got 'nix'"):
        GrammarLogitsProcessor.for_requests(loaded.model, loaded.tokenizer, BODY, format="nix")


def step(processor, rows, width=None, score=0.0):
    """Allowed ids of each row, after token ids `rows`."""
    ids = torch.tensor(rows)
    scores = torch.full((len(rows), width or processor._width), score)
    out = processor(ids, scores)
    assert torch.equal(scores, torch.full_like(scores, score)), "the scores given are left alone"
    return [set(torch.isfinite(row).nonzero().flatten().tolist()) for row in out]


def written(loaded, text):
    return loaded.tokenizer(text, add_special_tokens=False).input_ids


def test_a_row_that_has_ended_can_only_repeat_its_end(loaded, processor):
    stop, pad = loaded.stop_token_ids[0], loaded.tokenizer.pad_token_id
    call = '<tool_call>\n{"name": "count", "arguments": {"n": %s, "word": "no"}}\n</tool_call>'
    short, long = ([*written(loaded, call % n), stop] for n in (7, 12))
    ids = [[5, 6], [5, 6]]
    for i in range(len(long)):
        allowed = step(processor, ids)
        for row, tokens in enumerate((short, long)):
            assert tokens[i] in allowed[row] if i < len(tokens) else allowed[row] == {stop}
            ids[row] = [*ids[row], tokens[i] if i < len(tokens) else pad]
    assert len(short) < len(long)
    with pytest.raises(RuntimeError, match=rf"every row has ended.*eos_token_id=\[{stop}\]"):
        step(processor, ids)
    assert step(processor, ids)[0] == step(processor, [[5]])[0], "after the error, a new prompt"


def test_minus_infinity_stays_and_finite_scores_are_kept(loaded, processor):
    ids = torch.tensor([[5, 6]])
    scores = torch.randn(1, loaded.vocab_size, generator=torch.Generator().manual_seed(0))
    out = processor(ids, scores)
    allowed = torch.isfinite(out)
    assert 0 < allowed.sum() < 40
    assert torch.equal(out[allowed], scores[allowed])
    scores[0, :] = -torch.inf
    assert not torch.isfinite(processor(ids, scores)).any()


def test_beam_search_is_refused(loaded, processor):
    prompts = prompts_of(loaded, "How many?")
    with pytest.raises((NotImplementedError, RuntimeError), match="beam search"):
        run(loaded, prompts, [processor], num_beams=3)


def test_reordered_rows_are_refused(loaded, processor):
    a, b = written(loaded, "<tool_call>\n")[:1], written(loaded, "<")[:1]
    step(processor, [[5], [5]])
    if a == b:
        pytest.skip("the vocabulary spells both alike")
    step(processor, [[5, *a], [5, *b]])
    with pytest.raises(NotImplementedError, match=r"beam search.*reset\(\)"):
        step(processor, [[5, *b, *b], [5, *a, *a]])


@pytest.mark.parametrize("kind", ["assistant", "lookup"])
def test_assisted_decoding_is_refused_or_right(loaded, grammar, processor, kind):
    prompts = prompts_of(loaded, 'How many? {"name": "count", "arguments": {"n": 1, "wo')
    options = {
        "assistant": {"assistant_model": loaded.model},
        "lookup": {"prompt_lookup_num_tokens": 3},
    }[kind]
    try:
        got = run(loaded, prompts, [processor], **options)
    except (NotImplementedError, RuntimeError) as error:
        assert "assisted decoding" in str(error)
    else:
        assert got == run(loaded, prompts, [GrammarLogitsProcessor(grammar)])


def test_a_token_that_was_forbidden_is_named(loaded, processor):
    class Other(LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores = torch.full_like(scores, -1.0)
            scores[:, 77] = 0.0
            return scores

    with pytest.raises(RuntimeError, match="row 0 was given token 77, which its mask forbade"):
        run(loaded, prompts_of(loaded, "How many?"), [processor, Other()])


def test_a_grammar_that_dead_ends_is_named():
    # Its only text is a character that no token of this vocabulary spells.
    info = xgrammar.TokenizerInfo(
        ["a", "b"], vocab_size=33, stop_token_ids=[1], vocab_type=xgrammar.VocabType.RAW
    )
    dead = xgrammar.GrammarCompiler(info).compile_grammar('root ::= "a" "c"')
    processor = GrammarLogitsProcessor([None, dead])
    assert step(processor, [[5], [5]]) == [set(range(33)), {0}]
    with pytest.raises(RuntimeError, match=r"row 1 dead-ends: it allows no token after \[0\]"):
        step(processor, [[5, 9], [5, 0]])


def test_what_does_not_fit_is_named(loaded, grammar, compiler, processor):
    with pytest.raises(ValueError, match="cover 2,048 tokens but scores have 2,050 columns"):
        step(processor, [[5]], width=2050)
    with pytest.raises(ValueError, match=r"2 grammars were given.*input_ids has 3 rows"):
        step(GrammarLogitsProcessor([grammar, grammar]), [[5], [6], [7]])
    with pytest.raises(ValueError, match="sequences_per_prompt=2, but input_ids has 2 rows"):
        step(GrammarLogitsProcessor([grammar, None], sequences_per_prompt=2), [[5], [6]])
    wider = tokenizer_info(loaded.tokenizer, vocab_size=2112, stop_token_ids=loaded.stop_token_ids)
    other = Compiler(wider).compile(plan(BODY, format="hermes", schema_mode="strict"))
    with pytest.raises(ValueError, match=r"got vocabulary sizes \[2048, 2112\]"):
        GrammarLogitsProcessor([grammar, other])
    with pytest.raises(ValueError, match="at least one"):
        GrammarLogitsProcessor([None])
