"""A model from a GGUF file or set of files: header, tokenizer and chat template are all inside."""

from __future__ import annotations

from typing import Any

from freetoken.checkpoint.gguf import GgufModel, open_gguf
from freetoken.checkpoint.model_files import (
    SAMPLING_RANGES,
    ModelFiles,
    checked_template,
    sampling_defaults,
    token_ids,
)
from freetoken.checkpoint.weight_table import build_weight_table
from freetoken.config import parse_gguf
from freetoken.errors import ConfigError, ModelError
from freetoken.tokenizer.from_gguf import tokenizer_from_gguf

_SAMPLING_NAMES = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}  # where they differ from the API's
SAMPLING_KEYS = tuple((name, f"general.sampling.{_SAMPLING_NAMES.get(name, name)}") for name in SAMPLING_RANGES)
EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
ROLE_KEYS = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
}


def open_gguf_file(path: str, name: str) -> ModelFiles:
    """Opens the GGUF model whose first (or any) file is `path`."""
    model = open_gguf(path)
    metadata = model.metadata
    freqs = "rope_freqs.weight"
    try:
        shapes = {entry.name: entry.shape for entry in model.tensors.values()}
        factors = model.read_f32(freqs).ravel().tolist() if freqs in model.tensors else None
        parsed = parse_gguf(metadata, shapes, factors)
    except ConfigError as error:
        raise ModelError(model.path, "", str(error)) from None
    table = build_weight_table(model.tensors, parsed.names, model.path)
    vocab_size = parsed.spec["vocab"]
    tokenizer = tokenizer_from_gguf(metadata, model.path, vocab_size)
    eos: set[int] = set()
    for key in EOS_KEYS:
        eos |= token_ids(metadata.get(key), vocab_size, model.path, key)
    special = {}
    for role, key in ROLE_KEYS.items():
        for token_id in token_ids(metadata.get(key), vocab_size, model.path, key):
            if (text := tokenizer.token_text(token_id)) is not None:
                special[role] = text
    return ModelFiles(
        name=name,
        architecture=metadata["general.architecture"],
        spec=parsed.spec,
        weight_table=table.json,
        tokenizer=tokenizer,
        chat_template=_chat_template(model),
        special_tokens=special,
        eos_token_ids=sorted(eos),
        generation_defaults=sampling_defaults(metadata, model.path, SAMPLING_KEYS),
        ignored_tensors=table.ignored,
    )


def _chat_template(model: GgufModel) -> str | None:
    key = "tokenizer.chat_template"
    template: Any = model.metadata.get(key)
    return None if template is None else checked_template(template, model.path, key)
