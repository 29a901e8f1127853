"""The ModelSpec as Python data: mirrors cpp/spec/*.h field by field (what a field means is written there). `to_dict`
gives the canonical JSON form, in which fields that equal their default are left out, so the same model always gives the
same JSON."""

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
    group: int = 0
    weight_first: bool = False


@dataclass
class Activation:
    kind: str = "silu"  # silu | gelu | gelu_tanh | relu2 | swiglu_oai
    alpha: float = 1.0
    limit: float = 0.0
    up_offset: float = 0.0
    limit_after: bool = False
    gated: bool = True


@dataclass
class Rope:
    inv_freq: list[float]
    attention_factor: float = 1.0
    interleaved: bool = False
    offset: int = 0
    learned: bool = False


@dataclass
class Temperature:
    kind: str = "none"  # none | floor_log | log | learned_log
    alpha: float = 0.0
    scale: float = 1.0
    offset: int = 0


@dataclass
class Mla:
    rank: int
    rope_dim: int = 0
    norm: Norm = field(default_factory=Norm)
    kv_scale: float = 1.0


@dataclass
class Compressor:
    ratio: int = 0
    overlap: bool = False
    norm: Norm = field(default_factory=Norm)
    rope: int = -1


@dataclass
class Indexer:
    heads: int = 0
    kv_heads: int = 1
    dim: int = 0
    top_k: int = 0
    block: int = 1
    local_blocks: int = 0
    tail: bool = False
    pool: str = "none"  # none | max | mean | gated | compressor
    from_q_latent: bool = False
    relu: bool = True
    weighted: bool = False
    per_head: bool = False
    rope: int = -1
    q_input_norm: Norm = field(default_factory=Norm)
    q_norm: Norm = field(default_factory=Norm)
    k_norm: Norm = field(default_factory=Norm)
    temperature: Temperature = field(default_factory=Temperature)
    compressor: Compressor | None = None


@dataclass
class RelativeBias:
    dim: int = 0
    extent: int = 0


@dataclass
class Attention:
    q_heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    scale: float
    type: str = "full"  # full | window | chunked | mla | dsa | dsv4 | bsa | qsa
    window: int = 0
    chunk: int = 0
    rope: int = -1
    softcap: float = 0.0
    sinks: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    q_norm: Norm = field(default_factory=Norm)
    k_norm: Norm = field(default_factory=Norm)
    norm_span: str = "head"  # head | all
    norm_after_rope: bool = False
    qkv_clip: float = 0.0
    q_rank: int = 0
    q_latent_norm: Norm = field(default_factory=Norm)
    value_source: str = "own"  # own | key_projection | key
    v_norm: Norm = field(default_factory=Norm)
    v_scale: float = 1.0
    kv_conv: int = 0
    temperature: Temperature = field(default_factory=Temperature)
    relative_bias: RelativeBias = field(default_factory=RelativeBias)
    rotate_output: bool = False
    o_norm: Norm = field(default_factory=Norm)
    gate: str = "none"  # none | head | element
    gate_activation: str = "sigmoid"  # sigmoid | softplus | silu
    o_groups: int = 0
    o_rank: int = 0
    mla: Mla | None = None
    indexer: Indexer | None = None
    compressor: Compressor | None = None


@dataclass
class LinearAttention:
    kind: str  # gdn | kda | lightning | mamba2 | short_conv
    k_heads: int = 0
    v_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    conv_kernel: int = 0
    conv_bias: bool = False
    bias: bool = False
    beta_scale: float = 1.0
    decay_bound: float = 0.0
    decay_rank: int = 0
    gate_rank: int = 0
    gate_activation: str = "silu"  # sigmoid | softplus | silu
    norm: Norm = field(default_factory=Norm)
    gate_before_norm: bool = False
    decay: list[float] = field(default_factory=list)
    dt_min: float = 0.0
    dt_max: float = 0.0


@dataclass
class Mlp:
    inner: int
    activation: Activation = field(default_factory=Activation)
    bias: bool = False
    scale: bool = False


