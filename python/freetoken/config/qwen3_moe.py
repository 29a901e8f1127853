"""Qwen3 MoE: per-head norms on q and k, softmax routing, dense MLPs on the layers the configuration names."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, Reader
from freetoken.config.rope import make_rope, rope_reader


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

    layers = [
        spec.Layer([spec.Sublayer("attention", norm, attention=attention), feed_forward(index)])
        for index in range(sizes.layers)
    ]
    network = common.model(
        sizes, layers, [make_rope(rope_reader(c), sizes.head_dim)], tied_embedding=c.flag("tie_word_embeddings", False)
    )

    def add_names(names: NameMap) -> None:
        common.add_model_names(names, network)
        for index, layer in enumerate(layers):
            common.add_if_required(names, f"model.layers.{index}.input_layernorm", f"layers.{index}.0.pre_norm")
            common.add_attention_names(names, f"model.layers.{index}.", f"layers.{index}.0.")
            common.add_if_required(
                names, f"model.layers.{index}.post_attention_layernorm", f"layers.{index}.1.pre_norm"
            )
            if layer.sublayers[1].moe is None:
                common.add_ffn_names(names, f"model.layers.{index}.mlp.", f"layers.{index}.1.")
            else:
                common.add_if_required(names, f"model.layers.{index}.mlp.gate", f"layers.{index}.1.router")
                common.add_expert_names(names, f"model.layers.{index}.mlp.experts.", f"layers.{index}.1.", experts)

    return common.finish(network, add_names)
