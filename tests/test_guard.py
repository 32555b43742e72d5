"""The guard: what it objects to, where it has decoding go on, and what then comes out."""

import json
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from transformers import LlamaConfig, LlamaForCausalLM
from xgrammar.structural_tag import JSONSchemaFormat, SequenceFormat, StructuralTag, TagFormat

from grammar.compiler import Compiler
from grammar.formats import FORMATS
from grammar.guard import Guard, restart_index
from grammar.policy import Plan
from grammar.tokenizer import tokenizer_info
from sampler.decoding import Decoder, generate
from sampler.params import Request, SamplingParams
from tests.test_grammar_vocabularies import byte_level, width

PAIR = {
    "type": "array",
    "items": {"enum": [1, 2, 3]},
    "minItems": 2,
    "maxItems": 2,
    "uniqueItems": True,
}
OBJECT = {"type": "object", "properties": {"pair": PAIR}, "required": ["pair"]}


@dataclass(frozen=True)
class Prepared:
    """What the guard uses of ``grammar.schema.Prepared``."""

    schema: object
    verdict: str = "guarded"

    @property
    def validator(self):
        return jsonschema.Draft202012Validator(self.schema)

    def is_valid(self, instance):
        return self.validator.is_valid(instance)


def pieces_of(text: str, sizes=(3, 1, 4, 2)) -> list[bytes]:
    data, pieces = text.encode(), []
    while data:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def call(arguments: object, name: str = "f") -> str:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return FORMATS["hermes"].render([{"function": {"name": name, "arguments": text}}])


@settings(deadline=None)
@given(st.lists(st.binary(max_size=5), max_size=12), st.integers(0, 20))
def test_restart_keeps_the_most_tokens_whose_text_ends_at_or_before_the_start(pieces, start):
    def length(n):
        return len(b"".join(pieces[:n]).decode(errors="replace"))

    assert restart_index(pieces, start) == max(
        n for n in range(len(pieces) + 1) if length(n) <= start
    )


@settings(deadline=None)
@given(st.text(min_size=1, max_size=12), st.data())
def test_the_text_before_a_straddling_token_stays(text, data):
    cuts = data.draw(st.lists(st.integers(0, len(text.encode())), max_size=6).map(sorted))
    bounds = [0, *cuts, len(text.encode())]
    pieces = [text.encode()[a:b] for a, b in pairwise(bounds)]
    start = data.draw(st.integers(0, len(text) - 1))
    kept = restart_index(pieces, start)
    before = len(text[:start].encode())
    assert bounds[kept] <= before < bounds[kept + 1]


def test_a_valid_call_passes_and_one_of_another_tool_is_none_of_the_guards_business():
    guard = Guard({"f": Prepared(OBJECT)}, format="hermes")
    assert guard.check(pieces_of(call({"pair": [1, 2]}))).ok
    assert guard.check(pieces_of(call({"pair": [1, 1]}, name="g"))).ok
    assert guard.check(pieces_of("No call at all.")).ok


@pytest.mark.parametrize("format", ["hermes", "kimi_k2"])
def test_decoding_goes_on_at_the_first_call_that_fails(format):
    fmt = FORMATS[format]
    tools = [("f", {"pair": [1, 2]}), ("f", {"pair": [3, 3]}), ("f", {"pair": [2, 2]})]
    calls = [{"function": {"name": n, "arguments": json.dumps(a)}} for n, a in tools]
    text = "Zürich: " + fmt.render(calls)
    pieces = [character.encode() for character in text]
    verdict = Guard({"f": Prepared(OBJECT)}, format=format).check(pieces)
    kept = text[: verdict.restart_at]
    assert [(f.call, f.pointer, f.keyword, f.kind) for f in verdict.failures] == [
        (1, "/pair", "uniqueItems", "guarded"),
        (2, "/pair", "uniqueItems", "guarded"),
    ]
    assert fmt.parse(kept).tool_calls == fmt.parse(text).tool_calls[:1]
    assert text[len(kept) :].startswith(
        {"hermes": "<tool_call>", "kimi_k2": "<|tool_call_b"}[format]
    )


