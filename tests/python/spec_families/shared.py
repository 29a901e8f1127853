"""What the parsers of the families that are not served yet share: rope tables, the DeepSeek kind of router and latent
attention, and one walk over the layers that adds the usual tensor names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel, Sizes
from freetoken.config.names import NameMap, Rows
from freetoken.config.reader import MAX_EXPERTS, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, Reader
from freetoken.config.rope import make_rope, rope_reader, yarn_magnitude

ATTENTION_NAMES = {
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "o": "o_proj",
    "q_norm": "q_norm",
    "k_norm": "k_norm",
    "gate": "gate_proj",
    "q_a": "q_a_proj",
    "q_a_norm": "q_a_layernorm",
    "q_b": "q_b_proj",
    "kv_a": "kv_a_proj_with_mqa",
    "kv_a_norm": "kv_a_layernorm",
    "kv_b": "kv_b_proj",
    "index.q": "indexer.wq_b",
    "index.k": "indexer.wk",
    "index.k_norm": "indexer.k_norm",
    "index.weights": "indexer.weights_proj",
}
W123 = {"gate": "w1", "up": "w3", "down": "w2"}


class Ropes:
    """The rope tables of a model, each kept once."""

    def __init__(self) -> None:
        self.tables: list[spec.Rope] = []

    def add(self, rope: spec.Rope) -> int:
        if rope not in self.tables:
            self.tables.append(rope)
        return self.tables.index(rope)


def text_of(c: Reader) -> Reader:
    """The text part of a multimodal configuration; a text-only one is its own."""
    if not c.has("text_config"):
        return c
    text = c.child("text_config")
    outer = {k: v for k, v in c.values.items() if k == "tie_word_embeddings" and v is not None}
    return Reader({**outer, **text.values}, text.path)


def layer_types(c: Reader, layers: int, known: Sequence[str], default: str | None = None) -> list[str]:
    if default is not None and not c.has("layer_types"):
        return [default] * layers
    return c.choices("layer_types", known, layers)


def sparse_layers(c: Reader, layers: int, dense_default: int = 0) -> list[bool]:
    """Which layers have experts: by mlp_layer_types, or all after the first few."""
    if c.has("mlp_layer_types"):
        return [kind == "sparse" for kind in c.choices("mlp_layer_types", ("dense", "sparse"), layers)]
    c.refuse("moe_layer_freq", (1,), "experts on every n-th layer")
    dense = c.integer("first_k_dense_replace", 0, MAX_LAYERS, dense_default)
    return [index >= dense for index in range(layers)]


def sigmoid_moe(
    c: Reader, sizes: Sizes, count: str = "n_routed_experts", shared: str = "n_shared_experts", **kwargs: Any
) -> spec.Moe:
    """DeepSeek-V3's router: sigmoid scores, a bias for the choice only, groups ranked by their best two,
    renormalised."""
    experts, chosen = common.read_experts(
        c,
        sizes,
        count,
        "num_experts_per_tok" if c.has("num_experts_per_tok") else "num_experts_per_token",
        aliases=("num_local_experts", "num_experts"),
    )
    inner = c.integer("moe_intermediate_size", 1, MAX_HIDDEN)
    activation = common.read_activation(c)
    groups = c.integer("n_group", 1, MAX_EXPERTS, 1, aliases=("num_expert_group",))
    values: dict[str, Any] = dict(
        scoring="sigmoid",
        normalise=c.flag("norm_topk_prob", True),
        normalise_eps=1e-20,
        selection_bias=True,
        scaling=c.number("routed_scaling_factor", 0.0, 1e6, 1.0),
        groups=groups,
        groups_per_token=c.integer("topk_group", 1, MAX_EXPERTS, 1),
        activation=activation,
        shared_activation=activation,
        shared_inner=inner * c.integer(shared, 0, MAX_EXPERTS, 0),
    )
    values.update(kwargs)
    if values["groups"] == 1:
        values["groups_per_token"] = 1
    return spec.Moe(experts, chosen, inner, **values)


def latent_attention(
    c: Reader,
    sizes: Sizes,
    ropes: Ropes,
    *,
    interleaved: bool = True,
    rope: bool = True,
    norm_eps: float = 1e-6,
    **kwargs: Any,
) -> spec.Attention:
    """MLA. The norms of the latents have eps 1e-6 in most families, whatever rms_norm_eps is."""
    nope = c.integer("qk_nope_head_dim", 1, MAX_HEADS)
    rotated = c.integer("qk_rope_head_dim", 0, MAX_HEADS)
    q_rank = c.integer("q_lora_rank", 1, MAX_HIDDEN, None)
    bias = c.flag("attention_bias", False)
    parameters = rope_reader(c)
    scale = (nope + rotated) ** -0.5
    mscale = parameters.number("mscale_all_dim", 0.0, 1e6, None)
    if mscale and parameters.text("rope_type", "default") != "default":
        scale *= yarn_magnitude(parameters.number("factor", 1e-6, 1e6), mscale) ** 2
    values: dict[str, Any] = dict(
        type="mla",
        q_heads=sizes.heads,
        kv_heads=1,
        qk_dim=nope + rotated,
        v_dim=c.integer("v_head_dim", 1, MAX_HEADS),
        scale=scale,
        qkv_bias=bias,
        o_bias=bias,
        mla=spec.Mla(c.integer("kv_lora_rank", 1, MAX_HIDDEN), rotated, common.rms(norm_eps)),
    )
    if q_rank is not None:
        values.update(q_rank=q_rank, q_latent_norm=common.rms(norm_eps))
    if rope and rotated:
        values["rope"] = ropes.add(whole_rope(parameters, rotated, interleaved, nope))
    values.update(kwargs)
    return spec.Attention(**values)


def whole_rope(parameters: Reader, rotated: int, interleaved: bool, offset: int) -> spec.Rope:
    """A table for `rotated` elements, where the configuration's partial_rotary_factor speaks of the whole head."""
    return make_rope(
        Reader({**parameters.values, "partial_rotary_factor": 1.0}, parameters.path),
        rotated,
        interleaved=interleaved,
        offset=offset,
    )


