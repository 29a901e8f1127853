"""What does not fit is refused by name, with what it is and what it must be."""

from __future__ import annotations

import pytest
import torch

from freetoken import torch_ops
from freetoken.torch_ops import ConfigError, ResourceError

pytestmark = pytest.mark.oracle


class OnDevice:
    """A tensor of another device, as DLPack shows it."""

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **_):
        raise AssertionError("asked for memory that the CPU cannot read")


LINEAR = [
    (lambda w: w(torch.zeros(2, 31)), r"x has shape \[2, 31\]: must be \[rows, k\] = \[any, 32\]"),
    (lambda w: w(torch.zeros(32)), r"x has shape \[32\]"),
    (lambda w: w(torch.zeros(2, 32, dtype=torch.float64)), "x is float64: must be float32"),
    (lambda w: w(torch.zeros(2, 32, dtype=torch.bfloat16)), "x is bfloat16: must be float32"),
    (lambda w: w(torch.zeros(32, 2).T), "x of shape .* is not contiguous"),
    (lambda w: w(torch.zeros(2, 64)[:, ::2]), "x of shape .* is not contiguous"),
    (lambda w: w(OnDevice()), r"x is on a device of DLPack type 2: must be on the CPU .*\.cpu\(\)"),
    (lambda w: w([[0.0] * 32]), "x is a list: must be a tensor"),
    (lambda w: w(torch.zeros(2, 32, requires_grad=True)), r"x requires a gradient.*no_grad"),
    (lambda w: w(torch.zeros(2, 32), activations="int8"), "activations is 'int8': must be 'auto' or 'float32'"),
]


@pytest.mark.parametrize(("call", "message"), LINEAR)
def test_linear(call, message):
    with pytest.raises(ConfigError, match=message):
        call(torch_ops.pack_linear(torch.zeros(4, 32)))


def blocks(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.uint8)


PACK = [
    (lambda: torch_ops.pack_linear(torch.zeros(4)), r"weight has shape \[4\]: must be \[rows, columns\]"),
    (lambda: torch_ops.pack_linear(torch.zeros(0, 4)), "weight is 0 x 4: rows must be 1"),
    (lambda: torch_ops.pack_linear(torch.zeros(1, 2**20 + 1)), "columns 1 to 1048576"),
    (lambda: torch_ops.pack_linear(torch.zeros(4, 4, dtype=torch.int32)), "weight is int32"),
    (lambda: torch_ops.pack_linear(blocks(4, 34)), "weight is uint8: its format must be named"),
    (lambda: torch_ops.pack_linear(blocks(4, 33), format="q8_0"), "rows of 33 bytes are no whole blocks of q8_0"),
    (lambda: torch_ops.pack_linear(blocks(4, 34), format="q5_k"), "no weight format 'q5_k'"),
    (lambda: torch_ops.pack_linear(torch.zeros(4, 32), format="q8_0"), "weight is f32, its format is given as q8_0"),
    (lambda: torch_ops.pack_linear(torch.zeros(4, 32), torch.zeros(5)), r"bias has shape \[5\]: .* \[4\]"),
    (lambda: torch_ops.pack_linear(torch.zeros(4, 32), torch.zeros(4).half()), "bias is float16: must be float32"),
    (lambda: torch_ops.pack_linear(OnDevice()), "weight is on a device"),
    (lambda: torch_ops.set_num_threads(-1), "-1 threads: must be 0 .* to 1024"),
    (lambda: torch_ops.set_num_threads(1025), "1025 threads"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), PACK)
