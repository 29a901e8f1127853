"""How the build finds a CUDA compiler and chooses targets; no compiler is needed for that."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "cmake"))
import freetoken_build  # noqa: E402

WHEELS = {"nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cuda-cccl"}


def program(folder: Path, name: str, output: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """No CUDA anywhere. /usr/local/cuda cannot be hidden: a wrong nvcc on PATH comes before it."""
    for name in ("FREETOKEN_CUDA", "CUDACXX", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    program(tmp_path / "bin", "nvcc", "Cuda compilation tools, release 12.4, V12.4.131")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    return tmp_path


@pytest.mark.parametrize("value", [None, "", "0", "off", "False", "no"])
def test_without_the_variable_nothing_is_asked_for(bare, monkeypatch, value):
    if value is not None:
        monkeypatch.setenv("FREETOKEN_CUDA", value)
    assert freetoken_build.cuda_requirements() == []


@pytest.mark.parametrize("value", ["", "0", "1", "2", "on", "OFF", "n", "t", "maybe"])
def test_the_variable_is_read_as_scikit_build_core_reads_it(monkeypatch, value):
    from scikit_build_core.settings.skbuild_overrides import strtobool

    monkeypatch.setenv("FREETOKEN_CUDA", value)
    assert freetoken_build.wants_cuda() == strtobool(value)


@pytest.mark.parametrize("value", ["1", "true", "ON", "yes", "2"])
def test_an_old_compiler_is_replaced_by_the_wheels_of_one_version(bare, monkeypatch, value):
    monkeypatch.setenv("FREETOKEN_CUDA", value)
    wanted = [re.fullmatch(r"([\w-]+)==(13\.0)\.\*", line) for line in freetoken_build.cuda_requirements()]
    assert {match[1] for match in wanted} == WHEELS


def test_a_new_compiler_is_taken(bare, monkeypatch):
    monkeypatch.setenv("FREETOKEN_CUDA", "1")
    program(bare / "bin", "nvcc", "Cuda compilation tools, release 13.0, V13.0.88")
    assert freetoken_build.cuda_requirements() == []


def test_a_named_compiler_is_taken(bare, monkeypatch):
    monkeypatch.setenv("FREETOKEN_CUDA", "1")
    monkeypatch.setenv("CUDACXX", "/opt/cuda/bin/nvcc")
    assert freetoken_build.cuda_requirements() == []


def test_both_sides_take_the_same_compilers():
    text = (ROOT / "cmake" / "FindCudaCompiler.cmake").read_text()
    oldest = re.search(r"FREETOKEN_CUDA_OLDEST ([\d.]+)", text)[1]
    assert tuple(map(int, oldest.split("."))) == freetoken_build._OLDEST
    assert {name for name in WHEELS if name in text} == WHEELS


def archs(tmp_path: Path, setting: str, *capabilities: str) -> tuple[str, str]:
    """(CMake's targets, what people are told) by cmake/CudaArchs.cmake, with GPUs of these compute capabilities."""
    if capabilities:
        program(tmp_path / "bin", "nvidia-smi", "\n".join(capabilities))
    script = tmp_path / "script.cmake"
    script.write_text(
        f"include({ROOT / 'cmake' / 'CudaArchs.cmake'})\n"
        'message("${CMAKE_CUDA_ARCHITECTURES}|${FREETOKEN_CUDA_CODE}")\n'
    )
    environment = os.environ | {
        "FREETOKEN_CUDA_ARCHS": setting,
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(["cmake", "-P", script], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        return "error", done.stderr
    targets, code = done.stderr.strip().split("|")
    return targets, code


ALL = "80-real;86-real;89-real;90-real;100-real;120-real;80-virtual"


@pytest.mark.parametrize(
    ("setting", "capabilities", "targets"),
    [
        ("all", (), ALL),
        ("", ("8.9",), "89-real"),
        ("", ("8.6", "8.6", "12.0"), "86-real;120-real"),
        ("", ("8.7", "12.1"), "86-real;120-real"),  # as the newest target of their major version
        ("", ("7.5",), ALL),
        ("90-real,80-virtual", ("8.9",), "90-real;80-virtual"),
        ("90", (), "90"),
    ],
)
def test_targets(tmp_path, setting, capabilities, targets):
    assert archs(tmp_path, setting, *capabilities)[0] == targets


def test_targets_for_people(tmp_path):
    assert archs(tmp_path, "80-real,90,80-virtual")[1] == "sm_80 sm_90 compute_90 compute_80"


def test_wrong_targets_are_named(tmp_path):
    targets, message = archs(tmp_path, "sm_90")
    assert targets == "error" and "sm_90 is no target" in message