@pytest.mark.parametrize("verdict", ["exact", "rewritten"])
def test_a_failure_that_the_mask_was_to_rule_out_is_unsound(verdict):
    guard = Guard({"f": Prepared(OBJECT, verdict)}, format="hermes")
    found = guard.check(pieces_of(call({"pair": [1, 1]})))
    assert [f.kind for f in found.failures] == ["unsound"]
    assert found.restart_at == 0


def test_retries_are_bounded_and_the_last_verdict_gives_up():
    guard = Guard({"f": Prepared(OBJECT)}, format="hermes", max_retries=2)
    pieces = pieces_of(call({"pair": [1, 1]}))
    verdicts = [guard.check(pieces, retries=n) for n in range(3)]
    assert [v.restart_at for v in verdicts] == [0, 0, None]
    assert [v.gives_up for v in verdicts] == [False, False, True]
    assert [f.stream for v in verdicts for f in v.failures] == [0, 1, 2]


@pytest.mark.parametrize(("verdict", "kinds"), [("rewritten", []), ("guarded", ["unjudged"])])
def test_a_value_too_deep_to_judge_is_the_masks(verdict, kinds):
    """jsonschema cannot follow 300 links, and the mask has."""
    node = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
    }
    deep = None
    for _ in range(300):
        deep = {"next": deep}
    with pytest.raises(RecursionError):
        jsonschema.Draft202012Validator(node).is_valid(deep)
    found = Guard({"f": Prepared(node, verdict)}, format="hermes").check(pieces_of(call(deep)))
    assert [failure.kind for failure in found.failures] == kinds


def test_a_validator_that_fails_is_reported_and_nothing_is_redone():
    broken = Prepared({"$ref": "#/$defs/missing"})
    verdict = Guard({"f": broken}, format="hermes").check(pieces_of(call({})))
    assert [f.kind for f in verdict.failures] == ["unjudged"]
    assert verdict.gives_up


def test_an_answer_is_validated_from_after_its_think_block():
    guard = Guard(answer=Prepared(PAIR), format="hermes", reasoning=True)
    thought = "1 and 1? </think>\n"
    assert guard.check(pieces_of(thought + "[1, 2]")).ok
    pieces = [c.encode() for c in thought + "[1, 1]"]
    verdict = guard.check(pieces)
    assert verdict.restart_at == len(thought)
    assert [(f.call, f.pointer, f.keyword) for f in verdict.failures] == [(None, "", "uniqueItems")]
    # The same text without a think block before it.
    answer = Guard(answer=Prepared({"type": "array"}), format="hermes")
    assert answer.check(pieces_of('["</think>"]')).ok


def test_an_answer_that_was_cut_is_not_held_to_its_schema_and_one_that_ended_is():
    guard = Guard(answer=Prepared(PAIR))
    assert guard.check(pieces_of("[1,"), ended=False).ok
    assert guard.check(pieces_of("[1, 1]"), ended=False).failures[0].keyword == "uniqueItems"
    assert [f.kind for f in guard.check(pieces_of("[1,")).failures] == ["unsound"]


def test_pointers_are_escaped_and_messages_short():
    schema = {"properties": {"a/b~": {"items": {"not": {}}}}}
    value = {"a/b~": ["x" * 5000]}
    failure = Guard(answer=Prepared(schema)).check(pieces_of(json.dumps(value))).failures[0]
    assert failure.pointer == "/a~1b~0/0"
    assert len(failure.message) <= 200
    assert str(failure).startswith("the answer is not valid at /a~1b~0/0: ")


@pytest.mark.parametrize(
    "arguments",
    [{"prepared": {"f": Prepared(OBJECT)}}, {"max_retries": -1}],
)
def test_bad_arguments_are_named(arguments):
    with pytest.raises(ValueError, match=r"(format|max_retries) must"):
        Guard(**arguments)


# Decoding: a tiny random model over a byte-level vocabulary, under the grammar of a schema without
# its `uniqueItems`.


