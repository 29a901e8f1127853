"""A checkpoint and its GGUF give the same ModelSpec. The metadata is written here from the configuration by llama.cpp's
published keys, and the tensor names from its conventions, not by our own code."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freetoken.config import Ignored, parse_config, parse_gguf
from freetoken.errors import ConfigError
from python.spec_families import files

Shapes = dict[str, tuple[int, ...]]


def f32(value: float) -> float:
    return float(np.float32(value))


def metadata_of(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    experts = config.get("num_local_experts") or config.get("num_experts") or 0
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    values = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": f32(config["rms_norm_eps"]),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "rope.freq_base": f32(config.get("rope_theta", 10000.0)),
        "vocab_size": config["vocab_size"],
    }
    if experts:
        values |= {"expert_count": experts, "expert_used_count": config["num_experts_per_tok"]}
    if architecture == "qwen3moe":
        values["expert_feed_forward_length"] = config["moe_intermediate_size"]
    return {"general.architecture": architecture} | {f"{architecture}.{k}": v for k, v in values.items()}


RENAMED = {
    "model.embed_tokens.": "token_embd.",
    "model.norm.": "output_norm.",
    "lm_head.": "output.",
    ".input_layernorm.": ".attn_norm.",
    ".post_attention_layernorm.": ".ffn_norm.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.gate.": "ffn_gate_inp.",
    "model.layers.": "blk.",
}
MATRICES = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}


def shapes_of(weights: dict[str, tuple[str, tuple[int, ...]]]) -> Shapes:
    """llama.cpp's names; the experts of a layer become one tensor [experts, n, k]."""
    out: Shapes = {}
    for name, (_, shape) in weights.items():
        if ".experts." in name:
            layer, matrix = name.split(".")[2], MATRICES[name.split(".")[-2]]
            stacked = f"blk.{layer}.ffn_{matrix}_exps.weight"
            out[stacked] = (out.get(stacked, (0,))[0] + 1, *shape)
            continue
        for old, new in RENAMED.items():
            name = name.replace(old, new)
        out[name] = shape
    return out


CASES = {
    "llama_plain_tied_bias": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "qwen3_moe_q": "qwen3moe",
}


@pytest.mark.parametrize("name", CASES)
def test_gguf_gives_the_spec_of_the_checkpoint(name: str) -> None:
    data = files.load(name)
    shapes = shapes_of(data["weights"])
    parsed = parse_gguf(metadata_of(data["config"], CASES[name]), shapes)
    assert parsed.spec == parse_config(data["config"]).spec
    assert parsed.names.tensors == parse_config(data["config"]).names.tensors
    covered = [t.canonical for source, shape in shapes.items() for t in parsed.names.lookup(source, shape)]
    assert sorted(covered) == sorted(parsed.names.tensors)
    assert parsed.names.missing(shapes) == []
    assert set(parsed.names.required()) == set(shapes)


def test_q_and_k_of_llama_are_rotary_pairs_and_of_qwen_are_not() -> None:
    data = files.load("llama_plain_tied_bias")
    names = parse_gguf(metadata_of(data["config"], "llama"), shapes_of(data["weights"])).names
    assert [
        names.lookup(f"blk.1.attn_{m}.{part}", s)[0].rotary_heads
        for m, part, s in (
            ("q", "weight", (256, 128)),
            ("q", "bias", (256,)),
            ("k", "weight", (128, 128)),
            ("k", "bias", (128,)),
            ("v", "weight", (128, 128)),
            ("output", "weight", (128, 256)),
        )
    ] == [4, 4, 2, 2, 0, 0]
    data = files.load("qwen3_moe")
    names = parse_gguf(metadata_of(data["config"], "qwen3moe"), shapes_of(data["weights"])).names
    assert names.lookup("blk.0.attn_q.weight", (512, 256))[0].rotary_heads == 0


def test_stacked_experts_are_one_part_each_and_old_files_have_one_tensor_each() -> None:
    data = files.load("mixtral")
    shapes = shapes_of(data["weights"])
    names = parse_gguf(metadata_of(data["config"], "llama"), shapes).names
    targets = names.lookup("blk.2.ffn_down_exps.weight", (8, 128, 128))
    assert [(t.canonical, t.part_index, t.parts, t.shape) for t in targets] == [
        (f"layers.2.1.experts.{e}.down", e, 8, (128, 128)) for e in range(8)
    ]
    assert names.lookup("blk.2.ffn_down.5.weight", (128, 128))[0].canonical == "layers.2.1.experts.5.down"
    lacking = [name for name in shapes if name != "blk.2.ffn_down_exps.weight"]
    assert (
        names.missing(lacking)[0]
        == "layers.2.1.experts.0.down (blk.2.ffn_down_exps.weight, or blk.2.ffn_down.0.weight)"
    )


