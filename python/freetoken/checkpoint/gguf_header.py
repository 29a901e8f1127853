"""Bounded reader of one GGUF file's header (versions 2 and 3, little endian): metadata and tensor table.

Every count and length is compared with the bytes that are left before anything of that size is made, so a file
can cost at most a small multiple of its own header. The file is mapped, not read: the tensors' bytes stay untouched.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from freetoken.checkpoint.ggml_types import GGML_TYPES
from freetoken.checkpoint.regular_file import open_regular
from freetoken.checkpoint.tensor_entry import TensorEntry, format_shape
from freetoken.errors import ModelError

MAGIC = b"GGUF"
MAX_HEADER_BYTES = 256 << 20  # the largest public vocabularies (262k tokens, 515k merges) take 15 MB
MAX_ARRAY_ITEMS = 1 << 23  # over all arrays of a file
MAX_ARRAY_DEPTH = 4
MAX_NAME_BYTES = 1024  # keys and tensor names
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32

TYPE_STRING = 8
TYPE_ARRAY = 9
SCALARS: dict[int, tuple[str, int]] = {  # value type -> struct code, bytes
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    7: ("?", 1),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}
_READERS = {code: struct.Struct("<" + fmt) for code, (fmt, _) in SCALARS.items()}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass
class GgufHeader:
    """What one file says of itself. `types[key]` is (value type, item type of an array or None)."""

    path: str
    version: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    types: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    tensors: dict[str, TensorEntry] = field(default_factory=dict)


def read_header(path: str) -> GgufHeader:
    """Reads the header of the file at `path`; raises ModelError for anything that does not add up."""
    path = os.path.abspath(path)
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size < 24:
                raise ModelError(path, "", f"not a GGUF file: {size} bytes, the shortest header is 24")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _HeaderReader(path, data, size).read()
    except OSError as error:
        raise ModelError(path, "", f"cannot be read: {error.strerror or error}") from error


class _HeaderReader:
    """A cursor over the mapped file."""

    def __init__(self, path: str, data: mmap.mmap, size: int) -> None:
        self.path = path
        self.data = data
        self.size = size
        self.end = min(size, MAX_HEADER_BYTES)
        self.pos = 0
        self.items_left = MAX_ARRAY_ITEMS
        self.where = ""  # key or tensor being read, for messages

    def fail(self, reason: str) -> ModelError:
        return ModelError(self.path, self.where, reason)

    def need(self, count: int, what: str) -> None:
        """Raises unless `count` more bytes of header exist."""
        if count > self.end - self.pos:
            limit = f"file's {self.size} bytes" if self.end == self.size else f"limit of {self.end} bytes on a header"
            raise self.fail(f"{what} at byte {self.pos} needs {count} bytes and runs past the {limit}")

    def u32(self, what: str) -> int:
        self.need(4, what)
        (value,) = _U32.unpack_from(self.data, self.pos)
        self.pos += 4
        return value

    def u64(self, what: str) -> int:
        self.need(8, what)
        (value,) = _U64.unpack_from(self.data, self.pos)
        self.pos += 8
        return value

    def string(self, what: str, limit: int = MAX_HEADER_BYTES) -> str:
        length = self.u64(f"length of {what}")
        if length > limit:
            raise self.fail(f"{what} of {length} bytes, at most {limit} are allowed")
        self.need(length, what)
        raw = self.data[self.pos : self.pos + length]
        self.pos += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8: {error.reason} at its byte {error.start}") from None

    def read(self) -> GgufHeader:
        if self.data[:4] != MAGIC:
            raise self.fail(f"not a GGUF file: it starts with {self.data[:4]!r}, not {MAGIC!r}")
        self.pos = 4
        version = self.u32("version")
        if version not in (2, 3):
            hint = "a big-endian file" if version in (2 << 24, 3 << 24) else "versions 2 and 3 are read"
            raise self.fail(f"GGUF version {version}: {hint}; convert the model again with a current llama.cpp")
        tensor_count = self.u64("tensor count")
        key_count = self.u64("key count")
        header = GgufHeader(self.path, version)
        # The shortest key takes 13 bytes and the shortest tensor record 25.
        if key_count * 13 + tensor_count * 25 > self.end - self.pos:
            left = self.end - self.pos
            raise self.fail(f"{key_count} keys and {tensor_count} tensors cannot fit in the {left} bytes that are left")
        for _ in range(key_count):
            self.read_key(header)
        self.where = "general.alignment"
        alignment = header.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self.fail(f"alignment {alignment!r} is not a power of two from 8 to 1048576")
        self.read_tensors(header, tensor_count, alignment)
        return header

    def read_key(self, header: GgufHeader) -> None:
        self.where = ""
        key = self.string("a key", MAX_NAME_BYTES)
        self.where = key
        if key in header.metadata:
            raise self.fail("key appears twice")
        value_type = self.u32("value type")
        if value_type == TYPE_ARRAY:
            value, item_type = self.array(1)
            header.types[key] = (TYPE_ARRAY, item_type)
        else:
            value = self.scalar(value_type)
            header.types[key] = (value_type, None)
        header.metadata[key] = value

    def scalar(self, value_type: int) -> Any:
        if value_type == TYPE_STRING:
            return self.string("string")
        if value_type not in SCALARS:
            raise self.fail(f"unknown value type {value_type}")
        width = SCALARS[value_type][1]
        self.need(width, "value")
        (value,) = _READERS[value_type].unpack_from(self.data, self.pos)
        self.pos += width
        return value

    def array(self, depth: int) -> tuple[list[Any], int]:
        """Items of an array and their type."""
        item_type = self.u32("item type of an array")
        count = self.u64("length of an array")
        width = 12 if item_type == TYPE_ARRAY else 8 if item_type == TYPE_STRING else SCALARS.get(item_type, ("", 0))[1]
        if not width:
            raise self.fail(f"unknown item type {item_type} of an array")
        self.need(count * width, f"array of {count} items")
        if count > self.items_left:
            raise self.fail(f"array of {count} items: a file may hold {MAX_ARRAY_ITEMS} in all")
        self.items_left -= count
        if item_type == TYPE_STRING:
            return self.strings(count), item_type
        if item_type == TYPE_ARRAY:
            if depth == MAX_ARRAY_DEPTH:
                raise self.fail(f"arrays nested deeper than {MAX_ARRAY_DEPTH}")
            return [self.array(depth + 1)[0] for _ in range(count)], item_type
        code = SCALARS[item_type][0]
        values = np.frombuffer(self.data[self.pos : self.pos + count * width], dtype=np.dtype(code).newbyteorder("<"))
        self.pos += count * width
        return values.tolist(), item_type

    def strings(self, count: int) -> list[str]:
        """Strings one after another: the hot loop of a header (a vocabulary of 150k entries in 0.1 s)."""
        data, pos, end, unpack = self.data, self.pos, self.end, _U64.unpack_from
        result = []
        try:
            for _ in range(count):
                (length,) = unpack(data, pos)
                start = pos + 8
                pos = start + length
                if pos > end:
                    raise self.fail(f"string {len(result)} of {count} has {length} bytes and runs past the file")
                result.append(data[start:pos].decode("utf-8"))
        except struct.error:
            raise self.fail(f"the file ends in string {len(result)} of {count}") from None
        except UnicodeDecodeError as error:
            raise self.fail(f"string {len(result)} of {count} is not UTF-8: {error.reason}") from None
        self.pos = pos
        return result

    def read_tensors(self, header: GgufHeader, count: int, alignment: int) -> None:
        records = [self.tensor_record() for _ in range(count)]
        self.where = ""
        data_start = -(-self.pos // alignment) * alignment
        for name, dtype, shape, relative, length in records:
            self.where = name
            if name in header.tensors:
                raise self.fail("tensor appears twice")
            if relative % alignment:
                raise self.fail(f"offset {relative} is not a multiple of the alignment {alignment}")
            offset = data_start + relative
            if offset + length > self.size:
                raise self.fail(
                    f"{dtype} {format_shape(shape)} takes {length} bytes from byte {offset} and runs past the "
                    f"file's {self.size} bytes: the file is truncated or wrong, fetch it again"
                )
            header.tensors[name] = TensorEntry(name, dtype, shape, self.path, offset, length)
        previous: TensorEntry | None = None
        for entry in sorted(header.tensors.values(), key=lambda e: e.offset):
            if previous and entry.offset < previous.offset + previous.bytes:
                self.where = entry.name
                raise self.fail(f"its bytes overlap those of {previous.name}")
            previous = entry

    def tensor_record(self) -> tuple[str, str, tuple[int, ...], int, int]:
        """Name, type, row-major shape, offset in the data section, bytes."""
        self.where = ""
        name = self.string("a tensor name", MAX_NAME_BYTES)
        self.where = name or "(tensor without a name)"
        if not name:
            raise self.fail("a tensor needs a name")
        dims = self.u32("number of dimensions")
        if not 1 <= dims <= MAX_DIMS:
            raise self.fail(f"{dims} dimensions, 1 to {MAX_DIMS} are possible")
        shape = tuple(self.u64("dimension") for _ in range(dims))[::-1]
        type_number = self.u32("tensor type")
        offset = self.u64("tensor offset")
        if type_number not in GGML_TYPES:
            raise self.fail(f"unknown tensor type number {type_number}")
        kind = GGML_TYPES[type_number]
        elements = 1
        for dim in shape:
            elements *= dim
        if elements == 0:
            raise self.fail(f"shape {format_shape(shape)} holds nothing")
        if shape[-1] % kind.block_elements:
            raise self.fail(f"rows of {shape[-1]} do not divide into {kind.name} blocks of {kind.block_elements}")
        return name, kind.name, shape, offset, elements // kind.block_elements * kind.block_bytes
