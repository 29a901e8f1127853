"""The resource gates of CUDA kernels: what they find in reports of ptxas. The reports are ptxas' own, shortened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gates
import pytest

ROOT = Path(__file__).resolve().parents[3]
# Two instances of a kernel template in an anonymous namespace, and a plain kernel.
ROWS = "_ZN9freetoken4cuda40_GLOBAL__N__00f4293a_8_probe_cu_c5a931e98add_rowsILi{}EEEvPf"
PLAIN = "_ZN9freetoken4cuda9copy_rowsEPKfPf"


def entry(symbol, registers=20, smem="", stack=0, stores=0, loads=0, target="sm_90"):
    return (
        f"ptxas info    : Compiling entry function '{symbol}' for '{target}'\n"
        f"ptxas info    : Function properties for {symbol}\n"
        f"    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads\n"
        f"ptxas info    : Used {registers} registers, used 1 barriers{smem}\n"
        "ptxas info    : Compile time = 10.777 ms\n"
    )


BUDGET = {"add_rows": {"registers": 24, "shared_bytes": 64}, "copy_rows": {"registers": 32, "shared_bytes": 0}}
FITTING = entry(ROWS.format(4), 24, ", 64 bytes smem") + entry(ROWS.format(1), 18, target="sm_80") + entry(PLAIN, 32)


def failures(text, budget=BUDGET):
    return gates.check(gates.parse(text), budget)


def test_what_fits_passes():
    assert failures("ptxas info    : 0 bytes gmem\n" + FITTING) == []
    kernels = gates.parse(FITTING)
    assert [(k.registers, k.shared_bytes, k.target) for k in kernels] == [
        (24, 64, "sm_90"),
        (18, 0, "sm_80"),
        (32, 0, "sm_90"),
    ]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (entry(PLAIN, 33), "registers 33, its budget is 32"),
        (entry(PLAIN, 20, ", 4 bytes smem"), "shared_bytes 4, its budget is 0"),
        (entry(PLAIN, stack=8), "stack_bytes 8, its budget is 0"),
        (entry(PLAIN, stores=4), "spills 4 bytes"),
        (entry(PLAIN, loads=12), "spills 12 bytes"),
        (entry("_ZN9freetoken4cuda9drop_rowsEPKfPf"), "drop_rows (sm_90"),
    ],
)
def test_what_does_not_is_named(more, said):
    (line,) = failures(FITTING + more)
    assert said in line


def test_spills_of_called_functions_count():
    called = (
        f"ptxas info    : Compiling entry function '{PLAIN}' for 'sm_90'\n"
        "ptxas info    : Function properties for helper\n"
        "    0 bytes stack frame, 16 bytes spill stores, 16 bytes spill loads\n"
        f"ptxas info    : Function properties for {PLAIN}\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 20 registers, used 1 barriers\n"
    )
    (line,) = failures(FITTING + called)
    assert "spills 32 bytes" in line


def test_budgets_of_kernels_that_are_gone():
    (line,) = failures(entry(PLAIN))
    assert line.startswith("add_rows: has a budget")


@pytest.mark.parametrize(
    "text", [FITTING.rsplit("ptxas info    : Used", 1)[0], entry(PLAIN).split("\n")[0] + "\n" + FITTING]
)
def test_cut_reports_are_errors(text):
    with pytest.raises(gates.ReportError, match="said nothing about"):
        gates.parse(text)


def test_no_reports_are_an_error(tmp_path):
    with pytest.raises(gates.ReportError, match=r"has no OBJECT\.ptxas"):
        gates.read_reports(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "[a]\nregisters = 1",
        "[a]\nregisters = 1\nshared_bytes = -1",
        "[a]\nregisters = 1\nshared_bytes = 1\nwarps = 2",
        "a = 1",
    ],
)
def test_bad_budgets(text):
    with pytest.raises(gates.ReportError, match=r"\[a\] must have"):
        gates.load_budgets(text)


def test_measured_values_pass_their_own_gate():
    kernels = gates.parse(FITTING + entry(PLAIN, 33, stack=16))
    text = gates.measured_budgets(kernels)
    assert "[copy_rows]\nregisters = 40\nshared_bytes = 0\nstack_bytes = 16\n" in text
    assert gates.check(kernels, gates.load_budgets(text)) == []


def test_the_launcher_keeps_the_report_and_prints_the_rest(tmp_path):
    """cmake/cuda_report.sh with a compiler that warns, reports and fails."""
    compiler = tmp_path / "nvcc"
    compiler.write_text("#!/bin/sh\ncat >&2 <<'X'\nx.cu(3): warning\n" + FITTING + "X\nexit 3\n")
    compiler.chmod(0o755)
    done = subprocess.run(
        [ROOT / "cmake" / "cuda_report.sh", compiler, "-c", "x.cu", "-o", tmp_path / "x.o"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "x.cu(3): warning\n")
    assert len(gates.parse((tmp_path / "x.o.ptxas").read_text())) == 3


def test_the_command(tmp_path):
    (tmp_path / "k.cu.o.ptxas").write_text(entry(PLAIN, stores=4))
    command = [sys.executable, gates.__file__, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "spills 4 bytes" in done.stdout
    done = subprocess.run([*command, "--measured"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "[copy_rows]\nregisters = 24" in done.stdout


def test_the_budget_file_is_readable():
    assert gates.load_budgets(gates.BUDGETS.read_text())
