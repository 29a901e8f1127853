"""bench/gpu_check/run.py with programs that answer as a GPU's would: what it reports, and when it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[3] / "bench" / "gpu_check" / "run.py"
DEVICE = {"problem": 0, "message": "", "name": "Fake", "code": "sm_90", "compute_capability": 90}
KERNEL = {"kernel": "copy", "us": 1.0, "bytes": 10, "gb_s": 10, "share_of_copy": 1.0, "tflop_s": 0}


def program(path: Path, lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


@pytest.fixture
def check(tmp_path):
    """Runs it: `bench`, `tests` and `sanitizer` are shell lines, `failed` says that the report has a failed case.

    Gives the exit status, all output, and the JSON or None.
    """

    def run(bench="", tests="exit 0", failed=False, probe=0, device=None, sanitizer=None, told=None):
        told = told or json.dumps({**DEVICE, **(device or {})})
        lines = (
            f"echo '{told}'\n[ \"$1\" = --probe ] && exit {probe}\n{bench or f'echo {json.dumps(json.dumps(KERNEL))}'}"
        )
        program(tmp_path / "bin" / "ft_cuda_bench", lines)
        cases = [{"name": "b"}, {"name": "c", **({"failures": [1]} if failed else {})}]
        report = json.dumps({"testsuites": [{"name": "A", "testsuite": cases}]})
        write = f'for a in "$@"; do case $a in --gtest_output=json:*) echo \'{report}\' >"${{a#*json:}}";; esac; done'
        program(tmp_path / "bin" / "ft_cuda_tests", tests if tests != "exit 0" else f"{write}\nexit {int(failed)}")
        if sanitizer is not None:
            program(tmp_path / "path" / "compute-sanitizer", sanitizer)
        path = os.pathsep.join((str(tmp_path / "path"), "/usr/bin", "/bin"))
        done = subprocess.run(
            [sys.executable, RUN, "--build", tmp_path, "--out", tmp_path / "out.json"],
            capture_output=True, text=True, env=os.environ | {"PATH": path}, check=False, timeout=60,
        )  # fmt: skip
        out = tmp_path / "out.json"
        return done.returncode, done.stdout + done.stderr, json.loads(out.read_text()) if out.exists() else None

    return run


def test_all_passed(check):
    code, _, result = check(sanitizer="echo '========= ERROR SUMMARY: 0 errors'")
    assert code == 0
    assert result["device"]["name"] == "Fake" and result["timings"]["kernels"] == [KERNEL]
    assert (result["tests"]["passed"], result["tests"]["failed"]) == (2, [])
    tools = {tool: found["state"] for tool, found in result["sanitizer"].items() if tool != "present"}
    assert tools == dict.fromkeys(("memcheck", "racecheck", "initcheck", "synccheck"), "clean")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"failed": True}, "test failed: A.c"),
        ({"tests": "echo dead; exit 139"}, "test failed: ended early"),
        ({"bench": "exit 1"}, "the timings ended with 1 after 0 kernels"),
        ({"sanitizer": "echo 'ERROR SUMMARY: 3 errors'; exit 86"}, "compute-sanitizer racecheck found errors"),
    ],
)
def test_failures(check, settings, said):
    code, output, result = check(**settings)
    assert code == 1 and said in output and result is not None


def test_a_tool_that_refuses_the_gpu_is_no_failure(check):
    code, _, result = check(sanitizer="echo '========= Error: Device not supported. Please refer to the list'; exit 1")
    assert code == 0 and result["sanitizer"]["memcheck"]["state"] == "refused"


def test_no_gpu(check):
    code, output, result = check(probe=2, device={"problem": 1, "message": "there is no NVIDIA driver"})
    assert code == 2 and "no GPU to check: there is no NVIDIA driver" in output and result is None


def test_a_probe_that_says_nothing(check):
    code, output, result = check(probe=127, told="error while loading shared libraries")
    assert code == 2 and "--probe said nothing" in output and result is None


def test_nothing_to_run(tmp_path):
    done = subprocess.run(
        [sys.executable, RUN, "--build", tmp_path], capture_output=True, text=True, check=False,
        env=os.environ | {"PATH": str(tmp_path)}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2 and "no ft_cuda_tests and ft_cuda_bench" in done.stderr
