"""Latent attention without a selection: deepseek_v2, deepseek_v3 (also Kimi K2 and K2.5), glm4_moe_lite, mistral4,
longcat_flash."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_EXPERTS, MAX_HIDDEN, MAX_POSITIONS, Reader
from freetoken.config.rope import rope_reader
from freetoken.errors import ConfigError

from .dense import mlp_of
from .shared import VISION, Naming, Ropes, block, finish, latent_attention, sigmoid_moe, sparse_layers, text_of, tied

MTP = (
    r"(model\.)?(mtp|layers\.\d+\.(eh_proj|enorm|hnorm|shared_head|embed_tokens))\..*",
    "the multi-token-prediction head",
)


def _model(
    c: Reader, s: common.Sizes, attention: spec.Attention, moe: spec.Moe, ropes: Ropes, naming: Naming, dense: int = 0
) -> ParsedModel:
    norm = common.rms(s.eps)
    layers = [
        block(
            spec.Sublayer("attention", norm, attention=attention),
            spec.Sublayer("moe", norm, moe=moe) if sparse else spec.Sublayer("mlp", norm, mlp=mlp_of(c)),
        )
        for sparse in sparse_layers(c, s.layers, dense)
    ]
    return finish(common.model(s, layers, ropes.tables, tied_embedding=tied(c)), naming)


def softmax_moe(c: Reader, s: common.Sizes, **kwargs) -> spec.Moe:
    return sigmoid_moe(c, s, scoring="softmax", selection_bias=False, **kwargs)


def deepseek_v2(c: Reader) -> ParsedModel:
    s, ropes = common.read_sizes(c), Ropes()
    method = c.choice("topk_method", {"greedy": 1, "group_limited_greedy": 0}, "greedy")
    plain = dict(groups=1, groups_per_token=1) if method else {}
    moe = softmax_moe(c, s, normalise=False, normalise_eps=0.0, group_score="max" if not method else "top_two", **plain)
    return _model(c, s, latent_attention(c, s, ropes), moe, ropes, Naming(), dense=0)


def deepseek_v3(c: Reader) -> ParsedModel:
    return _deepseek_v3(c, Naming(ignored=(MTP,)))


def kimi_k25(c: Reader) -> ParsedModel:
    ignored = (VISION, (r"(model\.)?mm_projector\..*", "the vision projector: text only"))
    return _deepseek_v3(
        text_of(c),
        Naming(prefix="language_model.model.", lm_head="language_model.lm_head", layers="blocks.", ignored=ignored),
    )


def _deepseek_v3(c: Reader, naming: Naming) -> ParsedModel:
    s, ropes = common.read_sizes(c), Ropes()
    c.refuse("scoring_func", ("sigmoid",), "known is sigmoid")
    c.refuse("topk_method", ("noaux_tc",), "known is noaux_tc")
    attention = latent_attention(c, s, ropes, interleaved=c.flag("rope_interleave", True))
    return _model(c, s, attention, sigmoid_moe(c, s), ropes, naming, dense=3)


def glm4_moe_lite(c: Reader) -> ParsedModel:
    s, ropes = common.read_sizes(c, default_eps=1e-5), Ropes()
    attention = latent_attention(c, s, ropes, interleaved=c.flag("rope_interleave", True))
    return _model(c, s, attention, sigmoid_moe(c, s), ropes, Naming(ignored=(MTP,)), dense=1)


def mistral4(c: Reader) -> ParsedModel:
    s, ropes = common.read_sizes(c), Ropes()
    parameters = rope_reader(c)
    beta = parameters.number("llama_4_scaling_beta", 0.0, 1e6, None)
    temperature = spec.Temperature()
    if beta is not None:
        scale = parameters.integer("original_max_position_embeddings", 1, MAX_POSITIONS)
        temperature = spec.Temperature("floor_log", alpha=beta, scale=float(scale))
    attention = latent_attention(c, s, ropes, interleaved=c.flag("rope_interleave", True), temperature=temperature)
    return _model(c, s, attention, softmax_moe(c, s), ropes, Naming(fused_experts=True))


def longcat_flash(c: Reader) -> ParsedModel:
    """Two attentions and two MLPs per layer; the experts read what the first MLP reads and are added at the end of the
    layer."""
    s = common.read_sizes(c, layers="num_layers", default_eps=1e-5)
    ropes, norm = Ropes(), common.rms(s.eps)
    experts, chosen = common.read_experts(c, s, "n_routed_experts", "moe_topk")
    attention = latent_attention(c, s, ropes)
    if attention.mla is None or not attention.q_rank:
        raise ConfigError(f"{c.where('q_lora_rank')}: missing")
    attention.scale *= (s.hidden / attention.q_rank) ** 0.5
    attention.mla.kv_scale = (s.hidden / attention.mla.rank) ** 0.5
    activation = common.read_activation(c)
    moe = spec.Moe(
        experts,
        chosen,
        c.integer("expert_ffn_hidden_size", 1, MAX_HIDDEN),
        selection_bias=True,
        scaling=c.number("routed_scaling_factor", 0.0, 1e6, 1.0),
        router_bias=c.flag("router_bias", False),
        identity_experts=c.integer("zero_expert_num", 0, MAX_EXPERTS, 0),
        activation=activation,
    )
    mlp = spec.Mlp(c.integer("ffn_hidden_size", 1, MAX_HIDDEN), activation)
    layers = [
        spec.Layer(
            [
                spec.Sublayer("attention", norm, attention=attention),
                spec.Sublayer("mlp", norm, mlp=mlp),
                spec.Sublayer("attention", norm, attention=attention),
                spec.Sublayer("mlp", norm, mlp=mlp),
                spec.Sublayer("moe", moe=moe, input=1),
            ]
        )
        for _ in range(s.layers)
    ]

    def all_names(names: NameMap) -> None:
        for index in range(s.layers):
            source, at = f"model.layers.{index}.", f"layers.{index}."
            for i in (0, 1):
                common.add_if_required(names, f"{source}input_layernorm.{i}", f"{at}{2 * i}.pre_norm")
                common.add_if_required(names, f"{source}post_attention_layernorm.{i}", f"{at}{2 * i + 1}.pre_norm")
                common.add_attention_names(
                    names, f"{source}self_attn.{i}.", f"{at}{2 * i}.", dict(Naming().attention_map)
                )
                common.add_ffn_names(names, f"{source}mlps.{i}.", f"{at}{2 * i + 1}.")
            common.add_if_required(names, f"{source}mlp.router.classifier", f"{at}4.router")
            names.add(f"{source}mlp.router.e_score_correction_bias", f"{at}4.selection_bias")
            common.add_expert_names(names, f"{source}mlp.experts.", f"{at}4.", experts)

    nothing: dict[str, str] = {}
    naming = Naming(
        norms=(nothing,) * 5,
        attention_map=nothing,
        mlp_map=nothing,
        experts_map=nothing,
        router="router.classifier",
        selection_bias="router.e_score_correction_bias",
        ignored=(MTP,),
    )
    return finish(common.model(s, layers, ropes.tables, tied_embedding=tied(c)), naming, all_names)
