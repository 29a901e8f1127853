"""DeepSeek V4: one shared key-value head, windows and compressed entries, hyper-connections, experts chosen by a hash
table first."""

from __future__ import annotations

from typing import Any

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, MAX_ROPE_THETA, Reader
from freetoken.config.rope import make_rope
from freetoken.errors import ConfigError

from .shared import W123, Naming, Ropes, finish, sigmoid_moe, tied

KINDS = ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention")


def _kinds(c: Reader, layers: int) -> list[str]:
    if c.has("layer_types"):
        return c.choices("layer_types", KINDS, layers)
    by_ratio = {0: KINDS[0], 4: KINDS[1], 128: KINDS[2]}
    ratios = c.integers("compress_ratios", 0, MAX_POSITIONS)
    if len(ratios) < layers or any(r not in by_ratio for r in ratios):
        raise ConfigError(f"{c.where('compress_ratios')}: expected 0, 4 or 128 for each of {layers} layers")
    return [by_ratio[r] for r in ratios[:layers]]


def _rope_parameters(c: Reader) -> tuple[Reader, Reader]:
    """Rotation of window layers, and of layers with compressed entries: the latter scaled, without YaRN's factor on cos
    and sin."""
    nested = c.child("rope_parameters", {})
    if nested.has("main") and nested.has("compress"):
        return nested.child("main"), nested.child("compress")
    scaling = dict((nested if nested.values else c.child("rope_scaling", {})).values)
    scaling["rope_type"] = scaling.get("rope_type") or scaling.pop("type", None) or "default"
    theta = c.number("compress_rope_theta", 1.0, MAX_ROPE_THETA, 160000.0)
    values: dict[str, Any] = {**scaling, "rope_theta": theta}
    if values["rope_type"] == "yarn":
        values["attention_factor"] = 1.0
    return Reader({"rope_theta": c.number("rope_theta", 1.0, MAX_ROPE_THETA, 10000.0)}), Reader(
        values, c.where("rope_scaling")
    )


