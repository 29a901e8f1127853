"""open_model: from what a user names to an opened model."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from freetoken.checkpoint import demo, hub
from freetoken.checkpoint.ftw import is_ftw, open_ftw
from freetoken.checkpoint.gguf import split_paths
from freetoken.checkpoint.gguf_file import open_gguf_file
from freetoken.checkpoint.hf_directory import open_directory
from freetoken.checkpoint.model_files import ModelFiles
from freetoken.errors import ConfigError, ModelError


def open_model(
    model: str,
    *,
    hf_overrides: Mapping[str, Any] | None = None,
    revision: str | None = None,
    progress: demo.Progress | None = None,
) -> ModelFiles:
    """Opens `model` and checks every tensor of it; loads no weights.

    `model`: `demo` or `demo-dense`; a .gguf file (any one of a split set); a directory of safetensors, or with one GGUF
    model in it, or that `ft checkpoint` wrote; else an id of the Hugging Face hub, for which `revision` is.
    `hf_overrides` are laid over config.json. `progress(what, done_bytes, total_bytes)` hears of downloads. Raises
    ModelError or ConfigError.
    """
    if model in demo.MODELS:
        _no_overrides(hf_overrides, model)
        return open_gguf_file(demo.prepare(model, progress), model)
    if os.path.isdir(model):
        folder = os.path.abspath(model)
        if is_ftw(folder):
            _no_overrides(hf_overrides, model)
            return open_ftw(folder)
        if os.path.lexists(os.path.join(folder, "config.json")):
            return open_directory(folder, os.path.basename(folder), hf_overrides)
        model = _only_gguf(folder)
    if os.path.exists(model) or model.endswith(".gguf"):
        if not os.path.lexists(model):
            raise ModelError(model, "", "no such file")
        if os.path.isfile(model) and not model.endswith(".gguf"):
            raise ModelError(model, "", "a file, but not a .gguf; for safetensors name the directory")
        _no_overrides(hf_overrides, model)
        return open_gguf_file(model, _gguf_name(model))
    if not hub.is_hub_id(model):
        raise ModelError(model, "", "no such file or directory, and not a hub id (owner/name)")
    return open_directory(hub.fetch(model, revision), model, hf_overrides)


def _no_overrides(overrides: Mapping[str, Any] | None, model: str) -> None:
    if overrides:
        raise ConfigError(f"overrides of config.json do not apply to {model}: it has no config.json")


def _gguf_name(path: str) -> str:
    return re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", os.path.basename(path))


def _only_gguf(folder: str) -> str:
    """The first file of the only GGUF model in `folder`, which has no config.json."""
    paths = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".gguf"))
    firsts = {split_paths(path)[0] for path in paths}
    if len(firsts) > 1:
        raise ModelError(folder, "", f"holds {len(firsts)} GGUF models: give the path of one, such as {paths[0]}")
    if not firsts:
        raise ModelError(folder, "", "no model: neither config.json and safetensors, nor a .gguf, nor an FTW manifest")
    return firsts.pop()
