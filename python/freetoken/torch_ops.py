"""The CPU kernels on torch tensors: packed linear layers, mixtures of experts, paged attention.

Needs PyTorch, which the rest of the package does not: ``pip install 'freetoken[torch]'``. Tensors cross through DLPack;
a result is memory of ours that the returned tensor owns, not a copy.

All tensors are contiguous and on the CPU. What does not fit (type, device, shape, layout, an id out of range) raises
``ConfigError``, which names the argument, what it is and what it must be; too little memory raises ``ResourceError``.
Nothing here records gradients: an input that requires one is refused while they are enabled.

Results are those of the engine bit for bit, and a row's do not depend on the other rows of the call or on the number of
threads. The GIL is released while kernels run. Calls on packed weights share the process's threads and take turns.
"""

from __future__ import annotations

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "freetoken.torch_ops needs PyTorch, which is an extra: pip install 'freetoken[torch]'", name="torch"
    ) from None

from freetoken import _core
from freetoken._core import ConfigError, ResourceError

__all__ = [
    "ConfigError",
    "PackedExperts",
    "PackedLinear",
    "PagedKv",
    "ResourceError",
    "num_threads",
    "pack_experts",
    "pack_linear",
    "paged_attention",
    "set_num_threads",
]

_KV_TYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


def _input(tensor: torch.Tensor, name: str) -> torch.Tensor:
    if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
        if torch.is_grad_enabled():
            raise ConfigError(f"{name} requires a gradient, and these kernels record none: use torch.no_grad()")
        return tensor.detach()
    return tensor


def _weight(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if isinstance(tensor, torch.Tensor) else tensor  # packing copies: no gradient is lost


class PackedLinear:
    """``y = x W^T + b`` on a packed weight. Made by :func:`pack_linear`; immutable, callable from any thread."""

    def __init__(self, core: _core.PackedLinear):
        self._core = core

    @property
    def in_features(self) -> int:
        return self._core.k

    @property
    def out_features(self) -> int:
        return self._core.n

    @property
    def packed_bytes(self) -> int:
        return self._core.packed_bytes

    def __call__(self, x: torch.Tensor, *, activations: str = "auto") -> torch.Tensor:
        """``x`` [rows, in_features] float32 -> [rows, out_features] float32. Zero rows are fine.

        ``activations``: "auto" narrows x to match the weight (bf16 for bf16, int8 per 32 values for q8_0, q4_0, q4_1
        and q6_k; f32 and f16 weights take it as it is), "float32" multiplies the decoded weight by x itself.
        """
        return torch.from_dlpack(self._core.run(_input(x, "x"), activations))

    def __repr__(self) -> str:
        return f"PackedLinear(in_features={self.in_features}, out_features={self.out_features})"


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None = None, *, format: str | None = None) -> PackedLinear:
    """Packs a weight; it and the bias are copied and may go.

    ``weight``: [n, k] of float32, bfloat16 or float16, kept as it is, or quantised as in GGUF: uint8 [n, bytes of a
    row] with its ``format``, one of q8_0, q4_0, q4_1, q6_k (also f32, f16, bf16 as bytes). ``bias``: [n] float32.
    """
    return PackedLinear(_core.PackedLinear(_weight(weight), None if bias is None else _weight(bias), format))


class PackedExperts:
    """The experts of one layer with SiLU gates. Made by :func:`pack_experts`; immutable, callable from any thread."""

    def __init__(self, core: _core.PackedExperts):
        self._core = core

    @property
    def experts(self) -> int:
        return self._core.experts

    @property
    def hidden(self) -> int:
        return self._core.hidden

    @property
    def inner(self) -> int:
        return self._core.inner

    @property
    def packed_bytes(self) -> int:
        return self._core.packed_bytes

    def moe(
        self, x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor, *, activations: str = "auto"
    ) -> torch.Tensor:
        """``out[r] = sum over i of weights[r, i] * down_e(silu(gate_e x[r]) * up_e x[r])``, e = ``expert_ids[r, i]``.

        ``x`` [rows, hidden] float32, ``expert_ids`` [rows, experts per row] int32, ``weights`` the same shape float32,
        used as they are; result [rows, hidden] float32, added in the order of i. The ids of a row are distinct.
        ``activations`` as in :meth:`PackedLinear.__call__`.
        """
        return torch.from_dlpack(self._core.run(_input(x, "x"), expert_ids, _input(weights, "weights"), activations))

    def __repr__(self) -> str:
        return f"PackedExperts(experts={self.experts}, hidden={self.hidden}, inner={self.inner})"


