"""Dense decoders: olmo3, glm4, smollm3, seed_oss."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.reader import MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, Reader
from freetoken.config.rope import make_rope, rope_reader

from .shared import Naming, Ropes, block, finish, layer_types, tied

SLIDING = ("full_attention", "sliding_attention")


def mlp_of(c: Reader, bias: bool = False) -> spec.Mlp:
    return spec.Mlp(c.integer("intermediate_size", 1, MAX_HIDDEN), common.read_activation(c), bias=bias)


def windows(c: Reader, layers: int) -> list[int | None]:
    """The window of each layer by layer_types (full where there are none)."""
    window = c.integer("sliding_window", 0, MAX_POSITIONS, None) or None
    types = layer_types(c, layers, SLIDING, "full_attention")
    return [window if t == "sliding_attention" else None for t in types]


def olmo3(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, default_eps=1e-5)
    norm, ropes = common.rms(s.eps), Ropes()
    bias = c.flag("attention_bias", False)
    layers = []
    for window, kind in zip(windows(c, s.layers), layer_types(c, s.layers, SLIDING, "full_attention"), strict=True):
        rope = ropes.add(make_rope(rope_reader(c, kind), s.head_dim))
        attention = common.attention(
            s, window=window, rope=rope, qkv_bias=bias, o_bias=bias, q_norm=norm, k_norm=norm, norm_span="all"
        )
        layers.append(
            block(
                spec.Sublayer("attention", post_norm=norm, attention=attention),
                spec.Sublayer("mlp", post_norm=norm, mlp=mlp_of(c)),
            )
        )
    naming = Naming(norms=({"post_norm": "post_attention_layernorm"}, {"post_norm": "post_feedforward_layernorm"}))
    return finish(common.model(s, layers, ropes.tables, tied_embedding=tied(c)), naming)


def glm4(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, positions=131072, kv_heads=2, default_eps=1.5625e-7)
    norm = common.rms(s.eps)
    attention = common.attention(s, qkv_bias=c.flag("attention_bias", False))
    rope = make_rope(rope_reader(c), s.head_dim, partial=0.5, interleaved=True)
    layers = [
        block(
            spec.Sublayer("attention", norm, norm, attention=attention), spec.Sublayer("mlp", norm, norm, mlp=mlp_of(c))
        )
        for _ in range(s.layers)
    ]
    naming = Naming(
        norms=(
            {"pre_norm": "input_layernorm", "post_norm": "post_self_attn_layernorm"},
            {"pre_norm": "post_attention_layernorm", "post_norm": "post_mlp_layernorm"},
        ),
        fused_mlp="gate_up_proj",
    )
    return finish(common.model(s, layers, [rope], tied_embedding=tied(c)), naming)


def smollm3(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, positions=32768, kv_heads=4)
    norm, bias = common.rms(s.eps), c.flag("attention_bias", False)
    interval = c.integer("no_rope_layer_interval", 1, MAX_LAYERS, 4)
    rotated = c.integers(
        "no_rope_layers", 0, 1, s.layers, default=[int((index + 1) % interval != 0) for index in range(s.layers)]
    )
    sliding = windows(c, s.layers) if c.flag("use_sliding_window", False) else [None] * s.layers
    layers = [
        block(
            spec.Sublayer(
                "attention",
                norm,
                attention=common.attention(s, window=w, rope=0 if r else -1, qkv_bias=bias, o_bias=bias),
            ),
            spec.Sublayer("mlp", norm, mlp=mlp_of(c, c.flag("mlp_bias", False))),
        )
        for w, r in zip(sliding, rotated, strict=True)
    ]
    rope = make_rope(rope_reader(c), s.head_dim, theta=2e6)
    return finish(common.model(s, layers, [rope], tied_embedding=tied(c, True)), Naming())


def seed_oss(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, positions=524288, kv_heads=8)
    norm = common.rms(s.eps)
    attention = common.attention(s, qkv_bias=c.flag("attention_bias", True), o_bias=c.flag("attention_out_bias", False))
    layers = [
        block(
            spec.Sublayer("attention", norm, attention=attention),
            spec.Sublayer("mlp", norm, mlp=mlp_of(c, c.flag("mlp_bias", False))),
        )
        for _ in range(s.layers)
    ]
    return finish(common.model(s, layers, [make_rope(rope_reader(c), s.head_dim)], tied_embedding=tied(c)), Naming())
