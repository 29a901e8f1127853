"""The tiny models: hub-style configs small enough to run everywhere, odd enough to catch mistakes."""

from __future__ import annotations

from typing import Any

from oracle import tiny_tokenizer as tok


def _config(
    architecture: str, model_type: str, hidden: int = 128, inner: int = 256, layers: int = 4, **more: Any
) -> dict:
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": tok.VOCAB_SIZE,
        "bos_token_id": tok.BOS,
        "eos_token_id": tok.EOS,
        "pad_token_id": tok.PAD,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return config | more


def _llama(**more: Any) -> dict:
    return _config("LlamaForCausalLM", "llama", **({"attention_bias": False, "mlp_bias": False} | more))


def _mixtral(**more: Any) -> dict:
    more = {"num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 1e6, "sliding_window": None} | more
    return _config("MixtralForCausalLM", "mixtral", **more)


def _mistral(**more: Any) -> dict:
    # A window of less than a page and a half: pages fall out of it within the shorter prompts.
    return _config("MistralForCausalLM", "mistral", **({"sliding_window": 90} | more))


def _qwen3_moe(**more: Any) -> dict:
    more = {
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "sliding_window": None,
        "use_sliding_window": False,
    } | more
    return _config("Qwen3MoeForCausalLM", "qwen3_moe", **more)


def _qwen2(**more: Any) -> dict:
    # Heads of 32: hidden / heads, which Qwen2 does not let a configuration change.
    config = _config("Qwen2ForCausalLM", "qwen2", **({"rope_theta": 1e6, "rms_norm_eps": 1e-6} | more))
    return config | {"head_dim": config["hidden_size"] // config["num_attention_heads"]}


def _qwen3(**more: Any) -> dict:
    return _config("Qwen3ForCausalLM", "qwen3", **({"attention_bias": False, "rope_theta": 1e6} | more))


YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
_BIG_QWEN3_MOE = {"hidden": 256, "layers": 3, "head_dim": 128, "moe_intermediate_size": 128}
_Q_QWEN3_MOE = {"hidden": 256, "layers": 2, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}

# Directories of safetensors, weights in bf16.
CHECKPOINTS: dict[str, dict] = {
    "llama": _llama(rope_theta=500000.0, rope_scaling=LLAMA3_ROPE),
    "llama_plain_tied_bias": _llama(attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama_linear": _llama(rope_scaling={"rope_type": "linear", "factor": 4.0}),
    # Not YaRN's usual betas and factor of the attention; prompts on both sides of the original length.
    "llama_yarn": _llama(rope_scaling=YARN_ROPE | {"beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 1.3}),
    "qwen3_moe": _qwen3_moe(**_BIG_QWEN3_MOE),
    "qwen3_moe_sharded": _qwen3_moe(**_BIG_QWEN3_MOE),
    "qwen3_moe_dense_layers": _qwen3_moe(
        mlp_only_layers=[0], decoder_sparse_step=2, norm_topk_prob=False, moe_intermediate_size=64
    ),
    "qwen3_moe_q": _qwen3_moe(**_Q_QWEN3_MOE),
    "mixtral": _mixtral(inner=128),
    "mistral": _mistral(),
    "qwen2": _qwen2(),
    "qwen2_yarn_tied": _qwen2(
        num_attention_heads=2, num_key_value_heads=1, rope_scaling=YARN_ROPE, tie_word_embeddings=True
    ),
    "qwen3": _qwen3(tie_word_embeddings=True),
    # Full layers before and behind windowed ones.
    "qwen3_windows_bias": _qwen3(
        head_dim=32, attention_bias=True, use_sliding_window=True, sliding_window=40, max_window_layers=2
    ),
}
SHARDS = {"qwen3_moe_sharded": 3}
# Seeds whose greedy texts vary (a random model may repeat one token) and whose least margin is above 1e-3.
SEEDS = {
    "llama": 2,
    "llama_plain_tied_bias": 4,
    "llama_linear": 3,
    "llama_yarn": 0,
    "qwen3_moe": 0,
    "qwen3_moe_sharded": 2,
    "qwen3_moe_dense_layers": 6,
    "qwen3_moe_q": 0,
    "mixtral": 7,
    "mistral": 0,
    "qwen2": 3,
    "qwen2_yarn_tied": 1,
    "qwen3": 4,
    "qwen3_windows_bias": 3,
}

# Bases of the GGUF files: every dimension is a multiple of 256, the block of Q6_K.
GGUF_BASES: dict[str, dict] = {
    "llama": _llama(hidden=256, inner=512, layers=2, rope_theta=500000.0, rope_scaling=LLAMA3_ROPE),
    "mixtral": _mixtral(hidden=256, inner=256, layers=2),
    "qwen2": _qwen2(hidden=256, layers=2),
    "qwen3": _qwen3(hidden=256, layers=2),
    "qwen3_moe": _qwen3_moe(**_Q_QWEN3_MOE),
}
GGUF_SEEDS = {"llama": 2, "mixtral": 2, "qwen2": 0, "qwen3": 0, "qwen3_moe": 1}
GGUF_FORMATS = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q6_k")
