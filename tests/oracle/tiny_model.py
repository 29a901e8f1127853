"""Builds a tiny model with seeded weights and saves it in the form the hub has."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from oracle import families
from oracle import tiny_tokenizer as tok

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)  # these matrices are tiny: on a shared machine a second thread makes it five times slower


def from_config(config: dict) -> torch.nn.Module:
    """The transformers model of a hub-style config, fp32, with whatever weights it is born with."""
    cls = getattr(transformers, config["architectures"][0])
    body = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "torch_dtype")}
    parsed = transformers.AutoConfig.for_model(config["model_type"], **body)
    parsed._attn_implementation = "eager"
    parsed._experts_implementation = "eager"
    return cls(parsed).float().eval()


def _value(name: str, parameter: torch.Tensor, salt: str, tied: bool) -> torch.Tensor:
    """Weights that keep activations near 1 and logits spread (standard deviation near 2), none at its neutral value."""
    seed = int.from_bytes(hashlib.sha256(f"{salt}/{name}".encode()).digest()[:7], "big")
    noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
    fan_in = parameter.shape[-1]
    if name.endswith("bias"):
        return 0.2 * noise
    if "norm" in name:
        scale = 1.6 if tied and re.fullmatch(r"model\.norm\.weight", name) else 1.0
        return scale * (1.0 + 0.15 * noise)
    if "embed_tokens" in name:
        return noise * (1.2 / math.sqrt(fan_in) if tied else 1.0)
    gains = {"lm_head": 2.0, r"mlp\.gate\.weight": 1.6, r"q_proj": 1.5}
    gain = next((g for pattern, g in gains.items() if re.search(pattern, name)), 1.0)
    return noise * gain / math.sqrt(fan_in)


@torch.no_grad()
def fill(model: torch.nn.Module, salt: str) -> None:
    """Sets every parameter from the hash of its name, rounded to bf16."""
    tied = model.config.tie_word_embeddings
    for name, parameter in model.named_parameters():
        parameter.copy_(_value(name, parameter, salt, tied).to(torch.bfloat16))
    model.tie_weights()


def build(name: str) -> torch.nn.Module:
    config = families.CHECKPOINTS[name]
    model = from_config(config)
    fill(model, f"{name}/{families.SEEDS[name]}")
    return model


def save(name: str, directory: Path) -> None:
    """Writes the checkpoint: config.json in hub style, weights in bf16 under hub names, tokenizer."""
    config = families.CHECKPOINTS[name]
    build(name).to(torch.bfloat16).save_pretrained(directory)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    (directory / "generation_config.json").write_text(
        json.dumps({"bos_token_id": tok.BOS, "eos_token_id": [tok.EOS, tok.BOS], "pad_token_id": tok.PAD}, indent=1)
    )
    tok.save(tok.train(), directory)
    if shards := families.SHARDS.get(name):
        _shard(directory, shards)


def _shard(directory: Path, shards: int) -> None:
    single = directory / "model.safetensors"
    tensors = load_file(single)
    single.unlink()
    names, index = sorted(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = [n for j, n in enumerate(names) if j * shards // len(names) == i]
        save_file({n: tensors[n] for n in part}, directory / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    body = {"metadata": {"total_size": total}, "weight_map": index}
    (directory / "model.safetensors.index.json").write_text(json.dumps(body, indent=1))


def load(directory: Path) -> torch.nn.Module:
    """The saved checkpoint as transformers reads it, in fp32; every tensor must have found its place."""
    config = json.loads((directory / "config.json").read_text())
    cls = getattr(transformers, config["architectures"][0])
    model, info = cls.from_pretrained(
        directory,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    wrong = {k: v for k, v in info.items() if v}
    if wrong:
        raise AssertionError(f"{directory}: transformers did not load it whole: {wrong}")
    return model.eval()
