"""How the server and its template worker talk: a 4-byte big-endian length, then that many bytes of JSON."""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

HEADER = struct.Struct(">I")


def write_message(stream: BinaryIO, message: dict[str, Any]) -> None:
    payload = json.dumps(message).encode()
    stream.write(HEADER.pack(len(payload)) + payload)
    stream.flush()


def read_message(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message, None at the end of input."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    return json.loads(stream.read(HEADER.unpack(header)[0]))