def llama3_factors(theta: float, dim: int, factor: float, low: float, high: float, old: int) -> list[float]:
    """How converters write llama 3.1's scaling: what each frequency is divided by."""
    out = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * theta ** (i / dim)
        if wavelength < old / high:
            out.append(1.0)
        elif wavelength > old / low:
            out.append(factor)
        else:
            smooth = (old / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return out


def test_rope_freqs_give_the_scaling_of_llama_3() -> None:
    data = files.load("llama")
    shapes = shapes_of(data["weights"]) | {"rope_freqs.weight": (32,)}
    metadata = metadata_of(data["config"], "llama")
    parsed = parse_gguf(metadata, shapes, llama3_factors(500000.0, 64, 8.0, 1.0, 4.0, 256))
    ours, theirs = parsed.spec, parse_config(data["config"]).spec
    # a frequency divided by a rounded factor is not the rounded scaled frequency: one more rounding, 2 ulp
    np.testing.assert_allclose(
        ours["rope_tables"][0].pop("inv_freq"), theirs["rope_tables"][0].pop("inv_freq"), rtol=2.5e-7
    )
    assert ours == theirs
    assert parsed.names.lookup("rope_freqs.weight", (32,)) == Ignored("its values are in the rope table")
    for factors, part in (
        (None, "its values must be given"),
        ([1.0] * 31, "31 factors"),
        ([0.0] * 32, "not a positive number"),
    ):
        with pytest.raises(ConfigError, match=part):
            parse_gguf(metadata, shapes, factors)


def test_yarn_and_linear_scaling_are_those_of_the_configuration() -> None:
    data = files.load("llama_plain_tied_bias")
    shapes = shapes_of(data["weights"])
    metadata = metadata_of(data["config"], "llama")
    for kind in ("yarn", "linear"):
        scaling = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 1024}
        changed = {**data["config"], "rope_scaling": scaling, "rope_theta": 10000.0}
        more = {
            "llama.rope.scaling.type": kind,
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 1024,
        }
        assert parse_gguf(metadata | more, shapes).spec == parse_config(changed).spec


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"general.architecture": None}, "general.architecture: missing"),
        (
            {"general.architecture": "deepseek2"},
            "GGUF architecture 'deepseek2' is not served by this version; it serves llama, qwen2, qwen3, qwen3moe",
        ),
        ({"llama.block_count": None}, "llama.block_count: missing"),
        ({"llama.block_count": 2**40}, "llama.block_count: 1099511627776 is outside 1 to 4096"),
        ({"llama.attention.head_count": [4, 4]}, "llama.attention.head_count: expected an integer, found a list"),
        ({"llama.attention.head_count_kv": 3}, "llama.attention.head_count_kv: 3 does not divide head_count 4"),
        ({"llama.attention.value_length": 32}, "llama.attention.value_length: 32 differs from key_length 64"),
        ({"llama.rope.dimension_count": 32}, "llama.rope.dimension_count: a rotation of 32 of 64"),
        (
            {"llama.rope.scaling.type": "longrope"},
            "llama.rope.scaling.type: 'longrope' is not one of linear, none, yarn",
        ),
        ({"llama.rope.scaling.finetuned_on": 1}, "llama.rope.scaling.finetuned_on: this rope scaling is not supported"),
        ({"llama.expert_used_count": 9}, "llama.expert_used_count: 9 of 8 experts"),
        ({"llama.expert_count": 65537}, "llama.expert_count: 65537 is outside"),
        ({"llama.expert_shared_count": 1}, "llama.expert_shared_count: 1 is not supported"),
        ({"llama.attention.scale": 0.1}, "llama.attention.scale: 0.1 is not supported: it is not part"),
        ({"llama.logit_scale": 8.0}, "llama.logit_scale: 8.0 is not supported"),
        ({"llama.expert_weights_scale": 2.5}, "llama.expert_weights_scale: 2.5 is not supported"),
    ],
)
def test_bad_metadata_is_one_precise_error(change: dict[str, Any], part: str) -> None:
    data = files.load("mixtral")
    metadata = {k: v for k, v in (metadata_of(data["config"], "llama") | change).items() if v is not None}
    with pytest.raises(ConfigError) as caught:
        parse_gguf(metadata, shapes_of(data["weights"]))
    assert part in str(caught.value)


def test_a_file_without_embedding_is_refused() -> None:
    data = files.load("mixtral")
    with pytest.raises(ConfigError, match=r"token_embd\.weight: expected a matrix with one row per token"):
        parse_gguf(metadata_of(data["config"], "llama"), {})


METADATA_VALUE = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.lists(st.integers(), max_size=3)
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(CASES)), st.data())
def test_any_metadata_gives_a_spec_or_a_config_error(name: str, data: st.DataObject) -> None:
    case = files.load(name)
    metadata, shapes = metadata_of(case["config"], CASES[name]), shapes_of(case["weights"])
    metadata[data.draw(st.sampled_from(sorted(metadata)))] = data.draw(METADATA_VALUE)
    shapes[data.draw(st.sampled_from(sorted(shapes)))] = tuple(data.draw(st.lists(st.integers(), max_size=3)))
    try:
        parsed = parse_gguf(metadata, shapes)
    except ConfigError:
        return
    for source, shape in shapes.items():
        with contextlib.suppress(ConfigError):
            parsed.names.lookup(source, shape)
