"""A directory per made thing, named by the content of its makers."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.metadata
import os
import shutil
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The specs have a maker of their own, with committed output.
_SOURCES = [*sorted(p for p in Path(__file__).parent.glob("*.py") if p.name != "make_specs.py"), ROOT / "LICENSE"]
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "gguf")


@functools.cache
def fingerprint() -> str:
    digest = hashlib.sha256()
    for path in _SOURCES:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for package in _PACKAGES:
        digest.update(f"{package}={importlib.metadata.version(package)}\0".encode())
    return digest.hexdigest()[:16]


def cache_root() -> Path:
    return Path(os.environ.get("FREETOKEN_TEST_CACHE", ROOT / ".cache-tests"))


def cached(name: str, build: Callable[[Path], None], key: str = "") -> Path:
    """The directory that build(directory) filled for `key` (default: the makers' fingerprint), made at most once."""
    target = cache_root() / f"{name}-{key or fingerprint()}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_name(f".{name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            for old in target.parent.glob(f"{name}-????????????????"):
                shutil.rmtree(old)
            partial = target.with_name(f".{target.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            build(partial)
            partial.rename(target)
    return target
