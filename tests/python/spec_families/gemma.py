"""Gemma 2, 3 and 4: sandwich norms, embeddings times sqrt(hidden), window and global layers with their own
rotations."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel, Sizes
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, Reader
from freetoken.config.rope import make_rope, rope_reader
from freetoken.errors import ConfigError

from .dense import SLIDING
from .shared import VISION, Naming, Ropes, finish, fused_expert_names, layer_types, text_of, tied

NORMS = (
    {"pre_norm": "input_layernorm", "post_norm": "post_attention_layernorm"},
    {"pre_norm": "pre_feedforward_layernorm", "post_norm": "post_feedforward_layernorm"},
)


def gemma2(c: Reader) -> ParsedModel:
    return _gemma23(c, Naming(norms=NORMS), False)


def gemma3_text(c: Reader) -> ParsedModel:
    return _gemma23(c, Naming(norms=NORMS), True)


def gemma3(c: Reader) -> ParsedModel:
    ignored = (VISION, (r"multi_modal_projector\..*", "the vision projector: text only"))
    return _gemma23(
        text_of(c),
        Naming(prefix="language_model.model.", lm_head="language_model.lm_head", norms=NORMS, ignored=ignored),
        True,
    )


def _gemma23(c: Reader, naming: Naming, third: bool) -> ParsedModel:
    s = common.read_sizes(c, positions=8192)
    norm, ropes = common.rms(s.eps, plus_one=True), Ropes()
    head_norm = norm if third else spec.Norm()
    c.refuse("use_bidirectional_attention", (False,), "bidirectional attention")
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 4096)
    mlp = spec.Mlp(
        c.integer("intermediate_size", 1, MAX_HIDDEN),
        common.read_activation(c, "hidden_activation", "gelu_pytorch_tanh"),
    )
    layers = []
    for kind in layer_types(c, s.layers, SLIDING):
        theta = 1e6 if third and kind == "full_attention" else 1e4
        rope = ropes.add(make_rope(rope_reader(c, kind), s.head_dim, theta=theta))
        attention = common.attention(
            s,
            window=window if kind == "sliding_attention" else None,
            rope=rope,
            q_norm=head_norm,
            k_norm=head_norm,
            scale=c.number("query_pre_attn_scalar", 1e-6, 1e6, 256.0) ** -0.5,
            softcap=c.number("attn_logit_softcapping", 0.0, 1e6, 0.0),
        )
        layers.append(
            spec.Layer(
                [spec.Sublayer("attention", norm, norm, attention=attention), spec.Sublayer("mlp", norm, norm, mlp=mlp)]
            )
        )
    network = common.model(
        s,
        layers,
        ropes.tables,
        final_norm=norm,
        embed_scale=s.hidden**0.5,
        tied_embedding=tied(c, True),
        logit_softcap=c.number("final_logit_softcapping", 0.0, 1e6, 0.0),
    )
    return finish(network, naming)


def gemma4_text(c: Reader) -> ParsedModel:
    return _gemma4(c, Naming())


def gemma4(c: Reader) -> ParsedModel:
    ignored = (VISION, (r"model\.(embed_vision|embed_audio)\..*", "the vision and audio projectors: text only"))
    return _gemma4(text_of(c), Naming(prefix="model.language_model.", ignored=ignored))


def _layer_numbers(c: Reader, s: Sizes, layer: int, kind: str) -> tuple[int, int]:
    """Head size and key-value heads of one layer: global layers may have their own."""
    own = c.child("per_layer_config", {}).child(str(layer), {})
    whole = kind == "full_attention"
    dim = own.integer(
        "head_dim", 1, MAX_HEADS, c.integer("global_head_dim", 1, MAX_HEADS, s.head_dim) if whole else s.head_dim
    )
    heads = own.integer(
        "num_key_value_heads",
        1,
        MAX_HEADS,
        c.integer("num_global_key_value_heads", 1, MAX_HEADS, s.kv_heads) if whole else s.kv_heads,
    )
    if s.heads % heads:
        raise ConfigError(
            f"{c.where('num_key_value_heads')}: {heads} in layer {layer} does not divide num_attention_heads {s.heads}"
        )
    return dim, heads


def _gemma4(c: Reader, naming: Naming) -> ParsedModel:
    s = common.read_sizes(c, positions=131072)
    norm, ropes = common.rms(s.eps), Ropes()
    c.refuse("use_bidirectional_attention", (False, "vision"), "bidirectional attention")
    window = c.integer("sliding_window", 1, MAX_POSITIONS, 512)
    kinds = layer_types(c, s.layers, SLIDING)
    first_shared = s.layers - c.integer("num_kv_shared_layers", 0, MAX_LAYERS, 0)
    inner = c.integer("intermediate_size", 1, MAX_HIDDEN)
    activation = common.read_activation(c, "hidden_activation", "gelu_pytorch_tanh")
    wide = c.flag("use_double_wide_mlp", False)
    bias = c.flag("attention_bias", False)
    table_dim = c.integer("hidden_size_per_layer_input", 0, MAX_HIDDEN, 0)
    moe = _moe(c, s, activation) if c.flag("enable_moe_block", False) else None

    def source(layer: int) -> int:
        """The last layer of the same kind that has keys and values of its own."""
        own = [index for index in range(first_shared) if kinds[index] == kinds[layer]]
        if not own:
            raise ConfigError(f"{c.where('num_kv_shared_layers')}: no layer of kind {kinds[layer]} has keys and values")
        return own[-1]

    layers = []
    for index, kind in enumerate(kinds):
        dim, kv_heads = _layer_numbers(c, s, index, kind)
        shared = index >= first_shared
        from_keys = c.flag("attention_k_eq_v", False) and kind == "full_attention"
        attention = common.attention(
            s,
            window=window if kind == "sliding_attention" else None,
            rope=ropes.add(make_rope(rope_reader(c, kind), dim)),
            kv_heads=kv_heads,
            qk_dim=dim,
            v_dim=dim,
            scale=1.0,
            qkv_bias=bias,
            o_bias=bias,
            q_norm=norm,
            k_norm=norm,
            v_norm=common.rms(s.eps, has_weight=False),
            value_source="key_projection" if from_keys else "own",
        )
        mlp = spec.Mlp(inner * (2 if wide and shared else 1), activation)
        scope = 1 if shared else 0  # no later layer needs this one's keys: only rows with logits matter
        subs = [
            spec.Sublayer(
                "attention",
                norm,
                norm,
                attention=attention,
                kv_source=source(index) if shared else -1,
                token_scope=scope,
            )
        ]
        if moe is None:
            subs.append(spec.Sublayer("mlp", norm, norm, mlp=mlp, token_scope=scope))
        else:  # dense and experts side by side, each with its own norms, then a norm of the sum
            subs.append(spec.Sublayer("mlp", norm, norm, mlp=mlp, output="join"))
            subs.append(spec.Sublayer("moe", norm, norm, moe=moe, group_norm=norm))
        if table_dim:
            subs.append(
                spec.Sublayer(
                    "table_memory",
                    post_norm=norm,
                    table_memory=spec.TableMemory("per_layer", table_dim, activation),
                    token_scope=scope,
                )
            )
        layers.append(spec.Layer(subs, scale=True))

    table = spec.Table()
    if table_dim:
        table = spec.Table(
            table_dim,
            c.integer("vocab_size_per_layer_input", 1, MAX_VOCAB, s.vocab),
            table_scale=table_dim**0.5,
            projection_scale=s.hidden**-0.5,
            mix_scale=2.0**-0.5,
            norm=norm,
        )
    network = common.model(
        s,
        layers,
        ropes.tables,
        embed_scale=s.hidden**0.5,
        tied_embedding=tied(c, True),
        table=table,
        logit_softcap=c.number("final_logit_softcapping", 0.0, 1e6, 0.0),
    )
    third = ({"post_norm": "post_per_layer_input_norm"},)
    norms = (*NORMS, *third)
    if moe is not None:
        norms = (
            NORMS[0],
            {"pre_norm": "pre_feedforward_layernorm", "post_norm": "post_feedforward_layernorm_1"},
            {
                "pre_norm": "pre_feedforward_layernorm_2",
                "post_norm": "post_feedforward_layernorm_2",
                "group_norm": "post_feedforward_layernorm",
            },
            *third,
        )
    return finish(
        network,
        naming.but(norms=norms, moe="", router="router.proj", experts_map={}, extra=_rest),
        lambda names: _model_names(names, naming, s),
    )


def _moe(c: Reader, s: Sizes, activation: spec.Activation) -> spec.Moe:
    experts, chosen = common.read_experts(c, s, "num_experts", "top_k_experts")
    return spec.Moe(
        experts,
        chosen,
        c.integer("moe_intermediate_size", 1, MAX_HIDDEN),
        normalise=True,
        activation=activation,
        router_input="residual",
        router_norm=common.rms(s.eps, has_weight=False),
        router_scale=True,
        router_input_scale=s.hidden**-0.5,
        expert_scale=True,
    )


def _rest(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
    if sub.moe is not None:
        fused_expert_names(names, f"{source}experts.", at, sub.moe.experts)
        names.add(f"{source}router.scale", f"{at}router_scale")
        names.add(f"{source}router.per_expert_scale", f"{at}expert_scale")
    if sub.table_memory is not None:
        common.add_if_required(names, f"{source}per_layer_input_gate", f"{at}gate")
        common.add_if_required(names, f"{source}per_layer_projection", f"{at}proj")
    if sub.kv_source >= 0:
        names.ignore(
            common.re_escape(source) + r"self_attn\.(k_proj|v_proj|k_norm|v_norm)\.weight",
            "this layer uses another one's keys",
        )


def _model_names(names: NameMap, naming: Naming, s: Sizes) -> None:
    for index in range(s.layers):
        names.add(f"{naming.prefix}layers.{index}.layer_scalar", f"layers.{index}.scale")
    common.add_if_required(names, f"{naming.prefix}embed_tokens_per_layer", "table")
    common.add_if_required(names, f"{naming.prefix}per_layer_model_projection", "table_projection")
    common.add_if_required(names, f"{naming.prefix}per_layer_projection_norm", "table_norm")
