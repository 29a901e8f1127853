"""The CUDA backend built with nvcc, once for all tests of a run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support import nvcc


@pytest.fixture(scope="session")
def nvcc_build() -> Path:
    folder = os.environ.get("FREETOKEN_NVCC_BUILD", nvcc.ROOT / "build" / "nvcc")
    return nvcc.build(Path(folder), nvcc.CI_ARCHS)


@pytest.fixture(scope="session")
def library(nvcc_build) -> Path:
    return nvcc_build / "cuda" / "libfreetoken_cuda.so"


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory) -> Path:
    """A folder with a libcuda.so.1 for LD_LIBRARY_PATH: tests/fakes/fake_driver.c."""
    folder = tmp_path_factory.mktemp("driver")
    source = nvcc.ROOT / "tests" / "fakes" / "fake_driver.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source], check=True)
    return folder
