"""``grammar.jump_forward``: the same text, split as the tokenizer splits it."""

import functools
import random

from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast
from xgrammar import GrammarCompiler, TokenizerInfo

from grammar.compiler import Compiler
from grammar.jump_forward import Jump, jump_forward
from grammar.matcher import MatcherBatch
from grammar.policy import plan
from grammar.tokenizer import token_bytes, tokenizer_info
from tests.test_grammar_vocabularies import allowed_ids, byte_level, width

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Bergen", "Österreich"]}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
BODY = {
    "tools": [
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
        for name in ("get_weather", "get_news")
    ],
    "tool_choice": "required",
}
CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern", "days": 3}}\n</tool_call>'
)


@functools.cache
def grammar(marked):
    """Where ``marked``, the vocabulary has ``<tool_call>`` as a control token."""
    tokenizer = byte_level(marked)
    info = tokenizer_info(tokenizer, vocab_size=width(tokenizer))
    return Compiler(info).compile(plan(BODY, format="hermes", schema_mode="strict"))


def start(marked=False):
    """A row at the start of a call, its tokenizer, and the bytes of its tokens."""
    tokenizer = byte_level(marked)
    batch = MatcherBatch([grammar(marked)], vocab_size=width(tokenizer))
    return batch, tokenizer, token_bytes(tokenizer)


def apply(ids, jump):
    return ids[: len(ids) - jump.removed] + list(jump.added)


def test_random_calls_keep_their_text_and_their_grammar():
    """The forced text is taken but for its last token, and the row is where its tokens lead."""
    batch, tokenizer, pieces = start()
    again = MatcherBatch([None], vocab_size=batch.vocab_size)
    jumps = replaced = 0
    for seed in range(20):
        rng = random.Random(seed)
        batch.reset(0)
        ids = []
        while not batch.is_terminated(0) and len(ids) < 80:
            forced = batch.jump_string(0)
            before = b"".join(pieces[i] for i in ids)
            jump = jump_forward(batch, 0, ids, tokenizer, pieces)
            assert jump.removed <= 4
            ids = apply(ids, jump)
            after = b"".join(pieces[i] for i in ids)
            assert (before + forced.encode()).startswith(after)
            assert after.startswith(before)
            jumps += bool(jump.added)
            replaced += jump.removed
            again.swap_in(0, grammar(False))
            assert all(again.accept(0, i) for i in ids)
            assert batch.fill()[0].equal(again.fill()[0])
            ids.append(rng.choice(sorted(allowed_ids(batch.bitmask[0], batch.vocab_size))))
            assert batch.accept(0, ids[-1])
    assert jumps > 20
    assert replaced > 5


def test_a_jump_takes_more_than_the_masks_force_and_tokens_as_the_tokenizer_has_them():
    batch, tokenizer, pieces = start()
    ids = tokenizer.encode(CALL[: CALL.index("weather")], add_special_tokens=False)
    assert all(batch.accept(0, i) for i in ids)
    ids.append(tokenizer.encode("w")[0])
    assert batch.accept(0, ids[-1])
    forced_by_masks = batch.forced_run(0)
    ids = apply(ids, jump_forward(batch, 0, ids, tokenizer, pieces))
    assert tokenizer.decode(ids) in CALL
    assert len(tokenizer.decode(ids)) > CALL.index("arguments")
    assert len(forced_by_masks) < len(ids)
    canonical = tokenizer.encode(CALL, add_special_tokens=False)
    assert ids[-3:-1] == canonical[len(ids) - 3 : len(ids) - 1]


def test_a_token_inside_a_character_is_split_anew_from_its_start():
    batch, tokenizer, pieces = start()
    text = CALL.replace("Bern", "Österreich")
    ids = tokenizer.encode(text[: text.index("Ö")], add_special_tokens=False)
    ids.append(pieces.index("Ö".encode()[:1]))
    assert all(batch.accept(0, i) for i in ids)
    assert jump_forward(batch, 0, ids, tokenizer, pieces) == Jump(0, ())
    ids.append(pieces.index("Ö".encode()[1:]))
    assert batch.accept(0, ids[-1])
    ids = apply(ids, jump_forward(batch, 0, ids, tokenizer, pieces))
    assert text.startswith(tokenizer.decode(ids))
    assert tokenizer.decode(ids).endswith("Österreich")


def test_what_the_grammar_refuses_is_undone():
    """A marker in the forced text is one token to this tokenizer, and here a control token."""
    batch, tokenizer, pieces = start(marked=True)
    before = batch.fill().clone()
    assert batch.jump_string(0).startswith("<tool_call>")
    assert jump_forward(batch, 0, [], tokenizer, pieces) == Jump(0, ())
    assert batch.fill().equal(before)


def test_free_and_finished_rows_do_not_jump():
    batch, tokenizer, pieces = start()
    ids = tokenizer.encode(CALL, add_special_tokens=False)
    assert all(batch.accept(0, i) for i in [*ids, tokenizer.eos_token_id])
    assert jump_forward(batch, 0, ids, tokenizer, pieces) == Jump(0, ())
    batch.swap_in(0, None)
    assert jump_forward(batch, 0, ids, tokenizer, pieces) == Jump(0, ())


def test_a_tokenizer_that_writes_a_space_before_a_text_does_not_change_the_text():
    """Llama 2's way; JSON strings take any space."""
    pieces = [*(chr(i) for i in range(32, 127)), "▁", "</s>"]
    vocabulary = {piece: n for n, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="</s>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>")
    spelled = [piece.replace("▁", " ").encode() for piece in pieces]
    info = TokenizerInfo(spelled, stop_token_ids=[len(pieces) - 1])
    grammar = GrammarCompiler(info).compile_grammar('root ::= "x" [a-z ]* ", then"')
    batch = MatcherBatch([grammar], vocab_size=len(pieces))
    ids = [vocabulary[c] for c in "xfoo,"]
    assert all(batch.accept(0, i) for i in ids)
    assert batch.jump_string(0) == " then"
    text = "xfoo,"
    ids = apply(ids, jump_forward(batch, 0, ids, tokenizer, spelled))
    assert ("xfoo, then").startswith(b"".join(spelled[i] for i in ids).decode())
    assert b"".join(spelled[i] for i in ids).decode().startswith(text)
