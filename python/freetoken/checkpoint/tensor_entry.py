"""One tensor as a checkpoint's header describes it: where its bytes are and what they mean."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorEntry:
    """A stored tensor; `shape` is row-major, outermost dimension first, in both kinds of files."""

    name: str
    dtype: str  # as the file names it: "BF16", "Q4_1", ...
    shape: tuple[int, ...]
    file: str  # absolute path
    offset: int  # of the first byte in the file
    bytes: int


def format_shape(shape: tuple[int, ...]) -> str:
    """Text of a shape in messages."""
    return "[" + ", ".join(map(str, shape)) + "]"
