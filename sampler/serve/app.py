"""The routes: POST /v1/chat/completions, GET /v1/models, /health and /metrics."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect

from sampler.serve.errors import ApiError, install_handlers
from sampler.serve.service import Gone, Seat, Service, while_connected
from sampler.serve.stream import with_pings

_DRAINED = 8
"""Times the size that a body may have: how much of one is read that will be refused."""


def create_app(service: Service, *, api_key: str | None = None) -> FastAPI:
    """The application around a service.

    Args:
        api_key: what clients must send as a bearer token to /v1, or None.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start(asyncio.get_running_loop())
        yield
        service.stop()

    app = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)
    install_handlers(app)
    app.add_middleware(CountStatuses, counter=service.metrics.requests)
    v1 = APIRouter(prefix="/v1", dependencies=[Depends(_key_check(api_key))] if api_key else [])

    @v1.post("/chat/completions")
    async def chat_completions(http: Request) -> Response:
        return await _chat_completions(service, service.seat(), http)

    @v1.get("/models")
    async def models() -> dict:
        return {"object": "list", "data": [_model(service)]}

    @v1.get("/models/{name:path}")
    async def model(name: str) -> dict:
        service.check_model(name)
        return _model(service)

    @app.get("/health")
    async def health() -> Response:
        well = service.worker.alive and not service.draining
        return Response(status_code=200 if well else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    app.include_router(v1)
    return app


async def _chat_completions(service: Service, seat: Seat, http: Request) -> Response:
    """The answer; the seat is left once it has been made, or sent where it is a stream."""
    streamed = False
    try:
        raw = await _read_body(http, service.limits.body_bytes, service.limits.body_seconds)
        request, body = await while_connected(http.receive, service.read(raw))
        service.check_model(request.model)
        seat.take(request.choices)
        job = await while_connected(http.receive, service.prepare(request, body))
        if request.stream:
            events = with_pings(service.stream(job), service.limits.ping_seconds)
            stream = EventStream(events, job.headers, seat, service.limits.send_seconds)
            streamed = True
            return stream
        answer, headers = await while_connected(http.receive, service.answer(job))
    except Gone:
        # nginx has this word for it; nobody reads it.
        return Response(status_code=499)
    finally:
        if not streamed:
            seat.leave()
    return JSONResponse(answer, headers={**job.headers, **headers})


async def _read_body(http: Request, most: int, seconds: float) -> bytes:
    """The body of a request. What is too large is read to its end, within reason, and forgotten:
    a client that is still sending would not see the answer.

    Raises:
        ApiError: 413, 415 or 408.
        Gone: the client has left.
    """
    kind = http.headers.get("content-type", "application/json")
    if "json" not in kind.lower():
        raise ApiError(415, f"content-type must be application/json; got {kind[:80]!r}")
    too_large = ApiError(413, f"the body must be at most {most:,} bytes", code="body_too_large")
    declared = http.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > _DRAINED * most):
        raise too_large
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(seconds):
            async for piece in http.stream():
                size += len(piece)
                if size <= most:
                    body += piece
                elif size > _DRAINED * most:
                    raise too_large
    except ClientDisconnect:
        raise Gone from None
    except TimeoutError:
        raise ApiError(408, f"the body did not come within {seconds:g} s") from None
    if size > most:
        raise too_large
    return bytes(body)


class EventStream(Response):
    """Server-sent events; stopped where the client leaves, or takes none any more.

    Args:
        events: each one's bytes.
        headers: to send beside its own.
        seat: left at the end, whatever it is.
        seconds: within which the client must take an event.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        headers: Mapping[str, str],
        seat: Seat,
        seconds: float,
    ) -> None:
        # No proxy may buffer it.
        super().__init__(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        )
        self.raw_headers = [(n, v) for n, v in self.raw_headers if n != b"content-length"]
        self.raw_headers.append((b"content-type", b"text/event-stream; charset=utf-8"))
        self._events, self._seat, self._seconds = events, seat, seconds

    async def __call__(self, scope, receive, send) -> None:
        try:
            await while_connected(receive, self._send(send))
        except Gone:
            pass
        finally:
            self._seat.leave()

    async def _send(self, send) -> None:
        async def sent(kind: str, **message) -> None:
            try:
                async with asyncio.timeout(self._seconds):
                    await send({"type": f"http.response.{kind}", **message})
            except TimeoutError:
                raise Gone from None

        async with aclosing(self._events) as events:
            await sent("start", status=200, headers=self.raw_headers)
            async for event in events:
                await sent("body", body=event, more_body=True)
        await sent("body", body=b"")


class CountStatuses:
    """Counts the answers to requests for completions by their status."""

    def __init__(self, app, *, counter) -> None:
        self._app, self._counter = app, counter

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/completions"):
            return await self._app(scope, receive, send)

        async def counted(message) -> None:
            if message["type"] == "http.response.start":
                self._counter.labels(str(message["status"])).inc()
            await send(message)

        return await self._app(scope, receive, counted)


def _key_check(api_key: str):
    wanted = api_key.encode()

    async def check(http: Request) -> None:
        kind, _, sent = http.headers.get("authorization", "").partition(" ")
        # What Starlette reads as Latin-1 is bytes to us.
        good = hmac.compare_digest(sent.strip().encode("latin-1"), wanted)
        if kind.lower() != "bearer" or not good:
            raise ApiError(
                401,
                "the API key is missing or wrong; send it as `Authorization: Bearer KEY`",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    return check


def _model(service: Service) -> dict:
    return {
        "id": service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "masked-sampling",
    }
