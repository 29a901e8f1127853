"""Tiny GGUF files in the names and row order of llama.cpp, and the transformers model of their dequantised weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch

from oracle import families, tiny_model
from oracle import tiny_tokenizer as tok

_TYPES = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
    "q4_1": gguf.GGMLQuantizationType.Q4_1,
    "q6_k": gguf.GGMLQuantizationType.Q6_K,
}
_ARCHITECTURES = {"llama": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe"}
_Q6_K_BYTES = 210


def random_q6_k(shape: tuple[int, ...], gain: float, seed: int) -> np.ndarray:
    """Random Q6_K blocks with finite scales: the gguf package can read the format but not write it."""
    rng = np.random.default_rng(seed)
    count = math.prod(shape) // 256
    blocks = rng.integers(0, 256, (count, _Q6_K_BYTES), dtype=np.uint8)
    scales = rng.integers(16, 65, (count, 16)) * rng.choice([-1, 1], (count, 16))
    blocks[:, 192:208] = scales.astype(np.int8).view(np.uint8)
    # q is uniform on -32..31 (deviation 18.5), the scales' root mean square is 42.5.
    d = gain / math.sqrt(shape[-1]) / (18.5 * 42.5) * rng.uniform(0.9, 1.1, (count, 1))
    blocks[:, 208:210] = d.astype(np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], shape[-1] // 256 * _Q6_K_BYTES)


def encode(weight: np.ndarray, fmt: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(stored array, its fp32 value as the gguf package decodes it). Q6_K keeps only the weight's size and spread."""
    kind = _TYPES[fmt]
    if fmt == "q6_k":
        gain = float(weight.std()) * math.sqrt(weight.shape[-1])
        data = random_q6_k(weight.shape, gain, seed)
    else:
        data = gguf.quants.quantize(weight, kind)
    return data, gguf.quants.dequantize(data, kind).astype(np.float32).reshape(weight.shape)


def rotary_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from halves order (i, i + d/2) to llama.cpp's pairs order (2i, 2i + 1)."""
    rows, cols = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def rotary_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of rotary_pairs."""
    rows, cols = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def rope_freqs(config: dict) -> np.ndarray:
    """f32 [head_dim / 2]: what llama.cpp divides each inverse frequency by to get the llama3 scaling."""
    scaling, theta, dim = config["rope_scaling"], config["rope_theta"], config["head_dim"]
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    context = scaling["original_max_position_embeddings"]
    wavelength = 2 * math.pi * theta ** (np.arange(0, dim, 2) / dim)
    smooth = np.clip((context / wavelength - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)


def layer_names(state: Mapping[str, object], layer: int, moe: bool) -> dict[str, str]:
    """llama.cpp's name -> transformers' parameter, of one layer's plain tensors."""
    hf, our = f"model.layers.{layer}.", f"blk.{layer}."
    names = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
        "ffn_gate_inp": "mlp.gate",
    }  # fmt: skip
    if not moe:
        names |= {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    parts = [(f"{our}{g}.{part}", f"{hf}{h}.{part}") for g, h in names.items() for part in ("weight", "bias")]
    return {ours: theirs for ours, theirs in parts if theirs in state}


def _write_metadata(out: gguf.GGUFWriter, config: dict) -> None:
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    out.add_rope_dimension_count(config["head_dim"])
    out.add_rope_freq_base(config["rope_theta"])
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_vocab_size(config["vocab_size"])
    experts = config.get("num_experts", config.get("num_local_experts"))
    if experts:
        out.add_expert_count(experts)
        out.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        out.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _write_tokenizer(out: gguf.GGUFWriter) -> None:
    model = json.loads(tok.train().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
    special = set(tok.SPECIAL_TOKENS)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre(tok.PRE_TOKENIZER_IN_GGUF)
    out.add_token_list(tokens)
    out.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens])
    out.add_token_merges(merges)
    out.add_bos_token_id(tok.BOS)
    out.add_eos_token_id(tok.EOS)
    out.add_pad_token_id(tok.PAD)
    out.add_add_bos_token(False)
    out.add_chat_template(tok.CHAT_TEMPLATE)


@torch.no_grad()
def write(base: str, fmt: str, path: Path) -> torch.nn.Module:
    """Writes the file; returns the model holding exactly the values the file decodes to, in transformers' row order."""
    config = families.GGUF_BASES[base]
    model = tiny_model.from_config(config)
    tiny_model.fill(model, f"gguf-{base}/{families.GGUF_SEEDS[base]}")
    state = {k: v.numpy() for k, v in model.state_dict().items()}
    out = gguf.GGUFWriter(path, _ARCHITECTURES[base])
    _write_metadata(out, config)
    _write_tokenizer(out)
    decoded, seed = {}, 1000 * families.GGUF_SEEDS[base]

    def put(name: str, weight: np.ndarray, as_is: bool) -> np.ndarray:
        nonlocal seed
        seed += 1
        if as_is:  # norms and routers stay f32 in every file
            out.add_tensor(name, weight.astype(np.float32))
            return weight
        data, value = encode(np.ascontiguousarray(weight), fmt, seed)
        out.add_tensor(name, data, raw_dtype=_TYPES[fmt])
        return value

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    plain = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    plain["output.weight"] = "lm_head.weight"
    moe = "model.layers.0.mlp.experts.gate_up_proj" in state
    for layer in range(config["num_hidden_layers"]):
        plain |= layer_names(state, layer, moe)
    for name, source in plain.items():
        short = name.split(".")[2] if name.startswith("blk.") else ""
        pairs = _ARCHITECTURES[base] == "llama" and short in heads
        weight = rotary_pairs(state[source], heads[short]) if pairs else state[source]
        value = put(name, weight, as_is=weight.ndim == 1 or short == "ffn_gate_inp")
        decoded[source] = rotary_halves(value, heads[short]) if pairs else value
    for layer in range(config["num_hidden_layers"] if moe else 0):
        hf, our = f"model.layers.{layer}.mlp.experts.", f"blk.{layer}."
        gate, up = np.split(state[hf + "gate_up_proj"], 2, axis=1)
        gate, up = put(our + "ffn_gate_exps.weight", gate, False), put(our + "ffn_up_exps.weight", up, False)
        decoded[hf + "gate_up_proj"] = np.concatenate([gate, up], axis=1)
        decoded[hf + "down_proj"] = put(our + "ffn_down_exps.weight", state[hf + "down_proj"], False)
    if config["rope_scaling"]:
        out.add_tensor("rope_freqs.weight", rope_freqs(config))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    missing = set(state) - set(decoded)
    if missing:
        raise AssertionError(f"{base}: not written to the file: {sorted(missing)}")
    model.load_state_dict({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in decoded.items()})
    return model
