"""The weights a ModelSpec requires: canonical tensor name -> shape ([n] or [n, k], k the input dimension)."""

from __future__ import annotations

from freetoken.config.spec import (
    Activation,
    Attention,
    Compressor,
    Hyper,
    Indexer,
    Layer,
    LinearAttention,
    Model,
    Moe,
    Norm,
    Sublayer,
)

Tensors = dict[str, tuple[int, ...]]


def required_tensors(model: Model) -> Tensors:
    """Every weight of the network that `model` describes."""
    out: Tensors = {"embed": (model.vocab, model.hidden)}
    _norm(out, "embed_norm", model.embed_norm, model.hidden)
    for i, rope in enumerate(model.rope_tables):
        if rope.learned:
            out[f"rope.{i}.alpha"] = (len(rope.inv_freq),)
    if model.table.dim:
        rows = len(model.layers) * model.table.dim
        out["table"] = (model.table.vocab, rows)
        out["table_projection"] = (rows, model.hidden)
        _norm(out, "table_norm", model.table.norm, model.table.dim)
    for index, layer in enumerate(model.layers):
        _layer(out, f"layers.{index}.", layer, model)
    for i, mtp in enumerate(model.mtp):
        _norm(out, f"mtp.{i}.embed_norm", mtp.embed_norm, model.hidden)
        _norm(out, f"mtp.{i}.hidden_norm", mtp.hidden_norm, model.hidden)
        out[f"mtp.{i}.join"] = (model.hidden, 2 * model.hidden)
        _layer(out, f"mtp.{i}.", mtp.layer, model)
        _norm(out, f"mtp.{i}.final_norm", mtp.final_norm, model.hidden)
        out.update(
            {
                f"mtp.{i}.{name}": (model.vocab, model.hidden)
                for name, own in (("embed", mtp.own_embedding), ("lm_head", mtp.own_head))
                if own
            }
        )
    _hyper_head(out, model.hyper, model.hidden)
    _norm(out, "final_norm", model.final_norm, model.hidden)
    if not model.tied_embedding:
        out["lm_head"] = (model.vocab, model.hidden)
    if model.lm_head_bias:
        out["lm_head_bias"] = (model.vocab,)
    return out


def _norm(out: Tensors, name: str, norm: Norm, size: int) -> None:
    if norm.kind == "none":
        return
    if norm.has_weight:
        out[name] = (size,)
    if norm.has_bias:
        out[f"{name}_bias"] = (size,)


def _layer(out: Tensors, at: str, layer: Layer, model: Model) -> None:
    for s, sublayer in enumerate(layer.sublayers):
        _sublayer(out, f"{at}{s}.", sublayer, model)
    if layer.scale:
        out[f"{at}scale"] = (1,)


def _sublayer(out: Tensors, at: str, sub: Sublayer, model: Model) -> None:
    hidden = model.hidden
    if sub.residual == "hyper":
        _hyper(out, at, model.hyper, hidden)
    _norm(out, f"{at}pre_norm", sub.pre_norm, hidden)
    if sub.attention is not None:
        _attention(out, at, sub.attention, sub.kv_source < 0, hidden)
    if sub.linear_attention is not None:
        _linear_attention(out, at, sub.linear_attention, hidden)
    if sub.mlp is not None:
        _ffn(out, at, hidden, sub.mlp.inner, sub.mlp.activation, sub.mlp.bias)
        if sub.mlp.scale:
            out[f"{at}scale"] = (1,)
    if sub.moe is not None:
        _moe(out, at, sub.moe, model)
    if sub.table_memory is not None:
        out[f"{at}gate"] = (sub.table_memory.dim, hidden)
        out[f"{at}proj"] = (hidden, sub.table_memory.dim)
    if sub.post_conv:
        out[f"{at}post_conv"] = (hidden, sub.post_conv)
    _norm(out, f"{at}post_norm", sub.post_norm, hidden)
    _norm(out, f"{at}group_norm", sub.group_norm, hidden)
    if sub.residual == "gated":
        out[f"{at}residual_gate"] = (hidden,)


def _hyper(out: Tensors, at: str, hyper: Hyper, hidden: int) -> None:
    n, width = hyper.streams, hyper.streams * hidden
    if hyper.kind == "low_rank":
        out[f"{at}hyper_norm"] = (width,)
        out[f"{at}hyper_mix_down"] = (hyper.rank, width)
        out[f"{at}hyper_mix_up"] = (width, hyper.rank)
        out[f"{at}hyper_inject"] = (n, width)
        return
    rows, scales = ((2 + n) * n, 3) if hyper.kind == "sinkhorn" else (2 * n, 2)
    out[f"{at}hyper_fn"] = (rows, width)
    out[f"{at}hyper_base"] = (rows,)
    out[f"{at}hyper_scale"] = (scales,)