def test_pack(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_a_weight_may_be_a_parameter_and_an_input_too_without_gradients():
    layer = torch.nn.Linear(32, 4)
    packed = torch_ops.pack_linear(layer.weight, layer.bias)
    with torch.no_grad():
        x = torch.randn(3, 32, requires_grad=True)
        torch.testing.assert_close(packed(x), layer(x))


EXPERTS = [
    (((2, 8, 4), (2, 8, 4), (3, 4, 8)), "2, 2 and 3 experts"),
    (((2, 8, 4), (2, 7, 4), (2, 4, 8)), r"gate \[8, 4\], up \[7, 4\], down \[4, 8\]"),
    (((2, 8, 4), (2, 8, 4), (2, 8, 4)), r"must be \[inner, hidden\] twice and \[hidden, inner\]"),
    (((8, 4), (2, 8, 4), (2, 4, 8)), r"gate has shape \[8, 4\]: must be \[experts, rows, columns\]"),
]


@pytest.mark.parametrize(("shapes", "message"), EXPERTS)
def test_pack_experts(shapes, message):
    with pytest.raises(ConfigError, match=message):
        torch_ops.pack_experts(*(torch.zeros(*s) for s in shapes))


def ids(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32)


MOE = [
    (ids([0, 3], [1, 4]), torch.zeros(2, 2), r"expert_ids\[1, 1\] is 4: there are experts 0 to 3"),
    (ids([0, -1], [1, 2]), torch.zeros(2, 2), r"expert_ids\[0, 1\] is -1"),
    (ids([0, 1], [2, 2]), torch.zeros(2, 2), "row 1 names expert 2 twice"),
    (ids([0, 1]), torch.zeros(1, 2), r"expert_ids has shape \[1, 2\]: .* \[2, any\]"),
    (ids([0, 1], [2, 3]), torch.zeros(2, 1), r"weights has shape \[2, 1\]: .* \[2, 2\]"),
    (ids([0, 1], [2, 3]).long(), torch.zeros(2, 2), "expert_ids is int64: must be int32"),
    (ids([0], [1]).expand(2, 2), torch.zeros(2, 2), "expert_ids of shape .* is not contiguous"),
    (torch.zeros(2, 0, dtype=torch.int32), torch.zeros(2, 0), "0 experts per row: must be 1 to 4"),
    (ids([0, 1, 2, 3, 0], [0, 1, 2, 3, 0]), torch.zeros(2, 5), "5 experts per row: must be 1 to 4"),
]


@pytest.mark.parametrize(("expert_ids", "weights", "message"), MOE)
def test_moe(expert_ids, weights, message):
    packed = torch_ops.pack_experts(torch.zeros(4, 8, 16), torch.zeros(4, 8, 16), torch.zeros(4, 16, 8))
    with pytest.raises(ConfigError, match=message):
        packed.moe(torch.zeros(2, 16), expert_ids, weights)


KV = [
    ({"pages": 0}, "pages is 0: must be 1 to"),
    ({"pages": 2**40}, "pages is 1099511627776: must be 1 to"),
    ({"kv_heads": -1}, "kv_heads is -1"),
    ({"qk_dim": 0}, "qk_dim is 0"),
    ({"v_dim": 24}, "v_dim is 24: must be a multiple of 16"),
    ({"layers": 0}, "layers is 0"),
    ({"dtype": torch.float16}, "dtype is torch.float16"),
]


@pytest.mark.parametrize(("change", "message"), KV)
def test_paged_kv(change, message):
    options = {"pages": 4, "kv_heads": 2, "qk_dim": 16} | change
    with pytest.raises(ConfigError, match=message):
        torch_ops.PagedKv(**options)


def test_a_cache_larger_than_the_memory_is_refused():
    with pytest.raises(ResourceError, match=r"the cache needs .* bytes, .* are available"):
        torch_ops.PagedKv(2**18, 4096, 4096, layers=4096)


ATTENTION = [
    ({"q": torch.zeros(5, 3, 16)}, "q has 3 heads: must be a multiple of the 2"),
    ({"q": torch.zeros(5, 4, 8)}, r"q has shape \[5, 4, 8\]"),
    ({"k": torch.zeros(4, 2, 16)}, "v has shape"),
    ({"v": torch.zeros(5, 2, 32)}, "v has shape"),
    ({"counts": [2, 2]}, "row_counts add up to 4, q, k and v have 5 rows"),
    ({"counts": [6, -1]}, r"row_counts\[1\] is -1"),
    ({"counts": [5]}, r"row_counts has shape \[1\]"),
    ({"contexts": [-1, 0]}, r"context_lengths\[0\] is -1"),
    ({"contexts": [126, 0]}, "sequence 0 reaches position 128 and needs 3 pages: page_table has 2 columns"),
    ({"table": [[4, 1], [2, 3]]}, r"page_table\[0, 0\] is 4: the cache has pages 0 to 3"),
    ({"table": [[0, 1], [-1, 3]]}, r"page_table\[1, 0\] is -1"),
    ({"table": [[0, 1], [0, 3]]}, "page 0 is written by sequence 0 and stands elsewhere"),
    ({"table": [[0, 0], [2, 3]], "contexts": [64, 0]}, "page 0 is written by sequence 0 and stands elsewhere"),
    ({"table": torch.zeros(2, 2)}, "page_table is float32: must be int32"),
    ({"window": 0}, "window is 0: must be at least 1"),
    ({"layer": 1}, "layer is 1: the cache has 0 to 0"),
    ({"layer": -1}, "layer is -1"),
]


@pytest.mark.parametrize(("change", "message"), ATTENTION)
def test_paged_attention(change, message):
    given = {
        "q": torch.zeros(5, 4, 16), "k": torch.zeros(5, 2, 16), "v": torch.zeros(5, 2, 16), "table": [[0, 1], [2, 3]],
        "contexts": [0, 0], "counts": [3, 2], "window": None, "layer": 0,
    } | change  # fmt: skip
    as_int = lambda v: v if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=torch.int32)  # noqa: E731
    with pytest.raises(ConfigError, match=message):
        torch_ops.paged_attention(
            given["q"], given["k"], given["v"], torch_ops.PagedKv(4, 2, 16), as_int(given["table"]),
            as_int(given["contexts"]), as_int(given["counts"]), 0.25, window=given["window"], layer=given["layer"],
        )  # fmt: skip
