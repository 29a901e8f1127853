"""The ASGI application: routes, the key, request ids, error shapes, CORS."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import uuid
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from freetoken.server.errors import ApiError, error_response
from freetoken.server.models import get_model, health, list_models
from freetoken.server.openai_chat import chat_completions
from freetoken.server.openai_completions import completions
from freetoken.server.state import ServerState
from freetoken.server.stream import RAW_SEND

_LOG = logging.getLogger("freetoken.server")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestIds:
    """Gives every answer an x-request-id: the client's own when it sent a sensible one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        scope[RAW_SEND] = send
        await self._app(scope, receive, send_with_id)


class KeyCheck:
    """Asks for the API key everywhere but at /health; as a bearer token or in x-api-key."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._digest = hashlib.sha256(api_key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health" and not self._allowed(Headers(scope=scope)):
            message = "a wrong or no API key; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
            error = ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
            return await error_response(error)(scope, receive, send)
        await self._app(scope, receive, send)

    def _allowed(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = [token.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")]
        return any([self._same(key) for key in given])  # both, whichever is right

    def _same(self, given: str) -> bool:
        """By digest and in constant time: neither length nor content shows. Headers are bytes read as latin-1."""
        return hmac.compare_digest(hashlib.sha256(given.encode("latin-1")).digest(), self._digest)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(ApiError(404, f"there is no {request.url.path!r:.200} here", code="not_found"))
    if error.status_code == 405:
        message = f"{request.url.path} does not take {request.method}"
        return error_response(ApiError(405, message, code="method_not_allowed", headers=dict(error.headers or {})))
    return error_response(ApiError(error.status_code, str(error.detail)))


async def _on_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _on_bug(request: Request, error: Exception) -> Response:
    _LOG.error("a request failed by our fault: %s %s", request.method, request.url.path, exc_info=error)
    return error_response(ApiError(500, f"internal error: {type(error).__name__}", code="internal_error"))


def create_app(state: ServerState, api_key: str | None = None, cors_origins: Sequence[str] = ()) -> ASGIApp:
    # Starlette alone: bodies go through our own field table, so FastAPI would add nothing but start-up time.
    routes = [
        Route("/health", health, methods=["GET"]),
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{model_id:path}", get_model, methods=["GET"]),
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
    ]
    handlers = {
        ApiError: _on_api_error,
        HTTPException: _on_http_exception,
        ClientDisconnect: _on_disconnect,
        Exception: _on_bug,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    app.state.server = state
    wrapped: ASGIApp = app
    if api_key is not None:
        wrapped = KeyCheck(wrapped, api_key)
    if cors_origins:
        wrapped = CORSMiddleware(
            wrapped,
            allow_origins=list(cors_origins),
            allow_methods=["GET", "POST", "OPTIONS"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    return RequestIds(wrapped)