def _hyper_head(out: Tensors, hyper: Hyper, hidden: int) -> None:
    n, width = hyper.streams, hyper.streams * hidden
    if hyper.kind == "none" or hyper.head == "mean":
        return
    if hyper.kind == "low_rank":
        out["hyper_head_norm"] = (width,)
        out["hyper_head_mix_down"] = (hyper.rank, width)
        out["hyper_head_mix_up"] = (width, hyper.rank)
        return
    out["hyper_head_fn"] = (n, width)
    out["hyper_head_base"] = (n,)
    out["hyper_head_scale"] = (1,)


def _attention(out: Tensors, at: str, a: Attention, own_kv: bool, hidden: int) -> None:
    def matrix(name: str, n: int, k: int = hidden, bias: bool = False) -> None:
        out[f"{at}{name}"] = (n, k)
        if bias:
            out[f"{at}{name}_bias"] = (n,)

    q_rows, k_rows, v_rows = a.q_heads * a.qk_dim, a.kv_heads * a.qk_dim, a.kv_heads * a.v_dim
    if a.q_rank:
        matrix("q_a", a.q_rank, bias=a.qkv_bias)
        _norm(out, f"{at}q_a_norm", a.q_latent_norm, a.q_rank)
        matrix("q_b", q_rows, a.q_rank)
    else:
        matrix("q", q_rows, bias=a.qkv_bias)
    if a.mla is not None:
        if own_kv:
            matrix("kv_a", a.mla.rank + a.mla.rope_dim, bias=a.qkv_bias)
            _norm(out, f"{at}kv_a_norm", a.mla.norm, a.mla.rank)
        matrix("kv_b", a.q_heads * (a.qk_dim - a.mla.rope_dim + a.v_dim), a.mla.rank)
    elif own_kv:
        matrix("k", k_rows, bias=a.qkv_bias)
        if a.value_source == "own":
            matrix("v", v_rows, bias=a.qkv_bias)
        if a.kv_conv:
            matrix("k_conv", k_rows, a.kv_conv)
            matrix("v_conv", v_rows, a.kv_conv)
    whole = a.norm_span == "all"
    _norm(out, f"{at}q_norm", a.q_norm, q_rows if whole else a.qk_dim)
    if own_kv:
        _norm(out, f"{at}k_norm", a.k_norm, k_rows if whole else a.qk_dim)
        _norm(out, f"{at}v_norm", a.v_norm, a.v_dim)
    if a.temperature.kind == "learned_log":
        out[f"{at}temperature_scale"] = out[f"{at}temperature_bias"] = (a.q_heads,)
    if a.relative_bias.dim:
        matrix("rel", a.q_heads * a.relative_bias.dim)
        matrix("rel_proj", a.relative_bias.dim, a.relative_bias.extent)
    if a.sinks:
        out[f"{at}sinks"] = (a.q_heads,)
    _norm(out, f"{at}o_norm", a.o_norm, a.v_dim)
    if a.gate != "none":
        matrix("gate", a.q_heads * (a.v_dim if a.gate == "element" else 1))
    if a.o_groups:
        matrix("o_a", a.o_groups * a.o_rank, a.q_heads * a.v_dim // a.o_groups)
        matrix("o_b", hidden, a.o_groups * a.o_rank, bias=a.o_bias)
    else:
        matrix("o", hidden, a.q_heads * a.v_dim, bias=a.o_bias)
    if a.indexer is not None and a.indexer.top_k:
        _indexer(out, f"{at}index.", a.indexer, a.q_rank, hidden)
    if a.compressor is not None and a.compressor.ratio:
        _compressor(out, f"{at}compress.", a.compressor, a.qk_dim, hidden)


def _indexer(out: Tensors, at: str, x: Indexer, q_rank: int, hidden: int) -> None:
    _norm(out, f"{at}q_input_norm", x.q_input_norm, hidden)
    out[f"{at}q"] = (x.heads * x.dim, q_rank if x.from_q_latent else hidden)
    _norm(out, f"{at}q_norm", x.q_norm, x.dim)
    if x.pool == "compressor" and x.compressor is not None:
        _compressor(out, f"{at}compress.", x.compressor, x.dim, hidden)
    else:
        out[f"{at}k"] = (x.kv_heads * x.dim, hidden)
        _norm(out, f"{at}k_norm", x.k_norm, x.dim)
    if x.weighted:
        out[f"{at}weights"] = (x.heads, hidden)
    if x.pool == "gated":
        out[f"{at}pool_gate"] = (x.dim, hidden)
        out[f"{at}pool_bias"] = (x.block, x.dim)
    if x.temperature.kind == "learned_log":
        out[f"{at}temperature_scale"] = out[f"{at}temperature_bias"] = (x.heads,)


def _compressor(out: Tensors, at: str, c: Compressor, dim: int, hidden: int) -> None:
    width = dim * (2 if c.overlap else 1)
    out[f"{at}kv"] = out[f"{at}gate"] = (width, hidden)
    out[f"{at}bias"] = (c.ratio, width)
    _norm(out, f"{at}norm", c.norm, dim)


def _linear_attention(out: Tensors, at: str, a: LinearAttention, hidden: int) -> None:
    def matrix(name: str, n: int, k: int = hidden) -> None:
        out[f"{at}{name}"] = (n, k)
        if a.bias:
            out[f"{at}{name}_bias"] = (n,)

    def conv(name: str, n: int) -> None:
        out[f"{at}{name}"] = (n, a.conv_kernel)
        if a.conv_bias:
            out[f"{at}{name}_bias"] = (n,)

    if a.kind == "short_conv":
        for name in ("b", "c", "x", "o"):
            matrix(name, hidden)
        conv("conv", hidden)
        return
    k_rows, v_rows = a.k_heads * a.k_dim, a.v_heads * a.v_dim
    for name, rows in (("q", k_rows), ("k", k_rows), ("v", v_rows)):
        matrix(name, rows)
        if a.conv_kernel:
            conv(f"{name}_conv", rows)
    if a.kind in ("gdn", "mamba2"):
        for name in ("a", "b") if a.kind == "gdn" else ("dt",):
            matrix(name, a.v_heads)
        out[f"{at}a_log"] = out[f"{at}dt_bias"] = (a.v_heads,)
    if a.kind == "mamba2":
        out[f"{at}d"] = (a.v_heads,)
    if a.kind == "kda":
        matrix("b", a.v_heads)
        _low_rank(out, f"{at}decay", k_rows, a.decay_rank, hidden)
        out[f"{at}a_log"] = (a.v_heads,)
        out[f"{at}dt_bias"] = (k_rows,)
    _low_rank(out, f"{at}gate", v_rows, a.gate_rank, hidden)
    _norm(out, f"{at}norm", a.norm, a.v_dim if a.kind in ("gdn", "kda") else v_rows)
    matrix("o", hidden, v_rows)


def _low_rank(out: Tensors, name: str, rows: int, rank: int, hidden: int) -> None:
    if rank:
        out[f"{name}_a"] = (rank, hidden)
        out[f"{name}_b"] = (rows, rank)
    else:
        out[name] = (rows, hidden)


def _ffn(out: Tensors, at: str, hidden: int, inner: int, activation: Activation, bias: bool = False) -> None:
    for name, n, k in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
        if name == "gate" and not activation.gated:
            continue
        out[f"{at}{name}"] = (n, k)
        if bias:
            out[f"{at}{name}_bias"] = (n,)


def _moe(out: Tensors, at: str, moe: Moe, model: Model) -> None:
    hidden, scored = model.hidden, moe.experts + moe.identity_experts
    rows = scored + (moe.shared_experts if moe.shared_routed else 0)
    _norm(out, f"{at}router_norm", moe.router_norm, hidden)
    if moe.router_scale:
        out[f"{at}router_scale"] = (hidden,)
    out[f"{at}router"] = (rows, hidden)
    if moe.router_bias:
        out[f"{at}router_bias"] = (rows,)
    if moe.selection_bias:
        out[f"{at}selection_bias"] = (scored,)
    if moe.hash:
        out[f"{at}hash"] = (model.vocab, moe.experts_per_token)
    if moe.expert_scale:
        out[f"{at}expert_scale"] = (moe.experts,)
    if moe.global_scale:
        out[f"{at}scale"] = (1,)
    width = moe.latent or hidden
    if moe.latent:
        out[f"{at}latent_in"] = (moe.latent, hidden)
        _norm(out, f"{at}latent_norm", moe.latent_norm, moe.latent)
        out[f"{at}latent_out"] = (hidden, moe.latent)
    _norm(out, f"{at}expert_norm", moe.expert_norm, width)
    for e in range(moe.experts):
        _ffn(out, f"{at}experts.{e}.", width, moe.inner, moe.activation, moe.expert_bias)
    if moe.shared_inner and moe.shared_routed:
        for e in range(moe.shared_experts):
            _ffn(out, f"{at}shared.{e}.", hidden, moe.shared_inner, moe.shared_activation)
    elif moe.shared_inner:
        _ffn(out, f"{at}shared.", hidden, moe.shared_inner, moe.shared_activation)
    if moe.shared_gate:
        out[f"{at}shared_gate"] = (1, hidden)
