#!/usr/bin/env python3
"""Everything that only a GPU can show, in one command under eight minutes: kernel tests, compute-sanitizer, timings.

    bench/gpu_check/run.py --prepare [ARCHS]   on any machine with nvcc: builds into build/gpu_check/bin
    bench/gpu_check/run.py [--out FILE]        on the machine with the GPU: runs what is there, or builds it first

Python's standard library is enough. One JSON goes to FILE (gpu_check.json). Exit code 0: all passed; 1: something
failed; 2: there is no GPU that works, or nothing to run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "gpu_check"
PROGRAMS = ("ft_cuda_tests", "ft_cuda_bench")
CARRY_LIMIT_BYTES = 64 << 20
TOTAL_S = 460  # of the eight minutes; what is left is for starting and stopping
TESTS_S, TOOL_S, TIMINGS_S = 150, 60, 90
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# compute-sanitizer is some hundred times slower than the kernels: a few cases of each family.
SANITIZED = (
    "*/0:*/bf16:*/q4_0:Rows.*:Router.*:DeviceGroups.*:DeviceCombine.*:DeviceLinearF32.*:AttentionKernels.*:Devices/*:"
    "Sample.EqualsTheCpuForTinyVocabularies"
)


class Stop(Exception):
    """Nothing can be run; the message says why."""


@dataclass
class Clock:
    began: float

    def left_s(self, most: float) -> float:
        return max(1.0, min(most, TOTAL_S - (time.monotonic() - self.began)))


def run(command: list[Any], timeout_s: float) -> tuple[int | None, str]:
    """Exit code (None: it ran too long) and all output."""
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout_s)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with what a tool has started: it holds the pipe
        output, _ = process.communicate()
        return None, output


def prepare(archs: str) -> None:
    """The programs in BUILD/bin, stripped; Stop where they cannot be built."""
    tree = BUILD / "tree"
    options = {
        "CMAKE_BUILD_TYPE": "Release", "FREETOKEN_CUDA": "ON", "FREETOKEN_BENCH": "ON", "FREETOKEN_CUDA_ARCHS": archs,
        "Python_EXECUTABLE": sys.executable,
    }  # fmt: skip
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = ["cmake", *generator, "-S", ROOT, "-B", tree, *(f"-D{k}={v}" for k, v in options.items())]
    build = ["cmake", "--build", tree, "--parallel", str(os.cpu_count() or 1), "--target", *PROGRAMS]
    for command in (configure, build):
        code, output = run(command, 3600)
        if code != 0:
            raise Stop(f"building failed:\n{output[-4000:]}")
    binaries = BUILD / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    for path in (tree / "cuda_tests" / PROGRAMS[0], tree / "gpu_check" / PROGRAMS[1]):
        shutil.copy2(path, binaries / path.name)
        subprocess.run(["strip", binaries / path.name], check=True)
    size = sum(path.stat().st_size for path in binaries.iterdir())
    print(f"{binaries}: {size / (1 << 20):.1f} MiB")
    if size > CARRY_LIMIT_BYTES:
        raise Stop(f"{size} bytes are more than can be carried ({CARRY_LIMIT_BYTES}); build for fewer targets")


def find_programs(folder: Path) -> dict[str, Path]:
    found = {}
    for name in PROGRAMS:
        places = (folder / name, folder / "bin" / name, folder / "cuda_tests" / name, folder / "gpu_check" / name)
        path = next((p for p in places if p.is_file()), None)
        if path is not None:
            found[name] = path
    return found


def probe(bench: Path) -> dict[str, Any]:
    code, output = run([bench, "--probe"], 60)
    try:
        device = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        raise Stop(f"{bench} --probe said nothing (exit status {code}): {output[-500:]}") from None
    if code != 0:
        raise Stop(f"no GPU to check: {device['message']}")
    return device


def kernel_tests(program: Path, timeout_s: float) -> dict[str, Any]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.json"
        code, output = run([program, "--gtest_brief=1", f"--gtest_output=json:{report}"], timeout_s)
        result: dict[str, Any] = {"exit": code, "seconds": round(time.monotonic() - began, 1)}
        if not report.is_file():
            return result | {"passed": 0, "failed": ["ended early"], "output": output[-4000:]}
        suites = json.loads(report.read_text())["testsuites"]
    cases = [(f"{s['name']}.{c['name']}", "failures" in c) for s in suites for c in s["testsuite"]]
    failed = [name for name, bad in cases if bad]
    result |= {"passed": len(cases) - len(failed), "failed": failed}
    return result | ({"output": output[-8000:]} if failed else {})


def sanitizer(program: Path, clock: Clock) -> dict[str, Any]:
    """Each tool of compute-sanitizer over the kernel tests: errors, or why it did not run."""
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(found).is_file():
        return {"present": False}
    results: dict[str, Any] = {"present": True}
    for tool in TOOLS:
        began = time.monotonic()
        command = [
            found,
            "--tool",
            tool,
            "--error-exitcode",
            "86",
            program,
            "--gtest_brief=1",
            f"--gtest_filter={SANITIZED}",
        ]
        code, output = run(command, clock.left_s(TOOL_S))
        summary = [
            line.strip("= ") for line in output.splitlines() if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line
        ]
        refused = [line.strip("= ") for line in output.splitlines() if "not supported" in line.lower()]
        state = {0: "clean", None: "out of time: clean so far" if not summary else "out of time"}.get(code, "errors")
        results[tool] = {
            "state": "refused" if refused else state, "exit": code, "summary": summary[-1:],
            "seconds": round(time.monotonic() - began, 1),
        }  # fmt: skip
        if results[tool]["state"] in ("errors", "refused"):
            results[tool]["output"] = output[-3000:]
    return results


def timings(program: Path, timeout_s: float) -> dict[str, Any]:
    code, output = run([program], timeout_s)
    kernels = []
    for line in output.splitlines():
        if line.startswith('{"kernel"'):
            kernels.append(json.loads(line))
    return {"exit": code, "kernels": kernels} | ({"output": output[-3000:]} if code != 0 else {})


def check(folder: Path) -> dict[str, Any]:
    clock = Clock(time.monotonic())
    programs = find_programs(folder)
    if len(programs) < len(PROGRAMS):
        if shutil.which("nvcc") is None or shutil.which("cmake") is None:
            raise Stop(
                f"{folder} has no {' and '.join(PROGRAMS)}, and there is no nvcc and cmake to build them; run "
                "bench/gpu_check/run.py --prepare where there are, and bring build/gpu_check/bin"
            )
        print("building", flush=True)
        prepare("")
        programs = find_programs(BUILD)
    tests, bench = (programs[name] for name in PROGRAMS)
    device = probe(bench)
    print(f"{device['name']}, compute capability {device['compute_capability'] / 10}", flush=True)
    result: dict[str, Any] = {
        "machine": {"system": platform.platform(), "cpus": os.cpu_count()},
        "device": device,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    for name, step in (
        ("tests", lambda: kernel_tests(tests, clock.left_s(TESTS_S))),
        ("timings", lambda: timings(bench, clock.left_s(TIMINGS_S))),
        ("sanitizer", lambda: sanitizer(tests, clock)),
    ):
        result[name] = step()
        print(f"{name}: {time.monotonic() - clock.began:.0f} s", flush=True)
    result["seconds"] = round(time.monotonic() - clock.began, 1)
    return result


def failures(result: dict[str, Any]) -> list[str]:
    tests, times = result["tests"], result["timings"]
    found = [f"test failed: {name}" for name in tests["failed"]]
    if tests["exit"] != 0 and not tests["failed"]:
        found.append(f"the kernel tests ended with {tests['exit']}")
    if not tests["passed"]:
        found.append("no kernel test passed")
    if times["exit"] != 0 or not times["kernels"]:
        found.append(f"the timings ended with {times['exit']} after {len(times['kernels'])} kernels")
    bad = [tool for tool in TOOLS if result["sanitizer"].get(tool, {}).get("state") == "errors"]
    return found + [f"compute-sanitizer {tool} found errors" for tool in bad]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--prepare", nargs="?", const="90-real,80-virtual", metavar="ARCHS")
    arguments.add_argument("--build", type=Path, default=BUILD, help="where the programs are")
    arguments.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    given = arguments.parse_args()
    try:
        if given.prepare is not None:
            prepare(given.prepare)
            return 0
        result = check(given.build)
    except Stop as stop:
        print(f"gpu_check: {stop}", file=sys.stderr)
        return 2
    found = failures(result)
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    for kernel in result["timings"]["kernels"]:
        speed = f"{kernel['us']:9.1f} us {kernel['gb_s']:8.0f} GB/s  {kernel['share_of_copy']:.2f} of a copy"
        print(f"{kernel['kernel']:42} {speed}")
    print("\n".join([*found, f"{given.out}: {result['tests']['passed']} kernel tests passed, {len(found)} failures"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
