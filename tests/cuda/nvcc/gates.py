#!/usr/bin/env python3
"""Registers, shared memory and spills of the CUDA kernels, against cuda/kernels/budgets.toml.

    gates.py BUILD              checks a build tree (cmake -DFREETOKEN_CUDA=ON); exit code 1 where a gate fails
    gates.py BUILD --measured   prints a budget file of what was measured: take the entries of your kernels from it

The build leaves what `ptxas -v` said beside every object, as OBJECT.ptxas. A budget holds for all instances of a kernel
on all targets. No kernel may spill; a stack (local memory) is only allowed where the budget says so, with the reason.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BUDGETS = Path(__file__).resolve().parents[3] / "cuda" / "kernels" / "budgets.toml"
_FIELDS = ("registers", "shared_bytes", "stack_bytes")
_ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
_OF = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


class ReportError(Exception):
    """A report or the budget file is not as it must be."""


@dataclass(frozen=True)
class Measured:
    """One instance of a kernel on one target."""

    symbol: str
    target: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


def parse(text: str) -> list[Measured]:
    found: list[Measured] = []
    symbol = target = of = ""
    stack = spill = 0
    for line in text.splitlines():
        if match := _ENTRY.search(line):
            if symbol:
                raise ReportError(f"ptxas said nothing about {symbol}")
            symbol, target = match[1], match[2]
        elif match := _OF.search(line):
            of = match[1]
        elif match := _STACK.search(line):
            # Functions that were not inlined have lines of their own; what they spill is the kernel's.
            stores, loads = int(match[2]), int(match[3])
            if of == symbol:
                stack, spill = int(match[1]), spill + stores + loads
            else:
                spill += stores + loads
        elif (match := _USED.search(line)) and symbol:
            shared = _SHARED.search(line)
            found.append(Measured(symbol, target, int(match[1]), int(shared[1]) if shared else 0, stack, spill))
            symbol, stack, spill = "", 0, 0
    if symbol:
        raise ReportError(f"ptxas said nothing about {symbol}")
    return found


def read_reports(build: Path) -> list[Measured]:
    reports = sorted(build.rglob("*.ptxas"))
    if not reports:
        raise ReportError(f"{build} has no OBJECT.ptxas: build ft_cuda_kernels and freetoken_cuda there")
    return [kernel for report in reports for kernel in parse(report.read_text())]


def kernel_names(symbols: Iterable[str]) -> dict[str, str]:
    """Mangled name -> the kernel's own: no namespace, no template arguments, no parameters."""
    symbols = sorted(set(symbols))
    done = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True)
    names = {}
    for symbol, full in zip(symbols, done.stdout.splitlines(), strict=True):
        plain = full.replace("(anonymous namespace)::", "").removeprefix("void ")
        match = re.match(r"[\w:]+", plain)
        names[symbol] = match[0].rsplit("::", 1)[-1] if match else symbol
    return names


def load_budgets(text: str) -> dict[str, dict[str, int]]:
    budgets = tomllib.loads(text)
    for name, budget in budgets.items():
        wrong = not isinstance(budget, dict) or set(budget) - set(_FIELDS) or not set(_FIELDS[:2]) <= set(budget)
        if wrong or not all(isinstance(n, int) and n >= 0 for n in budget.values()):
            raise ReportError(f"[{name}] must have whole numbers registers and shared_bytes, and may have stack_bytes")
    return budgets


def check(kernels: list[Measured], budgets: dict[str, dict[str, int]]) -> list[str]:
    """What is wrong, one line each."""
    names = kernel_names(kernel.symbol for kernel in kernels)
    wrong = []
    for kernel in kernels:
        name, where = names[kernel.symbol], f"{names[kernel.symbol]} ({kernel.target}, {kernel.symbol})"
        if kernel.spill_bytes:
            wrong.append(f"{where}: spills {kernel.spill_bytes} bytes")
        if name not in budgets:
            wrong.append(f"{where}: has no budget")
            continue
        for field in _FIELDS:
            used, most = getattr(kernel, field), budgets[name].get(field, 0)
            if used > most:
                wrong.append(f"{where}: {field} {used}, its budget is {most}")
    gone = sorted(set(budgets) - set(names.values()))
    return wrong + [f"{name}: has a budget, but there is no such kernel" for name in gone]


def measured_budgets(kernels: list[Measured]) -> str:
    """A budget file: the most that any instance takes, registers up to a multiple of 8, as they are allotted."""
    names = kernel_names(kernel.symbol for kernel in kernels)
    most: dict[str, dict[str, int]] = {}
    for kernel in kernels:
        entry = most.setdefault(names[kernel.symbol], dict.fromkeys(_FIELDS, 0))
        for field in _FIELDS:
            entry[field] = max(entry[field], getattr(kernel, field))
    blocks = []
    for name, entry in sorted(most.items()):
        rounded: dict[str, Any] = {**entry, "registers": min(-(-entry["registers"] // 8) * 8, 255)}
        lines = [f"{field} = {rounded[field]}" for field in _FIELDS if rounded[field] or field != "stack_bytes"]
        blocks.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(blocks) + "\n"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("build", type=Path)
    arguments.add_argument("--measured", action="store_true")
    given = arguments.parse_args()
    try:
        kernels = read_reports(given.build)
        if given.measured:
            print(measured_budgets(kernels), end="")
            return 0
        wrong = check(kernels, load_budgets(BUDGETS.read_text()))
    except ReportError as error:
        wrong, kernels = [str(error)], []
    print("\n".join([*wrong, f"{len(kernels)} kernel instances, {len(wrong)} failures"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
