"""Writes the bench model: a random Qwen3-MoE of 1.37 B parameters as a bf16 GGUF that llama.cpp reads too.

    python bench/compare/make_model.py DIR        # DIR/moe-bf16.gguf, 2.7 GB

Hidden 1024, 12 layers, 64 experts of 512 with 8 active, 16/4 heads of 128, the demo's tokenizer (vocabulary 49152). The
peer's llama-quantize makes the Q8_0 and Q4_0 files from it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np

HIDDEN, LAYERS, EXPERTS, ACTIVE, INNER = 1024, 12, 64, 8, 512
HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 16, 4, 128, 8192


def bf16(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal(0, 0.02) rounded to bf16, as uint16."""
    bits = (rng.standard_normal(shape, dtype=np.float32) * 0.02).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def copy_tokenizer(writer: gguf.GGUFWriter, source: Path) -> int:
    """Copies the tokenizer's metadata from another GGUF; returns the size of the vocabulary."""
    reader = gguf.GGUFReader(source)
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        kinds = field.types
        if kinds[0] == gguf.GGUFValueType.ARRAY:
            writer.add_key_value(name, field.contents(), kinds[0], sub_type=kinds[-1])
        else:
            writer.add_key_value(name, field.contents(), kinds[0])
    return len(reader.fields["tokenizer.ggml.tokens"].data)


def main(directory: Path) -> None:
    from freetoken.checkpoint.demo import prepare

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "moe-bf16.gguf"
    writer = gguf.GGUFWriter(path, "qwen3moe")
    vocab = copy_tokenizer(writer, Path(prepare("demo-dense")))
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2048)
    writer.add_expert_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(ACTIVE)
    writer.add_vocab_size(vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)

    rng = np.random.default_rng(0)

    def matrix(name: str, *shape: int) -> None:
        writer.add_tensor(name, bf16(rng, *shape).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    def ones(name: str, n: int) -> None:
        writer.add_tensor(name, np.ones(n, np.float32))

    matrix("token_embd.weight", vocab, HIDDEN)
    matrix("output.weight", vocab, HIDDEN)
    ones("output_norm.weight", HIDDEN)
    for i in range(LAYERS):
        block = f"blk.{i}."
        ones(block + "attn_norm.weight", HIDDEN)
        ones(block + "ffn_norm.weight", HIDDEN)
        ones(block + "attn_q_norm.weight", HEAD_DIM)
        ones(block + "attn_k_norm.weight", HEAD_DIM)
        matrix(block + "attn_q.weight", HEADS * HEAD_DIM, HIDDEN)
        matrix(block + "attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(block + "attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(block + "attn_output.weight", HIDDEN, HEADS * HEAD_DIM)
        router = rng.standard_normal((EXPERTS, HIDDEN), dtype=np.float32) * 0.02
        writer.add_tensor(block + "ffn_gate_inp.weight", router)
        matrix(block + "ffn_gate_exps.weight", EXPERTS, INNER, HIDDEN)
        matrix(block + "ffn_up_exps.weight", EXPERTS, INNER, HIDDEN)
        matrix(block + "ffn_down_exps.weight", EXPERTS, HIDDEN, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
