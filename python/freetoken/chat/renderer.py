"""Renders a chat template in the worker process, with a deadline; restarts the worker after it had to be killed."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from freetoken.chat.framing import HEADER, write_message

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_MEMORY_BYTES = 1 << 30
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")  # all the worker gets: no keys
_START_DEADLINE_S = 30.0  # measured 0.12 s idle; a machine busy loading weights may need much more


class TemplateFault(Exception):
    """The template did not produce a prompt. `kind`: rule, template, limit or deadline (see worker.py)."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class _WorkerDied(TemplateFault):
    pass


class TemplateRenderer:
    """One worker, one render at a time; safe to call from any thread. `deadline_s` bounds one render."""

    def __init__(self, template: str, deadline_s: float = 5.0) -> None:
        self._template = template
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def check(self) -> None:
        """Starts the worker and compiles the template. TemplateFault if it does not compile."""
        with self._lock:
            self._ensure_started()

    def render(self, context: dict[str, Any]) -> str:
        """The prompt text for these template variables. TemplateFault when the template fails or takes too long."""
        with self._lock:
            # A worker killed from outside, perhaps long ago, is no fault of this conversation; what kills it kills two.
            for last in (False, True):
                try:
                    answer = self._exchange(self._ensure_started(), context, self._deadline_s)
                    break
                except _WorkerDied:
                    if last:
                        raise
        if "error" in answer:
            raise TemplateFault(answer["error"], answer["kind"])
        return answer["text"]

    def close(self) -> None:
        if (process := self._process) is not None:
            process.kill()  # outside the lock: ends a render that is under way instead of waiting for it
        with self._lock:
            self._stop()

    def _ensure_started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        # The worker sees the modules of this process and nothing of the working directory or the environment.
        paths = [_PACKAGE_ROOT, *(path for path in sys.path if path)]
        program = f"import sys; sys.path[:] = {paths!r}; from freetoken.chat.worker import main; main()"
        command = [sys.executable, "-I", "-c", program]
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        start = {"template": self._template, "memory_bytes": _MEMORY_BYTES}
        answer = self._exchange(self._process, start, _START_DEADLINE_S)
        if "error" in answer:
            self._stop()
            raise TemplateFault(answer["error"], answer["kind"])
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # what was not written yet cannot be any more
                        pipe.close()
            self._process = None

    def _exchange(self, process: subprocess.Popen[bytes], message: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        assert process.stdin is not None and process.stdout is not None
        try:
            write_message(process.stdin, message)  # the worker is reading whenever it is not rendering
            until = time.monotonic() + deadline_s
            size = HEADER.unpack(_read_exactly(process.stdout.fileno(), HEADER.size, until))[0]
            return json.loads(_read_exactly(process.stdout.fileno(), size, until))
        except TimeoutError:
            self._stop()
            raise TemplateFault(f"the template took longer than {deadline_s:g} s", "deadline") from None
        except (BrokenPipeError, EOFError):
            self._stop()
            raise _WorkerDied("the template worker died, probably out of memory", "limit") from None


def _read_exactly(descriptor: int, size_bytes: int, until: float) -> bytes:
    """`size_bytes` from a pipe, before the monotonic time `until`. TimeoutError, or EOFError when the pipe closes."""
    parts: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while size_bytes:
            if not selector.select(max(0.0, until - time.monotonic())):
                raise TimeoutError
            part = os.read(descriptor, min(size_bytes, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            size_bytes -= len(part)
    return b"".join(parts)
