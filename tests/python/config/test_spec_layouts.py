"""How fused tensors come apart, against the reshapes and splits of the published modelling code, in numpy."""

from __future__ import annotations

import numpy as np

from freetoken.config import Target
from python.spec_families import files, parse


def parts(name: str, source: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A tensor filled with its own indices, and what each canonical tensor takes of it."""
    data = files.load(name)
    shape = data["weights"][source][1]
    stored = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    targets = parse(data["config"]).names.lookup(source, shape)
    assert isinstance(targets, list) and all(isinstance(target, Target) for target in targets)
    return stored, {target.canonical.split(".", 3)[-1]: files.taken(stored, target) for target in targets}


def test_qwen3_next_projections_are_grouped_by_key_head() -> None:
    stored, ours = parts("qwen3_next", "model.layers.0.linear_attn.in_proj_qkvz.weight")
    grouped = stored.reshape(2, -1, 128)  # 2 key heads of 64, 4 value heads of 64: 2 per key head
    q, k, v, z = np.split(grouped, np.cumsum([64, 64, 128]), axis=1)
    for key, theirs in (("q", q), ("k", k), ("v", v), ("gate", z)):
        np.testing.assert_array_equal(ours[key], theirs.reshape(-1, 128))
    stored, ours = parts("qwen3_next", "model.layers.0.linear_attn.in_proj_ba.weight")
    b, a = np.split(stored.reshape(2, 4, 128), 2, axis=1)
    np.testing.assert_array_equal(ours["b"], b.reshape(-1, 128))
    np.testing.assert_array_equal(ours["a"], a.reshape(-1, 128))


def test_qwen_queries_and_their_gates_alternate_by_head() -> None:
    for name, prefix in (("qwen3_next", "model."), ("qwen3_5", "model.language_model."), ("qwen4_exp_text", "model.")):
        stored, ours = parts(name, f"{prefix}layers.3.self_attn.q_proj.weight")
        q, gate = np.split(stored.reshape(4, 2 * 128, 128), 2, axis=1)
        np.testing.assert_array_equal(ours["q"], q.reshape(-1, 128))
        np.testing.assert_array_equal(ours["gate"], gate.reshape(-1, 128))


def test_gpt_oss_gate_and_up_alternate() -> None:
    stored, ours = parts("gpt_oss", "model.layers.1.mlp.experts.gate_up_proj")
    np.testing.assert_array_equal(ours["experts.5.gate"], stored[5][:, ::2].T)
    np.testing.assert_array_equal(ours["experts.5.up"], stored[5][:, 1::2].T)
    stored, ours = parts("gpt_oss", "model.layers.1.mlp.experts.gate_up_proj_bias")
    np.testing.assert_array_equal(ours["experts.5.gate_bias"], stored[5, ::2])
    np.testing.assert_array_equal(ours["experts.5.up_bias"], stored[5, 1::2])
    stored, ours = parts("gpt_oss", "model.layers.1.mlp.experts.down_proj")
    np.testing.assert_array_equal(ours["experts.7.down"], stored[7].T)


def test_llama4_experts_are_stored_for_a_product_from_the_left() -> None:
    stored, ours = parts("llama4_text", "model.layers.1.feed_forward.experts.gate_up_proj")
    gate, up = np.split(stored[3], 2, axis=1)
    np.testing.assert_array_equal(ours["experts.3.gate"], gate.T)
    np.testing.assert_array_equal(ours["experts.3.up"], up.T)


def test_minimax_lightning_heads_hold_q_k_and_v() -> None:
    stored, ours = parts("minimax", "model.layers.0.self_attn.qkv_proj.weight")
    q, k, v = np.split(stored.reshape(4, 3 * 64, 128), 3, axis=1)
    for key, theirs in (("q", q), ("k", k), ("v", v)):
        np.testing.assert_array_equal(ours[key], theirs.reshape(-1, 128))


def test_mamba_projection_is_gate_x_b_c_dt() -> None:
    stored, ours = parts("nemotron_h", "backbone.layers.0.mixer.in_proj.weight")
    z, x, b, c, dt = np.split(stored, np.cumsum([256, 256, 64, 64]))
    for key, theirs in (("gate", z), ("v", x), ("k", b), ("q", c), ("dt", dt)):
        np.testing.assert_array_equal(ours[key], theirs)
    stored, ours = parts("nemotron_h", "backbone.layers.0.mixer.conv1d.weight")
    np.testing.assert_array_equal(ours["k_conv"], stored[256:320, 0])


def test_fused_experts_hold_gate_before_up() -> None:
    for name, source in (
        ("granitemoe", "model.layers.2.block_sparse_moe.input_linear.weight"),
        ("mistral4", "model.layers.2.mlp.experts.gate_up_proj"),
        ("qwen3_5_moe", "model.language_model.layers.2.mlp.experts.gate_up_proj"),
    ):
        stored, ours = parts(name, source)
        gate, up = np.split(stored[6], 2)
        np.testing.assert_array_equal(ours["experts.6.gate"], gate)
        np.testing.assert_array_equal(ours["experts.6.up"], up)
    stored, ours = parts("lfm2_moe", "model.layers.0.conv.in_proj.weight")
    for key, theirs in zip(("b", "c", "x"), np.split(stored, 3), strict=True):
        np.testing.assert_array_equal(ours[key], theirs)
