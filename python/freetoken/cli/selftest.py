"""`ft selftest`: the kernel tests of the CUDA backend on this machine's GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from freetoken.cli.units import NumberType

TESTS = "ft_cuda_tests"


def refuse(message: str) -> None:
    click.echo(f"ft selftest: {message}", err=True)
    sys.exit(2)


def tests_of(library: str) -> Path:
    """The test program that was installed with the library."""
    return Path(library).resolve().parent / TESTS


def run_tests(program: Path, ordinal: int, only: str) -> int:
    arguments = [str(program), "--gtest_brief=1", *([f"--gtest_filter={only}"] if only else [])]
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if "CUDA_DEVICE_ORDER" not in os.environ else {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = visible.split(",")[ordinal] if visible else str(ordinal)
    return subprocess.run(arguments, env=os.environ | order | {"CUDA_VISIBLE_DEVICES": chosen}, check=False).returncode


@click.command(short_help="run the kernel tests on the GPU")
@click.option("--gpu", "ordinal", metavar="N", type=NumberType(0, 255), default=0, show_default=True, help="which GPU")
@click.option("--only", default="", metavar="PATTERN", help="names of tests, as in Matmul*:Attention*")
def selftest(ordinal: int, only: str) -> None:
    """Run the kernel tests of the CUDA backend on this machine's GPU.

    Exit code 0: all passed, 1: some failed, 2: they could not be run.
    """
    from freetoken.server.loader import compiled_core

    try:
        core: Any = compiled_core()
    except RuntimeError as error:
        refuse(str(error))
    report = core.probe_cuda(ordinal=ordinal)
    if report["problem"]:
        refuse(report["message"])
    program = tests_of(report["library"])
    if not program.is_file():
        refuse(
            f"there is no {program}: the backend was built without its tests; install GoogleTest "
            "(Debian: libgtest-dev) and build again with: FREETOKEN_CUDA=1 pip install ."
        )
    click.echo(f"GPU {ordinal}: {report['name']}, code for {report['code']}")
    code = run_tests(program, ordinal, only)
    click.echo("all kernel tests passed" if code == 0 else f"kernel tests failed (exit status {code})")
    sys.exit(0 if code == 0 else 1)
