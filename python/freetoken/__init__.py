"""FreeToken: local inference for mixture-of-experts language models. Importing this package loads nothing heavy."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("freetoken")
        except PackageNotFoundError:
            return "0+source"  # run from a source tree that was never installed
    raise AttributeError(f"module 'freetoken' has no attribute {name!r}")
