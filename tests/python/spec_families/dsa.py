"""Latent attention on selected tokens: deepseek_v32, glm_moe_dsa, hy_v4 (with hyper-connections), mistral_large4."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_LAYERS, Reader
from freetoken.errors import ConfigError

from .deepseek import MTP, softmax_moe
from .dense import mlp_of
from .shared import (
    VISION,
    W123,
    Naming,
    Ropes,
    finish,
    latent_attention,
    sigmoid_moe,
    sparse_layers,
    text_of,
    tied,
    token_indexer,
)


def index_sources(c: Reader, layers: int) -> list[int]:
    """For each layer the one whose selection it uses, -1 where it makes its own."""
    kinds = c.choices("indexer_types", ("full", "shared"), layers, default=["full"] * layers)
    sources, last = [], -1
    for index, kind in enumerate(kinds):
        if kind == "full":
            last = index
        elif last < 0:
            raise ConfigError(f"{c.where('indexer_types')}[{index}]: no layer before this one makes a selection")
        sources.append(-1 if kind == "full" else last)
    return sources


def _layers(
    c: Reader,
    s: common.Sizes,
    attention: spec.Attention,
    indexer: spec.Indexer,
    moe: spec.Moe,
    mlp: spec.Mlp,
    dense: int,
    **kwargs,
) -> list[spec.Layer]:
    norm, layers = common.rms(s.eps), []
    for source, sparse in zip(index_sources(c, s.layers), sparse_layers(c, s.layers, dense), strict=True):
        own = spec.Attention(**{**attention.__dict__, "type": "dsa", "indexer": indexer if source < 0 else None})
        layers.append(
            spec.Layer(
                [
                    spec.Sublayer("attention", norm, attention=own, index_source=source, **kwargs),
                    spec.Sublayer("moe", norm, moe=moe, **kwargs)
                    if sparse
                    else spec.Sublayer("mlp", norm, mlp=mlp, **kwargs),
                ]
            )
        )
    return layers


def deepseek_v32(c: Reader) -> ParsedModel:
    return _dsa(c, 1e-6, index_interleaved=False, dense=3)


def glm_moe_dsa(c: Reader) -> ParsedModel:
    return _dsa(c, 1e-5, index_interleaved=True, dense=3)


def _dsa(c: Reader, eps: float, index_interleaved: bool, dense: int) -> ParsedModel:
    s, ropes = common.read_sizes(c, default_eps=eps), Ropes()
    attention = latent_attention(c, s, ropes)
    indexer = token_indexer(c, ropes, interleaved=index_interleaved)
    layers = _layers(c, s, attention, indexer, sigmoid_moe(c, s), mlp_of(c), dense)
    return finish(common.model(s, layers, ropes.tables, tied_embedding=tied(c)), Naming(ignored=(MTP,)))


def hy_v4(c: Reader) -> ParsedModel:
    s, ropes = common.read_sizes(c, default_eps=1e-5), Ropes()
    attention = latent_attention(c, s, ropes, interleaved=False, gate="element", sinks=True)
    dim, rotated = c.integer("index_head_dim", 1, 65536), c.integer("qk_rope_head_dim", 0, 65536)
    indexer = token_indexer(
        c, ropes, interleaved=False, offset=dim - rotated, k_norm=spec.Norm("layer", has_bias=True, eps=s.eps)
    )
    limit = c.number("swiglu_limit", 0.0, 1e6, 10.0)
    moe = sigmoid_moe(c, s, activation=spec.Activation(common.read_activation(c).kind, limit=limit))
    layers = _layers(c, s, attention, indexer, moe, mlp_of(c), 1, residual="hyper")
    hyper = spec.Hyper(
        "magnitude",
        streams=c.integer("hc_mult", 1, 64, 4),
        eps=c.number("hc_eps", 0.0, 1.0, 1e-6),
        norm_eps=s.eps,
        post_scale=c.number("hc_magnitude", 0.0, 100.0, 2.0),
    )

    def hyper_names(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        where = "attn" if sub.attention is not None else "mlp"
        for part in ("fn", "base", "scale"):
            names.add(f"{source}hc_pre.hc_{where}_layer.hc_{part}", f"{at}hyper_{part}")
        if sub.attention is not None:
            names.add(f"{source}self_attn.learnable_sink_param", f"{at}sinks")

    def head_names(names: NameMap) -> None:
        for part in ("fn", "base", "scale"):
            names.add(f"model.hc_pre.hc_head.hc_head_{part}", f"hyper_head_{part}")

    ffn = {**common.FFN_NAMES, "gate": "linear_gate"}
    naming = Naming(mlp_map=ffn, shared_map=ffn, fused_experts=True, extra=hyper_names, ignored=(MTP,))
    naming = naming.but(attention_map={**naming.attention_map, "gate": "linear_gate"})
    return finish(common.model(s, layers, ropes.tables, hyper=hyper, tied_embedding=tied(c)), naming, head_names)


def mistral_large4(c: Reader) -> ParsedModel:
    """A learned scale of every frequency, a learned temperature per head, some layers without rotation."""
    c = text_of(c)
    s, ropes = common.read_sizes(c, default_eps=1e-5), Ropes()
    rotated = c.integers("no_rope_layers", 0, 1, s.layers)
    sources = c.integers("kv_source_layers", 0, MAX_LAYERS, s.layers, default=list(range(s.layers)))
    temperature = spec.Temperature("learned_log")
    moe = softmax_moe(c, s, normalise=True)
    norm, layers = common.rms(s.eps), []
    for index, (source, sparse) in enumerate(
        zip(index_sources(c, s.layers), sparse_layers(c, s.layers, 1), strict=True)
    ):
        rope = bool(rotated[index])
        attention = latent_attention(c, s, ropes, rope=rope, norm_eps=s.eps, type="dsa", temperature=temperature)
        if not rope and attention.mla is not None:
            attention.mla.rope_dim = 0  # the whole key comes from the latent
        if source < 0:
            attention.indexer = token_indexer(
                c,
                ropes,
                interleaved=True,
                rope=rope,
                from_q_latent=False,
                temperature=temperature,
                q_input_norm=spec.Norm("layer", has_bias=True, eps=1e-6),
            )
        kv_source = -1 if sources[index] == index else sources[index]
        feed_forward = spec.Sublayer("moe", norm, moe=moe) if sparse else spec.Sublayer("mlp", norm, mlp=mlp_of(c))
        layers.append(
            spec.Layer(
                [
                    spec.Sublayer("attention", norm, attention=attention, kv_source=kv_source, index_source=source),
                    feed_forward,
                ]
            )
        )
    for table in ropes.tables:
        table.learned = True

    def alpha(names: NameMap) -> None:
        names.add_copies("lerope.alpha", [f"rope.{i}.alpha" for i in range(len(ropes.tables))])

    def temperatures(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.attention is None:
            return
        for where, canonical in (("", ""), ("indexer.", "index.")):
            for name, part in (("s", "scale"), ("b", "bias")):
                if names.has(f"{at}{canonical}temperature_{part}"):
                    names.add(f"{source}attention.{where}ssmax_scaling.{name}", f"{at}{canonical}temperature_{part}")

    attention_map = {"q": "wq", "o": "wo", "kv_a": "wkv_a_with_mqa", "kv_a_norm": "kv_a_norm", "kv_b": "wkv_b"}
    attention_map.update(
        {
            f"index.{part}": f"indexer.{name}"
            for part, name in (
                ("q", "wq_b"),
                ("k", "wk"),
                ("k_norm", "k_norm"),
                ("weights", "weights_proj"),
                ("q_input_norm", "q_input_norm"),
            )
        }
    )
    ignored = (
        VISION,
        (r"(patch_merger|pre_mm_projector_norm|vision_language_adapter)\..*", "the vision projector: text only"),
    )
    naming = Naming(
        prefix="",
        lm_head="output",
        embed="tok_embeddings.weight",
        norms=({"pre_norm": "attention_norm"}, {"pre_norm": "ffn_norm"}),
        attention="attention.",
        attention_map=attention_map,
        mlp="feed_forward.",
        mlp_map=W123,
        moe="",
        experts_map=W123,
        shared_map=W123,
        extra=temperatures,
        ignored=ignored,
    )
    network = common.model(
        s,
        layers,
        ropes.tables,
        tied_embedding=tied(c),
        logit_softcap=c.number("final_logit_softcapping", 0.0, 1e6, 0.0),
    )
    return finish(network, naming, alpha)
