"""--device, ft doctor and ft selftest with device libraries that answer as told (tests/fakes/fake_device.cc)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from freetoken.cli import main
from freetoken.cli.serve import choose_device
from freetoken.server.options import ServeOptions
from support import gtest


@pytest.fixture
def fake(monkeypatch) -> str:
    path = gtest.build_dir() / "tests" / "libfreetoken_fake.so"
    if not path.exists():
        raise RuntimeError(f"{path} is missing: run tests/run --setup, or build the target freetoken_fake")
    monkeypatch.setenv("FREETOKEN_CUDA_LIB", str(path))
    return str(path)


def ft(*arguments):
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.output


class Messages:
    def __init__(self):
        self.warnings, self.errors = [], []

    def warning(self, message):
        self.warnings.append(message)

    def error(self, message):
        self.errors.append(message)


def chosen(**options):
    from freetoken import _core

    display = Messages()
    return choose_device(ServeOptions("m", **options), _core, display), display


def test_doctor_shows_a_gpu(fake):
    code, output = ft("doctor", "--gpu", "1")
    lines = output.splitlines()
    assert code == 0
    assert "GPU 1 of 2: Fake 1, compute capability 8.9, 23.0 GiB of 24.0 GiB free" in lines[2]
    assert "driver for CUDA 13.1" in lines[3] and "with code for sm_80 compute_80" in lines[3] and fake in lines[3]
    assert lines[-1].startswith("device     cuda")


def test_doctor_as_json(fake):
    code, output = ft("doctor", "--json")
    found = json.loads(output)
    assert code == 0 and found["device"] == "cuda"
    assert found["cpu"]["cores"] >= 1 and found["cpu"]["isa"] and not found["cpu"]["message"]
    assert found["cuda"]["compute_capability"] == 89 and found["cuda"]["problem"] == ""


# DeviceProblem by number and the name that scripts see.
PROBLEMS = {
    1: "no_driver", 2: "old_driver", 3: "no_device", 4: "no_such_device", 5: "no_device_code", 6: "failed",
}  # fmt: skip


@pytest.mark.parametrize("number", PROBLEMS)
def test_every_problem_is_one_line_and_leaves_the_cpu(fake, monkeypatch, number):
    monkeypatch.setenv("FAKE_DEVICE_PROBLEM", str(number))
    message = f"the fake has problem {number}"
    code, output = ft("doctor")
    assert code == 0
    assert [line for line in output.splitlines() if line.startswith("cuda ")] == [f"cuda       {message}"]
    assert json.loads(ft("doctor", "--json")[1])["cuda"]["problem"] == PROBLEMS[number]
    options, display = chosen(expert_slots=3)
    assert (options.device, options.expert_slots) == ("cpu", 0)
    assert display.warnings == [f"device cpu: {message}"] and not display.errors
    options, display = chosen(device="cuda")
    assert options is None and display.errors == [f"--device cuda: {message}"]
    code, output = ft("selftest")
    assert code == 2 and message in output


@pytest.mark.parametrize(
    ("library", "problem", "said"),
    [
        ("/nowhere/libfreetoken_cuda.so", "missing", "no device library at /nowhere/libfreetoken_cuda.so"),
        ("libm.so.6", "broken", "exports no freetoken_device"),
        (__file__, "broken", "cannot be loaded"),
    ],
)
def test_files_that_are_no_backend(monkeypatch, library, problem, said):
    monkeypatch.setenv("FREETOKEN_CUDA_LIB", library)
    cuda = json.loads(ft("doctor", "--json")[1])["cuda"]
    assert cuda["problem"] == problem and cuda["asked_for"]
    assert said in cuda["message"] and "\n" not in cuda["message"]
    options, display = chosen()
    assert options.device == "cpu" and said in display.warnings[0]


def test_another_abi(fake, monkeypatch):
    monkeypatch.setenv("FAKE_DEVICE_ABI", "7")
    cuda = json.loads(ft("doctor", "--json")[1])["cuda"]
    assert cuda["problem"] == "abi" and f"{fake} has device ABI 7, this core needs " in cuda["message"]


def test_a_gpu_that_works_is_left_to_the_engine(fake):
    options, display = chosen(expert_slots=3)
    assert (options.device, options.expert_slots) == ("auto", 3)
    assert not display.warnings and not display.errors


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"device_library": "/x/libref.so"}])
def test_who_names_the_device_is_not_told_of_gpus(monkeypatch, options):
    monkeypatch.setenv("FREETOKEN_CUDA_LIB", "/nowhere")
    found, display = chosen(**options)
    assert found == ServeOptions("m", **options) and not display.warnings


def test_device_cuda_ends_with_2_before_a_model_is_looked_for(fake):
    environment = os.environ | {"FAKE_DEVICE_PROBLEM": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "freetoken", "serve", "--model", "/nowhere", "--port", "0", "--device", "cuda"],
        capture_output=True, text=True, env=environment, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "error: --device cuda: the fake has problem 2\n"


def test_selftest_without_its_program(fake):
    code, output = ft("selftest")
    assert code == 2 and "ft_cuda_tests" in output and "libgtest-dev" in output


@pytest.mark.parametrize(("status", "code", "said"), [(0, 0, "all kernel tests passed"), (1, 1, "exit status 1")])
def test_selftest_runs_the_program_beside_the_library(tmp_path, fake, monkeypatch, capfd, status, code, said):
    library = tmp_path / "libfreetoken_cuda.so"
    program = tmp_path / "ft_cuda_tests"
    program.write_text(f'#!/bin/sh\necho "GPU $CUDA_VISIBLE_DEVICES: $*"\nexit {status}\n')
    program.chmod(0o755)
    shutil.copy2(fake, library)
    monkeypatch.setenv("FREETOKEN_CUDA_LIB", str(library))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found, output = ft("selftest", "--gpu", "1", "--only", "Matmul*")
    assert found == code and said in output
    assert "GPU 1: --gtest_brief=1 --gtest_filter=Matmul*" in capfd.readouterr().out
