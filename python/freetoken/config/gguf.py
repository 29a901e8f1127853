"""GGUF metadata and tensor names (llama.cpp's conventions) -> the same ModelSpec that the checkpoint's own config.json
gives.

Shapes are row-major: the dimensions of the GGUF header reversed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel, Sizes
from freetoken.config.names import NameMap
from freetoken.config.reader import (
    MAX_EXPERTS,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_ROPE_THETA,
    MAX_VOCAB,
    Reader,
)
from freetoken.config.rope import apply_factors, make_rope
from freetoken.errors import ConfigError

SERVED = ("llama", "qwen2", "qwen3", "qwen3moe")
# Keys that other architectures use to change the computation, and the values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.scale": (),
    "attention.clamp_kqv": (0, 0.0),
    "attention.causal": (True,),
    "attn_logit_softcapping": (0, 0.0),
    "final_logit_softcapping": (0, 0.0),
    "embedding_scale": (1, 1.0),
    "logit_scale": (1, 1.0),
    "residual_scale": (1, 1.0),
    "use_parallel_residual": (False,),
    "expert_group_count": (0, 1),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
}
_ATTENTION = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
}
_FFN = {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
_ROPE_SCALING = {
    "type",
    "factor",
    "original_context_length",
    "attn_factor",
    "yarn_beta_fast",
    "yarn_beta_slow",
    "finetuned",
}


def parse_gguf(
    metadata: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], rope_freqs: Sequence[float] | None = None
) -> ParsedModel:
    """`metadata`: the key-value pairs of the header as Python values. `shapes`: tensor name -> row-major shape (which
    optional tensors exist decides ties and biases). `rope_freqs`: the values of rope_freqs.weight where the file has
    it."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ConfigError("general.architecture: missing; is this the GGUF of a language model?")
    if architecture not in SERVED:
        raise ConfigError(
            f"GGUF architecture {architecture[:80]!r} is not served by this version; it serves {', '.join(SERVED)}"
        )
    if "rope_freqs.weight" in shapes and rope_freqs is None:
        raise ConfigError("rope_freqs.weight: the file has it, so its values must be given")
    prefix = architecture + "."
    values = {key[len(prefix) :]: value for key, value in metadata.items() if key.startswith(prefix)}
    c = Reader(values, architecture)
    for key, neutral in _NEUTRAL.items():
        c.refuse(key, neutral, "it is not part of this architecture")
    sizes = _sizes(c, shapes)
    is_llama, is_moe = architecture == "llama", architecture == "qwen3moe"
    rope = _rope(c, sizes, rope_freqs)

    blk = "blk.0."
    norm = common.rms(sizes.eps)
    head_norm = norm if architecture.startswith("qwen3") else spec.Norm()
    attention = common.attention(
        sizes,
        window=c.integer("attention.sliding_window", 0, MAX_POSITIONS, 0) or None,
        qkv_bias=f"{blk}attn_q.bias" in shapes,
        o_bias=f"{blk}attn_output.bias" in shapes,
        q_norm=head_norm,
        k_norm=head_norm,
    )
    if not is_llama:
        c.refuse("attention.sliding_window", (0,), "a window is not part of this architecture")
    if not is_llama and not is_moe:
        c.refuse("expert_count", (0,), "experts are not part of this architecture")
    experts = c.integer("expert_count", 0, MAX_EXPERTS, 0)
    if is_moe and experts == 0:
        raise ConfigError(f"{c.where('expert_count')}: missing")
    feed_forward = _moe(c, sizes, experts, is_moe) if experts else _mlp(c, shapes)
    feed_forward.pre_norm = norm
    layers = [
        spec.Layer([spec.Sublayer("attention", norm, attention=attention), feed_forward]) for _ in range(sizes.layers)
    ]
    network = common.model(sizes, layers, [rope], tied_embedding="output.weight" not in shapes)
    return common.finish(
        network, lambda names: _add_names(names, network, sizes.heads if is_llama else 0, sizes.kv_heads, experts)
    )


