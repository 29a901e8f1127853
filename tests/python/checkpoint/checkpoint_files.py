"""Small checkpoints written with numpy, safetensors and the gguf package; their values are random."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

from oracle import tiny_tokenizer as tok

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, EXPERTS = 64, 96, 2, 1, 32, 2, 4
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": tok.VOCAB_SIZE,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
MIXTRAL = CONFIG | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
}
ATTENTION = {
    "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
}
FFN = {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}

trained = functools.cache(tok.train)


def random_array(name: str, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(list(name.encode()))
    return rng.standard_normal(shape).astype(np.float32)


def hf_tensors(config: dict) -> dict[str, np.ndarray]:
    """Every tensor of the checkpoint of `config`, f32."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (config["vocab_size"], HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}{name}.weight": shape for name, shape in ATTENTION.items()}
        shapes |= {f"{at}input_layernorm.weight": (HIDDEN,), f"{at}post_attention_layernorm.weight": (HIDDEN,)}
        if config is MIXTRAL:
            shapes[f"{at}block_sparse_moe.gate.weight"] = (EXPERTS, HIDDEN)
            for expert in range(EXPERTS):
                for name, part in (("w1", "gate"), ("w3", "up"), ("w2", "down")):
                    shapes[f"{at}block_sparse_moe.experts.{expert}.{name}.weight"] = FFN[part]
        else:
            shapes |= {f"{at}mlp.{part}_proj.weight": shape for part, shape in FFN.items()}
    return {name: random_array(name, shape) for name, shape in shapes.items()}


def write_hf(folder: Path, config: dict = CONFIG, shards: int = 1) -> dict[str, np.ndarray]:
    """A whole checkpoint directory; returns its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = hf_tensors(config)
    (folder / "config.json").write_text(json.dumps(config))
    tok.save(trained(), folder)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return tensors
    names = sorted(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tensors


def gguf_tensors(experts: int) -> dict[str, tuple[np.ndarray, str]]:
    """Name -> (fp32 values, type) of a llama GGUF; with experts in Mixtral's form."""
    result = {
        "token_embd.weight": (random_array("embed", (tok.VOCAB_SIZE, HIDDEN)), "Q8_0"),
        "output_norm.weight": (random_array("norm", (HIDDEN,)), "F32"),
        "output.weight": (random_array("head", (tok.VOCAB_SIZE, HIDDEN)), "F16"),
    }
    for layer in range(LAYERS):
        blk = f"blk.{layer}."
        for name, source in (("attn_q", "q"), ("attn_k", "k"), ("attn_v", "v"), ("attn_output", "o")):
            result[f"{blk}{name}.weight"] = (random_array(blk + name, ATTENTION[f"self_attn.{source}_proj"]), "Q4_0")
        for name in ("attn_norm", "ffn_norm"):
            result[f"{blk}{name}.weight"] = (random_array(blk + name, (HIDDEN,)), "F32")
        if experts:
            result[f"{blk}ffn_gate_inp.weight"] = (random_array(blk + "router", (experts, HIDDEN)), "F32")
        for part, shape in FFN.items():
            name = f"{blk}ffn_{part}{'_exps' if experts else ''}.weight"
            result[name] = (random_array(name, (experts, *shape) if experts else shape), "Q4_1")
    return result


def add_gguf_keys(writer: gguf.GGUFWriter, experts: int) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)


def add_gguf_tokenizer(writer: gguf.GGUFWriter) -> None:
    model = json.loads(trained().to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
    kinds = [gguf.TokenType.CONTROL if t in tok.SPECIAL_TOKENS else gguf.TokenType.NORMAL for t in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tok.BOS)
    writer.add_eos_token_id(tok.EOS)
    writer.add_eot_token_id(tok.PAD)
    writer.add_chat_template("{{ messages }}")


def write_gguf(
    path: Path, experts: int = 0, drop: tuple[str, ...] = (), extra: dict | None = None, keys: dict | None = None
) -> dict[str, np.ndarray]:
    """A llama GGUF; returns the stored bytes of each tensor. `extra`: more tensors, `keys`: more metadata."""
    writer = gguf.GGUFWriter(path, "llama")
    add_gguf_keys(writer, experts)
    add_gguf_tokenizer(writer)
    for key, (value, kind) in (keys or {}).items():
        writer.add_key_value(key, value, kind)
    stored = {}
    for name, (values, dtype) in (gguf_tensors(experts) | (extra or {})).items():
        if name in drop:
            continue
        kind = gguf.GGMLQuantizationType[dtype]
        if dtype in ("F32", "F16"):
            stored[name] = values.astype(np.float32 if dtype == "F32" else np.float16)
            writer.add_tensor(name, stored[name])
        else:
            stored[name] = gguf.quants.quantize(values, kind)
            writer.add_tensor(name, stored[name], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored
