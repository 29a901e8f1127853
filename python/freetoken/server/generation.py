"""Events of a request group -> deltas; the same deltas make the streamed and the whole answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from freetoken.engine.async_engine import CoreEvent, EngineDead, QueueFull, RequestGroup
from freetoken.server.errors import ApiError, bad_request, timed_out
from freetoken.server.state import ServedModel

LOWEST_LOGPROB = -9999.0  # stands for minus infinity, which JSON does not have


@dataclass
class Delta:
    """What one choice of the group (`index`) gained."""

    index: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    prompt_logprobs: list[Any] = field(default_factory=list)
    finish: str | None = None  # stop | length
    cached_tokens: int = 0  # of the prompt
    completion_tokens: int = 0

    def add(self, event: CoreEvent) -> None:
        if event.finish == "error":
            raise ApiError(500, f"the engine could not go on: {event.error}", code="engine_error")
        if event.finish == "cancelled":
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        if event.finish == "timeout":
            raise timed_out(event.error or "the request took longer than its timeout")
        self.text += event.text
        self.tokens += event.tokens
        self.logprobs += event.logprobs or []
        self.prompt_logprobs += event.prompt_logprobs or []
        self.finish = event.finish
        self.cached_tokens = event.cached_tokens
        self.completion_tokens = event.completion_tokens


class Usage:
    """Counts over the choices of a group: prompts and what was cached of them once, answers all."""

    def __init__(self, prompt_tokens: list[int], n: int) -> None:
        """Of each prompt, which has `n` choices in a row."""
        self._prompt_tokens = sum(prompt_tokens)
        self._n = n
        self._cached_tokens = [0] * len(prompt_tokens)
        self._completion_tokens = [0] * (len(prompt_tokens) * n)

    def add(self, delta: Delta) -> None:
        self._completion_tokens[delta.index] = delta.completion_tokens
        if delta.index % self._n == 0:  # the choice that computed the prompt; the others start from its state
            self._cached_tokens[delta.index // self._n] = delta.cached_tokens

    def body(self) -> dict[str, Any]:
        completion_tokens = sum(self._completion_tokens)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self._prompt_tokens + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached_tokens)},
        }


def submit(model: ServedModel, requests: list[dict[str, Any]]) -> RequestGroup:
    """Queues the requests together. ApiError when one is refused; then none stays."""
    choices, places = sum(request["n"] for request in requests), model.max_queued_requests
    if choices > places:  # 429 would have the client try again for ever
        raise bad_request(
            f"{choices} choices, but only {places} can wait at once; send them in several requests, or start the "
            "server with a larger --max-queued-requests"
        )
    group = model.engine.group()
    try:
        for request in requests:
            group.submit(request)
    except QueueFull as error:
        group.cancel()
        headers = {"retry-after": str(error.retry_after_s)}
        raise ApiError(429, str(error), code="queue_full", headers=headers) from None
    except EngineDead as error:
        group.cancel()
        raise ApiError(503, f"the engine takes no more requests: {error}", code="engine_dead") from None
    except ValueError as error:
        group.cancel()
        raise bad_request(str(error)) from None
    except RuntimeError as error:
        group.cancel()
        status = 400 if type(error).__name__ in ("ConfigError", "UnsupportedError") else 500
        raise ApiError(status, str(error), code="engine_refused") from None
    return group


def _merged(events: list[tuple[int, CoreEvent]]) -> list[Delta]:
    """One per choice. ApiError where an event says that the answer cannot go on."""
    merged: dict[int, Delta] = {}
    for index, event in events:
        merged.setdefault(index, Delta(index)).add(event)
    return list(merged.values())


def _stopped(error: EngineDead) -> ApiError:
    return ApiError(503, f"the engine stopped: {error}", code="engine_dead")


def take_deltas(group: RequestGroup) -> list[Delta]:
    """What has come since the last call."""
    try:
        return _merged(group.take())
    except EngineDead as error:
        raise _stopped(error) from None


async def deltas(group: RequestGroup) -> AsyncIterator[Delta]:
    """Deltas until all choices have finished."""
    while not group.finished:
        try:
            events = await group.next()
        except EngineDead as error:
            raise _stopped(error) from None
        for delta in _merged(events):
            yield delta


async def until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


Result = TypeVar("Result")


async def while_connected(request: Request, group: RequestGroup, work: Awaitable[Result]) -> Result | None:
    """The result of `work`, or None when the client goes away first. The group is cancelled however this ends."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(until_disconnect(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)
        group.cancel()


def json_logprob(logprob: float) -> float | None:
    return None if math.isnan(logprob) else max(logprob, LOWEST_LOGPROB)
