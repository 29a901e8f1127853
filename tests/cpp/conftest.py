"""Collects the GoogleTest cases: one pytest item per case, one process per executable (and device)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support import device as devices
from support import gtest, isa

# Executables whose cases run on the device that FREETOKEN_TEST_DEVICE names: on each, where it names none.
DEVICE_SUITES = ("engine",)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path == Path(__file__).with_name("CMakeLists.txt"):
        return CppTests.from_parent(parent, path=file_path)
    return None


class CppTests(pytest.File):
    def collect(self):
        for executable in gtest.build():
            name = executable.name.removeprefix("ft_test_")
            on_each = name in DEVICE_SUITES and not os.environ.get("FREETOKEN_TEST_DEVICE")
            for device in devices.DEVICES if on_each else ("",):
                yield Executable.from_parent(
                    self,
                    name=f"{name}@{device}" if device else name,
                    executable=executable,
                    device=device,
                )

    def repr_failure(self, excinfo, style=None):
        if isinstance(excinfo.value, gtest.GtestError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)


class Executable(pytest.Collector):
    """One ft_test_<folder> on one device; its first case to run starts the process for all that were selected."""

    def __init__(self, *, executable: Path, device: str, **kw):
        super().__init__(**kw)
        self.executable = executable
        self.device = device
        if self.name.startswith("cuda_"):  # tests/cuda, on the emulator
            self.add_marker(pytest.mark.emulator)
        self.results: dict[str, gtest.CaseResult] | None = None

    def collect(self):
        for case in gtest.list_cases(self.executable):
            if isa.can_run(case):
                yield Case.from_parent(self, name=case)

    def result(self, case: Case) -> gtest.CaseResult:
        if self.results is None:
            selected = [item.name for item in case.session.items if item.parent is self]
            self.results = gtest.run_cases(self.executable, selected, self.device)
        return self.results[case.name]


class CaseFailed(Exception):
    """Carries the output of a failed case."""


class Case(pytest.Item):
    def __init__(self, **kw):
        super().__init__(**kw)
        # The first case waits for its whole executable.
        self.add_marker(pytest.mark.timeout(gtest.RUN_TIMEOUT_S + 60))

    def runtest(self):
        result = self.parent.result(self)
        if result.outcome == "skipped":
            raise CaseFailed(
                f"skipped itself; what cannot run is not collected, and no tool may be missing\n{result.output}"
            )
        if result.outcome != "passed":
            raise CaseFailed(result.output)

    def repr_failure(self, excinfo, style=None):
        return str(excinfo.value) if isinstance(excinfo.value, CaseFailed) else super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self.path, None, f"{self.parent.name}::{self.name}"
