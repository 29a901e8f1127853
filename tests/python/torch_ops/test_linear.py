"""Packed linear layers on torch tensors against torch in fp64."""

from __future__ import annotations

import pytest
import torch
from torch_reference import FORMATS, matrices, narrowed, product_bound

from freetoken import torch_ops

pytestmark = pytest.mark.oracle
SHAPES = [(1, 256), (33, 256), (70, 768), (256, 512)]


@pytest.fixture(autouse=True)
def default_threads():
    yield
    torch_ops.set_num_threads(0)


@pytest.mark.parametrize("activations", ["auto", "float32"])
@pytest.mark.parametrize("name", FORMATS)
def test_all_formats(name, activations):
    for n, k in SHAPES:
        weight, format, values = matrices(name, (n, k), seed=n)
        linear = torch_ops.pack_linear(weight, format=format)
        assert (linear.out_features, linear.in_features) == (n, k)
        for rows in (0, 1, 3, 70):
            x = torch.randn(rows, k, generator=torch.Generator().manual_seed(rows))
            seen = x.double() if activations == "float32" else narrowed(name, x)
            out = linear(x, activations=activations)
            assert out.shape == (rows, n) and out.dtype == torch.float32 and out.is_contiguous()
            assert ((out.double() - seen @ values.T).abs() <= product_bound(seen, values)).all()


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 7), (31, 33), (100, 129)])
def test_odd_sizes(name, n, k):
    weight, _, values = matrices(name, (n, k))
    x = torch.randn(9, k)
    seen = narrowed(name, x)
    out = torch_ops.pack_linear(weight)(x)
    assert ((out.double() - seen @ values.T).abs() <= product_bound(seen, values)).all()


def test_bias():
    weight, _, values = matrices("f32", (45, 64))
    bias, x = torch.randn(45), torch.randn(4, 64)
    out = torch_ops.pack_linear(weight, bias)(x)
    expected = x.double() @ values.T + bias.double()
    bound = product_bound(x.double(), values) + 2.0**-23 * expected.abs()  # one more addition
    assert ((out.double() - expected).abs() <= bound).all()


def test_float_formats_as_bytes():
    weight, _, _ = matrices("bf16", (40, 64))
    x = torch.randn(3, 64)
    as_bytes = torch_ops.pack_linear(weight.view(torch.uint8), format="bf16")
    assert torch.equal(as_bytes(x), torch_ops.pack_linear(weight)(x))


@pytest.mark.parametrize("name", ["bf16", "q4_1"])
def test_a_row_depends_on_itself_alone(name):
    """Bit for bit, on any number of threads and beyond the block of rows that is done at once."""
    weight, format, _ = matrices(name, (70, 256))
    linear = torch_ops.pack_linear(weight, format=format)
    x = torch.randn(1100, 256)
    torch_ops.set_num_threads(1)
    assert torch_ops.num_threads() == 1
    all_rows = linear(x)
    for threads in (1, 3):
        torch_ops.set_num_threads(threads)
        assert torch.equal(linear(x), all_rows)
        for r in (0, 511, 512, 1099):
            assert torch.equal(linear(x[r : r + 1]), all_rows[r : r + 1])


def test_layers_of_growing_sizes_share_the_threads():
    layers = [(k, *matrices("f32", (40, k), seed=k)) for k in (8, 2000, 64, 40000, 8)]
    packed = [torch_ops.pack_linear(weight) for _, weight, _, _ in layers]
    for (k, _, _, values), linear in zip(layers, packed, strict=True):
        x = torch.randn(2, k)
        assert ((linear(x).double() - x.double() @ values.T).abs() <= product_bound(x.double(), values)).all()


def test_infinity_and_nan_reach_their_row_only():
    weight, format, _ = matrices("q8_0", (40, 64))
    x = torch.randn(3, 64)
    x[1, 5] = float("nan")
    out = torch_ops.pack_linear(weight, format=format)(x)
    assert out[1].isnan().all() and out[[0, 2]].isfinite().all()
