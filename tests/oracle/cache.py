"""A directory per made thing, named by the content of its makers."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.metadata
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The specs have a maker of their own, with committed output.
_SOURCES = [*sorted(p for p in Path(__file__).parent.glob("*.py") if p.name != "make_specs.py"), ROOT / "LICENSE"]
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "gguf")


@functools.cache
def fingerprint() -> str:
    return _digest(_SOURCES, [f"{package}={importlib.metadata.version(package)}" for package in _PACKAGES])


def _digest(paths: Iterable[Path], texts: Iterable[str] = ()) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


def demo_models() -> dict[str, Path]:
    """The product's own demo files, made anew when their makers change (the first time fetches 93 MB)."""
    from freetoken.checkpoint import demo

    makers = sorted(Path(demo.__file__).parent.glob("demo*.py"))

    def build(directory: Path) -> None:
        before = os.environ.get("FREETOKEN_CACHE")
        os.environ["FREETOKEN_CACHE"] = str(directory)
        try:
            for name in demo.MODELS:
                demo.prepare(name)
        finally:
            if before is None:
                del os.environ["FREETOKEN_CACHE"]
            else:
                os.environ["FREETOKEN_CACHE"] = before

    made = cached("demo", build, _digest(makers))
    return {name: made / "demo" / file for name, file in demo.FILES.items()}


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
