"""The served families: which configurations are taken, which are refused and how the error reads."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freetoken.config import RECOGNISED, SERVED, Ignored, Target, parse_config
from freetoken.errors import ConfigError
from python.spec_families import FAMILIES, files

LLAMA = files.load("llama")["config"]
MIXTRAL = files.load("mixtral")["config"]
QWEN = files.load("qwen3_moe")["config"]
QWEN2 = files.load("qwen2")["config"]


def but(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(config), **changes}


def message(config: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(config)
    return str(caught.value)


@pytest.mark.parametrize("architecture", sorted(FAMILIES))
def test_described_families_are_recognised_but_not_served(architecture: str) -> None:
    text = message({"architectures": [architecture]})
    assert f"architecture {architecture} is recognised but not served by this version" in text
    assert ", ".join(sorted(SERVED)) in text
    assert architecture in RECOGNISED


def test_served_and_recognised_are_apart() -> None:
    assert not RECOGNISED & set(SERVED)
    names = ("Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe")
    assert set(SERVED) == {f"{name}ForCausalLM" for name in names}


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ([], "configuration: expected an object"),
        ({}, "architectures: expected a list of one name"),
        ({"architectures": "LlamaForCausalLM"}, "architectures: expected a list"),
        ({"architectures": [7]}, "architectures: expected a list"),
        ({"architectures": ["LlamaForCausalLM"] * 2}, "architectures: expected a list"),
        (
            {"architectures": ["NoSuchModel"]},
            "architecture 'NoSuchModel' is unknown; this version serves LlamaForCausalLM",
        ),
        ({"architectures": ["LlamaForCausalLM"]}, "hidden_size: missing"),
        (
            but(LLAMA, quantization_config={"quant_method": "fp8"}),
            "quantization_config: {'quant_method': 'fp8'} is not supported",
        ),
        (but(LLAMA, hidden_act="quick_gelu"), "hidden_act: 'quick_gelu' is not one of gelu, "),
        (but(LLAMA, num_key_value_heads=3), "num_key_value_heads: 3 does not divide num_attention_heads 4"),
        (
            but(LLAMA, head_dim=None, num_attention_heads=5, num_key_value_heads=5),
            "num_attention_heads: 5 does not divide hidden_size",
        ),
        (but(LLAMA, attention_bias=1), "attention_bias: expected true or false, found an integer"),
        (but(LLAMA, rms_norm_eps=float("nan")), "rms_norm_eps: nan is outside"),
        (but(LLAMA, rms_norm_eps="1e-6"), "rms_norm_eps: expected a number, found a string"),
        (but(LLAMA, vocab_size=2**31), "vocab_size: 2147483648 is outside 1 to 16777216"),
        (but(LLAMA, num_hidden_layers=4097), "num_hidden_layers: 4097 is outside 1 to 4096"),
        (but(LLAMA, hidden_size=10**5000), "hidden_size: an integer of 16610 bits is outside"),
        (but(LLAMA, rope_scaling=7), "rope_scaling: expected an object, found an integer"),
        (but(LLAMA, rope_theta=0), "rope_theta: 0 is outside"),
        (but(LLAMA, head_dim=63), "rotates 63 of 63 elements"),
        (
            but(QWEN2, use_sliding_window=True, layer_types=["full"] * 4),
            "layer_types[0]: 'full' is not one of full_att",
        ),
        (but(QWEN2, use_sliding_window=True, layer_types=[]), "layer_types: 0 elements, expected 4"),
        (but(MIXTRAL, num_experts_per_tok=9), "num_experts_per_tok: 9 of 8 experts"),
        (but(MIXTRAL, num_local_experts=0), "num_local_experts: 0 is outside 1 to 65536"),
        (
            but(MIXTRAL, num_local_experts=65536, num_hidden_layers=4096),
            "65536 experts in each of 4096 layers, at most 131072 in all",
        ),
        (but(QWEN, mlp_only_layers=[1.5]), "mlp_only_layers[0]: expected an integer, found 1.5"),
        (but(QWEN, mlp_only_layers={}), "mlp_only_layers: expected a list, found an object"),
        (but(QWEN, decoder_sparse_step=0), "decoder_sparse_step: 0 is outside"),
    ],
)
def test_bad_configurations_are_one_precise_error(config: Any, part: str) -> None:
    assert part in message(config)


def rope(**changes: Any) -> dict[str, Any]:
    return but(LLAMA, rope_scaling={**LLAMA["rope_scaling"], **changes})


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (
            rope(rope_type="longrope"),
            "rope_scaling.rope_type: 'longrope' is not supported (its frequencies change with the length",
        ),
        (rope(rope_type="dynamic", factor=2.0), "rope_scaling.factor: dynamic rope scaling by 2.0 is not supported"),
        (rope(rope_type="su"), "rope_scaling.rope_type: 'su' is not supported (unknown)"),
        (rope(rope_type=3), "rope_scaling.rope_type: expected a string"),
        (rope(factor=0), "rope_scaling.factor: 0 is outside"),
        (rope(factor=None), "rope_scaling.factor: missing"),
        (rope(high_freq_factor=1.0), "rope_scaling.high_freq_factor: 1.0 is not above low_freq_factor 1.0"),
        (rope(low_freq_factor="1"), "rope_scaling.low_freq_factor: expected a number"),
    ],
)
def test_rope_scaling_that_cannot_be_done_is_refused_by_name(config: Any, part: str) -> None:
    assert part in message(config)


def test_neutral_dynamic_scaling_is_no_scaling() -> None:
    plain = parse_config(but(LLAMA, rope_scaling=None)).spec
    assert parse_config(rope(rope_type="dynamic", factor=1.0)).spec == plain
    assert (
        parse_config(but(LLAMA, rope_scaling={"type": "linear", "factor": 2.0})).spec["rope_tables"][0]["inv_freq"][0]
        == 0.5
    )


def test_names_of_llama() -> None:
    names = parse_config(LLAMA).names
    assert names.lookup("model.layers.2.self_attn.q_proj.weight", [256, 128]) == [Target("layers.2.0.q", (256, 128))]
    assert names.lookup("model.layers.2.mlp.down_proj.weight", (128, 256)) == [Target("layers.2.1.down", (128, 256))]
    assert names.lookup("model.layers.4.mlp.down_proj.weight", (128, 256)) is None
    assert isinstance(names.lookup("model.layers.0.self_attn.rotary_emb.inv_freq", (32,)), Ignored)
    with pytest.raises(ConfigError, match=r"shape \[128, 255\], the configuration gives \[128, 256\]"):
        names.lookup("model.layers.2.mlp.down_proj.weight", (128, 255))
    assert names.required()["lm_head.weight"] == (1024, 128)
    tied = parse_config(but(LLAMA, tie_word_embeddings=True)).names
    assert "lm_head.weight" not in tied.required()
    assert tied.lookup("lm_head.weight", (1024, 128)) == Ignored("the configuration ties the output to the embedding")


@pytest.mark.parametrize(
    ("change", "windows"),
    [
        ({}, [None] * 4),
        ({"sliding_window": 9, "max_window_layers": 0}, [None] * 4),  # use_sliding_window decides
        ({"use_sliding_window": True, "max_window_layers": 1}, [None, 4096, 4096, 4096]),
        ({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 3}, [None, None, None, 9]),
        ({"use_sliding_window": True, "sliding_window": 9}, [None] * 4),  # 28 and more
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, [None] * 4),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 9,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            [9, None, 9, None],
        ),
    ],
)
@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_windows_of_qwen(architecture: str, change: dict[str, Any], windows: list[int | None]) -> None:
    """As Qwen2Config and Qwen3Config of transformers fill in what a configuration leaves out."""
    config = {k: v for k, v in QWEN2.items() if k not in ("layer_types", "sliding_window", "use_sliding_window")}
    layers = parse_config({**config, "architectures": [architecture], **change}).spec["layers"]
    assert [layer["sublayers"][0]["attention"].get("window") for layer in layers] == windows


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([LLAMA, MIXTRAL, QWEN, QWEN2]), st.data())
def test_any_value_in_any_field_gives_a_spec_or_a_config_error(config: dict[str, Any], data: st.DataObject) -> None:
    changed = copy.deepcopy(config)
    where = changed["rope_scaling"] if changed["rope_scaling"] and data.draw(st.booleans()) else changed
    where[data.draw(st.sampled_from(sorted(where)))] = data.draw(JSON)
    try:
        parsed = parse_config(changed)
    except ConfigError:
        return
    assert parsed.spec["layers"]
