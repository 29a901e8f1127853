"""Llama, and what shares its form (SmolLM2, TinyLlama, ...): grouped-query attention and a gated MLP."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.reader import MAX_HIDDEN, Reader


def parse(c: Reader) -> ParsedModel:
    sizes = common.read_sizes(c)
    bias = c.flag("attention_bias", False)
    attention = common.attention(sizes, qkv_bias=bias, o_bias=bias)
    mlp = spec.Mlp(
        c.integer("intermediate_size", 1, MAX_HIDDEN), common.read_activation(c), bias=c.flag("mlp_bias", False)
    )
    return common.decoder(
        c, sizes, attention, lambda _: spec.Sublayer("mlp", common.rms(sizes.eps), mlp=mlp), common.add_mlp_names
    )
