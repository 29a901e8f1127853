"""What `ft serve` shows: the memory plan, a progress bar (lines where there is no terminal), one ready line."""

from __future__ import annotations

import threading
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from freetoken.cli.units import format_size

_QUIET_S = 1.0  # what is done sooner shows no progress
_LINE_EVERY_S = 5.0


class TerminalDisplay:
    def __init__(self, console: Console | None = None, errors: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._errors = errors or Console(stderr=True, highlight=False)
        self._lock = threading.Lock()
        self._phase = ""
        self._began = 0.0
        self._last_line = 0.0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def listening(self, url: str) -> None:
        self._console.print(f"listening on {url}, loading; {url}/health shows how far it is", soft_wrap=True)

    def progress(self, phase: str, done_bytes: int, total_bytes: int) -> None:
        with self._lock:
            now = time.monotonic()
            if phase != self._phase:
                self._end_bar()
                self._phase, self._began, self._last_line = phase, now, now
            if total_bytes <= 0 or now - self._began < _QUIET_S:
                return
            if self._console.is_terminal:
                self._draw(done_bytes, total_bytes)
            elif now - self._last_line >= _LINE_EVERY_S or done_bytes >= total_bytes:
                self._last_line = now
                share = 100 * done_bytes // total_bytes
                self._console.print(f"{phase}: {format_size(done_bytes)} of {format_size(total_bytes)} ({share} %)")

    def plan(self, plan: dict[str, Any]) -> None:
        with self._lock:
            self._end_bar()
        table = Table(title="memory plan", title_justify="left", box=None, pad_edge=False)
        table.add_column("what")
        table.add_column("size", justify="right")
        table.add_column("detail")
        on_gpu = plan["device_available_bytes"] > 0
        for device in [True, False] if on_gpu else [False]:
            for what, size_bytes, detail, on_device in plan["rows"]:
                if on_device == device:
                    table.add_row(what, format_size(size_bytes), detail)
            prefix = "device_" if device else ""
            available = f"of {format_size(plan[prefix + 'available_bytes'])} available"
            what = f"total, {'GPU' if device else 'host'}" if on_gpu else "total"
            table.add_row(what, format_size(plan[prefix + "total_bytes"]), available, style="bold")
        self._console.print(table)

    def ready(self, model: Any, url: str) -> None:
        with self._lock:
            self._end_bar()
        self._console.print(model.settings, soft_wrap=True, markup=False)
        chat = "" if model.prompter is not None else "; no chat template, so only /v1/completions"
        text = f"ready: {model.name} at {url}/v1, {model.max_sequence_tokens} tokens of context{chat}"
        self._console.print(text, soft_wrap=True, markup=False)

    def stopping(self, running: int) -> None:
        with self._lock:
            self._end_bar()
        answers = f", {running} running {'answer is' if running == 1 else 'answers are'} cut short" if running else ""
        self._console.print(f"stopping{answers}")

    def warning(self, message: str) -> None:
        self._errors.print(f"warning: {message}", soft_wrap=True, markup=False)

    def error(self, message: str) -> None:
        with self._lock:
            self._end_bar()
        self._errors.print(f"error: {message}", soft_wrap=True, markup=False)

    def _draw(self, done_bytes: int, total_bytes: int) -> None:
        if self._bar is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                DownloadColumn(binary_units=True),
                TransferSpeedColumn(),
            )
            self._bar = Progress(*columns, console=self._console)
            self._bar.start()
            self._task = self._bar.add_task(self._phase, total=total_bytes)
        assert self._task is not None
        self._bar.update(self._task, completed=done_bytes, total=total_bytes)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
