"""What a client is told when something is wrong: OpenAI's error bodies."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

log = logging.getLogger("sampler.serve")

_LONGEST = 2000
_FIELDS = (
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "chat_template_kwargs",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "max_tokens",
    "stop",
    "top_logprobs",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
)
_AT_START = re.compile(rf"({'|'.join(_FIELDS)})\b")
_SCHEMA = re.compile(rf"the schema (?:of|at) {_AT_START.pattern}")


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: HTTP's.
        message: for the client; nothing of the server's own (paths, stacks) belongs into it.
        param: the field of the request that is at fault, or None.
        code: a word for programs, or None.
        headers: to send along.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.message = message if len(message) <= _LONGEST else message[: _LONGEST - 3] + "..."
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The JSON that OpenAI and vLLM send."""
        if self.status == 429:
            kind = "rate_limit_error"
        else:
            kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        """The error as HTTP has it: OpenAI's body, status and headers."""
        return JSONResponse(self.body, self.status, headers=self.headers)


def refused(error: Exception | str) -> ApiError:
    """A request that cannot be served as it is; `error` begins with the field, or names a tool."""
    message = str(error)
    found = _AT_START.match(message) or _SCHEMA.match(message)
    param = found[1] if found else None
    if message.startswith("the schema of tool "):
        param = "tools"
    elif message.startswith("the chat template "):
        param = "messages"
    return ApiError(400, message, param=param)


def internal() -> ApiError:
    """A fault of the server, of which the client learns nothing; the log has the rest."""
    return ApiError(500, "the server failed on this request; its log says how")


def install_handlers(app: FastAPI) -> None:
    """Let every error of `app` have OpenAI's body."""

    async def told(request: Request, error: ApiError) -> JSONResponse:
        return error.response()

    async def http(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{error.detail}: {request.method} {request.url.path}"
        return ApiError(error.status_code, message, headers=error.headers).response()

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        # Starlette raises it again once this is sent, and so the log has the stack.
        return internal().response()

    app.add_exception_handler(ApiError, told)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unexpected)
