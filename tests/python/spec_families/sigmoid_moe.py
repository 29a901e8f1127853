"""Grouped-query attention with sigmoid routers: dots1, glm4_moe, hy_v3, exaone_moe, minimax_m2, mimo_v2_flash, afmoe,
laguna."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, Reader
from freetoken.config.rope import make_rope, rope_reader
from freetoken.errors import ConfigError

from .dense import SLIDING, mlp_of, windows
from .shared import W123, Naming, Ropes, block, finish, layer_types, sigmoid_moe, sparse_layers, tied


def _feed_forward(c: Reader, norm: spec.Norm, moe: spec.Moe, sparse: bool) -> spec.Sublayer:
    return spec.Sublayer("moe", norm, moe=moe) if sparse else spec.Sublayer("mlp", norm, mlp=mlp_of(c))


def dots1(c: Reader) -> ParsedModel:
    s = common.read_sizes(c)
    norm, bias = common.rms(s.eps), c.flag("attention_bias", False)
    layers = [
        block(
            spec.Sublayer(
                "attention",
                norm,
                attention=common.attention(s, window=w, qkv_bias=bias, o_bias=bias, q_norm=norm, k_norm=norm),
            ),
            _feed_forward(c, norm, sigmoid_moe(c, s), sparse),
        )
        for w, sparse in zip(windows(c, s.layers), sparse_layers(c, s.layers), strict=True)
    ]
    return finish(common.model(s, layers, [make_rope(rope_reader(c), s.head_dim)], tied_embedding=tied(c)), Naming())


def glm4_moe(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, positions=131072, kv_heads=8, default_eps=1e-5)
    norm, bias = common.rms(s.eps), c.flag("attention_bias", False)
    head_norm = norm if c.flag("use_qk_norm", False) else spec.Norm()
    attention = common.attention(s, qkv_bias=bias, q_norm=head_norm, k_norm=head_norm)
    layers = [
        block(spec.Sublayer("attention", norm, attention=attention), _feed_forward(c, norm, sigmoid_moe(c, s), sparse))
        for sparse in sparse_layers(c, s.layers, 1)
    ]
    rope = make_rope(rope_reader(c), s.head_dim, partial=0.5)
    return finish(common.model(s, layers, [rope], tied_embedding=tied(c)), Naming())


def hy_v3(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, default_eps=1e-5)
    norm, bias = common.rms(s.eps), c.flag("attention_bias", False)
    moe = sigmoid_moe(
        c, s, "num_experts", "num_shared_experts", scaling=c.number("router_scaling_factor", 0.0, 1e6, 1.0)
    )
    attention = common.attention(s, qkv_bias=bias, o_bias=bias, q_norm=norm, k_norm=norm)
    layers = [
        block(spec.Sublayer("attention", norm, attention=attention), _feed_forward(c, norm, moe, sparse))
        for sparse in sparse_layers(c, s.layers, 1)
    ]
    naming = Naming(router="router.gate", selection_bias="expert_bias", shared="shared_mlp.")
    return finish(common.model(s, layers, [make_rope(rope_reader(c), s.head_dim)], tied_embedding=tied(c)), naming)


def exaone_moe(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, default_eps=1e-5)
    norm = common.rms(s.eps)
    moe = sigmoid_moe(c, s, "num_experts", "num_shared_experts")
    sliding = windows(c, s.layers)
    hybrid = any(sliding)  # then only the window layers rotate
    layers = [
        block(
            spec.Sublayer(
                "attention",
                norm,
                attention=common.attention(s, window=w, rope=0 if w or not hybrid else -1, q_norm=norm, k_norm=norm),
            ),
            _feed_forward(c, norm, moe, sparse),
        )
        for w, sparse in zip(sliding, sparse_layers(c, s.layers, 1), strict=True)
    ]
    naming = Naming(selection_bias="e_score_correction_bias")
    return finish(common.model(s, layers, [make_rope(rope_reader(c), s.head_dim)], tied_embedding=tied(c)), naming)


def minimax_m2(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, default_eps=1e-6)
    norm = common.rms(s.eps)
    for name, value in (("scoring_func", "sigmoid"), ("use_routing_bias", True), ("qk_norm_type", "per_layer")):
        c.refuse(name, (value,), f"known is {value}")
    experts, chosen = common.read_experts(c, s, "num_local_experts")
    moe = spec.Moe(
        experts,
        chosen,
        c.integer("intermediate_size", 1, MAX_HIDDEN),
        scoring="sigmoid",
        normalise=True,
        selection_bias=True,
        activation=common.read_activation(c),
    )
    q_norm = norm if c.flag("use_qk_norm", True) else spec.Norm()
    attention = common.attention(s, q_norm=q_norm, k_norm=q_norm, norm_span="all")
    layers = [
        block(spec.Sublayer("attention", norm, attention=attention), spec.Sublayer("moe", norm, moe=moe))
        for _ in range(s.layers)
    ]
    partial = c.integer("rotary_dim", 2, MAX_HEADS, s.head_dim) / s.head_dim
    rope = make_rope(rope_reader(c), s.head_dim, theta=5e6, partial=partial)
    naming = Naming(moe="block_sparse_moe.", selection_bias="e_score_correction_bias", experts_map=W123)
    return finish(common.model(s, layers, [rope], tied_embedding=tied(c)), naming)


def mimo_v2_flash(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, default_eps=1e-5)
    norm, ropes = common.rms(s.eps), Ropes()
    v_dim = c.integer("v_head_dim", 1, MAX_HEADS)
    moe = sigmoid_moe(c, s, shared="n_shared_experts")
    layers = []
    for kind, window, sparse in zip(
        layer_types(c, s.layers, SLIDING),
        windows(c, s.layers),
        sparse_layers(c, s.layers, 1),
        strict=True,
    ):
        heads = s.kv_heads * (2 if window else 1)  # window layers have twice the key-value heads
        if s.heads % heads:
            raise ConfigError(f"{c.where('num_key_value_heads')}: {heads} in window layers does not divide {s.heads}")
        rope = ropes.add(make_rope(rope_reader(c, kind), s.head_dim, partial=0.334))
        attention = common.attention(
            s,
            window=window,
            rope=rope,
            kv_heads=heads,
            v_dim=v_dim,
            sinks=bool(window),
            qkv_bias=c.flag("attention_bias", False),
            v_scale=c.number("attention_value_scale", 0.0, 100.0, 1.0),
        )
        layers.append(block(spec.Sublayer("attention", norm, attention=attention), _feed_forward(c, norm, moe, sparse)))

    def sinks(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.attention is not None and sub.attention.sinks:
            names.add(f"{source}self_attn.attention_sink_bias", f"{at}sinks")

    return finish(common.model(s, layers, ropes.tables, tied_embedding=tied(c)), Naming(extra=sinks))


def afmoe(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, default_eps=1e-5)
    norm = common.rms(s.eps)
    moe = sigmoid_moe(c, s, "num_experts", "num_shared_experts", scaling=c.number("route_scale", 0.0, 1e6, 1.0))
    dense = c.integer("num_dense_layers", 0, MAX_LAYERS, 1)
    layers = []
    for index, window in enumerate(windows(c, s.layers)):
        attention = common.attention(
            s, window=window, rope=0 if window else -1, q_norm=norm, k_norm=norm, gate="element"
        )
        feed_forward = _feed_forward(c, norm, moe, index >= dense)
        feed_forward.post_norm = norm
        layers.append(block(spec.Sublayer("attention", norm, norm, attention=attention), feed_forward))
    naming = Naming(
        norms=(
            {"pre_norm": "input_layernorm", "post_norm": "post_attention_layernorm"},
            {"pre_norm": "pre_mlp_layernorm", "post_norm": "post_mlp_layernorm"},
        ),
        router="router.gate",
        selection_bias="expert_bias",
    )
    scale = s.hidden**0.5 if c.flag("mup_enabled", False) else 1.0
    rope = make_rope(rope_reader(c), s.head_dim)
    return finish(common.model(s, layers, [rope], embed_scale=scale, tied_embedding=tied(c)), naming)


def laguna(c: Reader) -> ParsedModel:
    s = common.read_sizes(c)
    norm, ropes = common.rms(s.eps), Ropes()
    c.refuse("moe_apply_router_weight_on_input", (False,), "router weights on the input")
    per_head = c.raw("gating", True) in (True, "per-head")
    heads = c.integers("num_attention_heads_per_layer", 1, MAX_HEADS, s.layers, default=[s.heads] * s.layers)
    moe = sigmoid_moe(
        c,
        s,
        "num_experts",
        normalise=True,
        normalise_eps=0.0,
        scaling=c.number("moe_routed_scaling_factor", 0.0, 1e6, 1.0),
        router_softcap=c.number("moe_router_logit_softcapping", 0.0, 1e6, 0.0),
        shared_inner=c.integer("shared_expert_intermediate_size", 0, MAX_HIDDEN, 0),
    )
    layers = []
    for index, (kind, window) in enumerate(
        zip(layer_types(c, s.layers, SLIDING, "full_attention"), windows(c, s.layers), strict=True)
    ):
        rope = ropes.add(make_rope(rope_reader(c, kind), s.head_dim))
        attention = common.attention(
            s,
            window=window,
            rope=rope,
            q_heads=heads[index],
            q_norm=norm,
            k_norm=norm,
            gate="head" if per_head else "element",
            gate_activation="softplus",
        )
        layers.append(
            block(
                spec.Sublayer("attention", norm, attention=attention),
                _feed_forward(c, norm, moe, sparse_layers(c, s.layers)[index]),
            )
        )
    naming = Naming(selection_bias="experts.e_score_correction_bias", shared="shared_expert.")
    naming = naming.but(attention_map={**naming.attention_map, "gate": "g_proj"})
    return finish(common.model(s, layers, ropes.tables, tied_embedding=tied(c)), naming)
