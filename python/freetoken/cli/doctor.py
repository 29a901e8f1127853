"""`ft doctor`: what there is to compute on, and why a GPU is not used."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

import freetoken
from freetoken.cli.units import NumberType, format_size


def examine(core: Any, ordinal: int) -> dict[str, Any]:
    cuda = core.probe_cuda(ordinal=ordinal)
    return {
        "version": freetoken.__version__,
        "device": "cpu" if cuda["problem"] else "cuda",  # that `ft serve --device auto` takes
        "cpu": core.probe_host(),
        "cuda": {"ordinal": ordinal, **cuda},
    }


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _cuda_lines(cuda: dict[str, Any]) -> list[str]:
    if cuda["problem"]:
        return [cuda["message"]]
    major, minor = divmod(cuda["compute_capability"], 10)
    free, total = format_size(cuda["free_bytes"]), format_size(cuda["total_bytes"])
    return [
        f"GPU {cuda['ordinal']} of {cuda['devices']}: {cuda['name']}, compute capability {major}.{minor}, "
        f"{free} of {total} free",
        f"driver for CUDA {_version(cuda['driver_version'])}; {cuda['library']} with code for {cuda['code']}",
    ]


def lines(found: dict[str, Any]) -> list[str]:
    cpu = found["cpu"]
    what = cpu["message"] or f"{cpu['isa']} kernels, {cpu['cores']} cores, {format_size(cpu['memory_bytes'])} of memory"
    rows = [("freetoken", found["version"]), ("cpu", what)]
    rows += [("cuda", line) for line in _cuda_lines(found["cuda"])]
    rows.append(("device", f"{found['device']} (what --device auto takes)"))
    return [f"{name:9}  {text}" for name, text in rows]


@click.command(short_help="show what there is to compute on")
@click.option("--gpu", "ordinal", metavar="N", type=NumberType(0, 255), default=0, show_default=True, help="which GPU")
@click.option("--json", "as_json", is_flag=True, help="for scripts")
def doctor(ordinal: int, as_json: bool) -> None:
    """Show what there is to compute on, and why a GPU is not used."""
    from freetoken.server.loader import compiled_core

    try:
        core = compiled_core()
    except RuntimeError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    found = examine(core, ordinal)
    click.echo(json.dumps(found, indent=2) if as_json else "\n".join(lines(found)))
