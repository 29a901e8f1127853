"""Mixtral: llama's attention, and a router that takes the softmax over all experts and renormalises the chosen ones."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_HIDDEN, MAX_POSITIONS, Reader

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

    def add_moe_names(names: NameMap, source: str, at: str, sublayer: spec.Sublayer) -> None:
        common.add_if_required(names, f"{source}block_sparse_moe.gate", f"{at}router")
        common.add_expert_names(names, f"{source}block_sparse_moe.experts.", at, experts, EXPERT_NAMES)

    return common.decoder(
        c, sizes, attention, lambda _: spec.Sublayer("moe", common.rms(sizes.eps), moe=moe), add_moe_names, theta=1e6
    )
