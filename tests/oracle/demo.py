"""Golden texts of the demo: transformers' greedy answers of SmolLM2 on the weights its GGUF file decodes to.

`python -m oracle.demo MODEL.gguf`, run in tests/, rewrites data/demo_golden.json (5 s of a core per prompt); the
long level checks that it would not change.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from oracle import gguf_files, golden, tiny_model

DATA = Path(__file__).resolve().parents[1] / "data"
PROMPTS = DATA / "demo_prompts.json"
GOLDEN = DATA / "demo_golden.json"
NEW_TOKENS = 64
# Twice the error of two fp32 orders of summation (about 1e-4 here) stays well below it.
LEAST_MARGIN = 1e-3
_CONTROL = 3


class SmolLM2:
    """The GGUF file as transformers' model (fp32), with a tokenizer and template rebuilt from the metadata."""

    def __init__(self, path: Path):
        reader = gguf.GGUFReader(path)
        self._fields = {key: field.contents() for key, field in reader.fields.items()}
        self.model = tiny_model.from_config(self._config())
        self._load(reader)
        self.tokenizer = self._tokenizer()
        self.eos: int = self._fields["tokenizer.ggml.eos_token_id"]
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(self._fields["tokenizer.chat_template"])

    def encode_chat(self, messages: list[dict]) -> list[int]:
        text = self._template.render(messages=messages, add_generation_prompt=True)
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _config(self) -> dict[str, Any]:
        f = self._fields
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": f["llama.vocab_size"],
            "hidden_size": f["llama.embedding_length"],
            "intermediate_size": f["llama.feed_forward_length"],
            "num_hidden_layers": f["llama.block_count"],
            "num_attention_heads": f["llama.attention.head_count"],
            "num_key_value_heads": f["llama.attention.head_count_kv"],
            "max_position_embeddings": f["llama.context_length"],
            "rms_norm_eps": f["llama.attention.layer_norm_rms_epsilon"],
            "rope_theta": f["llama.rope.freq_base"],
            "tie_word_embeddings": True,
        }

    @torch.no_grad()
    def _load(self, reader: gguf.GGUFReader) -> None:
        config = self._config()
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        parameters = dict(self.model.named_parameters())
        places = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
        for layer in range(config["num_hidden_layers"]):
            places |= gguf_files.layer_names(parameters, layer, moe=False)
        for tensor in reader.tensors:
            value = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            short = tensor.name.split(".")[-2]
            if short in heads:
                value = gguf_files.rotary_halves(value, heads[short])
            parameters.pop(places.pop(tensor.name)).copy_(torch.from_numpy(np.ascontiguousarray(value)))
        if places or parameters:
            raise AssertionError(f"left over: {sorted(places)} {sorted(parameters)}")

    def _tokenizer(self) -> Tokenizer:
        tokens, types = self._fields["tokenizer.ggml.tokens"], self._fields["tokenizer.ggml.token_type"]
        merges = [tuple(merge.split(" ")) for merge in self._fields["tokenizer.ggml.merges"]]
        tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
        digits = pre_tokenizers.Digits(individual_digits=True)
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
        tokenizer.decoder = decoders.ByteLevel()
        special = [t for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
        tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
        return tokenizer


def answer(smollm2: SmolLM2, messages: list[dict]) -> dict[str, Any]:
    """One golden: the prompt's ids, 64 greedy tokens, their text and least margin."""
    prompt = smollm2.encode_chat(messages)
    tokens, rows = golden.greedy(smollm2.model, prompt, NEW_TOKENS)
    best = rows.topk(2, dim=-1).values
    return {
        "prompt": prompt,
        "tokens": tokens,
        "text": smollm2.tokenizer.decode(tokens),
        "least_margin": round(float((best[:, 0] - best[:, 1]).min()), 5),
    }


def _round_int8(x: torch.Tensor) -> torch.Tensor:
    blocks = x.unflatten(-1, (-1, 32))
    step = blocks.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
    return (torch.round(blocks / step) * step).flatten(-2)


@contextmanager
def rounded_inputs(model: torch.nn.Module) -> Iterator[None]:
    """Every linear layer sees its input rounded to int8 per 32 values."""
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    hooks = [module.register_forward_pre_hook(lambda _, args: (_round_int8(args[0]),)) for module in linears]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def unfit(entry: dict[str, Any], eos: int) -> str | None:
    """Why an answer cannot be a golden, or None."""
    if eos in entry["tokens"]:
        return f"it ends after {entry['tokens'].index(eos)} tokens"
    if entry["least_margin"] <= LEAST_MARGIN:
        return f"its least margin is {entry['least_margin']}"
    return None


def main() -> None:
    smollm2 = SmolLM2(Path(sys.argv[1]))
    entries = []
    for messages in json.loads(PROMPTS.read_text()):
        entries.append(answer(smollm2, messages))
        print(
            f"{entries[-1]['least_margin']:.5f} {messages[-1]['content'][:60]!r} -> {entries[-1]['text'][:60]!r}",
            flush=True,
        )
        if reason := unfit(entries[-1], smollm2.eos):
            raise SystemExit(f"{messages[-1]['content']!r}: choose another prompt, {reason}")
    GOLDEN.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")


if __name__ == "__main__":
    main()
