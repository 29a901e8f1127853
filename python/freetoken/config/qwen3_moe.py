"""Qwen3 MoE: per-head norms on q and k, softmax routing, dense MLPs on the layers the configuration names."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, Reader


def parse(c: Reader) -> ParsedModel:
    sizes = common.read_sizes(c, positions=32768, kv_heads=4)
    experts, chosen = common.read_experts(c, sizes, defaults=(128, 8), aliases=("num_local_experts",))
    activation = common.read_activation(c)
    bias = c.flag("attention_bias", False)
    window = c.integer("sliding_window", 1, MAX_POSITIONS, None) if c.flag("use_sliding_window", False) else None
    norm = common.rms(sizes.eps)
    attention = common.attention(sizes, window=window, qkv_bias=bias, o_bias=bias, q_norm=norm, k_norm=norm)
    moe = spec.Moe(
        experts,
        chosen,
        c.integer("moe_intermediate_size", 1, MAX_HIDDEN, 768),
        normalise=c.flag("norm_topk_prob", False),
        activation=activation,
    )
    mlp = spec.Mlp(c.integer("intermediate_size", 1, MAX_HIDDEN, 6144), activation)
    dense = set(c.integers("mlp_only_layers", 0, MAX_LAYERS, default=[]))
    step = c.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)

    def feed_forward(layer: int) -> spec.Sublayer:
        if layer in dense or (layer + 1) % step != 0:
            return spec.Sublayer("mlp", norm, mlp=mlp)
        return spec.Sublayer("moe", norm, moe=moe)

    def add_feed_forward_names(names: NameMap, source: str, at: str, sublayer: spec.Sublayer) -> None:
        if sublayer.moe is None:
            common.add_mlp_names(names, source, at, sublayer)
        else:
            common.add_if_required(names, f"{source}mlp.gate", f"{at}router")
            common.add_expert_names(names, f"{source}mlp.experts.", at, experts)

    return common.decoder(c, sizes, attention, feed_forward, add_feed_forward_names)
