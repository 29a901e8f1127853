"""The `ft` command and its subcommands. Quick to import: what a subcommand needs is imported when it runs."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import click

import freetoken
from freetoken.cli.absent import COMMANDS, refuse_command

_PRESENT = {
    "serve": ("freetoken.cli.serve", "serve a model over HTTP"),
    "checkpoint": ("freetoken.cli.checkpoint", "pack a model into an FTW directory"),
    "doctor": ("freetoken.cli.doctor", "show what there is to compute on, and why a GPU is not used"),
    "selftest": ("freetoken.cli.selftest", "run the kernel tests on the GPU"),
}


class LazyGroup(click.Group):
    """Lists commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_PRESENT, *COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _PRESENT:
            return getattr(importlib.import_module(_PRESENT[cmd_name][0]), cmd_name)
        return _absent(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Click's, which names no near command (8.1)."""
        name = click.utils.make_str(args[0])
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            ctx.fail(f"No such command '{name}'." + (f" Did you mean '{near[0]}'?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _PRESENT.items()])
        with formatter.section("Not available in this version"):
            formatter.write_dl(list(COMMANDS.items()))


def _absent(name: str) -> click.Command:
    settings = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}

    def refuse(**_: Any) -> None:
        refuse_command(name)

    return click.Command(name, callback=refuse, short_help=COMMANDS[name], context_settings=settings)


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"freetoken {freetoken.__version__}")
        ctx.exit()


def _show_cmake_dir(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(cmake_dir())
        ctx.exit()


def cmake_dir() -> str:
    """The absolute directory with freetoken-config.cmake. UsageError where the package has none."""
    spec = importlib.util.find_spec("freetoken._core")  # lies where CMake installed it, also in an editable install
    folder = Path(spec.origin).resolve().parent / "cmake" if spec and spec.origin else None
    if folder is None or not (folder / "freetoken-config.cmake").is_file():
        raise click.UsageError("this copy of the package was not installed with its C++ library; run: pip install .")
    return str(folder)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-V", "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
@click.option(
    "--cmake-dir", is_flag=True, is_eager=True, expose_value=False, callback=_show_cmake_dir,
    help="Show where CMake finds the C++ library: -Dfreetoken_DIR=$(ft --cmake-dir)",
)  # fmt: skip
def main() -> None:
    """Local inference for mixture-of-experts language models."""
