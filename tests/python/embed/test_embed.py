"""The installed C++ package: what it exports, that it can be moved, and the example host built from it.

FREETOKEN_EMBED_PREFIX names another installation than that of this Python (tests/run --asan: one with sanitizers, for
which FREETOKEN_EMBED_FLAGS are the compiler's flags).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from freetoken.checkpoint import ftw, open_model
from freetoken.cli.main import cmake_dir
from oracle.cache import demo_models
from support.engine import complete, engine

EXAMPLE = Path(__file__).parents[3] / "examples" / "embed"
PUBLIC = (
    r"freetoken::(Engine::load|plan_memory|probe_(cuda|host)|cuda_problem_name|check_model_spec"
    r"|(write|read|verify)_checkpoint|weight_row_(bytes|columns)|(set_)?tensor_threads|PackedLinear::|PackedExperts::"
    r"|PagedKv::)"
)
pytestmark = [pytest.mark.oracle, pytest.mark.timeout(300)]


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def package() -> Path:
    """freetoken/ with lib, include and cmake."""
    prefix = os.environ.get("FREETOKEN_EMBED_PREFIX")
    return Path(prefix) / "freetoken" if prefix else Path(cmake_dir()).parent


@pytest.fixture(scope="module")
def moved(package, tmp_path_factory) -> Path:
    """The package in another place, as a user might copy it."""
    place = tmp_path_factory.mktemp("moved") / "freetoken"
    for part in ("lib", "include", "cmake"):
        shutil.copytree(package / part, place / part)
    return place


@pytest.fixture(scope="module")
def host(moved, tmp_path_factory) -> Path:
    build = tmp_path_factory.mktemp("build")
    flags = os.environ.get("FREETOKEN_EMBED_FLAGS", "")
    run("cmake", "-S", EXAMPLE, "-B", build, f"-Dfreetoken_DIR={moved / 'cmake'}", f"-DCMAKE_CXX_FLAGS={flags}")
    run("cmake", "--build", build)
    return build / "embed"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "ftw"
    ftw.write(open_model(str(demo_models()["demo-dense"])), str(out))
    return out


def test_exports_the_public_api_only(package):
    symbols = [line for line in run("nm", "-DC", "--defined-only", package / "lib" / "libfreetoken.so").splitlines()]
    names = [line.split(" ", 2)[2] for line in symbols]
    foreign = [name for name in names if not re.match(PUBLIC, name) and "asan" not in name and "ubsan" not in name]
    assert not foreign
    assert len({re.match(PUBLIC, name)[0] for name in names if re.match(PUBLIC, name)}) == 16


def test_headers_compile_alone_and_name_no_machine(package, tmp_path):
    for header in sorted((package / "include" / "freetoken").glob("*.h")):
        unit = tmp_path / f"{header.stem}.cc"
        unit.write_text(f"#include <freetoken/{header.name}>\n")
        run("g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{package / 'include'}", unit)
    for file in (package / "cmake").iterdir():
        assert str(Path.home()) not in file.read_text() and str(EXAMPLE.parents[1]) not in file.read_text()


def test_ft_cmake_dir():
    shown = run(sys.executable, "-m", "freetoken", "--cmake-dir").strip()
    assert Path(shown).is_absolute() and (Path(shown) / "freetoken-config.cmake").is_file()


def test_example_host(host, checkpoint):
    """Its texts are those of the engine under Python; the stop string ends one, the other is cancelled."""
    model = open_model(str(checkpoint))
    prompt = model.tokenizer.encode("The three primary colours are", False)
    request = {"prompt": prompt, "max_tokens": 48, "temperature": 0.0}
    with engine(checkpoint, max_sequence_tokens=1024) as running:
        whole = complete(running, [request])[0].text
        words = whole.split(" ")
        stop = " " + words[min(5, len(words) - 2)]
        stopped = complete(running, [request | {"stop": [stop]}])[0]
    assert stopped.finish == "stop" and stopped.text != whole
    out = run(host, checkpoint, stop, *prompt)
    first, second = (re.search(rf"^{name}: (.*?)\n{name} \[(\w+), \d+ tokens\]$", out, re.M | re.S)
                     for name in ("first", "second"))  # fmt: skip
    assert first and (first[1], first[2]) == (stopped.text, "stop")
    assert second and second[1] == whole
    assert "third [cancelled]" in out


def test_example_host_says_what_is_wrong(host, checkpoint, tmp_path):
    done = subprocess.run([host, checkpoint, "", "1x"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "1x" in done.stderr
    done = subprocess.run([host, tmp_path / "nothing", "", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "nothing" in done.stderr
    copy = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    shard = next(copy.glob("shard-*"))
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size // 2)
    done = subprocess.run([host, copy, "", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and shard.name in done.stderr
