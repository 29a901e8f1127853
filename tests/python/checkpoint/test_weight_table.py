"""The weight table: every canonical tensor's bytes are the right slice of the right file; every misfit is an error."""

from __future__ import annotations

import json

import numpy as np
import pytest
from checkpoint_files import CONFIG, EXPERTS, FFN, HEADS, KV_HEADS, LAYERS, MIXTRAL, hf_tensors, write_gguf, write_hf
from safetensors.numpy import save_file

from freetoken.checkpoint.gguf_file import open_gguf_file
from freetoken.checkpoint.hf_directory import open_directory
from freetoken.errors import ModelError

PARTS = {"gate": "w1", "up": "w3", "down": "w2"}


def stored(table: dict) -> dict[str, tuple[dict, bytes]]:
    """Canonical name -> its entry and its bytes."""
    result = {}
    for entry in table["tensors"]:
        with open(table["files"][entry["file"]], "rb") as file:
            file.seek(entry["offset"])
            result[entry["name"]] = (entry, file.read(entry["bytes"]))
    assert len(result) == len(table["tensors"])
    return result


def test_mixtral_from_safetensors(tmp_path):
    tensors = write_hf(tmp_path, MIXTRAL, shards=2)
    table = stored(open_directory(str(tmp_path), "m").weight_table)
    assert len(table) == len(tensors)
    for name, source in (("embed", "model.embed_tokens"), ("lm_head", "lm_head"), ("final_norm", "model.norm")):
        entry, data = table[name]
        assert (entry["format"], entry["shape"]) == ("f32", list(tensors[f"{source}.weight"].shape))
        assert data == tensors[f"{source}.weight"].tobytes()
    for layer in range(LAYERS):
        hf = f"model.layers.{layer}."
        assert table[f"layers.{layer}.0.q"][1] == tensors[f"{hf}self_attn.q_proj.weight"].tobytes()
        assert table[f"layers.{layer}.1.router"][1] == tensors[f"{hf}block_sparse_moe.gate.weight"].tobytes()
        for expert in range(EXPERTS):
            for part, shape in FFN.items():
                entry, data = table[f"layers.{layer}.1.experts.{expert}.{part}"]
                source = f"{hf}block_sparse_moe.experts.{expert}.{PARTS[part]}.weight"
                assert (entry["source"], entry["shape"]) == (source, list(shape))
                assert data == tensors[source].tobytes()
    assert not any("rotary_heads" in entry for entry, _ in table.values())


def test_stacked_experts_of_gguf(tmp_path):
    tensors = write_gguf(tmp_path / "m.gguf", experts=EXPERTS)
    table = stored(open_gguf_file(str(tmp_path / "m.gguf"), "m").weight_table)
    assert len(table) == 3 + LAYERS * (4 + 2 + 1 + 3 * EXPERTS)
    assert table["embed"][0]["format"] == "q8_0"
    assert table["lm_head"][0]["format"] == "f16"
    for layer in range(LAYERS):
        blk = f"blk.{layer}."
        for part, shape in FFN.items():
            source = f"{blk}ffn_{part}_exps.weight"
            for expert in range(EXPERTS):
                entry, data = table[f"layers.{layer}.1.experts.{expert}.{part}"]
                assert (entry["source"], entry["format"], entry["shape"]) == (source, "q4_1", list(shape))
                assert data == tensors[source][expert].tobytes()
        for canonical, heads in (("q", HEADS), ("k", KV_HEADS)):
            entry, data = table[f"layers.{layer}.0.{canonical}"]
            assert (entry["format"], entry["rotary_heads"]) == ("q4_0", heads)
            assert data == tensors[f"{blk}attn_{canonical}.weight"].tobytes()
        assert "rotary_heads" not in table[f"layers.{layer}.0.v"][0]


