"""Granite MoE (plain, with a shared expert, hybrid with Mamba 2): multipliers everywhere, softmax over the chosen
experts."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_HEADS, MAX_HIDDEN, Reader
from freetoken.config.rope import make_rope, rope_reader

from .mamba import dt_limits, mamba_names
from .shared import Naming, block, ffn_names, finish, fused_expert_names, layer_types, tied


def granitemoe(c: Reader) -> ParsedModel:
    return _granite(c, 0, False)


def granitemoeshared(c: Reader) -> ParsedModel:
    return _granite(c, c.integer("shared_intermediate_size", 0, MAX_HIDDEN, 0), False)


def granitemoehybrid(c: Reader) -> ParsedModel:
    return _granite(c, c.integer("shared_intermediate_size", 1, MAX_HIDDEN), True)


def _mamba(c: Reader, s: common.Sizes) -> spec.LinearAttention:
    heads, dim = c.integer("mamba_n_heads", 1, MAX_HEADS), c.integer("mamba_d_head", 1, MAX_HEADS)
    low, high = dt_limits(c)
    groups = c.integer("mamba_n_groups", 1, MAX_HEADS, 1)
    return spec.LinearAttention(
        "mamba2",
        k_heads=groups,
        v_heads=heads,
        k_dim=c.integer("mamba_d_state", 1, MAX_HEADS),
        v_dim=dim,
        conv_kernel=c.integer("mamba_d_conv", 1, 64, 4),
        conv_bias=c.flag("mamba_conv_bias", True),
        bias=c.flag("mamba_proj_bias", False),
        norm=common.rms(s.eps, group=heads * dim // groups if groups > 1 else 0),
        gate_before_norm=True,
        dt_min=low,
        dt_max=high,
    )


def _granite(c: Reader, shared_inner: int, hybrid: bool) -> ParsedModel:
    s = common.read_sizes(c)
    norm, bias = common.rms(s.eps), c.flag("attention_bias", False)
    experts, chosen = common.read_experts(c, s, "num_local_experts")
    activation = common.read_activation(c)
    moe = spec.Moe(
        experts,
        chosen,
        c.integer("intermediate_size", 1, MAX_HIDDEN),
        scoring="softmax_of_selected",
        activation=activation,
        shared_inner=shared_inner,
        shared_activation=activation,
    )
    rotates = not hybrid or c.raw("position_embedding_type", None) == "rope"
    attention = common.attention(
        s, rope=0 if rotates else -1, scale=c.number("attention_multiplier", 1e-9, 1e6, 1.0), qkv_bias=bias, o_bias=bias
    )
    scale = c.number("residual_multiplier", 0.0, 1e6, 1.0)
    types = (
        layer_types(c, s.layers, ("linear_attention", "full_attention")) if hybrid else ["full_attention"] * s.layers
    )
    layers = []
    for kind in types:
        mixer = spec.Sublayer("attention", norm, attention=attention, residual_scale=scale)
        if kind == "linear_attention":
            mixer = spec.Sublayer("linear_attention", norm, linear_attention=_mamba(c, s), residual_scale=scale)
        layers.append(block(mixer, spec.Sublayer("moe", norm, moe=moe, residual_scale=scale)))

    def rest(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.linear_attention is not None:
            mamba_names(names, f"{source}mamba.", at)
        if sub.moe is None:
            return
        fused_expert_names(
            names, f"{source}block_sparse_moe.", at, experts, "input_linear.weight", "output_linear.weight"
        )
        if shared_inner:
            ffn_names(names, f"{source}shared_mlp.", f"{at}shared.", {"down": "output_linear"}, "input_linear")

    network = common.model(
        s,
        layers,
        [make_rope(rope_reader(c), s.head_dim)] if rotates else [],
        tied_embedding=tied(c),
        embed_scale=c.number("embedding_multiplier", 0.0, 1e6, 1.0),
        logit_scale=1.0 / c.number("logits_scaling", 1e-6, 1e6, 1.0),
    )
    naming = Naming(moe="block_sparse_moe.", router="router.layer", experts_map={}, shared_map={}, extra=rest)
    return finish(network, naming)
