"""What the routes share: the model, its worker, and how much of it is taken."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from grammar.deadline import Deadline, within
from sampler.chat import Chat
from sampler.decoding import Decoder
from sampler.params import Completion
from sampler.serve.answers import checked, choice, guard_header, usage
from sampler.serve.errors import ApiError
from sampler.serve.limits import Limits
from sampler.serve.metrics import Metrics
from sampler.serve.prepare import Job, prepare
from sampler.serve.protocol import ChatRequest, read_request
from sampler.serve.reader import Reader
from sampler.serve.stream import events
from sampler.serve.worker import Progress, Worker

RETRY_AFTER_S = 1
_T = TypeVar("_T")


class Service:
    """One model that is served.

    Args:
        chat: of the model.
        limits: of requests.
        name: what clients call the model; None makes one of the model's.
        finish_in_budget: see `sampler.params.SamplingParams`.

    Attributes:
        draining: no request is taken any more; those there are go on.
    """

    def __init__(
        self,
        chat: Chat,
        limits: Limits,
        *,
        name: str | None = None,
        finish_in_budget: bool = True,
    ) -> None:
        self.chat, self.limits, self.metrics = chat, limits, Metrics()
        self.name = name or model_id(chat.loaded.name)
        self.created = int(time.time())
        self.draining = False
        self.reader = Reader(chat)
        loaded = chat.loaded
        self.worker = Worker(
            partial(
                Decoder,
                loaded.model,
                tokenizer=loaded.tokenizer,
                stop_token_ids=loaded.stop_token_ids,
                batch_size=limits.batch_size,
                max_cache_tokens=limits.cache_tokens,
            ),
            self.metrics,
        )
        self._finish_in_budget = finish_in_budget
        self._taken = 0
        self._keys = itertools.count()
        # Bodies are read in no time, and what a body asks for may take long: neither waits in the
        # queue of the other.
        self._reading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="read")
        self._preparing = ThreadPoolExecutor(
            max_workers=min(4, os.cpu_count() or 1), thread_name_prefix="prepare"
        )
        self._unprepared: set[Deadline] = set()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to decode; answers are handed to this event loop."""
        self.worker.start(loop.call_soon_threadsafe)

    def stop(self) -> None:
        """End decoding, and drop what is still being prepared."""
        for deadline in self._unprepared:
            deadline.expire()
        self.worker.stop()
        for threads in (self._reading, self._preparing):
            threads.shutdown(wait=False, cancel_futures=True)

    @property
    def busy(self) -> bool:
        """Whether any request is in the house."""
        return self._taken > 0

    def seat(self) -> Seat:
        """A place for a request, before its body is read.

        Raises:
            ApiError: 503 where the server drains, 429 where no place is free.
        """
        if self.draining or not self.worker.alive:
            raise ApiError(
                503,
                "the server is shutting down",
                code="shutting_down",
                headers={"retry-after": str(RETRY_AFTER_S)},
            )
        return Seat(self)

    def check_model(self, wanted: str | None) -> None:
        """Raises: ApiError: 404, no such model here."""
        if wanted not in (None, self.name):
            message = f"the model {wanted[:100]!r} does not exist; this server has {self.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def read(self, raw: bytes) -> tuple[ChatRequest, dict[str, Any]]:
        """See `sampler.serve.protocol.read_request`."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, read_request, raw)

    async def prepare(self, request: ChatRequest, body: dict[str, Any]) -> Job:
        """See `sampler.serve.prepare.prepare`. Where nobody waits for it any more it ends early."""
        deadline = Deadline(self.limits.prepare_seconds)

        def work() -> Job:
            # It may have waited for its turn.
            deadline.restart()
            with within(deadline):
                return prepare(
                    self.chat,
                    self.limits,
                    request,
                    body,
                    finish_in_budget=self._finish_in_budget,
                )

        self._unprepared.add(deadline)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._preparing, work)
        finally:
            deadline.expire()
            self._unprepared.discard(deadline)

    async def answer(self, job: Job) -> tuple[dict[str, Any], dict[str, str]]:
        """The whole answer, and headers of its own.

        Raises:
            ApiError: 500; a row failed.
        """
        ended: dict[int, Completion] = {}
        async with aclosing(self.decode(job, follow=False)) as news:
            async for index, completion in news:
                ended[index] = checked(completion)
        completions = [ended[i] for i in range(len(ended))]
        body = {
            **self.head("chat.completion"),
            "choices": [choice(i, c, job, self.reader) for i, c in enumerate(completions)],
            "usage": usage(completions),
        }
        return body, guard_header(job, completions)

    def stream(self, job: Job) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        news = self.decode(job, follow=not job.held_back)
        return events(self.head("chat.completion.chunk"), job, self.reader, news)

    def head(self, kind: str) -> dict[str, Any]:
        """What every answer, and every chunk of one, begins with."""
        return {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.name,
        }

    async def decode(
        self, job: Job, *, follow: bool
    ) -> AsyncIterator[tuple[int, Progress | Completion]]:
        """News of the rows of a request, with the index of the choice, until all have ended.

        Rows that have not are cancelled where nobody waits for them any more.
        """
        news: asyncio.Queue[tuple[int, Progress | Completion]] = asyncio.Queue()
        running = {}
        try:
            for index, params in enumerate(job.params):
                running[index] = key = next(self._keys)
                request = job.prompt.request(params, key)
                self.worker.submit(request, partial(_put, news, index), follow=follow)
            while running:
                index, item = await news.get()
                if isinstance(item, Completion):
                    del running[index]
                yield index, item
        finally:
            for key in running.values():
                self.worker.cancel(key)


class Seat:
    """Rows of the house that one request takes, until it leaves.

    Raises:
        ApiError: 429; there are not as many.
    """

    def __init__(self, service: Service) -> None:
        self._service, self._rows = service, 0
        self.take(1)

    def take(self, rows: int) -> None:
        """Have `rows` in all."""
        service, more = self._service, rows - self._rows
        seats = service.limits.seats
        if rows > seats:
            raise ApiError(400, f"n must be at most {seats} here; got {rows}", param="n")
        if service._taken + more > seats:
            raise ApiError(
                429,
                f"all {seats} places of the server are taken; try again",
                code="queue_full",
                headers={"retry-after": str(RETRY_AFTER_S)},
            )
        self._rows = rows
        self._count(more)

    def leave(self) -> None:
        """Give them back; once is enough, twice does no harm."""
        rows, self._rows = self._rows, 0
        self._count(-rows)

    def _count(self, rows: int) -> None:
        self._service._taken += rows
        self._service.metrics.seats.set(self._service._taken)


class Gone(Exception):
    """The client has left before its answer."""


async def while_connected(receive: Callable[[], Awaitable[dict]], work: Awaitable[_T]) -> _T:
    """The result of `work`, which is cancelled should the client leave.

    Args:
        receive: ASGI's, once the body has been read.

    Raises:
        Gone: the client has left.
    """

    async def leaving() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(leaving())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise Gone
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def model_id(name: str) -> str:
    """What clients call a model: a Hub id as it is, of a file or folder its last part."""
    path = Path(name).expanduser()
    return path.name or path.resolve().name if path.exists() else name


def _put(queue: asyncio.Queue, index: int, item: Any) -> None:
    queue.put_nowait((index, item))
