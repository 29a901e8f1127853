"""Stored tensors + name map -> the weight table that the core packs from. Checks every tensor of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from freetoken.checkpoint.ggml_types import BLOCKS, FORMATS
from freetoken.checkpoint.tensor_entry import TensorEntry
from freetoken.config.names import Ignored, NameMap, Target
from freetoken.errors import ConfigError, ModelError

SUPPORTED = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q6_K"
VECTOR_FORMATS = ("f32", "f16", "bf16")


@dataclass
class WeightTable:
    """`json` is the table in the form of the core; `ignored` maps tensors that are not used to the reason."""

    json: dict[str, Any]
    ignored: dict[str, str] = field(default_factory=dict)


def build_weight_table(tensors: Mapping[str, TensorEntry], names: NameMap, model_file: str) -> WeightTable:
    """The table of all weights that the model needs.

    `model_file` stands in messages about tensors that are nowhere. Raises ModelError(file, tensor, reason) for a tensor
    that is missing, not known, given twice, of the wrong shape or of a dtype that is not read.
    """
    files: dict[str, int] = {}
    entries: list[dict[str, Any]] = []
    table = WeightTable({"files": [], "tensors": entries})
    source_of: dict[str, TensorEntry] = {}
    for entry in tensors.values():
        try:
            found = names.lookup(entry.name, entry.shape)
        except ConfigError as error:
            raise ModelError(entry.file, entry.name, str(error)) from None
        if found is None:
            raise ModelError(
                entry.file, entry.name, "this architecture has no such tensor: the file does not fit its configuration"
            )
        if isinstance(found, Ignored):
            table.ignored[entry.name] = found.reason
            continue
        for target in found:
            if target.canonical in source_of:
                other = source_of[target.canonical].name
                raise ModelError(entry.file, entry.name, f"gives {target.canonical}, which {other} gives already")
            source_of[target.canonical] = entry
            entries.append(_entry_json(entry, target, files.setdefault(entry.file, len(files))))
    missing = names.missing(tensors)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        canonical, _, sources = missing[0].partition(" ")
        raise ModelError(model_file, sources.strip("()") or canonical, f"missing: the model needs {canonical}{more}")
    table.json["files"] = list(files)
    return table


def _entry_json(entry: TensorEntry, target: Target, file: int) -> dict[str, Any]:
    def fail(reason: str) -> ModelError:
        return ModelError(entry.file, entry.name, reason)

    weight_format = FORMATS.get(entry.dtype)
    if weight_format is None:
        raise fail(f"dtype {entry.dtype} is not read by this version ({SUPPORTED} are): get the model in one of these")
    if target.transpose or target.rows:
        raise fail("its rows are stored transposed or interleaved, which this version does not read")
    shape = target.shape
    if len(shape) == 1 and weight_format not in VECTOR_FORMATS:
        raise fail(f"dtype {entry.dtype} for a vector: F32, F16 or BF16 expected")
    block_elements, block_bytes = BLOCKS[weight_format]
    if shape[-1] % block_elements:
        raise fail(f"rows of {shape[-1]} do not divide into {entry.dtype} blocks of {block_elements}")
    elements = 1
    for dim in shape:
        elements *= dim
    length = elements // block_elements * block_bytes
    if length * target.parts != entry.bytes:
        raise fail(
            f"{entry.bytes} bytes, but {target.parts} x {list(shape)} in {entry.dtype} takes {target.parts * length}"
        )
    record: dict[str, Any] = {
        "name": target.canonical,
        "file": file,
        "offset": entry.offset + target.part_index * length,
        "bytes": length,
        "format": weight_format,
        "shape": list(shape),
        "source": entry.name,
    }
    if target.rotary_heads:
        record["rotary_heads"] = target.rotary_heads
    return record