@dataclass
class Moe:
    experts: int
    experts_per_token: int
    inner: int
    scoring: str = "softmax"  # softmax | sigmoid | softmax_of_selected | sqrt_softplus | sparse_mixer | joint_sigmoid
    normalise: bool = False
    normalise_eps: float = 0.0
    scaling: float = 1.0
    selection_bias: bool = False
    groups: int = 1
    groups_per_token: int = 1
    group_score: str = "top_two"  # max | top_two
    router_input: str = "normed"  # normed | residual
    router_norm: Norm = field(default_factory=Norm)
    router_scale: bool = False
    router_input_scale: float = 1.0
    router_bias: bool = False
    router_logit_scale: float = 1.0
    router_softcap: float = 0.0
    jitter: float = 0.0
    hash: bool = False
    identity_experts: int = 0
    weighted_side: str = "output"  # output | input
    expert_bias: bool = False
    expert_scale: bool = False
    global_scale: bool = False
    activation: Activation = field(default_factory=Activation)
    latent: int = 0
    latent_norm: Norm = field(default_factory=Norm)
    expert_norm: Norm = field(default_factory=Norm)
    shared_inner: int = 0
    shared_experts: int = 1
    shared_routed: bool = False
    shared_gate: bool = False
    shared_activation: Activation = field(default_factory=Activation)


@dataclass
class TableMemory:
    kind: str  # per_layer
    dim: int
    activation: Activation = field(default_factory=Activation)


@dataclass
class Sublayer:
    kind: str  # attention | linear_attention | mlp | moe | table_memory
    pre_norm: Norm = field(default_factory=Norm)
    post_norm: Norm = field(default_factory=Norm)
    residual_scale: float = 1.0
    input: int = -1
    output: str = "residual"  # residual | join
    group_norm: Norm = field(default_factory=Norm)
    post_conv: int = 0
    residual: str = "add"  # add | post_norm | hyper | gated | none
    skip_scale: float = 1.0
    gate_temperature: float = 1.0
    gate_eps: float = 0.0
    kv_source: int = -1
    index_source: int = -1
    token_scope: int = 0
    attention: Attention | None = None
    linear_attention: LinearAttention | None = None
    mlp: Mlp | None = None
    moe: Moe | None = None
    table_memory: TableMemory | None = None


@dataclass
class Layer:
    sublayers: list[Sublayer]
    scale: bool = False


@dataclass
class Hyper:
    kind: str = "none"  # none | sinkhorn | magnitude | low_rank
    streams: int = 1
    sinkhorn_iterations: int = 0
    eps: float = 1e-6
    norm_eps: float = 1e-6
    post_scale: float = 2.0
    rank: int = 0
    head: str = "weighted"  # weighted | mean


@dataclass
class Table:
    dim: int = 0
    vocab: int = 0
    table_scale: float = 1.0
    projection_scale: float = 1.0
    mix_scale: float = 1.0
    norm: Norm = field(default_factory=Norm)


@dataclass
class Mtp:
    layer: Layer
    embed_norm: Norm = field(default_factory=Norm)
    hidden_norm: Norm = field(default_factory=Norm)
    final_norm: Norm = field(default_factory=Norm)
    own_embedding: bool = False
    own_head: bool = False


@dataclass
class Model:
    hidden: int
    vocab: int
    max_positions: int
    layers: list[Layer]
    embed_scale: float = 1.0
    embed_norm: Norm = field(default_factory=Norm)
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    tied_embedding: bool = False
    lm_head_bias: bool = False
    final_norm: Norm = field(default_factory=Norm)
    hyper: Hyper = field(default_factory=Hyper)
    table: Table = field(default_factory=Table)
    rope_tables: list[Rope] = field(default_factory=list)
    mtp: list[Mtp] = field(default_factory=list)


def to_dict(value: Any) -> dict[str, Any]:
    """The canonical JSON form: fields without a default always, the others where they differ from it."""
    out: dict[str, Any] = {}
    for f in dataclasses.fields(value):
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        item = _plain(getattr(value, f.name), f.type == "float")
        if item is None or (not required and (item == {} or item == [] or item == _plain(f.default))):
            continue
        out[f.name] = item
    return out


def _plain(value: Any, is_float: bool = False) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return shortest(value) if is_float or isinstance(value, float) else value


def shortest(value: float) -> float:
    """The number with the fewest digits that is the same fp32 value: what the C++ writer prints for a float."""
    return float(np.format_float_scientific(np.float32(value), unique=True))
