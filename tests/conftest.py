"""Levels of the suite (fast, oracle, nvcc, emulator, long) and the count of tests that must have run."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from support import isa

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LEVELS = ("fast", "oracle", "nvcc", "emulator", "long")
LONG_TIMEOUT_S = 3600  # in place of the one in pyproject.toml
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch on tiny matrices: threads of a shared machine only wait
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def level_of(item: pytest.Item) -> str:
    return next((level for level in reversed(LEVELS[1:]) if item.get_closest_marker(level)), "fast")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--expect-levels", default="", metavar="LEVELS",
        help="comma-separated levels whose minimum test count in tests/expected.toml must have passed",
    )  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Counts(config), "freetoken-counts")


def pytest_report_header() -> str:
    lacking = isa.missing_levels() + [case for case in isa.CASES if not isa.can_run(case)]
    return "Not run, this CPU lacks what they need: " + ", ".join(lacking) if lacking else "ISA levels: all run"


class Counts:
    """Counts passed cases: by level, those tagged with an ISA level apart, because a CPU may lack it."""

    def __init__(self, config: pytest.Config):
        self.expect = [level for level in config.getoption("--expect-levels").split(",") if level]
        if unknown := set(self.expect) - set(LEVELS):
            raise pytest.UsageError(
                f"--expect-levels: unknown level {sorted(unknown)[0]!r}, known: {', '.join(LEVELS)}"
            )
        self.kind: dict[str, str] = {}
        self.passed: Counter[str] = Counter()
        self.complaints: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if level_of(item) == "long" and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))
            tag = isa.level_of(item.name)
            self.kind[item.nodeid] = f"isa.{tag}" if tag and level_of(item) == "fast" else f"suite.{level_of(item)}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed[self.kind[report.nodeid]] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.expect or session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return
        table = tomllib.loads(Path(__file__).with_name("expected.toml").read_text())
        wanted = {f"suite.{level}": table["suite"][level] for level in self.expect}
        if "fast" in self.expect:
            wanted |= {f"isa.{k}": n for k, n in table["isa"].items() if k not in isa.missing_levels()}
        self.complaints = [
            f"{k}: {self.passed[k]} passed, {n} expected" for k, n in wanted.items() if self.passed[k] < n
        ]
        if self.complaints:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter) -> None:
        if self.expect:
            counts = ", ".join(f"{k} {n}" for k, n in sorted(self.passed.items()))
            terminalreporter.write_line(f"passed by level: {counts}")
        for line in self.complaints:
            terminalreporter.write_line(f"ERROR fewer tests ran than tests/expected.toml wants: {line}", red=True)
