"""The build backend: scikit-build-core, and with FREETOKEN_CUDA=1 the CUDA compiler too where there is none.

An nvcc that cmake/FindCudaCompiler.cmake would take (CUDACXX, or a new enough one of CUDA_HOME or PATH) is used as it
is; otherwise its wheels are required for the build: 104 MB, all of one minor version, because the wheels do not ask for
it of each other.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Any

from scikit_build_core import build as _base
from scikit_build_core.build import *  # noqa: F403 (the hooks that stay as they are)

_OLDEST = (12, 8)
_WHEELS = tuple(
    f"{name}==13.0.*"
    for name in (
        "nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl",
    )
)  # fmt: skip


def wants_cuda() -> bool:
    """As scikit-build-core reads the condition of the override in pyproject.toml."""
    value = os.environ.get("FREETOKEN_CUDA", "").lower()
    return bool(int(value)) if value.isdigit() else value not in {"", "n", "no", "off", "false", "f"}


def has_nvcc() -> bool:
    if os.environ.get("CUDACXX"):
        return True
    folders = [os.path.join(home, "bin") for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    found = shutil.which("nvcc") or shutil.which("nvcc", path=os.pathsep.join(folders))
    if found is None:
        return False
    answer = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"release (\d+)\.(\d+)", answer)
    return version is not None and (int(version[1]), int(version[2])) >= _OLDEST


def cuda_requirements() -> list[str]:
    return list(_WHEELS) if wants_cuda() and not has_nvcc() else []


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return [*_base.get_requires_for_build_wheel(config_settings), *cuda_requirements()]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return [*_base.get_requires_for_build_editable(config_settings), *cuda_requirements()]
