"""The `ft` command."""

from freetoken.cli.main import main

__all__ = ["main"]
