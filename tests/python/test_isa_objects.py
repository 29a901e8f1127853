"""What the compiled kernel objects hold: no wide instruction where the CPU may lack it, nothing the linker could share.

The linker keeps one copy of an inline function that several objects emit. Were that copy compiled for AVX-512, every
level would run it; so an object of a level may define nothing but its own tables.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support import gtest, isa

WIDE = re.compile(r"%[yz]mm\d|%k[0-7]\b")
VEX = re.compile(r"\tv[a-z]+\d*[a-z]* ")
DOT = {"avx2vnni": "vpdpbusd", "avx512vnni": "vpdpbusd", "avx512bf16": "vdpbf16ps"}
SHARED_SYMBOL = re.compile(r"^[0-9a-f]+ [WVuiB] (.*)$", re.MULTILINE)


def objects(level: str) -> list[Path]:
    found = sorted(gtest.build_dir().glob(f"cpp/kernels/CMakeFiles/ft_kernels_{level}.dir/**/*.o"))
    assert any(path.name.startswith("matmul.isa") for path in found), f"no kernel objects of {level}"
    return found


def disassembly(path: Path) -> str:
    command = ["objdump", "-d", "--no-show-raw-insn", path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    gtest.build()


def test_scalar_objects_hold_no_wide_instruction() -> None:
    for path in objects("scalar"):
        text = disassembly(path)
        assert "%xmm" in text  # the disassembly is what it should be
        assert not WIDE.search(text), f"{path.name} uses a wide register"
        assert not VEX.search(text), f"{path.name} uses an AVX instruction"


@pytest.mark.parametrize("level", ["avx2", "avx2vnni"])
def test_avx2_objects_hold_no_avx512(level: str) -> None:
    for path in objects(level):
        text = disassembly(path)
        assert "%ymm" in text
        assert not re.search(r"%zmm\d|%k[1-7]\b|%[xy]mm(1[6-9]|2\d|3[01])\b", text), f"{path.name} uses AVX-512"


@pytest.mark.parametrize("level", sorted(DOT))
def test_levels_use_their_dot_product(level: str) -> None:
    assert any(DOT[level] in disassembly(path) for path in objects(level))


@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_levels_without_vnni_do_not_use_it(level: str) -> None:
    assert not any("vpdpbusd" in disassembly(path) for path in objects(level))


@pytest.mark.parametrize("level", list(isa.LEVELS))
def test_objects_define_nothing_the_linker_could_share(level: str) -> None:
    for path in objects(level):
        symbols = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
        assert not SHARED_SYMBOL.findall(symbols), f"{path.name} of {level} emits inline functions or variables"
