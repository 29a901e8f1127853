"""A request's body: read within a limit, parsed, screened by the field table, validated."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request

from freetoken.nesting import MAX_DEPTH, is_shallow
from freetoken.server import fields
from freetoken.server.errors import ApiError, bad_request
from freetoken.server.schema import Fields, validate
from freetoken.server.state import ServedModel


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    if request.headers.get("content-encoding", "identity") != "identity":
        raise ApiError(415, "compressed request bodies are not taken; send the JSON as it is")
    too_large = ApiError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise too_large
        parts.append(part)
    try:
        value = orjson.loads(b"".join(parts))
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise bad_request("the body must be a JSON object", code="invalid_json")
    if not is_shallow(value):
        raise bad_request(f"the body is nested deeper than {MAX_DEPTH}", code="invalid_json")
    return value


def parse(endpoint: str, body: dict[str, Any], schema: type[Fields], model: ServedModel) -> Fields:
    values = validate(schema, fields.screen(endpoint, body))
    check_model(values.model, model)
    return values


def check_model(name: str, model: ServedModel) -> None:
    if name != model.name and name not in model.aliases:
        message = f"the model {name!r:.200} does not exist; this server has {model.name!r}"
        raise ApiError(404, message, "model", "model_not_found")
