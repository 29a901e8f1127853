"""Llama 4: chunked attention, every fourth layer global without rotation, top-1 experts weighted on their input."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, Reader
from freetoken.config.rope import make_rope, rope_reader

from .shared import VISION, Naming, block, finish, layer_types, text_of, tied, transposed_expert_names

TYPES = ("chunked_attention", "full_attention")


def llama4(c: Reader) -> ParsedModel:
    """The same architecture name serves the text-only and the multimodal form."""
    if not c.has("text_config"):
        return _llama4(c, Naming())
    ignored = (VISION, (r"multi_modal_projector\..*", "the vision projector: text only"))
    return _llama4(
        text_of(c), Naming(prefix="language_model.model.", lm_head="language_model.lm_head", ignored=ignored)
    )


def _llama4(c: Reader, naming: Naming) -> ParsedModel:
    s = common.read_sizes(c, positions=131072, kv_heads=8, default_eps=1e-5)
    norm, bias = common.rms(s.eps), c.flag("attention_bias", False)
    interval = c.integer("no_rope_layer_interval", 1, MAX_LAYERS, 4)
    rotated = c.integers(
        "no_rope_layers", 0, 1, s.layers, default=[int((index + 1) % interval != 0) for index in range(s.layers)]
    )
    chunk = c.integer("attention_chunk_size", 1, MAX_POSITIONS, 8192)
    step = c.integer("interleave_moe_layer_step", 1, MAX_LAYERS, 1)
    sparse = c.integers("moe_layers", 0, MAX_LAYERS, default=list(range(step - 1, s.layers, step)))
    experts, chosen = common.read_experts(c, s, "num_local_experts")
    activation = common.read_activation(c)
    inner = c.integer("intermediate_size", 1, MAX_HIDDEN)
    moe = spec.Moe(
        experts,
        chosen,
        inner,
        scoring="sigmoid",
        weighted_side="input",
        activation=activation,
        shared_inner=inner,
        shared_activation=activation,
    )
    mlp = spec.Mlp(c.integer("intermediate_size_mlp", 1, MAX_HIDDEN, 16384), activation)
    layers = []
    for index, kind in enumerate(layer_types(c, s.layers, TYPES)):
        rope = bool(rotated[index])
        head_norm = common.rms(s.eps, has_weight=False) if rope and c.flag("use_qk_norm", True) else spec.Norm()
        temperature = spec.Temperature()
        if not rope and c.flag("attn_temperature_tuning", True):
            temperature = spec.Temperature(
                "floor_log",
                alpha=c.number("attn_scale", 0.0, 1e6, 0.1),
                scale=c.number("floor_scale", 1e-6, 1e9, 8192.0),
                offset=1,
            )
        attention = common.attention(
            s,
            rope=0 if rope else -1,
            qkv_bias=bias,
            o_bias=bias,
            q_norm=head_norm,
            k_norm=head_norm,
            norm_after_rope=rope and head_norm.kind != "none",
            temperature=temperature,
        )
        if kind == "chunked_attention":
            attention.type, attention.chunk = "chunked", chunk
        feed_forward = spec.Sublayer("moe", norm, moe=moe) if index in sparse else spec.Sublayer("mlp", norm, mlp=mlp)
        layers.append(block(spec.Sublayer("attention", norm, attention=attention), feed_forward))

    def expert_names(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.moe is not None:
            transposed_expert_names(names, f"{source}feed_forward.experts.", at, experts, interleaved=False)

    rope = make_rope(rope_reader(c), s.head_dim, theta=500000.0, interleaved=True)
    naming = naming.but(
        mlp="feed_forward.",
        moe="feed_forward.",
        router="router",
        experts_map={},
        shared="shared_expert.",
        extra=expert_names,
    )
    return finish(common.model(s, layers, [rope], tied_embedding=tied(c)), naming)
