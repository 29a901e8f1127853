"""Llama, and what shares its form (SmolLM2, TinyLlama, ...): grouped-query attention and a gated MLP."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_HIDDEN, Reader
from freetoken.config.rope import make_rope, rope_reader


def parse(c: Reader) -> ParsedModel:
    sizes = common.read_sizes(c)
    bias = c.flag("attention_bias", False)
    attention = common.attention(sizes, qkv_bias=bias, o_bias=bias)
    mlp = spec.Mlp(
        c.integer("intermediate_size", 1, MAX_HIDDEN), common.read_activation(c), bias=c.flag("mlp_bias", False)
    )
    layers = [
        spec.Layer(
            [
                spec.Sublayer("attention", common.rms(sizes.eps), attention=attention),
                spec.Sublayer("mlp", common.rms(sizes.eps), mlp=mlp),
            ]
        )
        for _ in range(sizes.layers)
    ]
    network = common.model(
        sizes, layers, [make_rope(rope_reader(c), sizes.head_dim)], tied_embedding=c.flag("tie_word_embeddings", False)
    )

    def add_names(names: NameMap) -> None:
        common.add_model_names(names, network)
        for index in range(sizes.layers):
            common.add_if_required(names, f"model.layers.{index}.input_layernorm", f"layers.{index}.0.pre_norm")
            common.add_attention_names(names, f"model.layers.{index}.", f"layers.{index}.0.")
            common.add_if_required(
                names, f"model.layers.{index}.post_attention_layernorm", f"layers.{index}.1.pre_norm"
            )
            common.add_ffn_names(names, f"model.layers.{index}.mlp.", f"layers.{index}.1.")

    return common.finish(network, add_names)
