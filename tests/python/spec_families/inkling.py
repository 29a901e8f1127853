"""Inkling: no rotation but a learned bias by distance, short convolutions everywhere, shared experts weighted by the
router."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_EXPERTS, MAX_HEADS, MAX_HIDDEN, MAX_POSITIONS, Reader

from .shared import Naming, block, conv_name, finish, fused_expert_names, layer_types, sparse_layers, tied


def inkling(c: Reader) -> ParsedModel:
    s = common.read_sizes(c)
    norm = common.rms(s.eps)
    window = c.integer("sliding_window_size", 1, MAX_POSITIONS)
    kernel = c.integer("conv_kernel_size", 1, 64, 4)
    floor = c.number("log_scaling_n_floor", 1e-6, 1e9, None)
    experts, chosen = common.read_experts(c, s, "n_routed_experts")
    inner = c.integer("moe_intermediate_size", 1, MAX_HIDDEN)
    activation = common.read_activation(c)
    moe = spec.Moe(
        experts,
        chosen,
        inner,
        scoring="joint_sigmoid",
        selection_bias=True,
        scaling=c.number("route_scale", 0.0, 1e6, 1.0),
        global_scale=True,
        activation=activation,
        shared_inner=inner,
        shared_experts=c.integer("n_shared_experts", 1, MAX_EXPERTS),
        shared_routed=True,
        shared_activation=activation,
    )
    mlp = spec.Mlp(c.integer("intermediate_size", 1, MAX_HIDDEN), activation, scale=True)

    def attention(sliding: bool) -> spec.Attention:
        swa = "swa_" if sliding else ""
        dim = c.integer(f"{swa}head_dim", 1, MAX_HEADS)
        bias = spec.RelativeBias(
            c.integer("d_rel", 1, MAX_HEADS), window if sliding else c.integer("rel_extent", 1, MAX_POSITIONS)
        )
        temperature = spec.Temperature()
        if floor is not None and not sliding:
            temperature = spec.Temperature("log", alpha=c.number("log_scaling_alpha", 0.0, 1e6, 0.1), scale=floor)
        return common.attention(
            s,
            window=window if sliding else None,
            rope=-1,
            q_heads=c.integer(f"{swa}num_attention_heads", 1, MAX_HEADS),
            kv_heads=c.integer(f"{swa}num_key_value_heads", 1, MAX_HEADS),
            qk_dim=dim,
            v_dim=dim,
            scale=1.0 / dim,
            q_norm=norm,
            k_norm=norm,
            kv_conv=kernel,
            relative_bias=bias,
            temperature=temperature,
        )

    layers = []
    for kind, sparse in zip(
        layer_types(c, s.layers, ("hybrid_sliding", "hybrid")), sparse_layers(c, s.layers), strict=True
    ):
        feed_forward = (
            spec.Sublayer("moe", norm, moe=moe, post_conv=kernel)
            if sparse
            else spec.Sublayer("mlp", norm, mlp=mlp, post_conv=kernel)
        )
        layers.append(
            block(
                spec.Sublayer("attention", norm, attention=attention(kind == "hybrid_sliding"), post_conv=kernel),
                feed_forward,
            )
        )

    def rest(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.attention is not None:
            conv_name(names, f"{source}attn_sconv.conv1d.weight", f"{at}post_conv")
            for part in "kv":
                conv_name(names, f"{source}self_attn.{part}_sconv.conv1d.weight", f"{at}{part}_conv")
            common.add_if_required(names, f"{source}self_attn.r_proj", f"{at}rel")
            names.add(f"{source}self_attn.rel_logits_proj.proj", f"{at}rel_proj")
            return
        conv_name(names, f"{source}mlp_sconv.conv1d.weight", f"{at}post_conv")
        if sub.moe is None:
            names.add(f"{source}mlp.global_scale", f"{at}scale")
            return
        names.add(f"{source}mlp.gate.global_scale", f"{at}scale")
        fused_expert_names(names, f"{source}mlp.experts.", at, experts)
        for part in ("gate", "up", "down"):
            names.add_stacked(
                f"{source}mlp.shared_experts.{part}_proj", [f"{at}shared.{e}.{part}" for e in range(moe.shared_experts)]
            )

    network = common.model(
        s,
        layers,
        [],
        embed_norm=norm,
        tied_embedding=tied(c),
        logit_scale=1.0 / c.number("logits_mup_width_multiplier", 1e-6, 1e6, 1.0),
    )
    return finish(
        network,
        Naming(experts_map={}, shared_map={}, extra=rest),
        lambda names: names.add("model.embed_tokens.embed_norm.weight", "embed_norm"),
    )
