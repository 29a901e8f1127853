"""A GGUF model: one file, or a set `name-00001-of-0000N.gguf`, as one metadata dictionary and one tensor table."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from freetoken.checkpoint.gguf_header import GgufHeader, read_header
from freetoken.checkpoint.tensor_entry import TensorEntry
from freetoken.errors import ModelError

MAX_SPLITS = 9999
MAX_READ_BYTES = 64 << 20
_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass
class GgufModel:
    """Header of a whole model; `types[key]` is (value type, item type of an array or None), as GGUF numbers them."""

    path: str  # of the first file
    files: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    types: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    tensors: dict[str, TensorEntry] = field(default_factory=dict)

    def read_f32(self, name: str) -> np.ndarray:
        """Values of a small F32, F16 or BF16 tensor, fp32, in its row-major shape."""
        entry = self.tensors[name]
        if entry.dtype not in ("F32", "F16", "BF16"):
            raise ModelError(entry.file, name, f"dtype {entry.dtype}: F32, F16 or BF16 expected")
        if entry.bytes > MAX_READ_BYTES:
            raise ModelError(entry.file, name, f"{entry.bytes} bytes, at most {MAX_READ_BYTES} expected")
        with open(entry.file, "rb") as file:
            file.seek(entry.offset)
            raw = file.read(entry.bytes)
        if len(raw) != entry.bytes:
            raise ModelError(entry.file, name, f"only {len(raw)} of {entry.bytes} bytes could be read")
        if entry.dtype == "BF16":
            values = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        else:
            values = np.frombuffer(raw, "<f4" if entry.dtype == "F32" else "<f2").astype("<f4")
        return values.reshape(entry.shape)


def split_paths(path: str) -> list[str]:
    """All files of the set that `path` belongs to, in order; just `path` when its name is not that of a set."""
    folder, name = os.path.split(os.path.abspath(path))
    match = _SPLIT_NAME.fullmatch(name)
    if not match:
        return [os.path.join(folder, name)]
    count = int(match["count"])
    if not 1 <= count <= MAX_SPLITS or not 1 <= int(match["number"]) <= count:
        raise ModelError(path, "", f"the name says file {int(match['number'])} of {count}")
    return [os.path.join(folder, f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]


def open_gguf(path: str) -> GgufModel:
    """Reads the header of `path` and of the other files of its set. Raises ModelError."""
    paths = split_paths(path)
    for i, file in enumerate(paths):
        if not os.path.lexists(file):
            part = f"file {i + 1} of the {len(paths)} of this model" if len(paths) > 1 else "this file"
            raise ModelError(file, "", f"{part} does not exist")
    first = read_header(paths[0])
    model = GgufModel(paths[0], paths, first.metadata, first.types, dict(first.tensors))
    check_split(first, 0, len(paths))
    for i, file in enumerate(paths[1:], start=1):
        header = read_header(file)
        check_split(header, i, len(paths))
        for name, entry in header.tensors.items():
            if name in model.tensors:
                raise ModelError(file, name, f"tensor is also in {os.path.basename(model.tensors[name].file)}")
            model.tensors[name] = entry
    total = first.metadata.get("split.tensors.count", len(model.tensors))
    if total != len(model.tensors):
        raise ModelError(paths[0], "split.tensors.count", f"says {total}, the files hold {len(model.tensors)} tensors")
    return model


def check_split(header: GgufHeader, index: int, count: int) -> None:
    """Compares split.no and split.count with the place that the file's name gives it."""
    stated = header.metadata.get("split.count", 0 if count == 1 else None)
    if stated is None:
        raise ModelError(header.path, "split.count", f"missing, yet the name says one of {count} files")
    if stated not in ((0, 1) if count == 1 else (count,)):
        hint = "keep the files' names as llama-gguf-split gave them" if count == 1 else "files of two models are mixed"
        raise ModelError(header.path, "split.count", f"says {stated}, the name says {count}: {hint}")
    number = header.metadata.get("split.no", 0 if index == 0 else None)
    if number != index:
        raise ModelError(header.path, "split.no", f"says {number}, the name makes it {index}")
