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
    return "" if device == "cpu" else built("freetoken_ref")


def emulated_cuda() -> str:
    """The engine option device_library for the CUDA backend on the emulator (tests/cuda), of the C++ tests."""
    return built("freetoken_cuda_emu")


def built(target: str) -> str:
    path: Path = gtest.build_dir() / "tests" / f"lib{target}.so"
    if not path.exists():
        raise RuntimeError(f"{path} is missing: run tests/run --setup, or build the target {target}")
    return str(path)
