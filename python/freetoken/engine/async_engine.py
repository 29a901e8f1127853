"""AsyncEngine: the core's engine on an asyncio loop, woken once per step through an eventfd.

No thread waits for a request: the core writes the eventfd at the end of each step, the loop drains all events of all
requests at once and hands each to its group. Everything but `load` runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from typing import Any, Protocol

DEATH_CHECK_S = 1.0


class CoreEvent(Protocol):
    """What the core reports of one request in one step; see include/freetoken/request.h."""

    request: int
    tokens: list[int]
    text: str
    logprobs: list[tuple[int, float, list[tuple[int, float]]]]
    prompt_logprobs: list[tuple[int, float, list[tuple[int, float]]]]
    finish: str | None
    stop_match: str
    error: str
    prompt_tokens: int
    completion_tokens: int


class CoreEngine(Protocol):
    """The methods of the compiled engine that are used here."""

    def submit(self, **request: Any) -> int: ...
    def cancel(self, request_id: int) -> None: ...
    def poll(self) -> list[CoreEvent]: ...
    def event_fd(self) -> int: ...
    def stats(self) -> dict[str, Any]: ...
    def health(self) -> str | None: ...
    def shutdown(self) -> None: ...


class EngineDead(RuntimeError):
    """The engine stopped working; the process has to be restarted."""


class QueueFull(RuntimeError):
    """As many requests run and wait as are allowed."""


class AsyncEngine:
    def __init__(self, core: CoreEngine, max_requests: int = 1024) -> None:
        self._core = core
        self._max_requests = max_requests
        self._groups: dict[int, tuple[RequestGroup, int]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = self._closed = False
        self.death: str | None = None  # why the engine died; None while it lives
        self.died = asyncio.Event()

    def start(self) -> None:
        """Starts listening, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._core.event_fd(), self._on_step)
        self._check_alive()

    def group(self) -> RequestGroup:
        return RequestGroup(self)

    @property
    def active(self) -> int:
        """Requests that have not ended."""
        return len(self._groups)

    def stats(self) -> dict[str, Any]:
        return self._core.stats()

    def stop(self) -> None:
        """Takes no more requests and cancels those that run; `close` comes after their last events."""
        self._stopping = True
        for request_id in list(self._groups):
            self._core.cancel(request_id)

    def close(self) -> None:
        """Stops listening and shuts the core down; requests still open end as cancelled. Idempotent."""
        if self._closed:
            return
        self._stopping = self._closed = True
        if self._loop is not None:
            self._loop.remove_reader(self._core.event_fd())
        if self._timer is not None:
            self._timer.cancel()
        self._core.shutdown()
        self._dispatch(self._core.poll())
        for group, index in list(self._groups.values()):
            group._abandon(index)
        self._groups.clear()

    def _submit(self, group: RequestGroup, index: int, request: dict[str, Any]) -> int:
        if self._stopping or self.death is not None:
            raise EngineDead(self.death or "the server is shutting down")
        if len(self._groups) >= self._max_requests:
            raise QueueFull(f"{len(self._groups)} requests are running or waiting, the most this server takes")
        request_id = self._core.submit(**request)
        self._groups[request_id] = (group, index)
        return request_id

    def _cancel(self, request_id: int) -> None:
        if request_id in self._groups:
            self._core.cancel(request_id)

    def _on_step(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._core.event_fd(), 8)  # readable, so it does not block; resets the counter before the drain
        self._dispatch(self._core.poll())
        if self._core.health() is not None:
            self._check_alive()

    def _dispatch(self, events: list[CoreEvent]) -> None:
        for event in events:
            entry = self._groups.get(event.request)
            if entry is None:
                continue
            if event.finish is not None:
                del self._groups[event.request]
            entry[0]._deliver(entry[1], event)

    def _check_alive(self) -> None:
        if self._closed or self.death is not None:
            return
        reason = self._core.health()
        if reason is None:
            assert self._loop is not None
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(DEATH_CHECK_S, self._check_alive)
            return
        self.death = reason
        self._dispatch(self._core.poll())
        for group, index in list(self._groups.values()):
            group._abandon(index)
        self._groups.clear()
        self.died.set()


class RequestGroup:
    """One or more engine requests that are answered together. Events come as (index of the request, event)."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._ids: list[int] = []
        self._ended: set[int] = set()
        self._lost = False
        self._events: deque[tuple[int, CoreEvent]] = deque()
        self._wake = asyncio.Event()

    def submit(self, request: dict[str, Any]) -> int:
        """Queues a request (the fields of Request by name) and returns its index, counted from 0."""
        index = len(self._ids)
        self._ids.append(self._engine._submit(self, index, request))
        return index

    @property
    def finished(self) -> bool:
        """All requests have come to their own end and all their events were taken; never after the engine died."""
        return len(self._ended) == len(self._ids) and not self._events and not self._lost

    async def next(self, timeout_s: float | None = None) -> list[tuple[int, CoreEvent]]:
        """All events that have come since the last call, waiting for one. Empty after `timeout_s` of silence.

        EngineDead when the engine died or was shut down under a request.
        """
        if not self._events and not self._lost and not self.finished:
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), timeout_s)
            except asyncio.TimeoutError:
                return []
        if self._events:
            events = list(self._events)
            self._events.clear()
            return events
        if self._lost:
            raise EngineDead(self._engine.death or "the server is shutting down")
        return []

    def cancel(self) -> None:
        """Ends what has not ended. Harmless afterwards."""
        for index, request_id in enumerate(self._ids):
            if index not in self._ended:
                self._engine._cancel(request_id)

    def _deliver(self, index: int, event: CoreEvent) -> None:
        if event.finish is not None:
            self._ended.add(index)
        self._events.append((index, event))
        self._wake.set()

    def _abandon(self, index: int) -> None:
        self._ended.add(index)
        self._lost = True
        self._wake.set()
