"""Tokens as server-sent events: text as it settles, calls when they are whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from grammar.formats import Delta, StreamParser
from grammar.formats.message import open_suffix
from sampler.detokenizer import Detokenizer
from sampler.params import Completion
from sampler.serve.answers import (
    TokenLogprobs,
    checked,
    endings,
    finish_reason,
    usage,
    usage_so_far,
    with_own_id,
)
from sampler.serve.errors import ApiError, internal, log
from sampler.serve.prepare import Job
from sampler.serve.reader import Reader
from sampler.serve.worker import Progress

DONE = b"data: [DONE]\n\n"
PING = b": still at it\n\n"
"""A comment, which clients pass over. https://html.spec.whatwg.org advises one every 15 s or so
(section 9.2.7), against proxies that close silent connections."""


class TextStream:
    """Tokens to text, as far as no token to come can change it.

    Args:
        decode: token ids to text.
        stops: texts that end the completion; what may be the start of one waits.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._pieces, self._stops = Detokenizer(decode), stops
        self._waiting = ""
        self._told = ""

    def add(self, ids: Sequence[int]) -> str:
        """The text that these tokens settle."""
        waiting = self._waiting + self._pieces.add(ids)
        kept = len(waiting) - open_suffix(waiting, self._stops)
        self._waiting = waiting[kept:]
        return self._sent(waiting[:kept])

    def finish(self, text: str, ids: Sequence[int] = ()) -> str:
        """The rest of the whole text.

        Args:
            ids: tokens that `add` has not been given.

        Raises:
            ApiError: 500, where what has been sent is not how it starts.
        """
        if text.startswith(self._told):
            return self._sent(text[len(self._told) :])
        if "\ufffd" not in text:
            log.error("a completion was decoded again after a part of it had been sent")
            raise internal()
        # Llama's decoder gives up on a whole run of bytes, such as a newline's and half a character
        # behind it; the newline has been sent.
        rest = self._waiting + self._pieces.add(ids) + self._pieces.open
        return self._sent(
            rest[: min((rest.find(s) for s in self._stops if s in rest), default=None)]
        )

    def _sent(self, piece: str) -> str:
        self._told += piece
        return piece


class ChoiceStream:
    """One choice of a streamed answer: news of its row to parts of chunks.

    Args:
        index: of the choice.
    """

    def __init__(self, index: int, job: Job, reader: Reader) -> None:
        self.index, self.completion = index, None
        self._text = TextStream(reader.decode, job.request.stop)
        self._parser: StreamParser = reader.stream(job)
        self._logprobs = TokenLogprobs(reader, job) if job.request.logprobs else None
        self._entries: list[dict[str, Any]] = []
        self._told = 0

    @property
    def generated(self) -> int:
        """Tokens so far; the stop token counts once it has come."""
        return self._told if self.completion is None else self.completion.steps

    def start(self) -> dict[str, Any]:
        """The first chunk of a choice: its role."""
        return self._part({"role": "assistant", "content": ""})

    def progress(self, news: Progress) -> Iterator[dict[str, Any]]:
        """Of tokens that have come."""
        self._note(news.token_ids, news.top_logprobs)
        yield from self._parts(self._parser.feed(self._text.add(news.token_ids)))

    def finish(self, completion: Completion) -> Iterator[dict[str, Any]]:
        """Of the end.

        Raises:
            ApiError: 500; see `answers.checked`.
        """
        self.completion = checked(completion)
        news = completion.token_ids[self._told :]
        self._note(news, completion.top_logprobs[self._told :])
        yield from self._parts(self._parser.finish(self._text.finish(completion.text, news)))
        parsed = self._parser.parsed
        yield {
            **self._part({}),
            "finish_reason": finish_reason(completion, parsed),
            **endings(completion, parsed),
        }

    def _note(self, token_ids: Sequence[int], top_logprobs: Sequence[Mapping[int, float]]) -> None:
        self._told += len(token_ids)
        if self._logprobs is not None:
            self._entries += self._logprobs.entries(token_ids, top_logprobs)

    def _parts(self, delta: Delta) -> Iterator[dict[str, Any]]:
        if delta.reasoning_content:
            yield self._part({"reasoning_content": delta.reasoning_content})
        if delta.content:
            yield self._part({"content": delta.content})
        for call in map(with_own_id, delta.tool_calls):
            arguments = call["function"]["arguments"]
            opening = {**call, "function": {**call["function"], "arguments": ""}}
            yield self._part({"tool_calls": [opening]})
            rest = {"index": call["index"], "function": {"arguments": arguments}}
            yield self._part({"tool_calls": [rest]})

    def _part(self, delta: dict[str, Any]) -> dict[str, Any]:
        entries, self._entries = self._entries, []
        return {
            "index": self.index,
            "delta": delta,
            "logprobs": {"content": entries, "refusal": None} if entries else None,
            "finish_reason": None,
        }


async def events(
    head: Mapping[str, Any],
    job: Job,
    reader: Reader,
    news: AsyncIterator[tuple[int, Progress | Completion]],
) -> AsyncIterator[bytes]:
    """A whole streamed answer, an event at a time; an error is an event, too.

    Args:
        head: what every chunk has: id, object, created, model.
        news: of the rows, with the index of the choice; it ends with the last of them.
    """
    request, prompt = job.request, len(job.prompt.ids)
    choices = [ChoiceStream(i, job, reader) for i in range(request.choices)]

    def chunk(one: ChoiceStream, part: dict[str, Any]) -> bytes:
        whole = {**head, "choices": [part]}
        if request.include_usage:
            now = usage_so_far(prompt, one.generated) if request.usage_so_far else None
            whole["usage"] = now
        return event(whole)

    try:
        for one in choices:
            yield chunk(one, one.start())
        async with aclosing(news):
            async for index, item in news:
                follow = choices[index]
                ended = isinstance(item, Completion)
                for part in follow.finish(item) if ended else follow.progress(item):
                    yield chunk(follow, part)
        if request.include_usage:
            total = usage([one.completion for one in choices])
            yield event({**head, "choices": [], "usage": total})
    except ApiError as error:
        yield event(error.body)
    except Exception:
        log.exception("a stream failed")
        yield event(internal().body)
    yield DONE


async def with_pings(events: AsyncIterator[bytes], seconds: float) -> AsyncIterator[bytes]:
    """The same events, and a `PING` whenever none has come for so long."""
    async with aclosing(events):
        while True:
            coming = asyncio.ensure_future(anext(events, None))
            try:
                while not (await asyncio.wait([coming], timeout=seconds))[0]:
                    yield PING
                found = coming.result()
            finally:
                # An iterator cannot be closed while it is waited for.
                coming.cancel()
                await asyncio.wait([coming])
            if found is None:
                return
            yield found


def event(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"
