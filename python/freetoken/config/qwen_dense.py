"""Qwen2, Qwen2.5 and Qwen3, dense: Qwen2 has biases on q, k and v, Qwen3 per-head norms on q and k."""

from __future__ import annotations

from typing import Any

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel, Sizes
from freetoken.config.reader import MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, Reader

_KINDS = ("full_attention", "sliding_attention")


def qwen2(c: Reader) -> ParsedModel:
    return _parse(c, common.read_sizes(c, positions=32768, kv_heads=32), qkv_bias=True)


def qwen3(c: Reader) -> ParsedModel:
    sizes = common.read_sizes(c, positions=32768, kv_heads=32, head_dim=128)
    bias, norm = c.flag("attention_bias", False), common.rms(sizes.eps)
    return _parse(c, sizes, qkv_bias=bias, o_bias=bias, q_norm=norm, k_norm=norm)


def _parse(c: Reader, sizes: Sizes, **attention: Any) -> ParsedModel:
    mlp = spec.Mlp(c.integer("intermediate_size", 1, MAX_HIDDEN), common.read_activation(c))
    return common.decoder(
        c,
        sizes,
        [common.attention(sizes, window=window, **attention) for window in _windows(c, sizes.layers)],
        lambda _: spec.Sublayer("mlp", common.rms(sizes.eps), mlp=mlp),
        common.add_mlp_names,
    )


def _windows(c: Reader, layers: int) -> list[int | None]:
    """The window of each layer: of those that layer_types names, else of all from max_window_layers on."""
    if not c.flag("use_sliding_window", False):
        return [None] * layers
    absent = None if "sliding_window" in c.values else 4096  # null: no window
    window = c.integer("sliding_window", 1, MAX_POSITIONS, absent)
    first = c.integer("max_window_layers", 0, MAX_LAYERS, 28)
    kinds = c.choices("layer_types", _KINDS, layers, default=[_KINDS[index >= first] for index in range(layers)])
    return [window if kind == "sliding_attention" else None for kind in kinds]
