"""`ft checkpoint`: pack a model once, so that it is only read afterwards."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from freetoken.cli.units import format_size


@click.command(short_help="pack a model into an FTW directory", context_settings={"max_content_width": 110})
@click.option("--model", "--model-path", "model", required=True, metavar="MODEL",
              help="as for ft serve; with --verify or --info an FTW directory")  # fmt: skip
@click.option("--out", metavar="DIR", help="the new directory; it must not exist or be empty")
@click.option("--shard-gib", type=click.FloatRange(min=0, min_open=True, max=1 << 20), default=8.0, show_default=True,
              help="largest size of a file")  # fmt: skip
@click.option("--threads", type=click.IntRange(0, 4096), default=0, help="0: one per physical core")
@click.option("--verify", is_flag=True, help="read all of an FTW directory and compare its checksums")
@click.option("--info", is_flag=True, help="show what an FTW directory holds")
@click.option("--json", "as_json", is_flag=True, help="--info as JSON")
def checkpoint(
    model: str, out: str | None, shard_gib: float, threads: int, verify: bool, info: bool, as_json: bool
) -> None:
    """Pack a model into an FTW directory, which `ft serve --model DIR` and C++ hosts load without converting anything.

    \b
    ft checkpoint --model demo --out demo.ftw
    ft serve --model demo.ftw
    """
    if verify + info + (out is not None) != 1:
        raise click.UsageError("give one of --out DIR, --verify, --info")
    from freetoken.cli.display import TerminalDisplay
    from freetoken.errors import ConfigError, ModelError
    from freetoken.server.loader import compiled_core

    display = TerminalDisplay()
    try:
        core = compiled_core()
    except RuntimeError as error:
        display.error(str(error))
        sys.exit(1)
    try:
        if verify:
            folder = os.path.abspath(model)
            core.verify_checkpoint(folder, lambda done, total: display.progress("verifying", done, total))
            click.echo(f"{model}: all checksums are right")
        elif info:
            show(model, as_json)
        else:
            assert out is not None
            pack(model, out, int(shard_gib * (1 << 30)), threads, display)
    except (ModelError, ConfigError, core.FreeTokenError) as error:
        display.error(str(error))
        sys.exit(2)


def pack(model: str, out: str, shard_bytes: int, threads: int, display: Any) -> None:
    from freetoken.checkpoint import ftw, open_model

    files = open_model(model, progress=display.progress)
    ftw.write(files, out, shard_bytes, threads, lambda done, total: display.progress("packing", done, total))
    size_bytes = sum(entry.stat().st_size for entry in os.scandir(out))
    click.echo(f"{out}: {format_size(size_bytes)}; serve it with: ft serve --model {out}")


def show(folder: str, as_json: bool) -> None:
    from freetoken.checkpoint import ftw

    files = ftw.open_ftw(folder)
    with open(os.path.join(folder, ftw.MANIFEST), encoding="utf-8") as file:
        manifest = json.load(file)
    formats: dict[str, int] = {}
    for weight in manifest["weights"]:
        formats[weight["format"]] = formats.get(weight["format"], 0) + 1
    found = {
        "name": files.name,
        "architecture": files.architecture,
        "layers": len(files.spec["layers"]),
        "weights": len(manifest["weights"]),
        "formats": formats,
        "shards": len(manifest["shards"]),
        "packed_bytes": sum(shard["bytes"] for shard in manifest["shards"]),
        "ftw": manifest["ftw"],
        "layout": manifest["layout"],
    }
    if as_json:
        click.echo(json.dumps(found))
        return
    found["packed_bytes"] = format_size(found["packed_bytes"])
    found["formats"] = ", ".join(f"{name}: {count}" for name, count in sorted(formats.items()))
    width = max(map(len, found))
    for name, value in found.items():
        click.echo(f"{name:{width}}  {value}")
