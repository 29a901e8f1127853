"""Server-sent events: their bytes."""

from __future__ import annotations

from typing import Any

import orjson

KEEP_ALIVE_FRAME = b": keep-alive\n\n"
DONE_FRAME = b"data: [DONE]\n\n"


def data_frame(payload: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"
