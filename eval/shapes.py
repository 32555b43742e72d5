"""Models of a published shape with random weights: enough to time, where trained ones are not at
hand. What they write is noise, which a grammar makes calls of all the same."""

from __future__ import annotations

import copy
from typing import Any

from sampler.model import LoadedModel

# Qwen2.5's, for text: https://huggingface.co/Qwen/Qwen2.5-0.5B-Instruct, without its default system
# message and its way to show tools.
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Name: the config's kind, what it is made of, and a tokenizer of `grammar.registry_tokenizers`.
_SHAPES: dict[str, tuple[str, dict[str, Any], str]] = {
    # config.json of Qwen/Qwen2.5-0.5B-Instruct.
    "qwen2.5-0.5b": (
        "qwen2",
        {
            "hidden_size": 896,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "intermediate_size": 4864,
            "vocab_size": 151_936,
            "max_position_embeddings": 32_768,
            "rope_theta": 1_000_000.0,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
        },
        "qwen",
    ),
}
SHAPES = tuple(_SHAPES)


def load_shape(
    name: str, *, dtype: str = "float32", device: str = "cpu", threads: int | None = None
) -> LoadedModel:
    """A model of that shape; its weights are the same every time.

    Raises:
        ValueError: no such shape.
        ModuleNotFoundError: the package with its tokenizer is not installed.
    """
    if name not in _SHAPES:
        raise ValueError(f"shape must be one of {', '.join(SHAPES)}, got {name!r}")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from grammar.registry_tokenizers import load

    kind, config, tokenizer_name = _SHAPES[name]
    registry = load(tokenizer_name)
    # The registry's own is shared by all its callers.
    tokenizer = copy.copy(registry.tokenizer)
    tokenizer.chat_template = _CHATML
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(
            kind,
            **config,
            eos_token_id=list(registry.stop_token_ids),
            pad_token_id=tokenizer.pad_token_id,
        ),
        dtype=getattr(torch, dtype),
    )
    note = f"{name}: random weights, tokenizer {tokenizer_name} from the registry"
    return LoadedModel(
        f"{name} (random weights)",
        model.to(device).eval(),
        tokenizer,
        config["vocab_size"],
        registry.stop_token_ids,
        (note,),
    )