@cache
def tokenizer():
    return byte_level(True)


@cache
def model():
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=width(tokenizer()),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    return LlamaForCausalLM(config).eval()


def compiled(tag_format):
    info = tokenizer_info(
        tokenizer(), vocab_size=width(tokenizer()), markers=FORMATS["hermes"].markers
    )
    return Compiler(info).compile(
        Plan(StructuralTag(format=tag_format), None, (), None, (), "none")
    )


def unchecked_pair():
    schema = {key: value for key, value in PAIR.items() if key != "uniqueItems"}
    return JSONSchemaFormat(json_schema=schema, max_whitespace_cnt=1)


@cache
def pair_grammar():
    return compiled(unchecked_pair())


@cache
def three_calls():
    call = TagFormat(
        begin='<tool_call>\n{"name": "f", "arguments": {"pair": ',
        content=unchecked_pair(),
        end="}}\n</tool_call>",
    )
    return compiled(SequenceFormat(elements=[call, call, call]))


def decode(seeds, guard, *, grammar=None, params=(), batch_size=64, **options):
    params = {"max_tokens": 60} | dict(params)
    grammar = grammar or pair_grammar()
    requests = [
        Request((5, 6, 7, 8 + seed % 3), SamplingParams(seed=seed, **params), grammar, seed, guard)
        for seed in seeds
    ]
    done = list(
        generate(
            model(),
            requests,
            tokenizer=tokenizer(),
            stop_token_ids=[tokenizer().eos_token_id],
            batch_size=batch_size,
            **options,
        )
    )
    assert len(done) == len(requests)
    return {completion.key: completion for completion in done}


def pair(completion):
    return tuple(json.loads(completion.text))


def test_what_fails_is_redone_until_it_is_valid_and_what_does_not_is_left_alone():
    seeds = range(40)
    free, guarded = decode(seeds, None), decode(seeds, Guard(answer=Prepared(PAIR)))
    redone = 0
    for seed in seeds:
        first, last = free[seed], guarded[seed]
        assert last.error is None and last.finish_reason == "stop"
        assert len(set(pair(last))) == 2
        if len(set(pair(first))) == 2:
            assert (last.token_ids, last.retries, last.redone) == (first.token_ids, 0, 0)
            continue
        redone += 1
        assert last.retries == len(last.guard_failures) >= 1
        assert [f.stream for f in last.guard_failures] == list(range(last.retries))
        assert last.redone >= first.steps
        assert last.steps == len(last.token_ids) + 1 == len(last.logprobs) + 1
    assert redone >= 5


@pytest.mark.parametrize("options", [{}, {"trace": True}, {"forced_runs": False}])
def test_redone_tokens_do_not_depend_on_the_batch_around_them(options):
    seeds, guard = range(24), Guard(answer=Prepared(PAIR))
    alone = decode(seeds, guard, batch_size=1, trace=True)
    together = decode(seeds, guard, batch_size=7, **options)
    assert any(completion.retries for completion in alone.values())
    for seed in seeds:
        ties = {tie.position for tie in alone[seed].near_ties}
        if alone[seed].token_ids != together[seed].token_ids:
            both = zip(alone[seed].token_ids, together[seed].token_ids, strict=False)
            assert next(i for i, (a, b) in enumerate(both) if a != b) in ties
            continue
        assert alone[seed].retries == together[seed].retries
        if options.get("trace"):
            assert len(together[seed].log_removed) == together[seed].steps
            assert {i.position for i in together[seed].interventions} <= set(
                range(together[seed].steps)
            )


