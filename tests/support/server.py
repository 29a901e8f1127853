"""Runs `ft serve` as a process on a loopback port, the way a user does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from support import device as devices


@dataclass
class Server:
    process: subprocess.Popen
    url: str
    output: str = ""  # all that it printed, once it has ended

    def peak_rss_bytes(self) -> int:
        """The process's peak resident set so far (VmHWM)."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no VmHWM in /proc")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def serve(*arguments: str, device: str | None = None, timeout_s: float = 180) -> Iterator[Server]:
    """`ft serve` with these arguments, ready; ended by SIGTERM, and its exit code must then be 0.

    `device`: one of support.device.DEVICES; the one that FREETOKEN_TEST_DEVICE names where absent.
    """
    port = free_port()
    command = [sys.executable, "-m", "freetoken", "serve", "--port", str(port), "--device", "cpu", *arguments]
    environment = os.environ | {"FREETOKEN_DEVICE_LIBRARY": devices.library(device)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + timeout_s
        while not _ready(url):
            if process.poll() is not None:
                raise RuntimeError(f"ft serve ended with {process.returncode}:\n{process.communicate()[0]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"ft serve was not ready after {timeout_s} s")
            time.sleep(0.1)
        server = Server(process, url)
        yield server
        process.terminate()
        server.output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, server.output
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
