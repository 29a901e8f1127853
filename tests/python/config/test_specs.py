"""The gate: 78 tiny checkpoints, of every architecture we mean to serve, are described by a ModelSpec that accounts for
each of their weights. Needs no torch. The expected specs were reviewed against the published modelling code; the rotary
tables in the data come from transformers."""

from __future__ import annotations

import copy
import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from freetoken.config import Ignored, NameMap, ParsedModel
from freetoken.errors import ConfigError
from python.spec_families import files, parse

NAMES = files.names()
FLOATS = {"F32", "BF16", "F16"}
INTEGERS = {"I32", "I64"}


@cache
def case(name: str) -> tuple[dict[str, Any], ParsedModel]:
    data = files.load(name)
    return data, parse(data["config"])


def test_all_cases_are_there() -> None:
    assert len(NAMES) == 78
    assert sorted(path.stem for path in files.EXPECTED.glob("*.json")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_spec_is_the_expected_one(name: str) -> None:
    assert case(name)[1].spec == files.expected(name)


@pytest.mark.parametrize(
    "name", [n for n in NAMES if "config_v5" in json.loads((files.DIRECTORY / f"{n}.json").read_text())]
)
def test_new_form_of_the_configuration_gives_the_same_spec(name: str) -> None:
    data, parsed = case(name)
    assert data["config_v5"] != data["config"]
    assert parse(data["config_v5"]).spec == parsed.spec


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_is_accounted_for(name: str) -> None:
    data, parsed = case(name)
    names, covered = parsed.names, {}
    for source, (dtype, shape) in data["weights"].items():
        found = names.lookup(source, shape)
        assert found is not None, f"{source}: the model has no such tensor"
        if isinstance(found, Ignored):
            assert found.reason
            continue
        assert dtype in (INTEGERS if names.is_integer(source) else FLOATS), f"{source}: {dtype}"
        for target in found:
            assert target.shape == names.tensors[target.canonical]
            assert target.canonical not in covered, (
                f"{target.canonical} comes from {source} and {covered[target.canonical]}"
            )
            covered[target.canonical] = source
    assert set(covered) == set(names.tensors)
    assert names.missing(data["weights"]) == []


# The parts of the multimodal checkpoints that are not used, and nothing else.
IGNORED = {
    "gemma3",
    "gemma4_26b_a4b",
    "gemma4_e",
    "glm5_next",
    "kimi_k25",
    "llama4",
    "minimax_m3_vl",
    "mistral_large4",
    "muse_glimmer",
    "muse_spark",
    "qwen3_5",
    "qwen3_5_moe",
    "step3p7",
}


@pytest.mark.parametrize("name", NAMES)
def test_only_vision_and_audio_are_ignored(name: str) -> None:
    data, parsed = case(name)
    reasons = {
        found.reason
        for source, (_, shape) in data["weights"].items()
        if isinstance(found := parsed.names.lookup(source, shape), Ignored)
    }
    assert bool(reasons) == (name in IGNORED)
    assert all("vision" in reason for reason in reasons)


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_a_tensor_cover_it_exactly_once(name: str) -> None:
    data, parsed = case(name)
    seen = set()
    for source, (_, shape) in data["weights"].items():
        found = parsed.names.lookup(source, shape)
        kind = "".join(c for c in source if not c.isdigit())
        if not isinstance(found, list) or kind in seen:
            continue
        seen.add(kind)
        if len(found) == 1 and found[0].rows is None and not found[0].transpose:
            assert int(np.prod(found[0].shape)) == int(np.prod(shape))
            continue
        stored = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
        parts = [files.taken(stored, target) for target in found]
        if source == "lerope.alpha":  # each rotary table has a copy
            assert all((part == stored).all() for part in parts)
            continue
        assert (np.sort(np.concatenate([part.reshape(-1) for part in parts])) == stored.reshape(-1)).all(), source


@pytest.mark.parametrize("name", NAMES)
def test_rotary_tables_are_those_of_transformers(name: str) -> None:
    data, parsed = case(name)
    oracle = [(np.array(table["inv_freq"], np.float32), table["attention_factor"]) for table in data["rope"]]
    tables = parsed.spec.get("rope_tables", [])
    assert bool(tables) <= bool(oracle)
    for table in tables:
        ours = np.array(table["inv_freq"], np.float32)
        # its fp32 pow may be 1 ulp off, and yarn adds two rounded products of it
        assert any(
            theirs.shape == ours.shape
            and np.allclose(ours, theirs, rtol=4e-7, atol=0)
            and abs(factor - table.get("attention_factor", 1.0)) < 1e-6
            for theirs, factor in oracle
        ), table


try:
    import freetoken._core as core
except ImportError:  # a source tree that is not installed; tests/run installs it, and its expected counts include these
    pass
else:

    @pytest.mark.parametrize("name", NAMES)
    def test_the_core_reads_the_spec_and_gives_it_back(name: str) -> None:
        spec = case(name)[1].spec
        assert json.loads(core.check_spec(json.dumps(spec))) == spec

    def test_the_core_names_the_field_at_fault() -> None:
        spec = copy.deepcopy(case("mixtral")[1].spec)
        spec["layers"][1]["sublayers"][1]["moe"]["expertz"] = 8
        with pytest.raises(core.ConfigError, match=r"layers\[1\]\.sublayers\[1\]\.moe\.expertz: unknown field"):
            core.check_spec(json.dumps(spec))


def required_numbers(config: dict[str, Any]) -> list[tuple[str, ...]]:
    """Paths of the positive integers of a configuration that some family reads."""
    inner = config.get("text_config")
    part, prefix = (inner, ("text_config",)) if isinstance(inner, dict) else (config, ())
    known = (
        "hidden_size",
        "num_hidden_layers",
        "num_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "intermediate_size",
        "moe_intermediate_size",
        "kv_lora_rank",
        "linear_key_head_dim",
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "index_n_heads",
    )
    return [(*prefix, key) for key in known if isinstance(part.get(key), int)]


@pytest.mark.parametrize("value", [10**30, -1, "many", 2.5, [1], {"a": 1}, True], ids=repr)
@pytest.mark.parametrize(
    "name", ["llama", "mixtral", "qwen3_moe", "deepseek_v3", "deepseek_v4", "qwen3_5", "gemma4_e", "longcat_flash"]
)
def test_absurd_numbers_are_one_error_naming_the_field(name: str, value: Any) -> None:
    data, _ = case(name)
    unread = {"head_dim", "num_key_value_heads", "intermediate_size"}  # not every family reads these
    for path in required_numbers(data["config"]):
        config = copy.deepcopy(data["config"])
        at = config
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        try:
            parse(config)
        except ConfigError as error:
            assert path[-1] in str(error), f"{path}: {error}"
        else:
            assert path[-1] in unread and name not in ("llama", "mixtral", "qwen3_moe"), path


def test_name_map_says_what_is_missing() -> None:
    data, parsed = case("mixtral")
    present = [n for n in data["weights"] if not n.endswith("experts.3.w2.weight")]
    missing = parsed.names.missing(present)
    assert len(missing) == 4
    assert missing[0] == "layers.0.1.experts.3.down (model.layers.0.block_sparse_moe.experts.3.w2.weight)"
    assert set(parsed.names.required()) == set(data["weights"])
    assert isinstance(parsed.names, NameMap)
