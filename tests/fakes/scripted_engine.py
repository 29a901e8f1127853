"""An engine that plays scripted tokens: the methods of the compiled one, and its rules for text, stops and limits.

A script is a function of the request (its fields by name, and `choice`) that returns the tokens to "sample", one per
step; tokens that a logit_bias of -100 bans and ends before min_tokens are passed over. Bytes that do not yet make a
character are held back, an invalid byte becomes U+FFFD at once, a possible start of a stop string is withheld, and EOS
and control tokens add no text.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Event:
    request: int
    choice: int = 0
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[Any] = field(default_factory=list)
    prompt_logprobs: list[Any] = field(default_factory=list)
    logits: Any = None
    finish: str | None = None
    stop_match: str = ""
    error: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class ResourceError(RuntimeError):
    """By its name, the core's."""


class TextMachine:
    """Bytes of tokens -> text that may be shown, by the simplest means: decode all so far, withhold the open tail."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [s for s in stops if s]
        self._bytes = b""
        self._shown = 0

    def _whole(self, final: bool) -> str:
        if not final:
            for keep in range(3, 0, -1):  # an unfinished character is at most 3 bytes long
                tail = self._bytes[-keep:]
                if len(tail) == keep and self._is_open(tail):
                    return self._bytes[:-keep].decode(errors="replace")
        return self._bytes.decode(errors="replace")

    @staticmethod
    def _is_open(tail: bytes) -> bool:
        try:
            tail.decode()
        except UnicodeDecodeError as error:
            return error.reason == "unexpected end of data" and error.start == 0
        return False

    def add(self, data: bytes, final: bool) -> tuple[str, str]:
        """(text to show now, the stop string that matched or "")."""
        self._bytes += data
        text = self._whole(final)
        found = [(text.find(s, max(0, self._shown)), s) for s in self._stops]
        found = sorted((at, -len(s), s) for at, s in found if at >= 0)
        if found:
            at, _, stop = found[0]
            shown, self._shown = text[self._shown : at], at
            return shown, stop
        end = len(text)
        if not final:
            for stop in self._stops:
                for size in range(min(len(stop) - 1, len(text)), 0, -1):
                    if text.endswith(stop[:size]):
                        end = min(end, len(text) - size)
                        break
        shown, self._shown = text[self._shown : max(end, self._shown)], max(end, self._shown)
        return shown, ""


@dataclass
class _Running:
    """One choice of a request."""

    request_id: int
    choice: int
    request: dict[str, Any]
    tokens: list[int]
    machine: TextMachine
    deadline: float  # of time.monotonic(); infinity = none
    made: int = 0
    passed: int = 0  # of `tokens`
    cancelled: bool = False

    @property
    def overdue(self) -> bool:
        return time.monotonic() >= self.deadline


class ScriptedEngine:
    """`hold` stops all progress while set; `step_s` is the least time of a step; `kill(reason)` ends the engine.

    More than `max_requests` choices at once are refused. Every prompt is cached but for its end: `cached_tokens`.
    """

    def __init__(
        self,
        vocabulary: tuple[list[bytes], list[int]],
        eos_token_ids: list[int],
        script: Callable[[dict[str, Any]], list[int]],
        step_s: float = 0.0,
        max_requests: int = 1 << 30,
        cached_tokens: int = 0,
    ) -> None:
        self._bytes, self._flags = vocabulary
        self._eos = set(eos_token_ids)
        self._script = script
        self._step_s = step_s
        self._max_requests = max_requests
        self._cached_tokens = cached_tokens
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Condition()
        self._running: list[_Running] = []
        self._events: list[Event] = []
        self._next = 1
        self._dead: str | None = None
        self._closing = False
        self.hold = False
        self.submitted: list[dict[str, Any]] = []
        self.cancelled: list[int] = []
        self._thread = threading.Thread(target=self._run, name="scripted-engine", daemon=True)
        self._thread.start()

    def submit(self, **request: Any) -> int:
        with self._lock:
            if self._dead or self._closing:
                raise RuntimeError(self._dead or "shut down")
            if len(self._running) + request["n"] > self._max_requests:
                raise ResourceError(f"the queue is full: {len(self._running)} of {self._max_requests} places are taken")
            self.submitted.append(request)
            request_id, self._next = self._next, self._next + 1
            timeout_s = request["timeout_us"] / 1e6 or float("inf")
            for choice in range(request["n"]):
                script = self._script({**request, "choice": choice})
                machine = TextMachine(request["stop"])
                deadline = time.monotonic() + timeout_s
                self._running.append(_Running(request_id, choice, request, script, machine, deadline))
            self._lock.notify()
            return request_id

    def cancel(self, request_id: int) -> None:
        with self._lock:
            self.cancelled.append(request_id)
            for running in self._running:
                running.cancelled |= running.request_id == request_id
            self._lock.notify()

    def poll(self) -> list[Event]:
        with self._lock:
            events, self._events = self._events, []
            return events

    def delivered(self) -> None:
        pass

    def event_fd(self) -> int:
        return self._fd

    def stats(self) -> dict[str, Any]:
        with self._lock:
            running = len(self._running)
        return {
            "running": running,
            "waiting": 0,
            "threads": 1,
            "device": "cpu",
            "isa": "scripted",
            "batch_invariant": True,
        }

    def health(self) -> str | None:
        return self._dead

    def kill(self, reason: str) -> None:
        with self._lock:
            self._dead = reason
            self._lock.notify()
        os.eventfd_write(self._fd, 1)

    def shutdown(self) -> None:
        with self._lock:
            self._closing = True
            self._lock.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (self._closing or self._dead or self._may_step()):
                    self._lock.wait(0.01 if self.hold else None)
                if self._dead:
                    return
                if self._closing:
                    for running in self._running:
                        running.cancelled = True
                events = [self._step(r) for r in self._running if self._may(r)]
                self._events += events
                ended = {(event.request, event.choice) for event in events if event.finish is not None}
                self._running = [r for r in self._running if (r.request_id, r.choice) not in ended]
                closing = self._closing and not self._running
            if events:
                os.eventfd_write(self._fd, 1)
            if closing:
                return
            if self._step_s:
                time.sleep(self._step_s)

    def _may(self, running: _Running) -> bool:
        return running.cancelled or running.overdue or not self.hold

    def _may_step(self) -> bool:
        return any(self._may(running) for running in self._running)

    def _sample(self, running: _Running) -> int:
        request = running.request
        banned = {token for token, bias in request["logit_bias"] if bias <= -100}
        if running.made < request["min_tokens"]:
            banned |= self._eos | set(request["stop_token_ids"])
        while running.passed < len(running.tokens):
            token = running.tokens[running.passed]
            running.passed += 1
            if token not in banned:
                return token
        return min(self._eos)

    def _step(self, running: _Running) -> Event:
        request = running.request
        event = Event(running.request_id, running.choice, prompt_tokens=len(request["prompt"]))
        event.completion_tokens = running.made
        # The other choices start from the first one's state: to them the whole prompt is there already.
        event.cached_tokens = len(request["prompt"]) if running.choice else self._cached_tokens
        if running.made == 0 and request["prompt_logprobs"] and running.choice == 0:
            event.prompt_logprobs = [
                self._logprob(t, request["logprobs"], i == 0) for i, t in enumerate(request["prompt"])
            ]
        if running.cancelled or running.overdue:
            event.finish = "cancelled" if running.cancelled else "timeout"
            event.text, event.stop_match = running.machine.add(b"", True)
            event.error = "" if running.cancelled else f"not finished within {request['timeout_us'] // 1000} ms"
            return event
        if running.made == request["max_tokens"]:
            event.finish = "length"
            return event
        token = self._sample(running)
        running.made += 1
        event.tokens, event.completion_tokens = [token], running.made
        if request["logprobs"] >= 0:
            event.logprobs = [self._logprob(token, request["logprobs"], False)]
        ended = (token in self._eos and not request["ignore_eos"]) or token in request["stop_token_ids"]
        limit = running.made == request["max_tokens"]
        silent = ended or (self._flags[token] & 1 and not request["emit_special_tokens"])
        event.text, event.stop_match = running.machine.add(b"" if silent else self._bytes[token], ended or limit)
        if event.stop_match or ended:
            event.finish = "stop"
        elif limit:
            event.finish = "length"
        return event

    @staticmethod
    def _logprob(token: int, count: int, first: bool) -> tuple[int, float, list[tuple[int, float]]]:
        """Made-up but fixed: token t has -(t % 7) - 0.5, and the most likely ones are 10, 11, ..."""
        if first:
            return token, float("nan"), []
        return token, -(token % 7) - 0.5, [(10 + i, -0.25 * (i + 1)) for i in range(max(count, 0))]
