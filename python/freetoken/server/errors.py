"""Errors as OpenAI's API shapes them: {"error": {"message", "type", "param", "code"}} with the status that belongs."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response

_TYPES = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An answer other than 200. `param`: the request field, as messages[0].content; `code`: for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param, code)


def context_length_exceeded(prompt_tokens: int, maximum_tokens: int, param: str) -> ApiError:
    # Agents look for this wording to know that they should compact.
    message = f"prompt is too long: {prompt_tokens} tokens > {maximum_tokens} maximum"
    return ApiError(400, message, param, "context_length_exceeded")


def timed_out(reason: str) -> ApiError:
    """408, as OpenAI answers a request that took too long; clients would try again by themselves, which cannot help."""
    return ApiError(408, reason, code="timeout", headers={"x-should-retry": "false"})


def error_response(error: ApiError) -> Response:
    return Response(orjson.dumps(error.body()), error.status, error.headers, "application/json")
