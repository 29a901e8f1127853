"""Kimi delta attention with latent attention: kimi_linear, bailing_hybrid, glm5_next; and olmo_hybrid's delta net."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel, Sizes
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_HEADS, MAX_HIDDEN, Reader
from freetoken.config.rope import make_rope, rope_reader

from .dense import mlp_of
from .dsa import index_sources
from .qwen_gdn import gdn
from .shared import (
    VISION,
    W123,
    Naming,
    Ropes,
    block,
    conv_name,
    finish,
    latent_attention,
    layer_types,
    sigmoid_moe,
    sparse_layers,
    text_of,
    tied,
    token_indexer,
)

KINDS = ("linear_attention", "full_attention", "indexed_attention")


def kda(c: Reader, s: Sizes, low_rank: bool, bound: float) -> spec.LinearAttention:
    heads, dim = c.integer("linear_num_heads", 1, MAX_HEADS), c.integer("linear_head_dim", 1, MAX_HEADS)
    rank = dim if low_rank else 0
    return spec.LinearAttention(
        "kda",
        k_heads=heads,
        v_heads=heads,
        k_dim=dim,
        v_dim=dim,
        conv_kernel=c.integer("linear_conv_kernel_dim", 1, 64),
        decay_bound=bound,
        decay_rank=rank,
        gate_rank=rank,
        gate_activation="sigmoid",
        norm=common.rms(s.eps),
    )


def kda_names(names: NameMap, source: str, at: str, out: str = "o_proj") -> None:
    for part in "qkv":
        common.add_if_required(names, f"{source}{part}_proj", at + part)
        conv_name(names, f"{source}{part}_conv1d.weight", f"{at}{part}_conv")
    pairs = {
        "b_proj": "b",
        "f_proj": "decay",
        "f_a_proj": "decay_a",
        "f_b_proj": "decay_b",
        "g_proj": "gate",
        "g_a_proj": "gate_a",
        "g_b_proj": "gate_b",
        "a_proj": "a",
        "o_norm": "norm",
        out: "o",
    }
    for stored, canonical in pairs.items():
        common.add_if_required(names, source + stored, at + canonical)
    heads = names.tensors[f"{at}a_log"][0]
    names.add(f"{source}A_log", f"{at}a_log", shapes=[(1, 1, heads, 1)])
    names.add(f"{source}dt_bias", f"{at}dt_bias")


def _sizes(c: Reader, **kwargs) -> Sizes:
    """The context length is called model_max_length here."""
    return common.read_sizes(
        Reader({"max_position_embeddings": c.values.get("model_max_length"), **c.values}, c.path), **kwargs
    )


def kimi_linear(c: Reader) -> ParsedModel:
    s, ropes = _sizes(c, default_eps=1e-5), Ropes()
    norm = common.rms(s.eps)
    attention = latent_attention(c, s, ropes, rope=False)
    moe = sigmoid_moe(c, s, "num_experts", "num_shared_experts", normalise=c.flag("moe_renormalize", True))
    layers = []
    for kind, sparse in zip(layer_types(c, s.layers, KINDS[:2]), sparse_layers(c, s.layers, 1), strict=True):
        mixer = spec.Sublayer("attention", norm, attention=attention)
        if kind == "linear_attention":
            mixer = spec.Sublayer("linear_attention", norm, linear_attention=kda(c, s, True, 0.0))
        layers.append(
            block(mixer, spec.Sublayer("moe", norm, moe=moe) if sparse else spec.Sublayer("mlp", norm, mlp=mlp_of(c)))
        )

    def rest(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.linear_attention is not None:
            kda_names(names, f"{source}self_attn.", at)

    naming = Naming(moe="block_sparse_moe.", experts_map=W123, extra=rest)
    return finish(common.model(s, layers, ropes.tables, tied_embedding=tied(c)), naming)


def bailing_hybrid(c: Reader) -> ParsedModel:
    s, ropes = _sizes(c), Ropes()
    norm = common.rms(s.eps)
    attention = latent_attention(c, s, ropes, gate="head")
    bound = c.number("kda_lower_bound", -1e6, 0.0, -5.0) if c.flag("kda_safe_gate", True) else 0.0
    moe = sigmoid_moe(c, s, "num_experts", "num_shared_experts", normalise=c.flag("moe_renormalize", True))
    layers = []
    for kind, sparse in zip(layer_types(c, s.layers, KINDS[:2]), sparse_layers(c, s.layers, 1), strict=True):
        mixer = spec.Sublayer("attention", norm, attention=attention)
        if kind == "linear_attention":
            mixer = spec.Sublayer("linear_attention", norm, linear_attention=kda(c, s, False, bound))
        layers.append(
            block(mixer, spec.Sublayer("moe", norm, moe=moe) if sparse else spec.Sublayer("mlp", norm, mlp=mlp_of(c)))
        )

    def rest(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.linear_attention is not None:
            kda_names(names, f"{source}attention.", at, "dense")

    naming = Naming(
        embed="word_embeddings.weight", attention="attention.", selection_bias="gate.expert_bias", extra=rest
    )
    naming = naming.but(attention_map={**naming.attention_map, "gate": "g_proj", "o": "dense"})
    return finish(common.model(s, layers, ropes.tables, tied_embedding=tied(c)), naming)


def glm5_next(c: Reader) -> ParsedModel:
    c = text_of(c)
    s, ropes = common.read_sizes(Reader({**c.values, "head_dim": None}, c.path), default_eps=1e-5), Ropes()
    norm = common.rms(s.eps)
    pool = c.integer("index_kpool", 1, MAX_HEADS)
    attention = latent_attention(c, s, ropes, norm_eps=s.eps, type="dsa")
    indexer = token_indexer(
        c, ropes, interleaved=True, block=pool, pool="gated", tail=c.flag("index_kpool_always_select_tail", True)
    )
    indexer.top_k //= pool
    limit = spec.Activation(common.read_activation(c).kind, limit=c.number("swiglu_limit", 0.0, 1e6, 0.0))
    moe = sigmoid_moe(c, s, activation=limit, shared_activation=limit)
    mlp = spec.Mlp(c.integer("intermediate_size", 1, MAX_HIDDEN), limit)
    linear = kda(c, s, True, c.number("linear_lower_bound", -1e6, 0.0, 0.0))
    kinds, sources = layer_types(c, s.layers, KINDS), index_sources(c, s.layers)
    layers = []
    for index, sparse in enumerate(sparse_layers(c, s.layers, 1)):
        mixer = spec.Sublayer("linear_attention", norm, residual="hyper", linear_attention=linear)
        if kinds[index] != "linear_attention":
            own = spec.Attention(**{**attention.__dict__, "indexer": indexer if sources[index] < 0 else None})
            mixer = spec.Sublayer("attention", norm, residual="hyper", attention=own, index_source=sources[index])
        layers.append(
            block(
                mixer,
                spec.Sublayer("moe", norm, moe=moe, residual="hyper")
                if sparse
                else spec.Sublayer("mlp", norm, mlp=mlp, residual="hyper"),
            )
        )
    hyper = spec.Hyper(
        "sinkhorn",
        streams=c.integer("hc_mult", 1, 64, 4),
        eps=c.number("hc_eps", 0.0, 1.0, 1e-6),
        norm_eps=s.eps,
        sinkhorn_iterations=c.integer("hc_sinkhorn_iters", 1, 1000, 20),
        head="mean",
    )

    def rest(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        where = "ffn" if sub.mlp is not None or sub.moe is not None else "attn"
        for part in ("fn", "base", "scale"):
            names.add(f"{source}hc_{where}_{part}", f"{at}hyper_{part}")
        if sub.linear_attention is not None:
            kda_names(names, f"{source}self_attn.", at)
        if names.has(f"{at}index.pool_gate"):
            names.add(f"{source}self_attn.indexer.index_kpool_compress_gate", f"{at}index.pool_gate")
            names.add(f"{source}self_attn.indexer.index_kpool_compress_ape", f"{at}index.pool_bias")

    naming = Naming(prefix="model.language_model.", extra=rest, ignored=(VISION,))
    return finish(common.model(s, layers, ropes.tables, hyper=hyper, tied_embedding=tied(c)), naming)


def olmo_hybrid(c: Reader) -> ParsedModel:
    """Delta-net layers with norms before, attention layers with norms after."""
    s = common.read_sizes(c)
    norm, bias = common.rms(s.eps), c.flag("attention_bias", False)
    linear = gdn(c, s)
    linear.norm = common.rms(1e-5)
    linear.beta_scale = 2.0 if c.flag("linear_allow_neg_eigval", True) else 1.0
    rotates = rope_reader(c).has("rope_theta")
    attention = common.attention(
        s, rope=0 if rotates else -1, qkv_bias=bias, o_bias=bias, q_norm=norm, k_norm=norm, norm_span="all"
    )
    layers = []
    for kind in layer_types(c, s.layers, KINDS[:2]):
        if kind == "linear_attention":
            layers.append(
                block(
                    spec.Sublayer("linear_attention", norm, linear_attention=linear),
                    spec.Sublayer("mlp", norm, mlp=mlp_of(c)),
                )
            )
        else:
            layers.append(
                block(
                    spec.Sublayer("attention", post_norm=norm, attention=attention),
                    spec.Sublayer("mlp", post_norm=norm, mlp=mlp_of(c)),
                )
            )

    def rest(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.linear_attention is not None:
            kda_names(names, f"{source}linear_attn.", at)
        if (
            sub.attention is not None
        ):  # what an attention layer calls the norm after it, a delta-net layer has before its MLP
            common.add_if_required(names, f"{source}feedforward_layer_norm", f"{at}post_norm")
        elif sub.mlp is not None and sub.post_norm.kind != "none":
            common.add_if_required(names, f"{source}post_feedforward_layernorm", f"{at}post_norm")
        elif sub.mlp is not None:
            common.add_if_required(names, f"{source}feedforward_layer_norm", f"{at}pre_norm")

    naming = Naming(norms=({"pre_norm": "attention_layer_norm"}, {}), extra=rest)
    rope = [make_rope(rope_reader(c), s.head_dim)] if rotates else []
    return finish(common.model(s, layers, rope, tied_embedding=tied(c)), naming)
