"""Build trees of the CUDA backend."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CI_ARCHS = "80-real,90-real,80-virtual"
TARGETS = ("freetoken_cuda", "ft_cuda_kernels", "ft_cuda_tests", "ft_cuda_bench")


def build(folder: Path, archs: str) -> Path:
    """A build tree in build/ with warnings as errors; up to date afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "FREETOKEN_CUDA": "ON",
        "FREETOKEN_BENCH": "ON",
        "FREETOKEN_CUDA_ARCHS": archs,
        "FREETOKEN_WERROR": "ON",
        "Python_EXECUTABLE": sys.executable,
    }
    configure = ["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, *(f"-D{k}={v}" for k, v in options.items())]
    with open(folder / ".build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (configure, ["cmake", "--build", folder, "--target", *TARGETS]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return folder
