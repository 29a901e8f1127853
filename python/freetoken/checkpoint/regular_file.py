"""Opens files of checkpoints: only regular ones, so that a FIFO or a device in their place cannot hang the loading."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO


def open_regular(path: str) -> BinaryIO:
    """The file at `path` for reading. OSError also when it is something else than a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a FIFO would wait for a writer
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(f"it is a {_kind(mode)}, not a file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "directory"), (stat.S_ISFIFO, "FIFO"), (stat.S_ISCHR, "device"), (stat.S_ISBLK, "device"))
    return next((name for test, name in kinds if test(mode)), "special file")
