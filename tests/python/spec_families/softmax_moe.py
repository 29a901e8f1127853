"""Grouped-query attention with softmax routers: qwen2_moe, olmoe, flex_olmo, phimoe, ernie4_5_moe, hunyuan_v1_moe,
gpt_oss."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap, Rows
from freetoken.config.reader import MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, Reader
from freetoken.config.rope import make_rope, rope_reader

from .dense import mlp_of, windows
from .shared import W123, Naming, block, finish, tied, transposed_expert_names


def qwen2_moe(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, positions=32768)
    norm = common.rms(s.eps)
    experts, chosen = common.read_experts(c, s)
    activation = common.read_activation(c)
    moe = spec.Moe(
        experts,
        chosen,
        c.integer("moe_intermediate_size", 1, MAX_HIDDEN),
        normalise=c.flag("norm_topk_prob", False),
        activation=activation,
        shared_inner=c.integer("shared_expert_intermediate_size", 1, MAX_HIDDEN),
        shared_gate=True,
        shared_activation=activation,
    )
    dense = c.integers("mlp_only_layers", 0, MAX_LAYERS, default=[])
    step = c.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    sliding = windows(c, s.layers) if c.flag("use_sliding_window", False) else [None] * s.layers
    layers = []
    for index, window in enumerate(sliding):
        sparse = index not in dense and (index + 1) % step == 0
        layers.append(
            block(
                spec.Sublayer(
                    "attention", norm, attention=common.attention(s, window=window, qkv_bias=c.flag("qkv_bias", True))
                ),
                spec.Sublayer("moe", norm, moe=moe) if sparse else spec.Sublayer("mlp", norm, mlp=mlp_of(c)),
            )
        )

    def shared_gate(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        common.add_if_required(names, f"{source}mlp.shared_expert_gate", f"{at}shared_gate")

    network = common.model(s, layers, [make_rope(rope_reader(c), s.head_dim)], tied_embedding=tied(c))
    return finish(network, Naming(shared="shared_expert.", extra=shared_gate))


def _olmo(c: Reader, s: common.Sizes, post: bool, naming: Naming) -> ParsedModel:
    norm = common.rms(s.eps)
    experts, chosen = common.read_experts(c, s)
    moe = spec.Moe(
        experts,
        chosen,
        c.integer("intermediate_size", 1, MAX_HIDDEN),
        normalise=c.flag("norm_topk_prob", False),
        activation=common.read_activation(c),
    )
    bias = c.flag("attention_bias", False)
    attention = common.attention(
        s,
        qkv_bias=bias,
        o_bias=bias,
        q_norm=norm,
        k_norm=norm,
        norm_span="all",
        qkv_clip=c.number("clip_qkv", 0.0, 1e6, 0.0),
    )
    where = dict(post_norm=norm) if post else dict(pre_norm=norm)
    layers = [
        block(spec.Sublayer("attention", attention=attention, **where), spec.Sublayer("moe", moe=moe, **where))
        for _ in range(s.layers)
    ]
    return finish(common.model(s, layers, [make_rope(rope_reader(c), s.head_dim)], tied_embedding=tied(c)), naming)


def olmoe(c: Reader) -> ParsedModel:
    return _olmo(c, common.read_sizes(c, positions=4096, default_eps=1e-5), False, Naming())


def flex_olmo(c: Reader) -> ParsedModel:
    norms = ({"post_norm": "post_attention_layernorm"}, {"post_norm": "post_feedforward_layernorm"})
    return _olmo(c, common.read_sizes(c, positions=4096), True, Naming(norms=norms))


def phimoe(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, positions=131072, kv_heads=8, default_eps=1e-5)
    norm = spec.Norm("layer", has_bias=True, eps=s.eps)
    experts, chosen = common.read_experts(c, s, "num_local_experts")
    bias = c.flag("attention_bias", False)
    attention = common.attention(
        s, window=c.integer("sliding_window", 1, MAX_POSITIONS, None), qkv_bias=bias, o_bias=bias
    )
    moe = spec.Moe(
        experts,
        chosen,
        c.integer("intermediate_size", 1, MAX_HIDDEN),
        scoring="sparse_mixer",
        jitter=c.number("router_jitter_noise", 0.0, 1.0, 0.01),
        activation=common.read_activation(c),
    )
    layers = [
        block(spec.Sublayer("attention", norm, attention=attention), spec.Sublayer("moe", norm, moe=moe))
        for _ in range(s.layers)
    ]
    network = common.model(
        s,
        layers,
        [make_rope(rope_reader(c), s.head_dim, theta=1e6)],
        final_norm=norm,
        tied_embedding=tied(c),
        lm_head_bias=c.flag("lm_head_bias", False),
    )
    return finish(network, Naming(moe="block_sparse_moe.", experts_map=W123))


def ernie4_5_moe(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, positions=131072, kv_heads=4, default_eps=1e-5)
    norm, bias = common.rms(s.eps), c.flag("use_bias", False)
    experts, chosen = common.read_experts(c, s, "moe_num_experts", "moe_k")
    inner = c.integer("moe_intermediate_size", 1, MAX_HIDDEN)
    activation = common.read_activation(c)
    moe = spec.Moe(
        experts,
        chosen,
        inner,
        normalise=True,
        normalise_eps=c.number("moe_norm_min", 0.0, 1.0, 1e-12),
        selection_bias=True,
        activation=activation,
        shared_inner=inner * c.integer("moe_num_shared_experts", 0, 64, 0),
        shared_activation=activation,
    )
    start, end = (
        c.integer("moe_layer_start_index", 0, MAX_LAYERS, 1),
        c.integer("moe_layer_end_index", -1, MAX_LAYERS, -1),
    )
    interval = c.integer("moe_layer_interval", 1, MAX_LAYERS, 1)
    end = s.layers - 1 if end == -1 else end
    layers = []
    for index in range(s.layers):
        sparse = (index + 1) % interval == 0 and start <= index <= end
        layers.append(
            block(
                spec.Sublayer("attention", norm, attention=common.attention(s, qkv_bias=bias, o_bias=bias)),
                spec.Sublayer("moe", norm, moe=moe) if sparse else spec.Sublayer("mlp", norm, mlp=mlp_of(c, bias)),
            )
        )

    def selection_bias(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.moe is not None:
            names.add(f"{source}mlp.moe_statics.e_score_correction_bias", f"{at}selection_bias", shapes=[(1, experts)])

    rope = make_rope(rope_reader(c), s.head_dim, theta=500000.0, interleaved=True)
    network = common.model(s, layers, [rope], tied_embedding=tied(c, True))
    return finish(network, Naming(selection_bias="moe_statics.e_score_correction_bias", extra=selection_bias))


def hunyuan_v1_moe(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, default_eps=1e-5)
    norm, bias = common.rms(s.eps), c.flag("attention_bias", False)
    experts, chosen = common.read_experts(c, s, per_token="moe_topk")
    inner = c.integer("intermediate_size", 1, MAX_HIDDEN)
    activation = common.read_activation(c)
    moe = spec.Moe(
        experts, chosen, inner, normalise=True, activation=activation, shared_inner=inner, shared_activation=activation
    )
    attention = common.attention(s, qkv_bias=bias, o_bias=bias, q_norm=norm, k_norm=norm, norm_after_rope=True)
    layers = [
        block(spec.Sublayer("attention", norm, attention=attention), spec.Sublayer("moe", norm, moe=moe))
        for _ in range(s.layers)
    ]
    naming = Naming(router="gate.wg", shared="shared_mlp.")
    naming = naming.but(attention_map={**naming.attention_map, "q_norm": "query_layernorm", "k_norm": "key_layernorm"})
    return finish(common.model(s, layers, [make_rope(rope_reader(c), s.head_dim)], tied_embedding=tied(c)), naming)


def gpt_oss(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, positions=131072, kv_heads=8, default_eps=1e-5)
    norm, bias = common.rms(s.eps), c.flag("attention_bias", True)
    experts, chosen = common.read_experts(c, s, "num_local_experts")
    activation = spec.Activation(
        "swiglu_oai",
        alpha=c.number("swiglu_alpha", 0.0, 100.0, 1.702),
        limit=c.number("swiglu_limit", 0.0, 1e6, 7.0),
        up_offset=1.0,
    )
    moe = spec.Moe(
        experts,
        chosen,
        c.integer("intermediate_size", 1, MAX_HIDDEN),
        scoring="softmax_of_selected",
        router_bias=True,
        expert_bias=True,
        activation=activation,
    )
    layers = [
        block(
            spec.Sublayer(
                "attention", norm, attention=common.attention(s, window=w, qkv_bias=bias, o_bias=bias, sinks=True)
            ),
            spec.Sublayer("moe", norm, moe=moe),
        )
        for w in windows(c, s.layers)
    ]

    def experts_and_sinks(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.attention is not None:
            names.add(f"{source}self_attn.sinks", f"{at}sinks")
            return
        inner = names.tensors[f"{at}experts.0.gate"][0]
        transposed_expert_names(names, f"{source}mlp.experts.", at, experts, interleaved=True)
        pieces = [
            (f"{at}experts.{e}.{part}_bias", Rows(i, 1, 2))
            for e in range(experts)
            for i, part in enumerate(("gate", "up"))
        ]
        names.add_rows(f"{source}mlp.experts.gate_up_proj_bias", pieces, (experts, 2 * inner), parts=experts)
        names.add_stacked(f"{source}mlp.experts.down_proj_bias", [f"{at}experts.{e}.down_bias" for e in range(experts)])

    rope = make_rope(rope_reader(c), s.head_dim, theta=150000.0)
    naming = Naming(router="router", experts_map={}, extra=experts_and_sinks)
    return finish(common.model(s, layers, [rope], tied_embedding=tied(c)), naming)