def pack_experts(
    gate: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    *,
    formats: str | tuple[str | None, str | None, str | None] | None = None,
) -> PackedExperts:
    """Packs stacks of experts; they are copied and may go.

    ``gate`` and ``up`` [experts, inner, hidden], ``down`` [experts, hidden, inner] of float32, bfloat16 or float16, or
    uint8 with the bytes of a row as the last size (:func:`pack_linear`). ``formats`` of the uint8 ones: one for all
    three, or (gate, up, down) with None for float stacks.
    """
    each = formats if isinstance(formats, tuple) else (formats,) * 3
    if len(each) != 3:
        raise ConfigError(f"formats has {len(each)} entries: must be one name, or gate's, up's and down's")
    return PackedExperts(_core.PackedExperts(_weight(gate), _weight(up), _weight(down), *each))


class PagedKv:
    """Keys and values of ``layers`` layers in ``pages`` pages of 64 positions, for :func:`paged_attention`.

    ``v_dim`` (``qk_dim`` when None) is a multiple of 16. ``dtype``: torch.bfloat16 or torch.float32, what keys and
    values are rounded to. Which page holds which positions of which sequence is the caller's page table; positions
    that were never written are zeros. Calls on one PagedKv take turns. It cannot be carried over a fork.
    """

    page_tokens: int = _core.PagedKv.page_tokens

    def __init__(
        self,
        pages: int,
        kv_heads: int,
        qk_dim: int,
        v_dim: int | None = None,
        *,
        layers: int = 1,
        dtype: torch.dtype = torch.bfloat16,
    ):
        if dtype not in _KV_TYPES:
            raise ConfigError(f"dtype is {dtype}: must be torch.bfloat16 or torch.float32")
        self._v_dim = qk_dim if v_dim is None else v_dim
        self._core = _core.PagedKv(pages, kv_heads, qk_dim, self._v_dim, layers, _KV_TYPES[dtype])

    @property
    def pages(self) -> int:
        return self._core.pages


def paged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    kv: PagedKv,
    page_table: torch.Tensor,
    context_lengths: torch.Tensor,
    row_counts: torch.Tensor,
    scale: float,
    *,
    window: int | None = None,
    layer: int = 0,
) -> torch.Tensor:
    """Appends k and v to the cache, then causal attention of q over everything there up to each row's own position.

    Rows of all sequences lie one after the other: sequence s has ``row_counts[s]`` of them, at the positions from
    ``context_lengths[s]`` on (how many it has in the cache already). ``page_table[s, i]`` is the page of its positions
    [64 i, 64 i + 64); entries past its last position are not read. A page that this call writes must belong to one
    sequence alone, others may be shared.

    ``q`` [rows, q_heads, qk_dim], ``k`` [rows, kv_heads, qk_dim], ``v`` [rows, kv_heads, v_dim], float32, already
    rotated; q_heads is a multiple of kv_heads, and a group of q_heads / kv_heads neighbours shares a KV head.
    ``page_table`` [sequences, pages] int32, ``context_lengths`` and ``row_counts`` [sequences] int32. ``scale`` of q.k.
    ``window``: positions seen, the row's own included; None = all. Result [rows, q_heads, v_dim] float32.
    """
    if window is not None and window < 1:
        raise ConfigError(f"window is {window}: must be at least 1, or None for all positions")
    q = _input(q, "q")
    out = kv._core.attend(
        q, _input(k, "k"), _input(v, "v"), page_table, context_lengths, row_counts, scale, window or 0, layer
    )
    return torch.from_dlpack(out).view(q.shape[0], q.shape[1], kv._v_dim)


def set_num_threads(threads: int) -> None:
    """Threads that kernels here use, 1 to 1024; 0 is one per core this process may use, the default.

    Counts for all later calls on packed weights and for every PagedKv made later; torch's own threads are others.
    """
    _core.set_tensor_threads(threads)


def num_threads() -> int:
    return _core.tensor_threads()
