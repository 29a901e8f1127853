"""Streamed answers: frames go to the socket from within the callback that brings the events.

A task for each stream would wake, pass through the middlewares and sleep again for every token. That was more work than
making the frame, and what the last of 32 streams waits for is the work for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from freetoken.engine.async_engine import RequestGroup
from freetoken.server.errors import ApiError
from freetoken.server.generation import Delta, take_deltas, until_disconnect
from freetoken.server.sse import DONE_FRAME, KEEP_ALIVE_FRAME, data_frame

RAW_SEND = "freetoken.send"  # in the scope: the server's own `send`, below all middlewares
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class StreamedAnswer(Protocol):
    """Makes the frames of one answer; each method gives the bytes of any number of frames."""

    def opening(self) -> bytes: ...
    def of_delta(self, delta: Delta) -> bytes: ...
    def closing(self) -> bytes: ...


class StreamResponse(Response):
    """Sends the headers at once, then each step's frames as they come. The group is cancelled however it ends."""

    def __init__(self, group: RequestGroup, answer: StreamedAnswer, keep_alive_s: float) -> None:
        super().__init__(None, 200, _HEADERS, "text/event-stream")
        del self.headers["content-length"]
        self._group = group
        self._answer = answer
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.ensure_future(until_disconnect(receive))
        pump = _Pump(self._group, self._answer, scope.get(RAW_SEND, send), self._keep_alive_s)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            pump.start()
            await asyncio.wait({pump.ended, watcher}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pump.close()
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            self._group.cancel()
        if pump.ended.cancelled():  # the client left
            return
        if (error := pump.ended.exception()) is None:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif not isinstance(error, OSError):  # it left while we wrote
            raise error


class _Pump:
    """Writes what a group's events make. `ended` is done when all is written, or holds the error of writing."""

    def __init__(self, group: RequestGroup, answer: StreamedAnswer, send: Send, keep_alive_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._group = group
        self._answer = answer
        self._send = send
        self._keep_alive_s = keep_alive_s
        self._last = False  # the answer's last frame was made
        self._blocked: asyncio.Future[None] | None = None  # a write that waits for the client to read
        self._wrote_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        self._timer = self._loop.call_later(self._keep_alive_s, self._on_silence)
        self._group.listen(self._on_events)
        self._write(self._answer.opening())
        self._on_events()

    def close(self) -> None:
        """Writes no more; an `ended` that is not done is cancelled."""
        self._group.listen(None)
        if self._timer is not None:
            self._timer.cancel()
        if self._blocked is not None:
            self._blocked.cancel()
        self.ended.cancel()

    def _on_events(self) -> None:
        if self._blocked is not None or self._last:
            return
        try:
            self._write(self._take())
        except Exception as error:
            self._fail(error)
        if self._last and self._blocked is None and not self.ended.done():
            self.ended.set_result(None)

    def _take(self) -> bytes:
        """The frames of all that has come."""
        frames = []
        try:
            frames += [self._answer.of_delta(delta) for delta in take_deltas(self._group)]
            if self._group.finished:
                self._last = True
                frames += [self._answer.closing(), DONE_FRAME]
        except ApiError as error:
            self._last = True
            frames += [data_frame(error.body()), DONE_FRAME]
        return b"".join(frames)

    def _write(self, body: bytes) -> None:
        """At once where the server takes it, else by a task that goes on when the client has read."""
        if not body:
            return
        self._wrote_at = self._loop.time()
        sending = self._send({"type": "http.response.body", "body": body, "more_body": True})
        try:
            waits_for = sending.send(None)  # type: ignore[attr-defined]
        except StopIteration:
            return
        self._blocked = asyncio.ensure_future(_finish(sending, waits_for))  # type: ignore[arg-type]
        self._blocked.add_done_callback(self._on_written)

    def _on_written(self, blocked: asyncio.Future[None]) -> None:
        self._blocked = None
        if blocked.cancelled():
            return
        if error := blocked.exception():
            self._fail(error)
        elif self._last:
            if not self.ended.done():
                self.ended.set_result(None)
        else:
            self._on_events()

    def _on_silence(self) -> None:
        silence_s = self._loop.time() - self._wrote_at
        if silence_s >= self._keep_alive_s and self._blocked is None and not self._last:
            try:
                self._write(KEEP_ALIVE_FRAME)
            except Exception as error:
                return self._fail(error)
            silence_s = 0.0
        self._timer = self._loop.call_later(max(self._keep_alive_s - silence_s, 0.001), self._on_silence)

    def _fail(self, error: BaseException) -> None:
        self._last = True
        if not self.ended.done():
            self.ended.set_exception(error)


class _Rest:
    """Awaits what is left of a coroutine that was begun by hand and waits for `waits_for`."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, None, None]:
        try:
            while True:
                yield self._waits_for
                try:
                    self._waits_for = self._coroutine.send(None)
                except StopIteration:
                    return
        finally:
            self._coroutine.close()


async def _finish(coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await _Rest(coroutine, waits_for)
