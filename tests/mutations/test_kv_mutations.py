"""Seeded faults of cpp/kv, each of which the C++ tests of cpp/kv must notice (kv/mutations.toml).

A mutant is compiled by itself outside the source tree and linked with the tests' objects.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("kv") / "mutations.toml"
FLAGS = ["-std=c++20", "-O1", "-w", "-I", ROOT / "cpp", "-I", ROOT / "tests" / "cpp"]
RUN_TIMEOUT_S = 60
long = [pytest.mark.long, pytest.mark.timeout(300)]


@dataclass
class Mutation:
    name: str
    file: str
    old: str
    new: str

    def apply(self) -> str:
        """The mutated source; AssertionError where the patch no longer fits."""
        source = (ROOT / "cpp" / self.file).read_text()
        found = source.count(self.old)
        assert found == 1, f"{self.name}: `old` occurs {found} times in cpp/{self.file}, not once: renew {LIST.name}"
        assert self.new != self.old
        return source.replace(self.old, self.new)


MUTATIONS = [Mutation(**m) for m in tomllib.loads(LIST.read_text())["mutation"]]
BY_NAME = {m.name.replace(" ", "_"): m for m in MUTATIONS}


def compile_object(source: Path, target: Path) -> None:
    compiler = [tool] if (tool := shutil.which("ccache")) else []
    command = [*compiler, os.environ.get("CXX", "c++"), *FLAGS, "-c", source, "-o", target]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{source.name} does not compile:\n{done.stderr[-3000:]}"


def link(objects: list[Path], target: Path) -> Path:
    command = [os.environ.get("CXX", "c++"), *objects, "-o", target, "-lgtest", "-lgtest_main", "-lpthread"]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return target


def notices(executable: Path) -> str | None:
    """What the tests said against it: the first failure, or how it ended. None: nothing, they passed."""
    try:
        done = subprocess.run(
            [str(executable), "--gtest_fail_fast", "--gtest_brief=1"],
            capture_output=True, text=True, errors="replace", timeout=RUN_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"ran for more than {RUN_TIMEOUT_S} s"
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith("[  FAILED  ]")]
    return failed[0] if failed else f"ended with {done.returncode}"


@pytest.fixture(scope="module")
def objects(tmp_path_factory) -> dict[str, Path]:
    """By file below cpp/, and the tests'; together they pass."""
    build = tmp_path_factory.mktemp("kv")
    made: dict[str, Path] = {}
    for source in [*sorted((ROOT / "cpp/kv").glob("*.cc")), *sorted((ROOT / "tests/cpp/kv").glob("*.cc"))]:
        made[source.relative_to(ROOT / "cpp" if source.is_relative_to(ROOT / "cpp") else ROOT).as_posix()] = (
            target := build / f"{source.stem}.o"
        )
        compile_object(source, target)
    assert notices(link(list(made.values()), build / "unchanged")) is None
    return made


def test_the_list_fits_the_sources() -> None:
    assert len(BY_NAME) == len(MUTATIONS) >= 12
    for mutation in MUTATIONS:
        mutation.apply()


@pytest.mark.parametrize("name", [pytest.param(name, marks=long) for name in BY_NAME])
def test_is_noticed(name: str, objects: dict[str, Path], tmp_path: Path) -> None:
    mutation = BY_NAME[name]
    source = tmp_path / Path(mutation.file).name
    source.write_text(mutation.apply())
    compile_object(source, mutant := tmp_path / "mutant.o")
    rest = [made for file, made in objects.items() if file != mutation.file]
    complaint = notices(link([*rest, mutant], tmp_path / "tests"))
    assert complaint, f"the tests of cpp/kv pass with: {mutation.name} ({mutation.file})"
    print(complaint)