def test_rope_freqs_are_ignored_with_a_reason(tmp_path):
    path = tmp_path / "m.gguf"
    factors = np.linspace(1, 8, 16, dtype=np.float32)
    write_gguf(path, extra={"rope_freqs.weight": (factors, "F32")})
    model = open_gguf_file(str(path), "m")
    assert list(model.ignored_tensors) == ["rope_freqs.weight"]
    plain = 10000.0 ** -(np.arange(16) / 16)
    np.testing.assert_allclose(model.spec["rope_tables"][0]["inv_freq"], plain / factors, rtol=1e-6)  # fp32 rounding


def open_changed(folder, change) -> None:
    tensors = hf_tensors(CONFIG)
    change(tensors)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, folder / "model.safetensors")
    open_directory(str(folder), "m")


Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "tensor", "reason"),
    [
        (lambda t: t.pop(Q), Q, "missing: the model needs layers.1.0.q$"),
        (
            lambda t: [t.pop(n) for n in list(t) if ".mlp." in n],
            "model.layers.0.mlp.gate_proj.weight",
            "layers.0.1.gate and 5 more",
        ),
        (lambda t: t.update({"extra.weight": t[Q]}), "extra.weight", "this architecture has no such tensor"),
        (lambda t: t.update({Q.replace("1", "7"): t[Q]}), Q.replace("1", "7"), "this architecture has no such tensor"),
        (lambda t: t.update({Q: t[Q].astype(np.float64)}), Q, "dtype F64 is not read by this version"),
        (lambda t: t.update({Q: t[Q].astype(np.int8)}), Q, "dtype I8 is not read by this version"),
        (lambda t: t.update({Q: t[Q][:-1]}), Q, r"shape \[63, 64\], the configuration gives \[64, 64\]"),
        (lambda t: t.update({Q: t[Q].reshape(-1)}), Q, r"shape \[4096\], the configuration gives \[64, 64\]"),
        (lambda t: t.update({Q: t[Q][None]}), Q, r"shape \[1, 64, 64\], the configuration gives \[64, 64\]"),
    ],
)
def test_misfits_in_safetensors(tmp_path, change, tensor, reason):
    with pytest.raises(ModelError, match=reason) as error:
        open_changed(tmp_path, change)
    assert error.value.tensor == tensor
    assert error.value.file.startswith(str(tmp_path))


RANDOM = np.random.default_rng(1).standard_normal((64, 96)).astype(np.float32)


@pytest.mark.parametrize(
    ("arguments", "tensor", "reason"),
    [
        ({"drop": ("blk.1.ffn_down.weight",)}, "blk.1.ffn_down.weight", "missing: the model needs layers.1.1.down$"),
        ({"extra": {"blk.2.attn_norm.weight": (RANDOM[0, :64], "F32")}}, "blk.2.attn_norm.weight", "no such tensor"),
        (
            {"extra": {"blk.0.ffn_down.weight": (RANDOM, "Q5_0")}},
            "blk.0.ffn_down.weight",
            "dtype Q5_0 is not read by this version",
        ),
        (
            {"extra": {"blk.0.ffn_down.weight": (RANDOM.T.copy(), "Q4_0")}},
            "blk.0.ffn_down.weight",
            r"shape \[96, 64\], the conf",
        ),
        (
            {"extra": {"blk.0.attn_norm.weight": (RANDOM[0, :64], "Q8_0")}},
            "blk.0.attn_norm.weight",
            "dtype Q8_0 for a vector",
        ),
        (
            {"experts": 4, "extra": {"blk.0.ffn_up.0.weight": (RANDOM.T.copy(), "F16")}},
            "blk.0.ffn_up.0.weight",
            "which blk.0.ffn_up_exps.weight gives already",
        ),
    ],
)
def test_misfits_in_gguf(tmp_path, arguments, tensor, reason):
    path = tmp_path / "m.gguf"
    write_gguf(path, **arguments)
    with pytest.raises(ModelError, match=reason) as error:
        open_gguf_file(str(path), "m")
    assert (error.value.file, error.value.tensor) == (str(path), tensor)
