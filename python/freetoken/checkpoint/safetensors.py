"""Bounded reader of a safetensors header.

File: u64 little-endian header length, JSON header {name: {dtype, shape, data_offsets}}, data. As in the reference
implementation the tensors cover the data section exactly, without overlap or hole; anything else raises ModelError.
"""

from __future__ import annotations

import os
from typing import Any

from freetoken.checkpoint.json_file import parse_json
from freetoken.checkpoint.regular_file import open_regular
from freetoken.checkpoint.tensor_entry import TensorEntry, format_shape
from freetoken.errors import ModelError

MAX_HEADER_BYTES = 100 << 20
MAX_DIMS = 16
MAX_NAME_BYTES = 1024

# dtype -> bits of one element
DTYPE_BITS: dict[str, int] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}


def read_safetensors(path: str) -> dict[str, TensorEntry]:
    """Tensors of the file at `path` by name. Reads the header only."""
    path = os.path.abspath(path)
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size < 8:
                raise ModelError(path, "", f"{size} bytes: too short for a safetensors file, fetch it again")
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise ModelError(
                    path, "", f"header of {length} bytes runs past the file's {size} bytes: truncated or wrong"
                )
            if length > MAX_HEADER_BYTES:
                raise ModelError(path, "", f"header of {length} bytes, at most {MAX_HEADER_BYTES} are allowed")
            raw = file.read(length)
    except OSError as error:
        raise ModelError(path, "", f"cannot be read: {error.strerror or error}") from error
    if len(raw) != length:
        raise ModelError(path, "", f"only {len(raw)} of the header's {length} bytes could be read")
    header = parse_json(raw, path, "header", unique_keys=True)
    if not isinstance(header, dict):
        raise ModelError(path, "header", f"a JSON object expected, found {type(header).__name__}")
    header.pop("__metadata__", None)
    entries = [_entry(path, name, record, 8 + length, size) for name, record in header.items()]
    _check_cover(path, entries, 8 + length, size)
    return {entry.name: entry for entry in entries}


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _entry(path: str, name: str, record: Any, data_start: int, file_bytes: int) -> TensorEntry:
    def fail(reason: str) -> ModelError:
        return ModelError(path, name[:MAX_NAME_BYTES], reason)

    if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise fail(f"a tensor's name has 1 to {MAX_NAME_BYTES} bytes")
    if not isinstance(record, dict) or not {"dtype", "shape", "data_offsets"} <= record.keys():
        raise fail("dtype, shape and data_offsets expected")
    dtype, shape, offsets = record["dtype"], record["shape"], record["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise fail(f"unknown dtype {str(dtype)[:40]!r}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(_is_count(d) for d in shape):
        raise fail(f"shape must be a list of at most {MAX_DIMS} sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(o) for o in offsets):
        raise fail("data_offsets must be two byte offsets")
    begin, end = offsets
    if begin > end:
        raise fail(f"data_offsets {begin} and {end} are the wrong way round")
    if data_start + end > file_bytes:
        raise fail(
            f"its bytes end at {data_start + end}, the file has {file_bytes}: truncated or wrong, fetch it again"
        )
    bits = DTYPE_BITS[dtype]
    for dim in shape:
        bits *= dim
    if bits != 8 * (end - begin):
        raise fail(f"{dtype} {format_shape(tuple(shape))} takes {bits / 8:g} bytes, data_offsets span {end - begin}")
    return TensorEntry(name, dtype, tuple(shape), path, data_start + begin, end - begin)


def _check_cover(path: str, entries: list[TensorEntry], data_start: int, file_bytes: int) -> None:
    at, previous = data_start, "the header"
    for entry in sorted(entries, key=lambda e: (e.offset, e.bytes)):
        if entry.offset < at:
            raise ModelError(path, entry.name, f"its bytes overlap those of {previous}")
        if entry.offset > at:
            raise ModelError(
                path, entry.name, f"{entry.offset - at} bytes between it and {previous} belong to no tensor"
            )
        at, previous = entry.offset + entry.bytes, entry.name
    if at != file_bytes:
        raise ModelError(path, "", f"{file_bytes - at} bytes after {previous} belong to no tensor")