def deepseek_v4(c: Reader) -> ParsedModel:
    s = common.read_sizes(c, positions=1048576)
    norm, ropes = common.rms(s.eps), Ropes()
    kinds = _kinds(c, s.layers)
    main, compress = _rope_parameters(c)
    rotated = c.integer(
        "qk_rope_head_dim", 2, MAX_HEADS, int(s.head_dim * c.number("partial_rotary_factor", 0.0, 1.0, 64 / 512))
    )
    index_dim = c.integer("index_head_dim", 1, MAX_HEADS)
    rates = c.child("compress_rates", {})
    csa = rates.integer("compressed_sparse_attention", 1, MAX_HEADS, 4)
    hca = rates.integer("heavily_compressed_attention", 1, MAX_HEADS, 128)
    q_rank = c.integer("q_lora_rank", 1, MAX_HIDDEN)

    def rope(parameters: Reader, dim: int) -> int:
        whole = Reader({**parameters.values, "partial_rotary_factor": 1.0}, parameters.path)
        return ropes.add(make_rope(whole, rotated, interleaved=True, offset=dim - rotated))

    def attention(kind: str) -> spec.Attention:
        table = rope(main if kind == KINDS[0] else compress, s.head_dim)
        a = common.attention(
            s,
            type="dsv4",
            kv_heads=1,
            window=c.integer("sliding_window", 1, MAX_POSITIONS),
            rope=table,
            sinks=True,
            q_rank=q_rank,
            q_latent_norm=norm,
            q_norm=common.rms(s.eps, has_weight=False),
            k_norm=norm,
            value_source="key",
            rotate_output=True,
            o_groups=c.integer("o_groups", 1, MAX_HEADS),
            o_rank=c.integer("o_lora_rank", 1, MAX_HIDDEN),
        )
        a.type = "dsv4"
        if kind == KINDS[2]:
            a.compressor = spec.Compressor(hca, norm=norm, rope=table)
        if kind == KINDS[1]:
            a.compressor = spec.Compressor(csa, overlap=True, norm=norm, rope=table)
            index_table = rope(compress, index_dim)
            a.indexer = spec.Indexer(
                heads=c.integer("index_n_heads", 1, MAX_HEADS),
                dim=index_dim,
                top_k=c.integer("index_topk", 1, MAX_POSITIONS),
                block=csa,
                pool="compressor",
                from_q_latent=True,
                weighted=True,
                rope=index_table,
                compressor=spec.Compressor(csa, overlap=True, norm=norm, rope=index_table),
            )
        return a

    scoring = c.choice(
        "scoring_func", {"sqrtsoftplus": "sqrt_softplus", "sigmoid": "sigmoid", "softmax": "softmax"}, "sqrtsoftplus"
    )
    activation = spec.Activation(common.read_activation(c).kind, limit=c.number("swiglu_limit", 0.0, 1e6, 0.0))
    hashed = c.integer("num_hash_layers", 0, MAX_LAYERS, 3)
    if c.has("mlp_layer_types"):
        hashed = c.choices("mlp_layer_types", ("hash_moe", "moe"), s.layers).count("hash_moe")

    def moe(layer: int) -> spec.Moe:
        by_table = layer < hashed
        return sigmoid_moe(
            c,
            s,
            scoring=scoring,
            normalise=True,
            groups=1,
            activation=activation,
            shared_activation=activation,
            hash=by_table,
            selection_bias=not by_table,
        )

    hyper = spec.Hyper(
        "sinkhorn",
        streams=c.integer("hc_mult", 1, 64, 4),
        eps=c.number("hc_eps", 0.0, 1.0, 1e-6),
        norm_eps=s.eps,
        sinkhorn_iterations=c.integer("hc_sinkhorn_iters", 1, 1000, 20),
    )
    layers = [
        spec.Layer(
            [
                spec.Sublayer("attention", norm, attention=attention(kind), residual="hyper"),
                spec.Sublayer("moe", norm, moe=moe(index), residual="hyper"),
            ]
        )
        for index, kind in enumerate(kinds)
    ]

    def rest(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        where = "attn" if sub.attention is not None else "ffn"
        for part in ("fn", "base", "scale"):
            names.add(f"{source}hc_{where}_{part}", f"{at}hyper_{part}")
        if sub.attention is not None:
            names.add(f"{source}attn.attn_sink", f"{at}sinks")
            for stored, canonical in (
                ("attn.compressor.", "compress."),
                ("attn.indexer.compressor.", "index.compress."),
            ):
                if names.has(f"{at}{canonical}bias"):
                    names.add(f"{source}{stored}ape", f"{at}{canonical}bias")
        elif sub.moe is not None and sub.moe.hash:
            names.add(f"{source}ffn.gate.tid2eid", f"{at}hash", integer=True)

    def head_names(names: NameMap) -> None:
        for part in ("fn", "base", "scale"):
            names.add(f"hc_head_{part}", f"hyper_head_{part}")

    attention_map = {
        "q_a": "wq_a",
        "q_a_norm": "q_norm",
        "q_b": "wq_b",
        "k": "wkv",
        "k_norm": "kv_norm",
        "o_a": "wo_a",
        "o_b": "wo_b",
        "index.q": "indexer.wq_b",
        "index.weights": "indexer.weights_proj",
    }
    for stored, canonical in (("compressor.", "compress."), ("indexer.compressor.", "index.compress.")):
        attention_map.update(
            {
                f"{canonical}kv": f"{stored}wkv",
                f"{canonical}gate": f"{stored}wgate",
                f"{canonical}norm": f"{stored}norm",
            }
        )
    naming = Naming(
        prefix="",
        lm_head="head",
        embed="embed.weight",
        norms=({"pre_norm": "attn_norm"}, {"pre_norm": "ffn_norm"}),
        attention="attn.",
        attention_map=attention_map,
        moe="ffn.",
        selection_bias="gate.bias",
        experts_map=W123,
        shared_map=W123,
        extra=rest,
        ignored=((r"mtp\..*", "the multi-token-prediction head"),),
    )
    return finish(common.model(s, layers, ropes.tables, hyper=hyper, tied_embedding=tied(c)), naming, head_names)
