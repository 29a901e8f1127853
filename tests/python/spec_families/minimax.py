"""MiniMax M1 (lightning attention, residual taken after the norm) and M3 (blocks chosen per key-value head, swiglu with
limits)."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap, Rows
from freetoken.config.reader import MAX_EXPERTS, MAX_HEADS, MAX_HIDDEN, MAX_POSITIONS, Reader
from freetoken.config.rope import make_rope, rope_reader

from .shared import VISION, W123, Naming, block, finish, layer_types, sparse_layers, text_of, tied, whole_rope


def minimax(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, kv_heads=8, default_eps=1e-5)
    norm = common.rms(s.eps)
    experts, chosen = common.read_experts(c, s, "num_local_experts")
    moe = spec.Moe(
        experts,
        chosen,
        c.integer("intermediate_size", 1, MAX_HIDDEN),
        normalise=True,
        activation=common.read_activation(c),
    )
    factor = {
        kind: (c.number(f"{kind}_alpha_factor", 0.0, 1e6, 1.0), c.number(f"{kind}_beta_factor", 0.0, 1e6, 1.0))
        for kind in ("full_attn", "linear_attn", "mlp")
    }

    def scaled(kind: str) -> dict:
        return dict(residual="post_norm", skip_scale=factor[kind][0], residual_scale=factor[kind][1])

    layers = []
    for index, kind in enumerate(layer_types(c, s.layers, ("linear_attention", "full_attention"))):
        if kind == "linear_attention":
            slope = 1 - index / (s.layers - 1 + 1e-5) + 1e-5  # later layers forget less
            decay = [2.0 ** (-8.0 * (h + 1) / s.heads) * slope for h in range(s.heads)]
            lightning = spec.LinearAttention(
                "lightning",
                k_heads=s.heads,
                v_heads=s.heads,
                k_dim=s.head_dim,
                v_dim=s.head_dim,
                decay=decay,
                gate_activation="sigmoid",
                norm=common.rms(1e-6),
            )
            mixer = spec.Sublayer("linear_attention", norm, linear_attention=lightning, **scaled("linear_attn"))
        else:
            window = c.integer("sliding_window", 1, MAX_POSITIONS, None)
            mixer = spec.Sublayer(
                "attention", norm, attention=common.attention(s, window=window), **scaled("full_attn")
            )
        layers.append(block(mixer, spec.Sublayer("moe", norm, moe=moe, **scaled("mlp"))))

    def lightning_names(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.linear_attention is None:
            return
        dim = s.head_dim  # q, k and v of a head lie together
        names.add_rows(
            f"{source}self_attn.qkv_proj.weight",
            [(f"{at}{part}", Rows(i * dim, dim, 3 * dim)) for i, part in enumerate("qkv")],
            (3 * s.heads * dim, s.hidden),
        )
        for name, canonical in (("norm", "norm"), ("output_gate", "gate"), ("out_proj", "o")):
            common.add_if_required(names, f"{source}self_attn.{name}", at + canonical)

    # transformers rotates the whole head and does not look at partial_rotary_factor; the original form names its
    # rotary_dim
    rotated = c.integer("rotary_dim", 2, MAX_HEADS, s.head_dim)
    rope = whole_rope(rope_reader(c), rotated, interleaved=False, offset=0)
    naming = Naming(
        moe="block_sparse_moe.",
        experts_map=W123,
        extra=lightning_names,
        ignored=((r".*\.(slope_rate|query_decay|key_decay|diagonal_decay)", "derived from the configuration"),),
    )
    return finish(common.model(s, layers, [rope], tied_embedding=tied(c)), naming)


def minimax_m3_text(c: Reader) -> ParsedModel:
    return _minimax_m3(c, Naming(fused_mlp="gate_up_proj", fused_experts=True, fused_shared="gate_up_proj"), "indexer.")


def minimax_m3(c: Reader) -> ParsedModel:
    ignored = (VISION, (r"(multi_modal_projector|patch_merge_mlp)\..*", "the vision projector: text only"))
    naming = Naming(
        prefix="language_model.model.",
        lm_head="language_model.lm_head",
        moe="block_sparse_moe.",
        selection_bias="e_score_correction_bias",
        experts_map=W123,
        ignored=ignored,
    )
    return _minimax_m3(text_of(c), naming, "index_")


def _minimax_m3(c: Reader, naming: Naming, index: str) -> ParsedModel:
    s = common.read_sizes(c)
    norm = common.rms(s.eps, plus_one=True)
    activation = spec.Activation(
        "swiglu_oai",
        alpha=c.number("swiglu_alpha", 0.0, 100.0, 1.702),
        limit=c.number("swiglu_limit", 0.0, 1e6, 7.0),
        up_offset=1.0,
    )
    experts, chosen = common.read_experts(c, s, "num_local_experts")
    moe = spec.Moe(
        experts,
        chosen,
        c.integer("intermediate_size", 1, MAX_HIDDEN),
        scoring="sigmoid",
        normalise=True,
        selection_bias=True,
        scaling=c.number("routed_scaling_factor", 0.0, 1e6, 1.0),
        activation=activation,
        shared_activation=activation,
        shared_inner=c.integer("shared_intermediate_size", 0, MAX_HIDDEN),
    )
    mlp = spec.Mlp(c.integer("dense_intermediate_size", 1, MAX_HIDDEN), activation)
    partial = c.integer("rotary_dim", 2, MAX_HEADS, s.head_dim) / s.head_dim
    rope = make_rope(rope_reader(c), s.head_dim, theta=5e6, partial=partial)
    indexer = spec.Indexer(
        heads=c.integer("index_n_heads", 1, MAX_HEADS),
        dim=c.integer("index_head_dim", 1, MAX_HEADS),
        relu=False,
        per_head=True,
        pool="max",
        top_k=c.integer("index_topk_blocks", 1, MAX_EXPERTS),
        block=c.integer("index_block_size", 1, MAX_HEADS),
        local_blocks=c.integer("index_local_blocks", 0, MAX_HEADS, 1),
        rope=0,
        q_norm=norm,
        k_norm=norm,
    )
    layers = []
    for kind, sparse in zip(
        layer_types(c, s.layers, ("full_attention", "minimax_m3_sparse")),
        sparse_layers(c, s.layers),
        strict=True,
    ):
        attention = common.attention(s, q_norm=norm, k_norm=norm)
        if kind == "minimax_m3_sparse":
            attention.type, attention.indexer = "bsa", indexer
        layers.append(
            block(
                spec.Sublayer("attention", norm, attention=attention),
                spec.Sublayer("moe", norm, moe=moe) if sparse else spec.Sublayer("mlp", norm, mlp=mlp),
            )
        )
    index_names = {
        f"index.{part}": f"{index}{part}{suffix}"
        for part, suffix in (("q", "_proj"), ("k", "_proj"), ("q_norm", ""), ("k_norm", ""))
    }
    naming = naming.but(attention_map={**naming.attention_map, **index_names})
    return finish(common.model(s, layers, [rope], final_norm=norm, tied_embedding=tied(c)), naming)
