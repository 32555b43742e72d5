"""Tokens back to text and to messages, for the model that is served."""

from __future__ import annotations

from collections.abc import Sequence

from grammar.formats import Parsed, StreamParser
from grammar.tokenizer import token_bytes
from sampler.chat import Chat
from sampler.serve.prepare import Job


class Reader:
    """Reads what one model writes.

    Attributes:
        token_bytes: the bytes of each token, by id.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self.token_bytes = token_bytes(chat.loaded.tokenizer)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, as a completion's text is made."""
        return self._chat.loaded.tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def parse(self, text: str, job: Job) -> Parsed:
        """A whole completion as a message."""
        return self._chat.parse(text, job.prompt, job.tools)

    def stream(self, job: Job) -> StreamParser:
        """The same, for a text that comes in pieces."""
        return self._chat.stream(job.prompt, job.tools)
