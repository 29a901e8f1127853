"""A model from a directory as Hugging Face lays it out: config.json, safetensors, tokenizer.json and companions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from freetoken.checkpoint.json_file import read_bounded, read_json_object
from freetoken.checkpoint.model_files import (
    MAX_TEMPLATE_BYTES,
    SAMPLING_RANGES,
    ModelFiles,
    checked_template,
    sampling_defaults,
    token_ids,
)
from freetoken.checkpoint.shards import read_directory
from freetoken.checkpoint.weight_table import build_weight_table
from freetoken.config import architecture_of, parse_config
from freetoken.errors import ConfigError, ModelError
from freetoken.tokenizer.from_json import load_tokenizer, special_token_texts

SAMPLING_KEYS = tuple((name, name) for name in SAMPLING_RANGES)


def open_directory(folder: str, name: str, hf_overrides: Mapping[str, Any] | None = None) -> ModelFiles:
    """Opens the checkpoint in `folder`; `hf_overrides` replace values of config.json, nested objects key by key."""
    folder = os.path.abspath(folder)
    config_path = os.path.join(folder, "config.json")
    config = merged(read_json_object(config_path), hf_overrides or {})
    _refuse_shadowed(config, hf_overrides or {})
    try:
        architecture = architecture_of(config)
        parsed = parse_config(config)
    except ConfigError as error:
        raise ModelError(config_path, "", str(error)) from None
    table = build_weight_table(read_directory(folder), parsed.names, folder)
    vocab_size = parsed.spec["vocab"]
    tokenizer_config_path = os.path.join(folder, "tokenizer_config.json")
    tokenizer_config = _optional(tokenizer_config_path)
    tokenizer = load_tokenizer(folder, tokenizer_config, vocab_size)
    map_path = os.path.join(folder, "special_tokens_map.json")
    special = special_token_texts(_optional(map_path), map_path)
    special |= special_token_texts(tokenizer_config, tokenizer_config_path)
    generation_path = os.path.join(folder, "generation_config.json")
    generation = _optional(generation_path)
    eos = token_ids(config.get("eos_token_id"), vocab_size, config_path, "eos_token_id")
    eos |= token_ids(generation.get("eos_token_id"), vocab_size, generation_path, "eos_token_id")
    if "eos_token" in special:
        eos |= token_ids(tokenizer.token_id(special["eos_token"]), vocab_size, tokenizer_config_path, "eos_token")
    return ModelFiles(
        name=name,
        architecture=architecture,
        spec=parsed.spec,
        weight_table=table.json,
        tokenizer=tokenizer,
        chat_template=_chat_template(folder, tokenizer_config, tokenizer_config_path),
        special_tokens=special,
        eos_token_ids=sorted(eos),
        generation_defaults=sampling_defaults(generation, generation_path, SAMPLING_KEYS),
        ignored_tensors=table.ignored,
    )


def merged(config: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with `overrides` laid over it."""
    result = dict(config)
    for key, value in overrides.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return result


def _refuse_shadowed(config: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """An override that another value of `config` outranks would have no effect."""
    for outer in ("rope_parameters", "rope_scaling"):
        inner = config.get(outer)
        for key in ("rope_theta", "partial_rotary_factor"):
            if key in overrides and isinstance(inner, dict) and inner.get(key) not in (None, overrides[key]):
                raise ConfigError(
                    f"the override of {key} has no effect: this model has it in {outer}; "
                    f'write {{"{outer}": {{"{key}": ...}}}}'
                )


def _optional(path: str) -> dict[str, Any]:
    return read_json_object(path) if os.path.exists(path) else {}


def _chat_template(folder: str, tokenizer_config: dict[str, Any], config_path: str) -> str | None:
    """chat_template.jinja, else that of tokenizer_config.json: a text, or a list in which "default" is taken."""
    path = os.path.join(folder, "chat_template.jinja")
    if os.path.exists(path):
        try:
            return read_bounded(path, MAX_TEMPLATE_BYTES).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(path, "", f"not UTF-8: {error.reason} at byte {error.start}") from None
    path = os.path.join(folder, "chat_template.json")
    template = tokenizer_config.get("chat_template")
    if template is None and os.path.exists(path):
        return checked_template(read_json_object(path).get("chat_template"), path, "chat_template")
    if isinstance(template, list):
        named = {
            t.get("name"): t.get("template") for t in template if isinstance(t, dict) and isinstance(t.get("name"), str)
        }
        template = named.get("default")
    return None if template is None else checked_template(template, config_path, "chat_template")
