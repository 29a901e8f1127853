"""The cache directory, and files that appear in it whole or not at all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

Progress = Callable[[str, int, int], None]  # what, bytes done, bytes in all


def cache_dir() -> str:
    """$FREETOKEN_CACHE, else $XDG_CACHE_HOME/freetoken, else ~/.cache/freetoken. Not created here."""
    if own := os.environ.get("FREETOKEN_CACHE"):
        return os.path.abspath(own)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(os.path.abspath(base), "freetoken")


@contextmanager
def locked(path: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the lock file at `path`; calls `waiting` once if another process has it. A dead process frees it."""
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def partial_path(path: str) -> str:
    """Where `path` is written before it is complete."""
    return path + ".part"


def publish(path: str) -> None:
    """Gives the completed partial file its name, once its bytes are on the disk."""
    with open(partial_path(path), "rb") as file:
        os.fsync(file.fileno())
    os.replace(partial_path(path), path)


@contextmanager
def whole_file(path: str) -> Iterator[BinaryIO]:
    """A new file that gets the name `path` when the block ends without an exception."""
    with open(partial_path(path), "wb") as file:
        yield file
    publish(path)
