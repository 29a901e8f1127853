"""GET /v1/models, GET /v1/models/{id}: one card that both OpenAI's and Anthropic's clients read. GET /health."""

from __future__ import annotations

import datetime
import time
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from freetoken.server.body import check_model
from freetoken.server.errors import ApiError
from freetoken.server.state import ServedModel, ServerState

_HEALTH_STATS = ("isa", "threads", "running", "waiting", "kv_pages_total", "kv_pages_used", "kv_pages_cached")


def _card(model: ServedModel) -> dict[str, Any]:
    created = datetime.datetime.fromtimestamp(model.created, datetime.timezone.utc)
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "freetoken",
        "type": "model",
        "display_name": model.name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_model_len": model.max_sequence_tokens,
        "batch_invariant": model.batch_invariant,
    }


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


async def list_models(request: Request) -> Response:
    card = _card(request.app.state.server.require_model())
    listing = {"object": "list", "data": [card], "has_more": False, "first_id": card["id"], "last_id": card["id"]}
    return _json(listing)


async def get_model(request: Request) -> Response:
    model = request.app.state.server.require_model()
    check_model(request.path_params["model_id"], model)
    return _json(_card(model))


async def health(request: Request) -> Response:
    """200 when requests are answered, 503 while loading or stopping, 500 when only a restart helps."""
    state: ServerState = request.app.state.server
    try:
        model = state.require_model()
    except ApiError as error:
        if error.status == 500:
            return _json({"status": "error", "message": error.message}, 500)
        if state.stopping:
            return _json({"status": "stopping"}, 503)
        progress = state.progress
        amounts = {"done_bytes": progress.done_bytes, "total_bytes": progress.total_bytes}
        body = {"status": "loading", "phase": progress.phase, "progress": amounts, "model": state.display_name}
        return _json(body, 503)
    uptime = round(time.monotonic() - state.started, 3)
    stats = model.engine.stats()
    engine = {"device": model.device, **{name: stats[name] for name in _HEALTH_STATS if name in stats}}
    return _json({"status": "ok", "model": model.name, "uptime_s": uptime, "version": state.version, "engine": engine})
