"""Seeded faults: a source with one edit, which the tests must notice."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Mutation:
    """`old` occurs exactly once in `file`, below the folder of the list, and becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: str = ""  # the executable that must notice, where a list has several

    def apply(self, folder: Path) -> str:
        """The mutated source; AssertionError where the edit no longer fits."""
        source = (folder / self.file).read_text()
        found = source.count(self.old)
        assert found == 1, f"{self.name}: `old` occurs {found} times in {self.file}, not once: renew the list"
        assert self.new != self.old
        return source.replace(self.old, self.new)


def load(path: Path) -> dict[str, Mutation]:
    """By name, with _ for spaces."""
    mutations = [Mutation(**m) for m in tomllib.loads(path.read_text())["mutation"]]
    by_name = {m.name.replace(" ", "_"): m for m in mutations}
    assert len(by_name) == len(mutations), f"{path}: two mutations have one name"
    return by_name


def run(command: list[object], timeout_s: int, cwd: Path | None = None) -> None:
    """A compiler or linker; AssertionError with what it said."""
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, timeout=timeout_s, check=False, cwd=cwd
    )
    assert done.returncode == 0, f"{' '.join(str(c) for c in command)}\n{done.stderr[-3000:]}"


def notices(executable: Path, timeout_s: int, gtest_filter: str = "*") -> str | None:
    """What the tests said against it: the first failure, or how it ended. None: nothing, they passed."""
    try:
        done = subprocess.run(
            [str(executable), "--gtest_fail_fast", "--gtest_brief=1", f"--gtest_filter={gtest_filter}"],
            capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"ran for more than {timeout_s} s"
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith("[  FAILED  ]")]
    return failed[0] if failed else f"ended with {done.returncode}"
