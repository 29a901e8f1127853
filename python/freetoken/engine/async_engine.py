"""AsyncEngine: the core's engine on an asyncio loop, woken once per step through an eventfd.

No thread waits for a request: the core writes the eventfd at the end of each step, the loop drains all events of all
requests at once and hands each to its group. Everything but `load` runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

DEATH_CHECK_S = 1.0
_RATE_REQUESTS = 32  # how many ends of requests the estimate of the waiting time looks back on
_MAX_RETRY_AFTER_S = 60


class CoreEvent(Protocol):
    """What the core reports of one choice of one request in one step; see include/freetoken/request.h."""

    request: int
    choice: int
    tokens: list[int]
    text: str
    logprobs: list[tuple[int, float, list[tuple[int, float]]]]
    prompt_logprobs: list[tuple[int, float, list[tuple[int, float]]]]
    finish: str | None
    stop_match: str
    error: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class CoreEngine(Protocol):
    """The methods of the compiled engine that are used here."""

    def submit(self, **request: Any) -> int: ...
    def cancel(self, request_id: int) -> None: ...
    def poll(self) -> list[CoreEvent]: ...
    def delivered(self) -> None: ...
    def event_fd(self) -> int: ...
    def stats(self) -> dict[str, Any]: ...
    def health(self) -> str | None: ...
    def shutdown(self) -> None: ...


class EngineDead(RuntimeError):
    """The engine stopped working; the process has to be restarted."""


class QueueFull(RuntimeError):
    """As many requests wait as the engine lets wait. `retry_after_s`: when a place is likely to be free."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass
class _Open:
    """A request that has not ended: its choices count from `first` in the group."""

    group: RequestGroup
    first: int
    choices: set[int] = field(default_factory=set)  # that go on


class AsyncEngine:
    def __init__(self, core: CoreEngine) -> None:
        self._core = core
        self._open: dict[int, _Open] = {}
        self._ends: deque[float] = deque(maxlen=_RATE_REQUESTS)  # when the last requests ended
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
        return len(self._open)

    def stats(self) -> dict[str, Any]:
        return self._core.stats()

    def stop(self) -> None:
        """Takes no more requests and cancels those that run; `close` comes after their last events."""
        self._stopping = True
        for request_id in list(self._open):
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
        self._abandon_all()

    def _submit(self, group: RequestGroup, first: int, request: dict[str, Any]) -> int:
        if self._stopping or self.death is not None:
            raise EngineDead(self.death or "the server is shutting down")
        try:
            request_id = self._core.submit(**request)
        except RuntimeError as error:
            if type(error).__name__ != "ResourceError":  # of the core, which may be a fake
                raise
            raise QueueFull(str(error), self._retry_after_s()) from None
        self._open[request_id] = _Open(group, first, set(range(request["n"])))
        return request_id

    def _retry_after_s(self) -> int:
        """About as long as a request takes to make room, by how fast the last ones ended."""
        if not self._ends:
            return 1
        each_s = (time.monotonic() - self._ends[0]) / len(self._ends)
        return min(max(math.ceil(each_s), 1), _MAX_RETRY_AFTER_S)

    def _cancel(self, request_id: int) -> None:
        if request_id in self._open:
            self._core.cancel(request_id)

    def _on_step(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._core.event_fd(), 8)  # readable, so it does not block; resets the counter before the drain
        self._dispatch(self._core.poll())
        self._core.delivered()
        if self._core.health() is not None:
            self._check_alive()

    def _dispatch(self, events: list[CoreEvent]) -> None:
        for event in events:
            entry = self._open.get(event.request)
            if entry is None:
                continue
            if event.finish is not None:
                entry.choices.discard(event.choice)
                if not entry.choices:
                    del self._open[event.request]
                    self._ends.append(time.monotonic())
            entry.group._deliver(entry.first + event.choice, event)

    def _abandon_all(self) -> None:
        for entry in self._open.values():
            entry.group._abandon()
        self._open.clear()

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
        self._abandon_all()
        self.died.set()


class RequestGroup:
    """One or more engine requests that are answered together. Events come as (number of the choice, event).

    Choices are numbered over the group: those of the first request, then those of the second.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._ids: list[int] = []
        self._choices = 0
        self._ended: set[int] = set()
        self._lost = False
        self._events: deque[tuple[int, CoreEvent]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._listener: Callable[[], None] | None = None

    def submit(self, request: dict[str, Any]) -> int:
        """Queues a request (the fields of Request by name, `n` among them) and returns its first choice's number.

        EngineDead when there will be no more answers, QueueFull, or what the core says of the request.
        """
        first = self._choices
        self._ids.append(self._engine._submit(self, first, request))
        self._choices += request["n"]
        return first

    @property
    def finished(self) -> bool:
        """All choices have come to their own end and all their events were taken; never after the engine died."""
        return len(self._ended) == self._choices and not self._events and not self._lost

    async def next(self) -> list[tuple[int, CoreEvent]]:
        """All events that have come since the last call, waiting for one; none when all choices have ended.

        One caller at a time. EngineDead when the engine died or was shut down under a request.
        """
        if not self._events and not self._lost and not self.finished:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.take()

    def take(self) -> list[tuple[int, CoreEvent]]:
        """All events that have come since the last call. EngineDead when there are none and there will be none."""
        if self._events:
            events = list(self._events)
            self._events.clear()
            return events
        if self._lost:
            raise EngineDead(self._engine.death or "the server is shutting down")
        return []

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Calls `listener` at each event and when the engine died, from within the callback that brings them.

        For streams: to wake a task for every frame was a third of the work on the loop.
        """
        self._listener = listener

    def cancel(self) -> None:
        """Ends what has not ended. Harmless afterwards."""
        for request_id in self._ids:
            self._engine._cancel(request_id)

    def _deliver(self, choice: int, event: CoreEvent) -> None:
        if event.finish is not None:
            self._ended.add(choice)
        self._events.append((choice, event))
        self._wake()

    def _abandon(self) -> None:
        self._lost = True
        self._wake()

    def _wake(self) -> None:
        if self._listener is not None:
            self._listener()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
