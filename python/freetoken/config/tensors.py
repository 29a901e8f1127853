"""The weights a ModelSpec requires: canonical tensor name -> shape ([n] or [n, k], k the input dimension)."""

from __future__ import annotations

from freetoken.config.spec import Activation, Attention, Mlp, Model, Moe, Norm, Sublayer

Tensors = dict[str, tuple[int, ...]]


def required_tensors(model: Model) -> Tensors:
    """Every weight of the network that `model` describes."""
    out: Tensors = {"embed": (model.vocab, model.hidden)}
    for l, layer in enumerate(model.layers):
        for s, sublayer in enumerate(layer.sublayers):
            _sublayer(out, f"layers.{l}.{s}.", sublayer, model)
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


def _sublayer(out: Tensors, at: str, sub: Sublayer, model: Model) -> None:
    _norm(out, f"{at}pre_norm", sub.pre_norm, model.hidden)
    if sub.attention is not None:
        _attention(out, at, sub.attention, model.hidden)
    if sub.mlp is not None:
        _mlp(out, at, sub.mlp, model.hidden)
    if sub.moe is not None:
        _moe(out, at, sub.moe, model.hidden)
    _norm(out, f"{at}post_norm", sub.post_norm, model.hidden)


def _attention(out: Tensors, at: str, a: Attention, hidden: int) -> None:
    rows = {"q": a.q_heads * a.qk_dim, "k": a.kv_heads * a.qk_dim, "v": a.kv_heads * a.v_dim}
    for name, n in rows.items():
        out[f"{at}{name}"] = (n, hidden)
        if a.qkv_bias:
            out[f"{at}{name}_bias"] = (n,)
    _norm(out, f"{at}q_norm", a.q_norm, a.qk_dim)
    _norm(out, f"{at}k_norm", a.k_norm, a.qk_dim)
    out[f"{at}o"] = (hidden, a.q_heads * a.v_dim)
    if a.o_bias:
        out[f"{at}o_bias"] = (hidden,)
    if a.sinks:
        out[f"{at}sinks"] = (a.q_heads,)


def _ffn(out: Tensors, at: str, hidden: int, inner: int, activation: Activation, bias: bool = False) -> None:
    for name, n, k in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
        out[f"{at}{name}"] = (n, k)
        if bias:
            out[f"{at}{name}_bias"] = (n,)


def _mlp(out: Tensors, at: str, mlp: Mlp, hidden: int) -> None:
    _ffn(out, at, hidden, mlp.inner, mlp.activation, mlp.bias)


def _moe(out: Tensors, at: str, moe: Moe, hidden: int) -> None:
    out[f"{at}router"] = (moe.experts, hidden)
    if moe.selection_bias:
        out[f"{at}selection_bias"] = (moe.experts,)
    for e in range(moe.experts):
        _ffn(out, f"{at}experts.{e}.", hidden, moe.inner, moe.activation)
    if moe.shared_inner:
        _ffn(out, f"{at}shared.", hidden, moe.shared_inner, moe.activation)
