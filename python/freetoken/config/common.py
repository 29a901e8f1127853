"""What the families share: the sizes of a decoder, its usual sublayers, and the usual tensor names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from freetoken.config import spec
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_EXPERTS, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, Reader
from freetoken.config.rope import make_rope, rope_reader
from freetoken.config.tensors import required_tensors
from freetoken.errors import ConfigError

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu2": "relu2",
}
# Bounds the name map before it is built: about five times the largest model known (61 layers of 384 experts).
MAX_EXPERTS_IN_ALL = 131072


@dataclass
class ParsedModel:
    """A network as data: `spec` is the ModelSpec in its canonical JSON form, `names` says what each tensor becomes."""

    spec: dict[str, Any]
    names: NameMap


@dataclass
class Sizes:
    """The numbers nearly every decoder has."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    positions: int
    eps: float


def read_sizes(
    c: Reader,
    *,
    layers: str = "num_hidden_layers",
    eps: str = "rms_norm_eps",
    default_eps: float = 1e-6,
    positions: int = 2048,
    kv_heads: int | None = None,
    head_dim: int | None = None,
) -> Sizes:
    """The sizes; the keywords are the family's defaults (None: as many KV heads as heads; heads that share the hidden
    size)."""
    hidden = c.integer("hidden_size", 1, MAX_HIDDEN)
    heads = c.integer("num_attention_heads", 1, MAX_HEADS)
    kv_heads = c.integer("num_key_value_heads", 1, MAX_HEADS, default=kv_heads or heads)
    if heads % kv_heads != 0:
        raise ConfigError(f"{c.where('num_key_value_heads')}: {kv_heads} does not divide num_attention_heads {heads}")
    head_dim = c.integer("head_dim", 1, MAX_HEADS, default=head_dim)
    if head_dim is None:
        if hidden % heads != 0:
            raise ConfigError(f"{c.where('num_attention_heads')}: {heads} does not divide hidden_size {hidden}")
        head_dim = hidden // heads
    return Sizes(
        hidden=hidden,
        layers=c.integer(layers, 1, MAX_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=c.integer("vocab_size", 1, MAX_VOCAB),
        positions=c.integer("max_position_embeddings", 1, MAX_POSITIONS, positions),
        eps=c.number(eps, 0.0, 1.0, default_eps),
    )


def read_activation(c: Reader, name: str = "hidden_act", default: str = "silu") -> spec.Activation:
    return spec.Activation(c.choice(name, ACTIVATIONS, default))


def read_experts(
    c: Reader,
    sizes: Sizes,
    count: str = "num_experts",
    per_token: str = "num_experts_per_tok",
    defaults: tuple[Any, Any] = (None, None),
    aliases: tuple[str, ...] = (),
) -> tuple[int, int]:
    """The number of routed experts and how many of them a token visits."""
    experts = c.integer(count, 1, MAX_EXPERTS, *([defaults[0]] if defaults[0] else []), aliases=aliases)
    chosen = c.integer(per_token, 1, MAX_EXPERTS, *([defaults[1]] if defaults[1] else []))
    if chosen > experts:
        raise ConfigError(f"{c.where(per_token)}: {chosen} of {experts} experts")
    if experts * sizes.layers > MAX_EXPERTS_IN_ALL:
        raise ConfigError(
            f"{c.where(count)}: {experts} experts in each of {sizes.layers} layers, at most {MAX_EXPERTS_IN_ALL} "
            "in all are read"
        )
    return experts, chosen


def rms(eps: float, **kwargs: Any) -> spec.Norm:
    return spec.Norm("rms", eps=eps, **kwargs)


def attention(sizes: Sizes, *, window: int | None = None, rope: int = 0, **kwargs: Any) -> spec.Attention:
    """Grouped-query attention with the usual scale; `window` counts the query's own position."""
    values: dict[str, Any] = dict(
        q_heads=sizes.heads, kv_heads=sizes.kv_heads, qk_dim=sizes.head_dim, v_dim=sizes.head_dim, rope=rope
    )
    if window is not None:
        values.update(type="window", window=window)
    values.update(kwargs)
    values.setdefault("scale", values["qk_dim"] ** -0.5)
    return spec.Attention(**values)


def model(sizes: Sizes, layers: list[spec.Layer], ropes: list[spec.Rope], **kwargs: Any) -> spec.Model:
    kwargs.setdefault("final_norm", rms(sizes.eps))
    return spec.Model(
        hidden=sizes.hidden,
        vocab=sizes.vocab,
        max_positions=sizes.positions,
        layers=layers,
        rope_tables=ropes,
        **kwargs,
    )


def finish(network: spec.Model, add_names: Callable[[NameMap], None]) -> ParsedModel:
    """The name map over what the spec requires, filled by the family."""
    names = NameMap(required_tensors(network))
    add_names(names)
    return ParsedModel(spec.to_dict(network), names)


def decoder(
    c: Reader,
    sizes: Sizes,
    attention: spec.Attention | Sequence[spec.Attention],
    feed_forward: Callable[[int], spec.Sublayer],
    add_feed_forward_names: Callable[[NameMap, str, str, spec.Sublayer], None],
    *,
    theta: float = 10000.0,
) -> ParsedModel:
    """The usual decoder: attention and a feed-forward, each after an RMS norm and added to the residual.

    `attention` is that of all layers, or one for each. `feed_forward` makes a layer's second sublayer;
    `add_feed_forward_names` maps its tensors, given the prefix of the checkpoint's names ("model.layers.L."), that of
    the canonical ones ("layers.L.1."), and the sublayer. `theta` is the family's default.
    """
    attentions = [attention] * sizes.layers if isinstance(attention, spec.Attention) else attention
    layers = [
        spec.Layer([spec.Sublayer("attention", rms(sizes.eps), attention=a), feed_forward(index)])
        for index, a in enumerate(attentions)
    ]
    ropes = [make_rope(rope_reader(c), sizes.head_dim, theta=theta)]
    network = model(sizes, layers, ropes, tied_embedding=c.flag("tie_word_embeddings", False))

    def add_names(names: NameMap) -> None:
        add_model_names(names, network)
        for index, layer in enumerate(layers):
            source, at = f"model.layers.{index}.", f"layers.{index}."
            add_if_required(names, f"{source}input_layernorm", f"{at}0.pre_norm")
            add_attention_names(names, source, f"{at}0.")
            add_if_required(names, f"{source}post_attention_layernorm", f"{at}1.pre_norm")
            add_feed_forward_names(names, source, f"{at}1.", layer.sublayers[1])

    return finish(network, add_names)


# ---- the usual tensor names of Hugging Face checkpoints

ATTENTION_NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}
FFN_NAMES = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def add_if_required(names: NameMap, source: str, canonical: str) -> None:
    """`source`.weight (and .bias) where the spec has the canonical tensor."""
    for suffix, part in ((".weight", ""), (".bias", "_bias")):
        if names.has(canonical + part):
            names.add(source + suffix, canonical + part)


