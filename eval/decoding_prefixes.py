"""What a shared beginning of prompts saves: tokens of prompts that the model does not compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sampler.chat import Chat
from sampler.decoding import Decoder
from sampler.model import LoadedModel
from sampler.params import Request, SamplingParams

CHOICES = ("none", "auto", "required")


def prefixes(
    loaded: LoadedModel, bodies: Sequence[Mapping[str, Any]], *, format: str, batch_size: int
) -> list[dict[str, Any]]:
    """Compute the prompts of all bodies under each tool_choice in turn, four times.

    Returns:
        For prompts computed one by one and with beginnings shared, and with tools left out of the
        prompt under tool_choice none and not: ``prompt_tokens``, how many of them were
        ``computed``, ``seconds``.
    """
    rows = []
    for exclude in (True, False):
        chat = Chat(
            loaded,
            format=format,
            constrained=False,
            exclude_tools_when_tool_choice_none=exclude,
        )
        prompts = [
            chat.prepare({**body, "tool_choice": choice}).ids
            for choice in CHOICES
            for body in bodies
        ]
        for share in (False, True):
            loop = Decoder(
                loaded.model,
                tokenizer=loaded.tokenizer,
                stop_token_ids=loaded.stop_token_ids,
                batch_size=batch_size,
                share_prefixes=share,
            )
            for prompt in prompts:
                loop.submit(Request(prompt, SamplingParams(max_tokens=1)))
            while loop.busy:
                loop.step()
            flag = "" if exclude else ", --no-exclude-tools-when-tool-choice-none"
            rows.append(
                {
                    "what": ("beginnings shared" if share else "each by itself") + flag,
                    "share_prefixes": share,
                    "exclude_tools_when_tool_choice_none": exclude,
                    "prompt_tokens": sum(map(len, prompts)),
                    "computed": loop.batch.prompt_tokens,
                    "seconds": loop.counts.seconds["prompt"],
                }
            )
    return rows
