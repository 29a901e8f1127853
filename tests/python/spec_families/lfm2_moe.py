"""LFM2 MoE: short gated convolutions between attention layers, sigmoid experts."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_HIDDEN, MAX_LAYERS, Reader
from freetoken.config.rope import make_rope, rope_reader

from .shared import W123, Naming, block, concatenated, conv_name, finish, layer_types, tied


def lfm2_moe(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, eps="norm_eps", default_eps=1e-5, positions=128000)
    norm = common.rms(s.eps)
    conv = spec.LinearAttention(
        "short_conv",
        conv_kernel=c.integer("conv_L_cache", 1, 64),
        conv_bias=c.flag("conv_bias", False),
        bias=c.flag("conv_bias", False),
    )
    experts, chosen = common.read_experts(c, s)
    moe = spec.Moe(
        experts,
        chosen,
        c.integer("moe_intermediate_size", 1, MAX_HIDDEN),
        scoring="sigmoid",
        normalise=c.flag("norm_topk_prob", True),
        normalise_eps=1e-6,
        selection_bias=c.flag("use_expert_bias", True),
        scaling=c.number("routed_scaling_factor", 0.0, 1e6, 1.0),
    )
    dense = c.integer("num_dense_layers", 0, MAX_LAYERS, 2)
    layers = []
    for index, kind in enumerate(layer_types(c, s.layers, ("conv", "full_attention"))):
        mixer = spec.Sublayer("attention", norm, attention=common.attention(s, q_norm=norm, k_norm=norm))
        if kind == "conv":
            mixer = spec.Sublayer("linear_attention", norm, linear_attention=conv)
        mlp = spec.Mlp(c.integer("intermediate_size", 1, MAX_HIDDEN))
        layers.append(
            block(mixer, spec.Sublayer("mlp", norm, mlp=mlp) if index < dense else spec.Sublayer("moe", norm, moe=moe))
        )

    def conv_names(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.linear_attention is None:
            return
        concatenated(names, f"{source}conv.in_proj.weight", [at + part for part in ("b", "c", "x")])
        conv_name(names, f"{source}conv.conv.weight", f"{at}conv")
        common.add_if_required(names, f"{source}conv.out_proj", f"{at}o")

    naming = Naming(
        norm="embedding_norm",
        norms=({"pre_norm": "operator_norm"}, {"pre_norm": "ffn_norm"}),
        mlp="feed_forward.",
        mlp_map=W123,
        moe="feed_forward.",
        selection_bias="expert_bias",
        experts_map=W123,
        extra=conv_names,
    )
    naming = naming.but(
        attention_map={**naming.attention_map, "o": "out_proj", "q_norm": "q_layernorm", "k_norm": "k_layernorm"}
    )
    rope = make_rope(rope_reader(c), s.head_dim, theta=1e6)
    return finish(common.model(s, layers, [rope], tied_embedding=tied(c, True)), naming)
