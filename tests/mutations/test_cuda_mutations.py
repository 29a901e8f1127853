"""Seeded faults of cuda/, each of which its tests on the emulator must notice (cuda/mutations.toml).

A mutant is compiled as the build tree of the tests compiles the source, outside it, and linked as the test is linked.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from support import gtest, mutations
from support.mutations import ROOT, Mutation

MUTATIONS = mutations.load(Path(__file__).with_name("cuda") / "mutations.toml")
RUN_TIMEOUT_S = 600
# The device library is not mutated: that it answers otherwise would show nothing.
FILTER = "-CudaLibrary.*"
long = [pytest.mark.long, pytest.mark.timeout(900)]


def ninja(*arguments: str) -> str:
    tree = gtest.build_dir()
    done = subprocess.run(["ninja", "-C", str(tree), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout.split("\n", 1)[1] if done.stdout.startswith("ninja: Entering") else done.stdout


def parts(command: str) -> list[str]:
    """Of a rule of CMake's: it may be wrapped in `: && ... && :`."""
    return shlex.split(command.removeprefix(": && ").removesuffix(" && :"))


def mutate(mutation: Mutation, folder: Path) -> Path:
    """The test executable with the mutated source in it."""
    tree, target = gtest.build_dir(), f"tests/ft_test_{mutation.tests}"
    link = parts(ninja("-t", "commands", target).splitlines()[-1])
    original = (ROOT / "cuda" / mutation.file).resolve()
    entries = [e for e in json.loads(ninja("-t", "compdb")) if (tree / e["file"]).resolve() == original]
    own = [e for e in entries if e["output"] in link]  # a source of the executable, else of a library that it links
    (entry,) = own or [e for e in entries if e["output"].split("/CMakeFiles/")[-1].split(".dir/")[0].endswith("_emu")]

    source, mutant = folder / original.name, folder / "mutant.o"
    source.write_text(mutation.apply(ROOT / "cuda"))
    exchanged = {entry["file"]: str(source), entry["output"]: str(mutant), entry["output"] + ".d": f"{mutant}.d"}
    mutations.run([exchanged.get(p, p) for p in parts(entry["command"])], 300, tree)

    if own:
        link[link.index(entry["output"])] = str(mutant)
    else:  # what it defines is not taken from the library any more
        link.insert(next(i for i, p in enumerate(link) if p.endswith(".a")), str(mutant))
    link[link.index(target)] = str(folder / "tests")
    mutations.run(link, 300, tree)
    return folder / "tests"


def test_the_list_fits_the_sources() -> None:
    assert len(MUTATIONS) >= 12
    for mutation in MUTATIONS.values():
        mutation.apply(ROOT / "cuda")


@pytest.fixture(scope="module")
def built() -> None:
    gtest.build()
    for tests in sorted({m.tests for m in MUTATIONS.values()}):
        complaint = mutations.notices(gtest.build_dir() / "tests" / f"ft_test_{tests}", RUN_TIMEOUT_S, FILTER)
        assert complaint is None, f"{tests}, unchanged: {complaint}"


@pytest.mark.parametrize("name", [pytest.param(name, marks=long) for name in MUTATIONS])
def test_is_noticed(name: str, built: None, tmp_path: Path) -> None:
    mutation = MUTATIONS[name]
    complaint = mutations.notices(mutate(mutation, tmp_path), RUN_TIMEOUT_S, FILTER)
    assert complaint, f"{mutation.tests} passes with: {mutation.name} (cuda/{mutation.file})"
    print(complaint)
