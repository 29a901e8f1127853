"""The ModelSpec as Python data: mirrors cpp/spec/*.h field by field. `to_dict` gives the canonical JSON form, in which
fields that equal their default are left out, so the same model always gives the same JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Norm:
    kind: str = "none"  # none | rms | layer
    plus_one: bool = False
    has_weight: bool = True
    has_bias: bool = False
    eps: float = 1e-6


@dataclass
class Activation:
    kind: str = "silu"  # silu | gelu | gelu_tanh | relu2 | swiglu_oai
    alpha: float = 1.0
    limit: float = 0.0
    up_offset: float = 0.0


@dataclass
class Rope:
    inv_freq: list[float]
    attention_factor: float = 1.0
    interleaved: bool = False
    offset: int = 0


@dataclass
class Attention:
    q_heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    scale: float
    type: str = "full"  # full | window
    window: int = 0
    rope: int = -1
    softcap: float = 0.0
    sinks: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    q_norm: Norm = field(default_factory=Norm)
    k_norm: Norm = field(default_factory=Norm)


@dataclass
class Mlp:
    inner: int
    activation: Activation = field(default_factory=Activation)
    bias: bool = False


@dataclass
class Moe:
    experts: int
    experts_per_token: int
    inner: int
    scoring: str = "softmax"  # softmax | sigmoid | softmax_of_selected
    normalise: bool = False
    scaling: float = 1.0
    selection_bias: bool = False
    groups: int = 1
    groups_per_token: int = 1
    activation: Activation = field(default_factory=Activation)
    shared_inner: int = 0


@dataclass
class Sublayer:
    kind: str  # attention | linear_attention | mlp | moe | table_memory
    pre_norm: Norm = field(default_factory=Norm)
    post_norm: Norm = field(default_factory=Norm)
    residual_scale: float = 1.0
    attention: Attention | None = None
    mlp: Mlp | None = None
    moe: Moe | None = None


@dataclass
class Layer:
    sublayers: list[Sublayer]


@dataclass
class Model:
    hidden: int
    vocab: int
    max_positions: int
    layers: list[Layer]
    embed_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    tied_embedding: bool = False
    lm_head_bias: bool = False
    final_norm: Norm = field(default_factory=Norm)
    rope_tables: list[Rope] = field(default_factory=list)


def to_dict(value: Any) -> dict[str, Any]:
    """The canonical JSON form: fields without a default always, the others where they differ from it."""
    out: dict[str, Any] = {}
    for f in dataclasses.fields(value):
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        item = _plain(getattr(value, f.name))
        if item is None or (not required and (item == {} or item == [] or item == _plain(f.default))):
            continue
        out[f.name] = item
    return out


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return shortest(value) if isinstance(value, float) else value


def shortest(value: float) -> float:
    """The number with the fewest digits that is the same fp32 value: what the C++ writer prints for a float."""
    return float(np.format_float_scientific(np.float32(value), unique=True))
