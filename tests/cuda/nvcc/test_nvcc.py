"""The CUDA backend as nvcc builds it: resources, what it exports and needs, and what it says where there is no GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import gates
import pytest

from freetoken.checkpoint import open_model
from oracle import make
from support import nvcc
from support.engine import complete, greedy_request, load_options
from support.server import serve

pytestmark = [pytest.mark.nvcc, pytest.mark.timeout(1800)]


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, env=os.environ | environment
    )


def ft(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "freetoken", *arguments, **environment)


def doctor(library: Path, **environment: str) -> dict:
    done = ft("doctor", "--json", FREETOKEN_CUDA_LIB=str(library), **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_resources(nvcc_build):
    kernels = gates.read_reports(nvcc_build)
    assert {k.target for k in kernels} == {"sm_80", "sm_90"}
    assert gates.check(kernels, gates.load_budgets(gates.BUDGETS.read_text())) == []


def test_one_symbol_and_no_cuda_library(library):
    exported = run("nm", "-D", "--defined-only", library).stdout.split()[2::3]
    assert exported == ["freetoken_device"]
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", library).stdout)
    assert needed and not [name for name in needed if "cuda" in name]


def test_the_core_stays_without_cuda():
    from freetoken import _core

    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", _core.__file__).stdout)
    assert needed and not [name for name in needed if "cuda" in name]


@pytest.mark.parametrize(
    ("version", "init", "problem", "said"),
    [
        ("", "100", "no_driver", "there is no NVIDIA driver (driver version 0"),
        ("12080", "0", "old_driver", "it supports CUDA 12.8, this backend is CUDA 13.0: install driver 580 or newer"),
        ("13000", "100", "no_device", "shows no GPU (CUDA error 100)"),
        ("13020", "803", "failed", "(CUDA error 803)"),
    ],
)
def test_drivers_without_a_gpu(library, fake_driver, version, init, problem, said):
    found = doctor(
        library, LD_LIBRARY_PATH=str(fake_driver), FAKE_DRIVER_VERSION=version, FAKE_DRIVER_INIT=init
    )  # fmt: skip
    cuda = found["cuda"]
    assert (cuda["problem"], found["device"]) == (problem, "cpu")
    assert said in cuda["message"] and "\n" not in cuda["message"]
    assert cuda["code"] == "sm_80 sm_90 compute_80"


def test_device_cuda_is_a_usage_error_without_a_gpu(library, fake_driver):
    done = ft(
        "serve", "--model", "/nowhere", "--device", "cuda",
        FREETOKEN_CUDA_LIB=str(library), LD_LIBRARY_PATH=str(fake_driver), FAKE_DRIVER_VERSION="13000",
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: --device cuda: the NVIDIA driver (CUDA 13.0) shows no GPU")
    assert len(done.stderr.splitlines()) == 1


def test_device_auto_serves_on_the_cpu_and_says_why(library, fake_driver, monkeypatch):
    for name, value in (
        ("FREETOKEN_CUDA_LIB", str(library)), ("LD_LIBRARY_PATH", str(fake_driver)), ("FAKE_DRIVER_VERSION", "12080"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    with serve("--model", str(make.checkpoint("llama").model), "--device", "auto", device="cpu") as server:
        pass
    assert "warning: device cpu: the NVIDIA driver is too old" in server.output
    assert "\ndevice cpu; " in server.output


def test_the_core_falls_back_by_itself(library, monkeypatch):
    """C++ hosts have no command line that would choose for them. Without a fake: whatever this machine has."""
    monkeypatch.setenv("FREETOKEN_CUDA_LIB", str(library))
    from freetoken import _core

    options = load_options(open_model(str(make.checkpoint("llama").model)), device="auto")
    running = _core.Engine.load(options, lambda *_: None)
    try:
        (completion,) = complete(running, [greedy_request([5, 9, 23], 4)])
        assert running.stats()["device"] in ("cpu", "cuda")
    finally:
        running.shutdown()
    assert len(completion.tokens) == 4


def test_selftest_refuses_without_a_gpu(library, fake_driver):
    done = ft(
        "selftest", FREETOKEN_CUDA_LIB=str(library), LD_LIBRARY_PATH=str(fake_driver), FAKE_DRIVER_VERSION="13000"
    )
    assert done.returncode == 2 and "shows no GPU" in done.stderr


def test_gpu_check_refuses_without_a_gpu(nvcc_build, fake_driver, tmp_path):
    done = run(
        sys.executable, nvcc.ROOT / "bench/gpu_check/run.py", "--build", nvcc_build, "--out", tmp_path / "r.json",
        LD_LIBRARY_PATH=str(fake_driver), FAKE_DRIVER_VERSION="13000",
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "no GPU" in done.stderr and not (tmp_path / "r.json").exists()


@pytest.mark.long
def test_all_targets():
    kernels = gates.read_reports(nvcc.build(nvcc.ROOT / "build" / "nvcc-all", "all"))
    assert {k.target for k in kernels} == {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}
    assert gates.check(kernels, gates.load_budgets(gates.BUDGETS.read_text())) == []
