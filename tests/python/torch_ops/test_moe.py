"""The grouped mixture of experts against a loop in torch."""

from __future__ import annotations

import pytest
import torch
from torch_reference import FORMATS, matrices

from freetoken import torch_ops

pytestmark = pytest.mark.oracle
EXPERTS, HIDDEN, INNER = 7, 256, 256
TOLERANCE = 2e-5  # of the deviation of the output; measured: 4.1e-6


def choice(rows: int, experts: int, per_row: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:per_row] for _ in range(rows)])
    return ids.int(), torch.rand(rows, per_row, generator=generator) - 0.2  # some are negative


def loop(x, gate, up, down, ids, weights) -> torch.Tensor:
    out = torch.zeros_like(x)
    for r in range(x.shape[0]):
        for e, weight in zip(ids[r].tolist(), weights[r].double(), strict=True):
            inner = torch.nn.functional.silu(gate[e] @ x[r]) * (up[e] @ x[r])
            out[r] += weight * (down[e] @ inner)
    return out


def stacks(gate: str, up: str, down: str, experts=EXPERTS, hidden=HIDDEN, inner=INNER):
    made = [
        matrices(name, shape, seed=i)
        for i, (name, shape) in enumerate(
            [(gate, (experts, inner, hidden)), (up, (experts, inner, hidden)), (down, (experts, hidden, inner))]
        )
    ]
    packed = torch_ops.pack_experts(*(m[0] for m in made), formats=tuple(m[1] for m in made))
    return packed, [m[2] for m in made]


def expect_close(packed, values, rows: int, per_row: int) -> None:
    ids, weights = choice(rows, packed.experts, per_row)
    x = torch.randn(rows, packed.hidden, generator=torch.Generator().manual_seed(rows))
    out = packed.moe(x, ids, weights, activations="float32")
    expected = loop(x.double(), *values, ids, weights)
    error = (out.double() - expected).abs().max() / expected.square().mean().sqrt()
    # fp32 sums of 256 products, one into the other: errors of a random walk, 16 * 2^-24 = 1e-6 of the deviation each.
    assert out.shape == x.shape and error < TOLERANCE


@pytest.mark.parametrize("name", FORMATS)
def test_all_formats(name):
    packed, values = stacks(name, name, name)
    assert (packed.experts, packed.hidden, packed.inner) == (EXPERTS, HIDDEN, INNER)
    for rows, per_row in [(1, 1), (1, EXPERTS), (5, 2), (40, 3)]:
        expect_close(packed, values, rows, per_row)


@pytest.mark.parametrize("formats", [("bf16", "q8_0", "q6_k"), ("q4_0", "q4_1", "f16"), ("q8_0", "q8_0", "f32")])
def test_mixed_formats(formats):
    packed, values = stacks(*formats)
    expect_close(packed, values, 20, 3)


@pytest.mark.parametrize(("experts", "hidden", "inner"), [(1, 1, 1), (3, 33, 17), (5, 70, 100)])
@pytest.mark.parametrize("name", ["f32", "f16"])
def test_odd_sizes(name, experts, hidden, inner):
    packed, values = stacks(name, name, name, experts, hidden, inner)
    expect_close(packed, values, 6, min(2, experts))


@pytest.mark.parametrize(("name", "error"), [("bf16", 0.01), ("q8_0", 0.03), ("q4_1", 0.03), ("q6_k", 0.03)])
def test_narrowed_inputs(name, error):
    """Relative to the size of the output. A bf16 input is off by 2^-9 at most, an int8 one by 1/254 of the largest of
    32; both happen twice, and an expert multiplies two of the first. Measured: bf16 0.003, int8 0.012."""
    packed, values = stacks(name, name, name)
    ids, weights = choice(60, EXPERTS, 3)
    x = torch.randn(60, HIDDEN, generator=torch.Generator().manual_seed(1))
    expected = loop(x.double(), *values, ids, weights)
    difference = packed.moe(x, ids, weights).double() - expected
    assert 0 < difference.norm() / expected.norm() < error


def test_a_row_depends_on_itself_alone():
    packed, _ = stacks("q8_0", "q8_0", "q8_0")
    ids, weights = choice(1100, EXPERTS, 2)
    x = torch.randn(1100, HIDDEN)
    all_rows = packed.moe(x, ids, weights)
    for r in (0, 511, 512, 1099):
        one = packed.moe(x[r : r + 1], ids[r : r + 1].contiguous(), weights[r : r + 1].contiguous())
        assert torch.equal(one, all_rows[r : r + 1])


def test_no_rows():
    packed, _ = stacks("f32", "f32", "f32")
    assert packed.moe(torch.empty(0, HIDDEN), *choice_of_none()).shape == (0, HIDDEN)


def choice_of_none() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(0, 2, dtype=torch.int32), torch.empty(0, 2)
