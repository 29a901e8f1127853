"""Build, list and run GoogleTest executables."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_S = 900
_RESULT = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] (\S+?)(?:, where .*)? \((\d+) ms\)$")


class GtestError(Exception):
    """The C++ tests could not be built, listed or run."""


@dataclass
class CaseResult:
    outcome: str  # passed, failed, skipped, crashed or missing
    output: str
    duration_ms: int = 0


def build_dir() -> Path:
    """The CMake build tree of the tests: $FREETOKEN_TEST_BUILD, or the one tests/run makes."""
    return Path(os.environ.get("FREETOKEN_TEST_BUILD", ROOT / "build" / "test"))


def build() -> list[Path]:
    """Brings the test executables up to date, one builder at a time, and returns them."""
    tree = build_dir()
    if not (tree / "CMakeCache.txt").exists():
        raise GtestError(f"no build tree at {tree}: run tests/run, or set FREETOKEN_TEST_BUILD to a configured one")
    with open(tree / ".test-build.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            ["cmake", "--build", str(tree), "--target", "ft_cpp_tests"], capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        raise GtestError(f"building the C++ tests failed:\n{(done.stdout + done.stderr)[-6000:]}")
    executables = sorted(p for p in (tree / "tests").glob("ft_test_*") if os.access(p, os.X_OK))
    if not executables:
        raise GtestError(f"{tree}/tests has no test executable: configure with -DFREETOKEN_TESTS=ON")
    return executables


def list_cases(executable: Path) -> list[str]:
    """Full names, Suite.Case, in the order they run."""
    done = subprocess.run(
        [str(executable), "--gtest_list_tests"], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode != 0:
        raise GtestError(f"{executable.name} --gtest_list_tests failed:\n{done.stdout}{done.stderr}")
    cases, suite = [], ""
    for line in done.stdout.splitlines():
        name = line.split("#", 1)[0].rstrip()
        if not name or line.startswith("Running main()"):
            continue
        if name.startswith("  "):
            cases.append(suite + name.strip())
        else:
            suite = name.strip()
    return cases


def run_cases(executable: Path, cases: list[str], device: str = "") -> dict[str, CaseResult]:
    """Runs the cases in one process; after a crash the rest run in a fresh one.

    `device`: FREETOKEN_TEST_DEVICE of the process, where not empty.
    """
    results: dict[str, CaseResult] = {}
    waiting = list(cases)
    environment = os.environ | ({"FREETOKEN_TEST_DEVICE": device} if device else {})
    while waiting:
        flags = executable.parent / f".{executable.name}.{os.getpid()}.flags"
        flags.write_text("--gtest_filter=" + ":".join(waiting) + "\n")
        try:
            done = subprocess.run(
                [str(executable), f"--gtest_flagfile={flags}", "--gtest_color=no"],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=RUN_TIMEOUT_S, check=False, env=environment,
            )  # fmt: skip
            output, code = done.stdout, done.returncode
        except subprocess.TimeoutExpired as late:
            output, code = late.stdout or b"", f"none: it ran past {RUN_TIMEOUT_S} s"
        finally:
            flags.unlink(missing_ok=True)
        new = parse_output(output.decode(errors="replace"), code)
        results |= new
        still = [case for case in waiting if case not in results]
        if len(still) == len(waiting) or not any(r.outcome == "crashed" for r in new.values()):
            tail = output.decode(errors="replace")[-2000:]
            results |= {case: CaseResult("missing", f"did not run (exit status {code}):\n{tail}") for case in still}
            break
        waiting = still
    return results


def parse_output(output: str, code: int | str) -> dict[str, CaseResult]:
    """Splits one run's output into its cases; a case that began and never ended has crashed."""
    results: dict[str, CaseResult] = {}
    current, lines = None, []
    for line in output.splitlines():
        if line.startswith("[ RUN      ] "):
            current, lines = line[13:].strip(), []
            continue
        ended = _RESULT.match(line)
        if ended and ended.group(2) == current:
            outcome = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}[ended.group(1)]
            results[current] = CaseResult(outcome, "\n".join(lines), int(ended.group(3)))
            current = None
        elif current:
            lines.append(line)
    if current:
        results[current] = CaseResult("crashed", "\n".join(lines) + f"\ncrashed (exit status {code})")
    return results
