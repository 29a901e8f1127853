"""Mamba 2 layers, as Granite and Nemotron store them, and Nemotron-H (one mixer per layer, no gate in its MLPs)."""

from __future__ import annotations

from typing import Any

from freetoken.config import common, spec
from freetoken.config.common import ParsedModel
from freetoken.config.names import NameMap
from freetoken.config.reader import MAX_EXPERTS, MAX_HEADS, MAX_HIDDEN, Reader
from freetoken.errors import ConfigError

from .shared import Naming, concatenated, finish, sigmoid_moe, tied

KINDS = ("linear_attention", "mamba", "moe", "full_attention", "attention", "mlp")


def dt_limits(c: Reader) -> tuple[float, float]:
    """time_step_limit: [low, high], infinity written as {"__float__": "Infinity"} (0 here: no limit)."""
    limit: Any = c.raw("time_step_limit", [0.0, None])
    if not isinstance(limit, list) or len(limit) != 2:
        raise ConfigError(f"{c.where('time_step_limit')}: expected two numbers")
    low, high = (None if isinstance(v, dict) else v for v in limit)
    if not isinstance(low, (int, float)) or not (high is None or isinstance(high, (int, float))):
        raise ConfigError(f"{c.where('time_step_limit')}: expected two numbers")
    return float(low), 0.0 if high is None else float(high)


def mamba_names(names: NameMap, source: str, at: str) -> None:
    """in_proj is [z, x, B, C, dt]; the convolution is over [x, B, C]."""
    concatenated(names, f"{source}in_proj.weight", [f"{at}{part}" for part in ("gate", "v", "k", "q", "dt")])
    concatenated(names, f"{source}conv1d.weight", [f"{at}{part}_conv" for part in ("v", "k", "q")], middle=(1,))
    if names.has(f"{at}v_conv_bias"):
        concatenated(names, f"{source}conv1d.bias", [f"{at}{part}_conv_bias" for part in ("v", "k", "q")])
    for name, canonical in (("A_log", "a_log"), ("dt_bias", "dt_bias"), ("D", "d")):
        names.add(source + name, at + canonical)
    common.add_if_required(names, f"{source}norm", f"{at}norm")
    common.add_if_required(names, f"{source}out_proj", f"{at}o")


def nemotron_h(c: Reader) -> ParsedModel:
    kinds = c.raw("layers_block_type", None)
    if not isinstance(kinds, list) or not kinds:
        raise ConfigError(f"{c.where('layers_block_type')}: expected a list of layer kinds")
    kinds = c.choices("layers_block_type", KINDS, len(kinds))
    s = common.read_sizes(
        Reader({**c.values, "num_hidden_layers": len(kinds)}),
        eps="layer_norm_epsilon",
        default_eps=1e-5,
        positions=4096,
    )
    norm = common.rms(s.eps)
    relu2 = spec.Activation(c.choice("mlp_hidden_act", common.ACTIVATIONS, "relu2"), gated=False)
    for name in ("mlp_bias", "attention_bias", "use_bias", "mamba_proj_bias"):
        c.refuse(name, (False,), "biases of projections")
    heads, dim = c.integer("mamba_num_heads", 1, MAX_HEADS), c.integer("mamba_head_dim", 1, MAX_HEADS)
    groups = c.integer("n_groups", 1, MAX_HEADS, 1)
    low, high = dt_limits(c)
    mamba = spec.LinearAttention(
        "mamba2",
        k_heads=groups,
        v_heads=heads,
        k_dim=c.integer("ssm_state_size", 1, MAX_HEADS),
        v_dim=dim,
        conv_kernel=c.integer("conv_kernel", 1, 64, 4),
        conv_bias=c.flag("use_conv_bias", True),
        norm=common.rms(s.eps, group=heads * dim // groups if groups > 1 else 0),
        gate_before_norm=True,
        dt_min=low,
        dt_max=high,
    )
    has_experts = "moe" in kinds
    shared = (
        c.integer("moe_shared_expert_intermediate_size", 0, MAX_HIDDEN, 0)
        if c.integer("n_shared_experts", 0, MAX_EXPERTS, 0)
        else 0
    )
    moe = (
        sigmoid_moe(
            Reader({**c.values, "hidden_act": "relu2"}),
            s,
            activation=relu2,
            shared_activation=relu2,
            shared_inner=shared,
            latent=c.integer("moe_latent_size", 0, MAX_HIDDEN, 0),
        )
        if has_experts
        else None
    )
    made = {
        "linear_attention": spec.Sublayer("linear_attention", norm, linear_attention=mamba),
        "full_attention": spec.Sublayer("attention", norm, attention=common.attention(s, rope=-1)),
        "moe": spec.Sublayer("moe", norm, moe=moe),
        "mlp": spec.Sublayer("mlp", norm, mlp=spec.Mlp(c.integer("intermediate_size", 1, MAX_HIDDEN), relu2)),
    }
    made["mamba"], made["attention"] = made["linear_attention"], made["full_attention"]

    def rest(names: NameMap, source: str, at: str, sub: spec.Sublayer) -> None:
        if sub.linear_attention is not None:
            mamba_names(names, f"{source}mixer.", at)
        if sub.moe is not None and sub.moe.latent:
            common.add_if_required(names, f"{source}mixer.fc1_latent_proj", f"{at}latent_in")
            common.add_if_required(names, f"{source}mixer.fc2_latent_proj", f"{at}latent_out")

    network = common.model(s, [spec.Layer([made[kind]]) for kind in kinds], [], tied_embedding=tied(c))
    naming = Naming(
        prefix="backbone.",
        norms=({"pre_norm": "norm"},),
        attention="mixer.",
        mlp="mixer.",
        moe="mixer.",
        extra=rest,
        embed="embeddings.weight",
        norm="norm_f",
        ignored=((r"mtp\..*", "the multi-token-prediction head"),),
    )
    return finish(network, naming)
