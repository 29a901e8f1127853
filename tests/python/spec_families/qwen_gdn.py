"""Gated delta net with gated attention: qwen3_next, qwen3_5 and qwen3_5_moe (text and multimodal), qwen4_exp."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel, Sizes
from freetoken.config.names import NameMap, Rows
from freetoken.config.reader import MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, Reader
from freetoken.config.rope import make_rope, rope_reader

from .dense import mlp_of
from .shared import VISION, Naming, block, concatenated, finish, fused_expert_names, layer_types, text_of, tied

MTP = (r"(model\.)?mtp\..*", "the multi-token-prediction head")
KINDS = ("linear_attention", "full_attention", "indexed_attention")


def gdn(c: Reader, s: Sizes) -> spec.LinearAttention:
    return spec.LinearAttention(
        "gdn",
        k_heads=c.integer("linear_num_key_heads", 1, MAX_HEADS),
        v_heads=c.integer("linear_num_value_heads", 1, MAX_HEADS),
        k_dim=c.integer("linear_key_head_dim", 1, MAX_HEADS),
        v_dim=c.integer("linear_value_head_dim", 1, MAX_HEADS),
        conv_kernel=c.integer("linear_conv_kernel_dim", 1, 64),
        norm=common.rms(s.eps),
    )


def _moe(c: Reader, s: Sizes, normalise: bool) -> spec.Moe:
    experts, chosen = common.read_experts(c, s)
    activation = common.read_activation(c)
    return spec.Moe(
        experts,
        chosen,
        c.integer("moe_intermediate_size", 1, MAX_HIDDEN),
        normalise=normalise,
        activation=activation,
        shared_inner=c.integer("shared_expert_intermediate_size", 1, MAX_HIDDEN),
        shared_gate=True,
        shared_activation=activation,
    )


def _fused_gdn(names: NameMap, source: str, at: str, a: spec.LinearAttention) -> None:
    """qwen3_next: q, k, v, z of a key head lie together, and so do b, a."""
    per = a.v_heads // a.k_heads
    sizes = (("q", a.k_dim), ("k", a.k_dim), ("v", per * a.v_dim), ("gate", per * a.v_dim))
    stride = sum(n for _, n in sizes)
    pieces, start = [], 0
    for part, n in sizes:
        pieces.append((at + part, Rows(start, n, stride)))
        start += n
    hidden = names.tensors[f"{at}q"][1]
    names.add_rows(f"{source}in_proj_qkvz.weight", pieces, (a.k_heads * stride, hidden))
    names.add_rows(
        f"{source}in_proj_ba.weight",
        [(f"{at}b", Rows(0, per, 2 * per)), (f"{at}a", Rows(per, per, 2 * per))],
        (2 * a.v_heads, hidden),
    )


def gdn_names(names: NameMap, source: str, at: str, a: spec.LinearAttention, fused: bool) -> None:
    if fused:
        _fused_gdn(names, source, at, a)
    else:
        concatenated(names, f"{source}in_proj_qkv.weight", [f"{at}{part}" for part in "qkv"])
        for name, canonical in (("z", "gate"), ("b", "b"), ("a", "a")):
            common.add_if_required(names, f"{source}in_proj_{name}", at + canonical)
    concatenated(names, f"{source}conv1d.weight", [f"{at}{part}_conv" for part in "qkv"], middle=(1,))
    names.add(f"{source}A_log", f"{at}a_log")
    names.add(f"{source}dt_bias", f"{at}dt_bias")
    common.add_if_required(names, f"{source}norm", f"{at}norm")
    common.add_if_required(names, f"{source}out_proj", f"{at}o")


def _sublayer_names(names: NameMap, source: str, at: str, sub: spec.Sublayer, fused: bool, fused_experts: bool) -> None:
    if sub.linear_attention is not None:
        gdn_names(names, f"{source}linear_attn.", at, sub.linear_attention, fused)
    if sub.attention is not None:  # q and its gate lie together, head by head
        a = sub.attention
        names.add_rows(
            f"{source}self_attn.q_proj.weight",
            [(f"{at}q", Rows(0, a.qk_dim, 2 * a.qk_dim)), (f"{at}gate", Rows(a.qk_dim, a.qk_dim, 2 * a.qk_dim))],
            (2 * a.q_heads * a.qk_dim, names.tensors[f"{at}q"][1]),
        )
    if sub.moe is not None:
        common.add_if_required(names, f"{source}mlp.shared_expert_gate", f"{at}shared_gate")
        if fused_experts:
            fused_expert_names(names, f"{source}mlp.experts.", at, sub.moe.experts)


def _attention(c: Reader, s: Sizes, norm: spec.Norm, **kwargs) -> spec.Attention:
    c.refuse("attention_bias", (False,), "biases of the attention")
    return common.attention(s, q_norm=norm, k_norm=norm, gate="element", **kwargs)


def _naming(fused: bool, fused_experts: bool, **kwargs) -> Naming:
    naming = Naming(shared="shared_expert.", ignored=(MTP, VISION), **kwargs)
    attention_map = {name: source for name, source in naming.attention_map.items() if name not in ("q", "gate")}
    return naming.but(
        attention_map=attention_map,
        extra=lambda names, source, at, sub: _sublayer_names(names, source, at, sub, fused, fused_experts),
    )


def _model(c: Reader, naming: Naming, moe: bool, normalise: bool | None) -> ParsedModel:
    s = common.read_sizes(c, positions=32768)
    norm = common.rms(s.eps, plus_one=True)
    dense = c.integers("mlp_only_layers", 0, MAX_LAYERS, default=[])
    step = c.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    layers = []
    for index, kind in enumerate(layer_types(c, s.layers, KINDS[:2])):
        mixer = spec.Sublayer("linear_attention", norm, linear_attention=gdn(c, s))
        if kind == "full_attention":
            mixer = spec.Sublayer("attention", norm, attention=_attention(c, s, norm))
        sparse = moe and index not in dense and (index + 1) % step == 0
        always = c.flag("norm_topk_prob", True) if normalise is None else normalise
        layers.append(
            block(
                mixer,
                spec.Sublayer("moe", norm, moe=_moe(c, s, always))
                if sparse
                else spec.Sublayer("mlp", norm, mlp=mlp_of(c)),
            )
        )
    rope = make_rope(rope_reader(c), s.head_dim, partial=0.25)
    return finish(common.model(s, layers, [rope], final_norm=norm, tied_embedding=tied(c)), naming)


def qwen3_next(c: Reader) -> ParsedModel:
    return _model(c, _naming(True, False), True, None)


def qwen3_5_text(c: Reader) -> ParsedModel:
    return _model(c, _naming(False, False), False, None)


def qwen3_5(c: Reader) -> ParsedModel:
    return _model(text_of(c), _naming(False, False, prefix="model.language_model."), False, None)


def qwen3_5_moe_text(c: Reader) -> ParsedModel:
    return _model(c, _naming(False, True), True, True)


def qwen3_5_moe(c: Reader) -> ParsedModel:
    """Published with fused experts, and in FP8 with one tensor per expert: both are known."""
    return _model(text_of(c), _naming(False, True, prefix="model.language_model."), True, True)


def qwen4_exp(c: Reader) -> ParsedModel:
    """Streams mixed through a low rank instead of norms and residuals; blocks of keys, pooled, selected for all
    heads."""
    s = common.read_sizes(c, positions=32768)
    c.refuse("ple_layer_ids", ([],), "n-gram memories")
    norm = common.rms(s.eps, plus_one=True)
    ratio = c.integer("indexer_compress_ratio", 1, MAX_HEADS)
    indexer = spec.Indexer(
        heads=c.integer("indexer_n_heads", 1, MAX_HEADS),
        kv_heads=c.integer("indexer_kv_heads", 1, MAX_HEADS),
        dim=c.integer("indexer_head_dim", 1, MAX_HEADS),
        top_k=c.integer("indexer_budget", ratio, MAX_POSITIONS) // ratio,
        block=ratio,
        pool="mean",
        tail=True,
        rope=0,
        q_norm=norm,
        k_norm=norm,
    )
    layers = []
    for kind in layer_types(c, s.layers, KINDS):
        mixer = spec.Sublayer("linear_attention", residual="hyper", linear_attention=gdn(c, s))
        if kind != "linear_attention":
            attention = _attention(c, s, norm)
            attention.type, attention.indexer = "qsa", indexer
            mixer = spec.Sublayer("attention", residual="hyper", attention=attention)
        layers.append(
            block(mixer, spec.Sublayer("moe", residual="hyper", moe=_moe(c, s, c.flag("norm_topk_prob", True))))
        )
    if c.raw("output_gate_type", None) not in (None, "silu", "swish"):
        c.refuse("output_gate_type", (), "another activation of the output gate")
    hyper = spec.Hyper(
        "low_rank", streams=c.integer("hc_count", 1, 64), rank=c.integer("hc_lowrank", 1, MAX_HIDDEN), norm_eps=s.eps
    )
    base = _naming(False, True)

    def mixes(names: NameMap, source: str, at: str, head: bool = False) -> None:
        pairs = [("hc_norm", "norm"), ("input_mix_weight_down", "mix_down"), ("input_mix_weight_up", "mix_up")]
        for stored, canonical in pairs if head else [*pairs, ("block_inject_weight", "inject")]:
            common.add_if_required(names, source + stored, at + canonical)

    def rest(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if base.extra is not None:
            base.extra(names, source, at, sub)
        mixes(names, f"{source}{'mlp' if sub.moe is not None else 'attn'}_hyper_connection.", f"{at}hyper_")
        if sub.attention is not None:
            concatenated(names, f"{source}self_attn.indexer.index_qk_proj.weight", [f"{at}index.q", f"{at}index.k"])
            for part in "qk":
                common.add_if_required(names, f"{source}self_attn.indexer.{part}_layernorm", f"{at}index.{part}_norm")

    attention_map = {k: v for k, v in base.attention_map.items() if not k.startswith("index.")}
    network = common.model(
        s,
        layers,
        [make_rope(rope_reader(c), s.head_dim, partial=0.25)],
        final_norm=spec.Norm(),
        hyper=hyper,
        tied_embedding=tied(c),
    )
    return finish(
        network,
        base.but(extra=rest, attention_map=attention_map),
        lambda names: mixes(names, "model.hyper_connection_mixer.", "hyper_head_", head=True),
    )
