"""Mistral: llama without biases, in its first versions with a sliding window on every layer."""

from __future__ import annotations

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.reader import MAX_HIDDEN, MAX_POSITIONS, Reader


def parse(c: Reader) -> ParsedModel:
    sizes = common.read_sizes(c, positions=131072, kv_heads=8)
    attention = common.attention(sizes, window=c.integer("sliding_window", 1, MAX_POSITIONS, None))
    mlp = spec.Mlp(c.integer("intermediate_size", 1, MAX_HIDDEN), common.read_activation(c))
    return common.decoder(
        c, sizes, attention, lambda _: spec.Sublayer("mlp", common.rms(sizes.eps), mlp=mlp), common.add_mlp_names
    )
