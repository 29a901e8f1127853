"""A streamed completion over a bare socket: read times first, parsing after the end, so that measuring costs little."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Arrival:
    """One frame with tokens: when its last byte was read (time.monotonic), and the tokens."""

    at: float
    tokens: list[int]


@dataclass
class Stream:
    """One POST to /v1/completions with `stream`. `run` sends it and reads to the end."""

    host: str
    port: int
    body: dict[str, Any]
    sent: float = 0.0
    first_token: asyncio.Event = field(default_factory=asyncio.Event)
    _reads: list[tuple[float, bytes]] = field(default_factory=list)

    async def run(self) -> None:
        body = json.dumps({**self.body, "stream": True, "return_token_ids": True}).encode()
        fields = ("connection: close", "content-type: application/json", f"content-length: {len(body)}")
        head = "\r\n".join(["POST /v1/completions HTTP/1.1", f"host: {self.host}", *fields, "", ""])
        reader, writer = await asyncio.open_connection(self.host, self.port)
        self.sent = time.monotonic()
        writer.write(head.encode() + body)
        try:
            while data := await reader.read(1 << 16):
                self._reads.append((time.monotonic(), data))
                if not self.first_token.is_set() and b"token_ids" in data:
                    self.first_token.set()
        finally:
            writer.close()

    def arrivals(self, whole: bool = True) -> list[Arrival]:
        """RuntimeError when the answer was an error, or `whole` and it ended early."""
        out = []
        done = False
        for at, frame in self._frames():
            if frame == b"data: [DONE]":
                done = True
            elif frame.startswith(b"data: "):
                payload = json.loads(frame[6:])
                if "error" in payload:
                    raise RuntimeError(payload["error"]["message"])
                tokens = payload["choices"][0].get("token_ids") if payload["choices"] else None
                if tokens:
                    out.append(Arrival(at, tokens))
        if whole and not done:
            raise RuntimeError("the stream ended without [DONE]")
        return out

    def _frames(self) -> Iterator[tuple[float, bytes]]:
        raw = text = b""
        in_head = True
        for at, data in self._reads:
            raw += data
            if in_head:
                head, mark, rest = raw.partition(b"\r\n\r\n")
                if not mark:
                    continue
                if b" 200 " not in head.partition(b"\r\n")[0]:
                    raise RuntimeError((head.partition(b"\r\n")[0] + b" " + rest).decode(errors="replace"))
                raw, in_head = rest, False
            while True:  # chunks of HTTP: size in hex, line end, data, line end
                size_text, mark, rest = raw.partition(b"\r\n")
                if not mark or len(rest) < int(size_text, 16) + 2:
                    break
                size = int(size_text, 16)
                text, raw = text + rest[:size], rest[size + 2 :]
            *whole, text = text.split(b"\n\n")
            for frame in whole:
                yield at, frame
