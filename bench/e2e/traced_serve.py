"""`ft serve` that notes when each token was sampled: python bench/e2e/traced_serve.py TRACE serve --model ...

At the end TRACE (JSON) holds: `requests`, for each the first prompt token and [number of tokens, time] of each event, with
times of the monotonic clock; `socket_s`, for each frame of a stream the seconds from the sampling of its (first) token
until its bytes were handed to the socket.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import sys
import time
from pathlib import Path
from typing import Any

from freetoken.cli import main
from freetoken.engine import async_engine
from freetoken.server import sse


class TracedCore:
    def __init__(self, core: Any, requests: dict[int, dict[str, Any]]) -> None:
        self._core = core
        self._requests = requests

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def submit(self, **request: Any) -> int:
        request_id = self._core.submit(**request)
        self._requests[request_id] = {"first": request["prompt"][0], "events": []}
        return request_id

    def poll(self) -> list[Any]:
        events = self._core.poll()
        for event in events:
            if event.tokens:
                self._requests[event.request]["events"].append((len(event.tokens), event.time_us / 1e6))
        return events


def trace_sockets(delays_s: list[float]) -> None:
    """A response's frames are made in the task that writes them, so the task says which events a frame is about."""
    sampled_us: dict[Any, int] = {}
    plain_next, plain_write = async_engine.RequestGroup.next, sse.SseResponse._write

    async def traced_next(self: Any, timeout_s: float | None = None) -> Any:
        events = await plain_next(self, timeout_s)
        times = [event.time_us for _, event in events if event.tokens]
        if times:
            sampled_us[asyncio.current_task()] = min(times)
        return events

    async def traced_write(self: Any, send: Any) -> None:
        async def traced_send(message: Any) -> None:
            await send(message)
            if (then_us := sampled_us.pop(asyncio.current_task(), None)) is not None:
                delays_s.append(time.monotonic() - then_us / 1e6)

        await plain_write(self, traced_send)

    async_engine.RequestGroup.next = traced_next  # type: ignore[method-assign]
    sse.SseResponse._write = traced_write  # type: ignore[method-assign]


if __name__ == "__main__":
    trace = Path(sys.argv.pop(1))
    requests: dict[int, dict[str, Any]] = {}
    delays_s: list[float] = []
    trace_sockets(delays_s)
    plain = async_engine.AsyncEngine.__init__

    def traced(self: Any, core: Any) -> None:
        plain(self, TracedCore(core, requests))

    async_engine.AsyncEngine.__init__ = traced  # type: ignore[method-assign]
    atexit.register(lambda: trace.write_text(json.dumps({"requests": list(requests.values()), "socket_s": delays_s})))
    main()
