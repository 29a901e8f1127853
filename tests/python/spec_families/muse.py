"""Muse Glimmer (dense) and Muse Spark (experts in a narrower space, learned residual gates): normed embeddings, gated
attention."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_HIDDEN, MAX_ROPE_THETA, Reader
from freetoken.config.rope import make_rope, rope_reader

from .dense import windows
from .shared import VISION, Naming, block, finish, fused_expert_names, sigmoid_moe, sparse_layers, text_of, tied

IGNORED = (
    VISION,
    (
        r"model\.(vision_adapter|vision_projection|audio_projection|audio_adapter)\..*",
        "the vision projector: text only",
    ),
)
NORMS = (
    {"pre_norm": "input_layernorm", "post_norm": "post_attention_layernorm"},
    {"pre_norm": "pre_feedforward_layernorm", "post_norm": "post_feedforward_layernorm"},
)


def muse_glimmer(c: Reader) -> ParsedModel:
    return _muse(text_of(c), "hidden_activation", False)


def muse_spark(c: Reader) -> ParsedModel:
    return _muse(text_of(c), "hidden_act", True)


def _moe(c: Reader, s: common.Sizes, post_eps: float) -> spec.Moe:
    return sigmoid_moe(
        c,
        s,
        "num_local_experts",
        normalise=True,
        normalise_eps=1e-15,
        shared_inner=0,
        router_logit_scale=c.number("output_multiplier", 0.0, 1e6, 1.0),
        latent=c.integer("moe_hidden_size", 1, MAX_HIDDEN),
        latent_norm=common.rms(s.eps, plus_one=True),
        expert_norm=common.rms(post_eps, plus_one=True, weight_first=True),
    )


def _muse(c: Reader, activation: str, spark: bool) -> ParsedModel:
    s = common.read_sizes(c, default_eps=1e-5)
    post_eps = c.number("post_norm_eps", 0.0, 1.0, 1e-8)
    pre, bare = common.rms(s.eps, plus_one=True), common.rms(s.eps, has_weight=False)
    posts = [common.rms(post_eps, plus_one=True)] * 2
    residual: dict = {}
    if spark:
        posts = [common.rms(post_eps, has_weight=False), common.rms(post_eps, plus_one=True, weight_first=True)]
        residual = dict(
            residual="gated", gate_temperature=c.number("residual_gate_temperature", 1e-6, 1e6, 0.3), gate_eps=0.001
        )
    bias = c.flag("attention_bias", False)
    thetas = c.numbers("layer_rope_theta", 0.0, MAX_ROPE_THETA, s.layers)
    mlp = spec.Mlp(c.integer("intermediate_size", 1, MAX_HIDDEN), common.read_activation(c, activation))
    sparse = sparse_layers(c, s.layers) if spark else [False] * s.layers
    layers = []
    for index, window in enumerate(windows(c, s.layers)):
        attention = common.attention(
            s,
            window=window,
            rope=0 if thetas[index] else -1,
            qkv_bias=bias,
            o_bias=bias,
            q_norm=bare,
            k_norm=bare,
            gate="element",
            scale=s.head_dim**-0.5 * c.number("qk_scale_factor", 1e-6, 1e6, 1.0),
            o_norm=bare if spark else spec.Norm(),
        )
        feed_forward = (
            spec.Sublayer("moe", pre, posts[1], moe=_moe(c, s, post_eps), **residual)
            if sparse[index]
            else spec.Sublayer("mlp", pre, posts[1], mlp=mlp, **residual)
        )
        layers.append(block(spec.Sublayer("attention", pre, posts[0], attention=attention, **residual), feed_forward))

    def rest(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.residual == "gated":
            where = "attention" if sub.attention is not None else "feedforward"
            names.add(f"{source}post_{where}_residual_gate.gate", f"{at}residual_gate")
        if sub.moe is not None:
            fused_expert_names(names, f"{source}mlp.experts.", at, sub.moe.experts)
            for stored, canonical in (
                ("experts.post_expert_norm", "expert_norm"),
                ("pre_expert_norm", "latent_norm"),
                ("pre_expert_proj", "latent_in"),
                ("post_expert_proj", "latent_out"),
            ):
                common.add_if_required(names, f"{source}mlp.{stored}", at + canonical)

    network = common.model(
        s,
        layers,
        [make_rope(rope_reader(c), s.head_dim, theta=500000.0)],
        embed_norm=bare,
        tied_embedding=tied(c),
        logit_scale=c.number("output_multiplier", 0.0, 1e6, 1.0),
        logit_softcap=c.number("final_logit_softcapping", 0.0, 1e6, 0.0),
    )
    return finish(
        network, Naming(prefix="model.language_model.", norms=NORMS, experts_map={}, extra=rest, ignored=IGNORED)
    )
