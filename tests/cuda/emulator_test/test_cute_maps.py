"""The emulated mma and ldmatrix against CuTe's layouts: NVIDIA's own, in the headers of the wheel nvidia-cutlass."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def cutlass_headers() -> Path:
    """FREETOKEN_CUTLASS names another folder with cute/."""
    spec = importlib.util.find_spec("cutlass_library")
    found = os.environ.get("FREETOKEN_CUTLASS") or (spec and Path(spec.origin).parent / "source" / "include")
    assert found, "no CuTe headers: pip install --no-deps nvidia-cutlass==4.2.0.0"
    return Path(found)


def cuda_headers() -> list[Path]:
    nvcc = shutil.which("nvcc")
    assert nvcc, "no nvcc on PATH"
    top = Path(nvcc).resolve().parents[1]
    include = next(p / "include" for p in (top, Path("/usr/local/cuda")) if (p / "include" / "cuda_runtime.h").exists())
    return [include, include / "cccl"]


def build(source: Path, target: Path) -> None:
    folders = [cutlass_headers(), *cuda_headers(), source.parent]
    command = ["c++", "-std=c++17", "-w", *(f"-I{folder}" for folder in folders), source, "-o", target]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def run(program: Path) -> tuple[int, str]:
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_the_maps_are_cutes(tmp_path):
    build(HERE / "cute_maps.cpp", tmp_path / "maps")
    status, output = run(tmp_path / "maps")
    assert status == 0, output
    assert output.endswith("0 of 1024 differ\n")


SWAPPED = {  # rows and k of A, rows and columns of a matrix
    "v / 2 % 2 * 8, lane % 4 * 2 + v / 4 * 8": "v / 4 * 8, lane % 4 * 2 + v / 2 % 2 * 8",
    "matrix_transposed(int lane, int v) { return {lane % 4 * 2 + v, lane / 4}": (
        "matrix_transposed(int lane, int v) { return {lane / 4, lane % 4 * 2 + v}"
    ),
}


@pytest.mark.parametrize("right", SWAPPED)
def test_a_swapped_map_is_noticed(tmp_path, right):
    text = (HERE / "fragment_maps.h").read_text()
    assert right in text
    (tmp_path / "fragment_maps.h").write_text(text.replace(right, SWAPPED[right]))
    (tmp_path / "cute_maps.cpp").write_text((HERE / "cute_maps.cpp").read_text())
    build(tmp_path / "cute_maps.cpp", tmp_path / "maps")
    status, output = run(tmp_path / "maps")
    assert status == 1 and "CuTe has" in output
