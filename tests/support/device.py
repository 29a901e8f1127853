"""The devices that tests run the engine on, and the choice of one by FREETOKEN_TEST_DEVICE=cpu|ref."""

from __future__ import annotations

import os
from pathlib import Path

from support import gtest

DEVICES = ("cpu", "ref")


def chosen() -> str:
    """What FREETOKEN_TEST_DEVICE says; the CPU where it says nothing."""
    name = os.environ.get("FREETOKEN_TEST_DEVICE") or "cpu"
    if name not in DEVICES:
        raise ValueError(f"FREETOKEN_TEST_DEVICE={name}: known are {', '.join(DEVICES)}")
    return name


def library(device: str | None = None) -> str:
    """The engine option device_library for a device (the chosen one): empty for the CPU.

    RefOps (tests/ref_ops) is built with the C++ tests.
    """
    device = device or chosen()
    if device == "cpu":
        return ""
    path: Path = gtest.build_dir() / "tests" / "libfreetoken_ref.so"
    if not path.exists():
        raise RuntimeError(f"{path} is missing: run tests/run --setup, or build the target freetoken_ref")
    return str(path)