def test_redone_answers_have_the_distribution_of_answers_that_happen_to_be_valid():
    # Rejection sampling is exact: the free draws that are valid are the yardstick.
    free = [pair(c) for c in decode(range(1000, 1700), None).values()]
    valid = [p for p in free if len(set(p)) == 2]
    guarded = [pair(c) for c in decode(range(400), Guard(answer=Prepared(PAIR))).values()]
    assert len(valid) < 0.8 * len(free)
    outcomes = sorted(set(valid))
    assert len(outcomes) == 6
    table = [[sample.count(outcome) for outcome in outcomes] for sample in (valid, guarded)]
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_calls_before_the_one_that_failed_stay_token_for_token():
    hermes = FORMATS["hermes"]
    guard = Guard({"f": Prepared(OBJECT)}, format=hermes, max_retries=20)
    seeds, params = range(24), {"max_tokens": 250}
    free = decode(seeds, None, params=params, grammar=three_calls())
    later = 0
    for seed, completion in decode(seeds, guard, params=params, grammar=three_calls()).items():
        assert completion.error is None
        for made in hermes.parse(completion.text).tool_calls:
            assert len(set(json.loads(made["function"]["arguments"])["pair"])) == 2
        if not completion.retries:
            assert completion.token_ids == free[seed].token_ids
        elif first := completion.guard_failures[0].call:
            later += 1
            start = hermes.parse(free[seed].text).spans[first][0]
            kept = len(token_ids_of(free[seed], start))
            assert kept > 20
            assert completion.token_ids[:kept] == free[seed].token_ids[:kept]
    assert later >= 3


def token_ids_of(completion, end):
    """The longest beginning of the tokens whose text is one of ``text[:end]``."""
    ids = completion.token_ids
    return next(
        ids[:n]
        for n in range(len(ids), -1, -1)
        if completion.text[:end].startswith(tokenizer().decode(ids[:n]))
    )


def test_when_retries_run_out_the_last_attempt_stays_and_the_error_says_what_is_wrong():
    never = Guard(answer=Prepared({"not": {}}), max_retries=2)
    for completion in decode(range(6), never).values():
        assert completion.finish_reason == "stop"
        assert completion.retries == 2
        assert [f.stream for f in completion.guard_failures] == [0, 1, 2]
        assert "the answer is not valid at its root" in completion.error
        assert "given up after 2 retries" in completion.error
        json.loads(completion.text)


def test_a_greedy_answer_is_redone_with_draws():
    greedy = {"temperature": 0.0}
    pairs = {pair(c) for c in decode(range(3), None, params=greedy).values()}
    refused = Prepared({**PAIR, "not": {"enum": [list(p) for p in pairs]}})
    for completion in decode(range(3), Guard(answer=refused), params=greedy).values():
        assert completion.error is None
        assert completion.retries >= 1
        assert pair(completion) not in pairs


def test_a_guard_that_raises_ends_its_own_request_alone():
    class Broken(Guard):
        def check(self, pieces, **_):
            raise KeyError("broken")

    requests = [
        Request((5, 6), SamplingParams(seed=n, max_tokens=60), pair_grammar(), n, guard)
        for n, guard in enumerate(
            [Broken(answer=Prepared(PAIR)), Guard(answer=Prepared(PAIR)), None]
        )
    ]
    done = {
        c.key: c
        for c in generate(
            model(), requests, tokenizer=tokenizer(), stop_token_ids=[tokenizer().eos_token_id]
        )
    }
    assert done[0].finish_reason == "error" and "KeyError" in done[0].error
    assert done[1].error is None and len(set(pair(done[1]))) == 2
    assert done[2].finish_reason == "stop"


def test_requests_may_join_while_others_are_redone():
    guard = Guard(answer=Prepared(PAIR))
    decoder = Decoder(
        model(),
        tokenizer=tokenizer(),
        stop_token_ids=[tokenizer().eos_token_id],
        batch_size=3,
    )
    done = {}
    for seed in range(12):
        request = Request(
            (5, 6, 7, 8 + seed % 3),
            SamplingParams(seed=seed, max_tokens=60),
            pair_grammar(),
            seed,
            guard,
        )
        decoder.submit(request)
        done |= {c.key: c for c in decoder.step()}
    while decoder.busy:
        done |= {c.key: c for c in decoder.step()}
    expected = decode(range(12), guard)
    assert {k: c.text for k, c in done.items()} == {k: c.text for k, c in expected.items()}