def _sizes(c: Reader, shapes: Mapping[str, Sequence[int]]) -> Sizes:
    hidden = c.integer("embedding_length", 1, MAX_HIDDEN)
    heads = c.integer("attention.head_count", 1, MAX_HEADS)
    kv_heads = c.integer("attention.head_count_kv", 1, MAX_HEADS, heads)
    if heads % kv_heads != 0:
        raise ConfigError(f"{c.where('attention.head_count_kv')}: {kv_heads} does not divide head_count {heads}")
    head_dim = c.integer("attention.key_length", 1, MAX_HEADS, None)
    if head_dim is None:
        if hidden % heads != 0:
            raise ConfigError(f"{c.where('attention.head_count')}: {heads} does not divide embedding_length {hidden}")
        head_dim = hidden // heads
    value_dim = c.integer("attention.value_length", 1, MAX_HEADS, head_dim)
    if value_dim != head_dim:
        raise ConfigError(f"{c.where('attention.value_length')}: {value_dim} differs from key_length {head_dim}")
    embedding = tuple(shapes.get("token_embd.weight", ()))
    if len(embedding) != 2 or not 1 <= embedding[0] <= MAX_VOCAB:
        raise ConfigError(f"token_embd.weight: expected a matrix with one row per token, found shape {list(embedding)}")
    return Sizes(
        hidden=hidden,
        layers=c.integer("block_count", 1, MAX_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=embedding[0],
        positions=c.integer("context_length", 1, MAX_POSITIONS),
        eps=c.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
    )


def _rope(c: Reader, sizes: Sizes, factors: Sequence[float] | None) -> spec.Rope:
    rotated = c.integer("rope.dimension_count", 1, MAX_HEADS, sizes.head_dim)
    if rotated != sizes.head_dim:
        raise ConfigError(
            f"{c.where('rope.dimension_count')}: a rotation of {rotated} of {sizes.head_dim} elements of a head is not "
            "supported for this architecture"
        )
    unknown = sorted(
        k for k in c.values if k.startswith("rope.scaling.") and k[len("rope.scaling.") :] not in _ROPE_SCALING
    )
    if unknown:
        raise ConfigError(f"{c.where(unknown[0])}: this rope scaling is not supported")
    c.refuse("rope.scale_linear", (1, 1.0), "convert the file again, with rope.scaling.*")
    kind = c.choice("rope.scaling.type", {"none": "default", "linear": "linear", "yarn": "yarn"}, "none")
    factor = c.number("rope.scaling.factor", 0.0, 1e6, 0.0)
    parameters: dict[str, Any] = {"rope_type": kind if factor not in (0.0, 1.0) else "default", "factor": factor}
    if kind == "yarn" and factor not in (0.0, 1.0):
        parameters["original_max_position_embeddings"] = c.integer(
            "rope.scaling.original_context_length", 1, MAX_POSITIONS, sizes.positions
        )
        parameters["beta_fast"] = c.number("rope.scaling.yarn_beta_fast", 1e-6, 1e6, 32.0)
        parameters["beta_slow"] = c.number("rope.scaling.yarn_beta_slow", 1e-6, 1e6, 1.0)
        if factors is not None:
            raise ConfigError("rope_freqs.weight: frequency factors together with YaRN are not supported")
    parameters["rope_theta"] = c.number("rope.freq_base", 1.0, MAX_ROPE_THETA, 10000.0)
    rope = make_rope(Reader(parameters, c.where("rope.scaling")), sizes.head_dim)
    rope.attention_factor *= c.number("rope.scaling.attn_factor", 1e-6, 1e6, 1.0)
    return rope if factors is None else apply_factors(rope, factors)


def _mlp(c: Reader, shapes: Mapping[str, Sequence[int]]) -> spec.Sublayer:
    return spec.Sublayer(
        "mlp", mlp=spec.Mlp(c.integer("feed_forward_length", 1, MAX_HIDDEN), bias="blk.0.ffn_gate.bias" in shapes)
    )


def _moe(c: Reader, sizes: Sizes, experts: int, has_own_inner: bool) -> spec.Sublayer:
    _, chosen = common.read_experts(c, sizes, "expert_count", "expert_used_count")
    inner = c.integer("expert_feed_forward_length", 1, MAX_HIDDEN, None)
    if inner is None:
        if has_own_inner:
            raise ConfigError(f"{c.where('expert_feed_forward_length')}: missing")
        inner = c.integer("feed_forward_length", 1, MAX_HIDDEN)
    c.refuse("expert_shared_count", (0,), "shared experts are not part of this architecture")
    c.refuse("expert_shared_feed_forward_length", (0,), "shared experts are not part of this architecture")
    c.refuse("expert_weights_scale", (0, 1, 0.0, 1.0), "scaled expert weights are not part of this architecture")
    c.refuse("expert_gating_func", (0, 1), "only softmax routing is part of this architecture")
    c.refuse("interleave_moe_layer_step", (0, 1), "every layer has experts in this architecture")
    return spec.Sublayer("moe", moe=spec.Moe(experts, chosen, inner, normalise=True))


def _add_names(names: NameMap, network: spec.Model, q_pairs: int, kv_heads: int, experts: int) -> None:
    names.add("token_embd.weight", "embed")
    names.add("output_norm.weight", "final_norm")
    if not network.tied_embedding:
        names.add("output.weight", "lm_head")
    names.ignore(r"rope_freqs\.weight", "its values are in the rope table")
    pairs = {"q": q_pairs, "k": kv_heads if q_pairs else 0}  # llama.cpp stores llama's q and k as rotary pairs
    for index in range(len(network.layers)):
        blk, at = f"blk.{index}.", f"layers.{index}."
        names.add(f"{blk}attn_norm.weight", f"{at}0.pre_norm")
        for canonical, name in _ATTENTION.items():
            for suffix, part in ((".weight", ""), (".bias", "_bias")):
                if names.has(f"{at}0.{canonical}{part}"):
                    names.add(f"{blk}{name}{suffix}", f"{at}0.{canonical}{part}", rotary_heads=pairs.get(canonical, 0))
        names.add(f"{blk}ffn_norm.weight", f"{at}1.pre_norm")
        if experts:
            common.add_if_required(names, f"{blk}ffn_gate_inp", f"{at}1.router")
            for canonical, name in _FFN.items():
                each = [f"{at}1.experts.{e}.{canonical}" for e in range(experts)]
                names.add_stacked(f"{blk}{name}_exps.weight", each)
                for e in range(experts):  # files from before the experts were stacked
                    names.add(f"{blk}{name}.{e}.weight", each[e])
        else:
            common.add_ffn_names(names, blk, f"{at}1.", _FFN)
