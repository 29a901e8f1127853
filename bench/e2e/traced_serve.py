"""`ft serve` that notes when each token was sampled: python bench/e2e/traced_serve.py TRACE serve --model ...

At the end TRACE (JSON) holds per request the first prompt token and [number of tokens, time] of each event, with times
of the monotonic clock: of the engine (`sampled`), or, where events have none, of the server taking it (`taken`).
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
        taken = time.monotonic()
        for event in events:
            if event.tokens:
                time_us = getattr(event, "time_us", 0)
                self._requests[event.request]["events"].append((len(event.tokens), time_us / 1e6 if time_us else taken))
                self._requests[event.request]["clock"] = "sampled" if time_us else "taken"
        return events


if __name__ == "__main__":
    trace = Path(sys.argv.pop(1))
    requests: dict[int, dict[str, Any]] = {}
    plain = async_engine.AsyncEngine.__init__

    def traced(self: Any, core: Any) -> None:
        plain(self, TracedCore(core, requests))

    async_engine.AsyncEngine.__init__ = traced  # type: ignore[method-assign]
    atexit.register(lambda: trace.write_text(json.dumps(list(requests.values()))))
    main()