def token_indexer(
    c: Reader, ropes: Ropes, *, interleaved: bool, offset: int = 0, rope: bool = True, **kwargs: Any
) -> spec.Indexer:
    """DSA's indexer: per-head ReLU scores summed with weights from the hidden state, the best tokens kept."""
    dim = c.integer("index_head_dim", 1, MAX_HEADS)
    rotated = c.integer("qk_rope_head_dim", 0, MAX_HEADS)
    values: dict[str, Any] = dict(
        heads=c.integer("index_n_heads", 1, MAX_HEADS),
        dim=dim,
        top_k=c.integer("index_topk", 1, MAX_POSITIONS),
        weighted=True,
        from_q_latent=True,
        k_norm=spec.Norm("layer", has_bias=True, eps=1e-6),
    )
    if rope and rotated:
        values["rope"] = ropes.add(whole_rope(rope_reader(c), rotated, interleaved, offset))
    values.update(kwargs)
    return spec.Indexer(**values)


@dataclass
class Naming:
    """Where the usual parts of a checkpoint are found. `norms` has one mapping per sublayer of a layer."""

    prefix: str = "model."
    lm_head: str = "lm_head"
    layers: str = "layers."
    norms: Sequence[Mapping[str, str]] = ({"pre_norm": "input_layernorm"}, {"pre_norm": "post_attention_layernorm"})
    attention: str = "self_attn."
    attention_map: Mapping[str, str] = field(default_factory=lambda: ATTENTION_NAMES)
    mlp: str = "mlp."
    mlp_map: Mapping[str, str] = field(default_factory=lambda: common.FFN_NAMES)
    fused_mlp: str = ""  # "gate_up_proj": gate and up in one matrix
    moe: str = "mlp."
    router: str = "gate"
    selection_bias: str = "gate.e_score_correction_bias"
    experts: str = "experts."
    experts_map: Mapping[str, str] = field(default_factory=lambda: common.FFN_NAMES)
    fused_experts: bool = False  # experts.gate_up_proj [experts, 2 inner, hidden] and experts.down_proj
    shared: str = "shared_experts."
    shared_map: Mapping[str, str] = field(default_factory=lambda: common.FFN_NAMES)
    fused_shared: str = ""
    ignored: Sequence[tuple[str, str]] = ()
    # called for each sublayer with (names, source of the layer, canonical prefix, sublayer)
    extra: Callable[[NameMap, str, str, spec.Sublayer], None] | None = None
    embed: str = "embed_tokens.weight"
    norm: str = "norm"

    def but(self, **kwargs: Any) -> Naming:
        return replace(self, **kwargs)


VISION = (
    r"(model\.)?(vision_tower|vision_model|visual|vision_encoder|audio_tower)\..*",
    "the vision or audio part: text only",
)


def finish(network: spec.Model, naming: Naming, extra: Callable[[NameMap], None] | None = None) -> ParsedModel:
    """The name map of `network` by `naming`, and what `extra` adds to it."""

    def add_names(names: NameMap) -> None:
        names.add(naming.prefix + naming.embed, "embed")
        common.add_if_required(names, naming.prefix + naming.norm, "final_norm")
        common.add_if_required(names, naming.lm_head, "lm_head")
        if network.tied_embedding:
            names.ignore(
                common.re_escape(f"{naming.lm_head}.weight"), "the configuration ties the output to the embedding"
            )
        for index, layer in enumerate(network.layers):
            for s, sublayer in enumerate(layer.sublayers):
                _sublayer_names(
                    names,
                    naming,
                    f"{naming.prefix}{naming.layers}{index}.",
                    f"layers.{index}.{s}.",
                    sublayer,
                    naming.norms[s],
                )
        if extra is not None:
            extra(names)
        for pattern, reason in naming.ignored:
            names.ignore(pattern, reason)

    return common.finish(network, add_names)


