"""Whether a request fits the model that is to decode it."""

from __future__ import annotations

from sampler.params import Request


def check_fits(
    request: Request, name: str, width: int, stops: frozenset[int], most: int | None
) -> None:
    """Refuse what cannot be decoded, before anything runs.

    Args:
        name: what the request is called in an error.
        width: columns of the logits.
        stops: ids that end a completion.
        most: tokens of one row that the cache has room for, or None.

    Raises:
        ValueError: prompt, logit_bias or grammar do not fit the model, or the cache not all of it.
    """
    wanted = len(request.prompt) + request.params.max_tokens
    if most is not None and wanted > most:
        raise ValueError(
            f"{name} does not fit into the cache: prompt and max_tokens are {wanted:,} tokens,"
            f" max_cache_tokens is {most:,}; lower the one, or raise the other"
        )
    if max(request.prompt) >= width or min(request.prompt) < 0:
        raise ValueError(
            f"prompt of {name} has ids outside [0, {width:,}), the width of the model's logits;"
            " tokenize it with the model's own tokenizer"
        )
    outside = [token for token in request.params.logit_bias if not 0 <= token < width]
    if outside:
        raise ValueError(
            f"logit_bias of {name} names token {outside[0]:,}, outside [0, {width:,}), the width of"
            " the model's logits; take ids of the model's own tokenizer"
        )
    if request.grammar is None:
        return
    info = request.grammar.tokenizer_info
    if info.vocab_size != width:
        raise ValueError(
            f"grammar of {name} covers {info.vocab_size:,} tokens but the model's logits have"
            f" {width:,}; compile it with vocab_size={width}"
        )
    if not stops >= set(info.stop_token_ids):
        raise ValueError(
            f"grammar of {name} ends with tokens {sorted(info.stop_token_ids)} but the loop stops"
            f" at {sorted(stops)}; give both the same stop_token_ids"
        )
