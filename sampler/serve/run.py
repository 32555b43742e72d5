"""uvicorn, and how it ends: what runs is finished, new requests are told to go elsewhere."""

from __future__ import annotations

import asyncio
import time
from types import FrameType
from typing import Any

import uvicorn

from sampler.serve.service import Service

_POLL_S = 0.05


class Server(uvicorn.Server):
    """Serves an application on one port.

    uvicorn closes its port at the first signal, so that new clients find nobody. Here it stays
    open, and says 503, until the last answer is sent.

    Args:
        app, service: see `sampler.serve.app.create_app`.
        host, port: port 0 is a free one.
        drain_seconds: for the requests in the house, once told to stop.
    """

    def __init__(
        self, app: Any, service: Service, host: str, port: int, *, drain_seconds: float
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="on",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=5,
            )
        )
        self._service, self._drain_seconds = service, drain_seconds
        self._draining: asyncio.Task | None = None

    async def startup(self, sockets: list | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets=sockets)
        self._loop = asyncio.get_running_loop()
        if self.started:
            for listener in self.servers[0].sockets[:1]:
                host, port = listener.getsockname()[:2]
                shown = f"[{host}]" if ":" in host else host
                print(f"serving {self._service.name} on http://{shown}:{port}/v1", flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second stops."""
        if self._service.draining or not self.started:
            super().handle_exit(sig, frame)
            return
        self._service.draining = True
        self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._draining = self._loop.create_task(self._until_empty())

    async def _until_empty(self) -> None:
        end = time.monotonic() + self._drain_seconds
        while self._service.busy and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)
        self.should_exit = True