def add_model_names(names: NameMap, network: spec.Model, prefix: str = "model.", lm_head: str = "lm_head") -> None:
    names.add(f"{prefix}embed_tokens.weight", "embed")
    add_if_required(names, f"{prefix}norm", "final_norm")
    if network.tied_embedding:
        names.ignore(re_escape(f"{lm_head}.weight"), "the configuration ties the output to the embedding")
    else:
        names.add(f"{lm_head}.weight", "lm_head")
    if network.lm_head_bias:
        names.add(f"{lm_head}.bias", "lm_head_bias")
    names.ignore(r".*\.rotary_emb\.inv_freq", "derived from the configuration")


def re_escape(text: str) -> str:
    return text.replace(".", r"\.")


def add_attention_names(names: NameMap, source: str, at: str, mapping: dict[str, str] = ATTENTION_NAMES) -> None:
    for canonical, name in mapping.items():
        add_if_required(names, f"{source}{name}", f"{at}{canonical}")


def add_ffn_names(names: NameMap, source: str, at: str, mapping: dict[str, str] = FFN_NAMES) -> None:
    for canonical, name in mapping.items():
        add_if_required(names, f"{source}{name}", f"{at}{canonical}")


def add_mlp_names(names: NameMap, source: str, at: str, sublayer: spec.Sublayer) -> None:
    """For decoder(): a dense MLP."""
    add_ffn_names(names, f"{source}mlp.", at)


def add_expert_names(names: NameMap, source: str, at: str, experts: int, mapping: dict[str, str] = FFN_NAMES) -> None:
    """One tensor per expert and matrix: `source`E.gate_proj.weight ..."""
    parts = [  # the experts of a layer are alike: what the first one has, all have
        (f".{name}{suffix}", f".{canonical}{part}")
        for canonical, name in mapping.items()
        for suffix, part in ((".weight", ""), (".bias", "_bias"))
        if names.has(f"{at}experts.0.{canonical}{part}")
    ]
    for e in range(experts):
        for stored, canonical in parts:
            names.add(f"{source}{e}{stored}", f"{at}experts.{e}{canonical}")
