"""Weight formats of the core against the gguf package: decoded values, bit for bit, and lossless packing."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freetoken import _testing

TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q6_k": gguf.GGMLQuantizationType.Q6_K,
}
FORMATS = sorted(TYPES)
QUANTIZABLE = sorted(set(TYPES) - {"q6_k"})  # the package decodes Q6_K but does not make it


def sizes(name: str) -> tuple[int, int]:
    """Weights and bytes of a block, as the package has them."""
    return gguf.GGML_QUANT_SIZES[TYPES[name]]


def expect_equal_bits(name: str, data: np.ndarray) -> None:
    """`data`: uint8 bytes of one row. NaNs may differ in payload only."""
    block_k, block_bytes = sizes(name)
    k = data.size // block_bytes * block_k
    ours = _testing.decode(name, k, data.tobytes())
    with np.errstate(invalid="ignore", over="ignore"):
        theirs = gguf.dequantize(data, TYPES[name]).reshape(-1).astype(np.float32)
    assert ours.shape == (k,) and ours.dtype == np.float32
    nan = np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(ours), nan)
    np.testing.assert_array_equal(ours.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan])


@pytest.mark.parametrize("name", FORMATS)
def test_decode_of_random_blocks_equals_gguf(name: str) -> None:
    rng = np.random.default_rng(1)
    expect_equal_bits(name, rng.integers(0, 256, size=4000 * sizes(name)[1], dtype=np.uint8))


@pytest.mark.parametrize("name", QUANTIZABLE)
def test_decode_of_quantized_weights_equals_gguf(name: str) -> None:
    rng = np.random.default_rng(2)
    weights = rng.standard_normal((1, 8192)).astype(np.float32)
    weights[0, :64] = 0
    weights[0, 64:96] = 1e-7  # a scale that is a denormal half
    expect_equal_bits(name, gguf.quantize(weights, TYPES[name]).view(np.uint8).reshape(-1))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 70), blocks=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_packing_is_lossless_for_any_bytes(name: str, n: int, blocks: int, seed: int) -> None:
    block_k, block_bytes = sizes(name)
    source = np.random.default_rng(seed).integers(0, 256, size=n * blocks * block_bytes, dtype=np.uint8).tobytes()
    packed = _testing.pack(name, n, blocks * block_k, source)
    assert _testing.unpack(name, n, blocks * block_k, packed) == source


@pytest.mark.parametrize("name", FORMATS)
def test_packed_size_is_at_most_two_percent_over_the_source(name: str) -> None:
    """Not counting the padding of N to 32 and of K to a unit: whole tiles have none."""
    block_k, block_bytes = sizes(name)
    n, k = 64, 512
    source = bytes(n * k // block_k * block_bytes)
    assert len(source) <= len(_testing.pack(name, n, k, source)) <= 1.02 * len(source)
