"""Checkpoints on disk: bounded readers of their headers, and the weight table that the core loads from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from freetoken.checkpoint.open_model import ModelFiles, open_model

__all__ = ["ModelFiles", "open_model"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from freetoken.checkpoint import open_model as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