def _sublayer_names(
    names: NameMap, naming: Naming, source: str, at: str, sub: spec.Sublayer, norms: Mapping[str, str]
) -> None:
    for canonical, name in norms.items():
        common.add_if_required(names, source + name, at + canonical)
    if sub.attention is not None:
        common.add_attention_names(names, source + naming.attention, at, dict(naming.attention_map))
    if sub.mlp is not None:
        ffn_names(names, source + naming.mlp, at, naming.mlp_map, naming.fused_mlp)
    if sub.moe is not None:
        moe_names(names, naming, source + naming.moe, at, sub.moe)
    if naming.extra is not None:
        naming.extra(names, source, at, sub)


def ffn_names(names: NameMap, source: str, at: str, mapping: Mapping[str, str], fused: str = "") -> None:
    if not fused:
        common.add_ffn_names(names, source, at, dict(mapping))
        return
    inner, hidden = names.tensors[f"{at}gate"]
    names.add_stacked(f"{source}{fused}.weight", [f"{at}gate", f"{at}up"], leading=(2 * inner, hidden))
    names.add(f"{source}{mapping['down']}.weight", f"{at}down")


def moe_names(names: NameMap, naming: Naming, source: str, at: str, moe: spec.Moe) -> None:
    common.add_if_required(names, source + naming.router, f"{at}router")
    if moe.selection_bias:
        names.add(source + naming.selection_bias, f"{at}selection_bias")
    if naming.fused_experts:
        fused_expert_names(names, source + naming.experts, at, moe.experts)
    else:
        common.add_expert_names(names, source + naming.experts, at, moe.experts, dict(naming.experts_map))
    if moe.shared_inner:
        ffn_names(names, source + naming.shared, f"{at}shared.", naming.shared_map, naming.fused_shared)


def fused_expert_names(
    names: NameMap, source: str, at: str, experts: int, gate_up: str = "gate_up_proj", down: str = "down_proj"
) -> None:
    """Experts stacked in 3-D, with the rows of gate before those of up: [experts, 2 inner, hidden]."""
    inner, hidden = names.tensors[f"{at}experts.0.gate"]
    names.add_stacked(
        source + gate_up,
        [f"{at}experts.{e}.{part}" for e in range(experts) for part in ("gate", "up")],
        leading=(experts, 2 * inner, hidden),
    )
    names.add_stacked(source + down, [f"{at}experts.{e}.down" for e in range(experts)])


def transposed_expert_names(names: NameMap, source: str, at: str, experts: int, interleaved: bool) -> None:
    """Experts stored [experts, in, out]; gate and up are the halves of the output, or its even and odd elements."""
    inner, hidden = names.tensors[f"{at}experts.0.gate"]
    rows = (Rows(0, 1, 2), Rows(1, 1, 2)) if interleaved else (Rows(0, inner, 2 * inner), Rows(inner, inner, 2 * inner))
    pieces = [
        (f"{at}experts.{e}.{part}", r) for e in range(experts) for part, r in zip(("gate", "up"), rows, strict=True)
    ]
    names.add_rows(f"{source}gate_up_proj", pieces, (experts, hidden, 2 * inner), parts=experts, transpose=True)
    names.add_stacked(f"{source}down_proj", [f"{at}experts.{e}.down" for e in range(experts)], transpose=True)


def pieces_of(names: NameMap, canonicals: Sequence[str]) -> list[tuple[str, Rows]]:
    """Tensors one after the other in one stored tensor."""
    total = sum(names.tensors[c][0] for c in canonicals)
    out, start = [], 0
    for canonical in canonicals:
        count = names.tensors[canonical][0]
        out.append((canonical, Rows(start, count, total)))
        start += count
    return out


def concatenated(names: NameMap, source: str, canonicals: Sequence[str], middle: tuple[int, ...] = ()) -> None:
    """One stored tensor that is `canonicals` one after the other; `middle`: extra dimensions of size 1
    (convolutions)."""
    total = sum(names.tensors[c][0] for c in canonicals)
    names.add_rows(source, pieces_of(names, canonicals), (total, *middle, *names.tensors[canonicals[0]][1:]))


def conv_name(names: NameMap, source: str, canonical: str) -> None:
    """A depthwise convolution, stored as [channels, 1, kernel]."""
    channels, kernel = names.tensors[canonical]
    names.add(source, canonical, shapes=[(channels, 1, kernel)])


def block(first: spec.Sublayer, second: spec.Sublayer) -> spec.Layer:
    return spec.Layer([first, second])


def tied(c: Reader, default: bool = False) -> bool:
    return c.flag("tie_word_embeddings", default)
