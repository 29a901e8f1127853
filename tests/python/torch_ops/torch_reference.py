"""Weights in every format with the values torch computes with, and the error bounds of a sum of products."""

from __future__ import annotations

import gguf
import numpy as np
import torch

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
QUANTISED = ("q8_0", "q4_0", "q4_1", "q6_k")
FORMATS = (*FLOATS, *QUANTISED)
UNIT = 2.0**-24  # rounding of one fp32 operation, relative


def matrices(name: str, shape: tuple[int, ...], seed: int = 0) -> tuple[torch.Tensor, str | None, torch.Tensor]:
    """Random matrices as the module takes them, the format to name with them, and their values in fp64."""
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
    if name in FLOATS:
        tensor = torch.from_numpy(values).to(FLOATS[name])
        return tensor, None, tensor.double()
    kind = gguf.GGMLQuantizationType[name.upper()]
    if name == "q6_k":  # the package makes none: random blocks, their fp16 scales (the last two bytes) set
        block = rng.integers(0, 256, (*shape[:-1], shape[-1] // 256, 210), dtype=np.uint8)
        scales = rng.uniform(1e-4, 1e-3, (*block.shape[:-1], 1)).astype(np.float16)
        block[..., 208:] = scales.view(np.uint8)
        data = block.reshape(*shape[:-1], -1)
    else:
        data = gguf.quantize(values, kind).view(np.uint8)
    return torch.from_numpy(data), name, torch.from_numpy(gguf.dequantize(data, kind).astype(np.float64)).reshape(shape)


def narrowed(name: str, x: torch.Tensor) -> torch.Tensor:
    """The input of a product with activations "auto", rounded by torch as docs/numerics.md says, in fp64."""
    if name in ("f32", "f16"):
        return x.double()
    if name == "bf16":
        return x.bfloat16().double()
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // 32, 32)
    largest = blocks.abs().amax(-1, keepdim=True)
    q = torch.round(blocks * (127.0 / largest))
    return (q.double() * (largest / 127.0).double()).reshape(x.shape)


def product_bound(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """|error| of x W^T in fp32: k operations, each off by a unit of what was summed so far, and twice that for the
    formats' scales, offsets and the rounding of the result."""
    return 3 * (w.shape[-1] + 1) * UNIT * (x.abs() @ w.abs().T) + 1e-30
