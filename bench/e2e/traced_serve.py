"""`ft serve` that notes when each token was sampled: python bench/e2e/traced_serve.py TRACE serve --model ...

At the end TRACE (JSON) holds: `requests`, for each the first prompt token and [number of tokens, time] of each event,
with times of the monotonic clock; `socket_s`, for each write to a stream the seconds from the sampling of its (first)
token until its bytes were handed to the socket.
"""

from __future__ import annotations

import atexit
import json
import sys
import time
from pathlib import Path
from typing import Any

from freetoken.cli import main
from freetoken.engine import async_engine
from freetoken.server import stream


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
    """A write is made of the events that the pump has just taken."""
    sampled_us: dict[Any, int] = {}  # by group
    plain_take, plain_write = async_engine.RequestGroup.take, stream._Pump._write

    def traced_take(self: Any) -> Any:
        events = plain_take(self)
        times = [event.time_us for _, event in events if event.tokens]
        if times:
            sampled_us[self] = min(times)
        return events

    def traced_write(self: Any, body: bytes) -> None:
        plain_write(self, body)
        if (then_us := sampled_us.pop(self._group, None)) is not None:
            delays_s.append(time.monotonic() - then_us / 1e6)

    async_engine.RequestGroup.take = traced_take  # type: ignore[method-assign]
    stream._Pump._write = traced_write  # type: ignore[method-assign]


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
