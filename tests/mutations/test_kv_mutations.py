"""Seeded faults of cpp/kv, each of which the C++ tests of cpp/kv must notice (kv/mutations.toml).

A mutant is compiled by itself outside the source tree and linked with the tests' objects.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support import mutations
from support.mutations import ROOT

MUTATIONS = mutations.load(Path(__file__).with_name("kv") / "mutations.toml")
FLAGS = ["-std=c++20", "-O1", "-w", "-I", ROOT / "cpp", "-I", ROOT / "tests" / "cpp"]
RUN_TIMEOUT_S = 60
long = [pytest.mark.long, pytest.mark.timeout(300)]


def compile_object(source: Path, target: Path) -> None:
    compiler = [tool] if (tool := shutil.which("ccache")) else []
    mutations.run([*compiler, os.environ.get("CXX", "c++"), *FLAGS, "-c", source, "-o", target], 200)


def link(objects: list[Path], target: Path) -> Path:
    mutations.run([os.environ.get("CXX", "c++"), *objects, "-o", target, "-lgtest", "-lgtest_main", "-lpthread"], 100)
    return target


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
    assert mutations.notices(link(list(made.values()), build / "unchanged"), RUN_TIMEOUT_S) is None
    return made


def test_the_list_fits_the_sources() -> None:
    assert len(MUTATIONS) >= 12
    for mutation in MUTATIONS.values():
        mutation.apply(ROOT / "cpp")


@pytest.mark.parametrize("name", [pytest.param(name, marks=long) for name in MUTATIONS])
def test_is_noticed(name: str, objects: dict[str, Path], tmp_path: Path) -> None:
    mutation = MUTATIONS[name]
    source = tmp_path / Path(mutation.file).name
    source.write_text(mutation.apply(ROOT / "cpp"))
    compile_object(source, mutant := tmp_path / "mutant.o")
    rest = [made for file, made in objects.items() if file != mutation.file]
    complaint = mutations.notices(link([*rest, mutant], tmp_path / "tests"), RUN_TIMEOUT_S)
    assert complaint, f"the tests of cpp/kv pass with: {mutation.name} ({mutation.file})"
    print(complaint)
