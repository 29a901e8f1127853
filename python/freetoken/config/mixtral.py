"""Mixtral: llama's attention, and a router that takes the softmax over all experts and renormalises the chosen ones."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_HIDDEN, MAX_POSITIONS, Reader
from freetoken.config.rope import make_rope, rope_reader

EXPERT_NAMES = {"gate": "w1", "up": "w3", "down": "w2"}


def parse(c: Reader) -> ParsedModel:
    sizes = common.read_sizes(c, default_eps=1e-5, positions=4096 * 32, kv_heads=8)
    experts, chosen = common.read_experts(c, sizes, "num_local_experts", defaults=(8, 2))
    attention = common.attention(sizes, window=c.integer("sliding_window", 1, MAX_POSITIONS, None))
    moe = spec.Moe(
        experts,
        chosen,
        c.integer("intermediate_size", 1, MAX_HIDDEN),
        normalise=True,
        activation=common.read_activation(c),
    )
    layers = [
        spec.Layer(
            [
                spec.Sublayer("attention", common.rms(sizes.eps), attention=attention),
                spec.Sublayer("moe", common.rms(sizes.eps), moe=moe),
            ]
        )
        for _ in range(sizes.layers)
    ]
    network = common.model(
        sizes,
        layers,
        [make_rope(rope_reader(c), sizes.head_dim, theta=1e6)],
        tied_embedding=c.flag("tie_word_embeddings", False),
    )

    def add_names(names: NameMap) -> None:
        common.add_model_names(names, network)
        for index in range(sizes.layers):
            common.add_if_required(names, f"model.layers.{index}.input_layernorm", f"layers.{index}.0.pre_norm")
            common.add_attention_names(names, f"model.layers.{index}.", f"layers.{index}.0.")
            common.add_if_required(
                names, f"model.layers.{index}.post_attention_layernorm", f"layers.{index}.1.pre_norm"
            )
            common.add_if_required(names, f"model.layers.{index}.block_sparse_moe.gate", f"layers.{index}.1.router")
            common.add_expert_names(
                names, f"model.layers.{index}.block_sparse_moe.experts.", f"layers.{index}.1.", experts, EXPERT_NAMES
            )

    return common.finish(network, add_names)
