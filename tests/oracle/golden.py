"""Reference outputs of one model: fp32 logits at all positions, greedy tokens and their margins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

from oracle import tiny_tokenizer as tok

PROMPT_LENGTHS = (7, 23, 65, 300)
GREEDY_TOKENS = 32


@dataclass
class Golden:
    """Of one prompt of n tokens."""

    prompt: list[int]
    logits: np.ndarray  # f32 [n, vocab]
    greedy: list[int]
    greedy_logits: np.ndarray  # f32 [len(greedy), vocab]: the rows that chose them
    margins: np.ndarray  # f32 [len(greedy)]: best minus second best


@torch.no_grad()
def logits(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()


@torch.no_grad()
def greedy(model: torch.nn.Module, prompt: list[int], count: int) -> tuple[list[int], torch.Tensor]:
    """Argmax tokens found with the model's cache, then confirmed by one pass without it; the rows are that pass's."""
    cache, step, found = None, prompt, []
    for _ in range(count):
        out = model(input_ids=torch.tensor([step]), cache=cache, use_cache=True)
        cache, step = out.cache, [int(out.logits[0, -1].argmax())]
        found += step
    rows = logits(model, prompt + found[:-1])[len(prompt) - 1 :]
    if rows.argmax(-1).tolist() != found:
        raise AssertionError("transformers' cached decoding disagrees with its own full pass")
    return found, rows


def write(
    model: torch.nn.Module, path: Path, lengths: tuple[int, ...] = PROMPT_LENGTHS, count: int = GREEDY_TOKENS
) -> None:
    tensors = {}
    for n, prompt in tok.prompts(lengths).items():
        tokens, rows = greedy(model, prompt, count)
        tensors[f"prompt_{n}"] = torch.tensor(prompt)
        tensors[f"logits_{n}"] = logits(model, prompt).contiguous()
        tensors[f"greedy_{n}"] = torch.tensor(tokens)
        tensors[f"greedy_logits_{n}"] = rows.contiguous()
    save_file(tensors, path)


def read(path: Path) -> dict[int, Golden]:
    tensors = load_file(path)
    result = {}
    for n in sorted(int(k.removeprefix("prompt_")) for k in tensors if k.startswith("prompt_")):
        rows = tensors[f"greedy_logits_{n}"]
        best = np.sort(rows, axis=1)[:, -2:]
        result[n] = Golden(
            prompt=tensors[f"prompt_{n}"].tolist(),
            logits=tensors[f"logits_{n}"],
            greedy=tensors[f"greedy_{n}"].tolist(),
            greedy_logits=rows,
            margins=best[:, 1] - best[:, 0],
        )
    return result
