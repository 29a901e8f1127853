"""Step 3.7's text model: a gate per head, more query heads in window layers, limits of the MLPs per layer."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_HEADS, MAX_HIDDEN, Reader
from freetoken.config.rope import make_rope, rope_reader

from .dense import SLIDING, windows
from .shared import VISION, Naming, Ropes, block, ffn_names, finish, layer_types, sparse_layers, text_of, tied


def step3p7(c: Reader) -> ParsedModel:
    c = text_of(c)
    s = common.read_sizes(c, default_eps=1e-5)
    norm, ropes = common.rms(s.eps, plus_one=True), Ropes()
    bias = c.flag("attention_bias", False)
    c.refuse("mlp_bias", (False,), "biases of the MLPs")
    limits = c.numbers("swiglu_limits", 0.0, 1e6, s.layers, default=[0.0] * s.layers)
    shared_limits = c.numbers("swiglu_limits_shared", 0.0, 1e6, s.layers, default=[0.0] * s.layers)
    kind_of = common.read_activation(c).kind

    def limited(limit: float) -> spec.Activation:
        return spec.Activation(kind_of, limit=limit, limit_after=limit > 0)

    experts, chosen = common.read_experts(c, s, "n_routed_experts")
    layers = []
    for index, (kind, window, sparse) in enumerate(
        zip(layer_types(c, s.layers, SLIDING), windows(c, s.layers), sparse_layers(c, s.layers), strict=True)
    ):
        heads = c.integer("num_sliding_attention_heads", 1, MAX_HEADS, s.heads) if window else s.heads
        rope = ropes.add(make_rope(rope_reader(c, kind), s.head_dim))
        attention = common.attention(
            s,
            window=window,
            rope=rope,
            q_heads=heads,
            qkv_bias=bias,
            o_bias=bias,
            q_norm=norm,
            k_norm=norm,
            gate="head",
            scale=c.number("query_pre_attn_scalar", 1e-6, 1e6, s.head_dim) ** -0.5,
        )
        feed_forward = spec.Sublayer(
            "mlp", norm, mlp=spec.Mlp(c.integer("intermediate_size", 1, MAX_HIDDEN), limited(shared_limits[index]))
        )
        if sparse:
            moe = spec.Moe(
                experts,
                chosen,
                c.integer("moe_intermediate_size", 1, MAX_HIDDEN),
                scoring="sigmoid",
                normalise=True,
                selection_bias=True,
                scaling=c.number("moe_router_scaling_factor", 0.0, 1e6, 1.0),
                activation=limited(limits[index]),
                shared_inner=c.integer("share_expert_dim", 1, MAX_HIDDEN),
                shared_activation=limited(shared_limits[index]),
            )
            feed_forward = spec.Sublayer("moe", norm, moe=moe)
        layers.append(block(spec.Sublayer("attention", norm, attention=attention), feed_forward))

    def expert_names(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.moe is None:
            return
        for part in ("gate", "up", "down"):
            names.add_stacked(f"{source}moe.{part}_proj.weight", [f"{at}experts.{e}.{part}" for e in range(experts)])
        ffn_names(names, f"{source}share_expert.", f"{at}shared.", common.FFN_NAMES)

    naming = Naming(
        moe="moe.",
        selection_bias="router_bias",
        experts_map={},
        shared_map={},
        extra=expert_names,
        ignored=(VISION, (r"vit_large_projector\..*", "the vision projector: text only")),
    )
    naming = naming.but(attention_map={**naming.attention_map, "gate": "g_proj"})
    return finish(common.model(s, layers, ropes.tables, final_norm=norm, tied_embedding=tied(c)), naming)
