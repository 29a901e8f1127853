"""The tensors of a directory of safetensors: one file, or shards listed by model.safetensors.index.json."""

from __future__ import annotations

import os
import re

from freetoken.checkpoint.json_file import read_json_object
from freetoken.checkpoint.safetensors import read_safetensors
from freetoken.checkpoint.tensor_entry import TensorEntry
from freetoken.errors import ModelError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
MAX_SHARDS = 10000


def read_directory(folder: str) -> dict[str, TensorEntry]:
    """All tensors of the checkpoint in `folder` by name. Raises ModelError."""
    folder = os.path.abspath(folder)
    if os.path.exists(os.path.join(folder, SINGLE)):
        return read_safetensors(os.path.join(folder, SINGLE))
    if os.path.exists(os.path.join(folder, INDEX)):
        return _read_sharded(folder, os.path.join(folder, INDEX))
    names = sorted(os.listdir(folder))
    found = [name for name in names if name.endswith(".safetensors")]
    if any(re.search(r"-\d+-of-\d+\.safetensors$", name) for name in found):
        raise ModelError(
            os.path.join(folder, INDEX), "", f"missing, yet there are shards such as {found[0]}: fetch it too"
        )
    if len(found) == 1:
        return read_safetensors(os.path.join(folder, found[0]))
    if found:
        raise ModelError(
            folder, "", f"neither {SINGLE} nor {INDEX}, and {len(found)} other .safetensors files: which one is it?"
        )
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        raise ModelError(
            os.path.join(folder, pickles[0]), "",
            "a pickle checkpoint: loading one can run code, so it is refused; get the model as .safetensors or .gguf",
        )  # fmt: skip
    raise ModelError(folder, "", f"no weights: {SINGLE} or {INDEX} expected")


def _read_sharded(folder: str, index: str) -> dict[str, TensorEntry]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(index, "weight_map", "an object of tensor name -> file name expected")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not shard.endswith(".safetensors"):
            raise ModelError(index, tensor, f"{str(shard)[:80]!r} is not the name of a .safetensors file")
        if os.path.basename(shard) != shard or "\\" in shard or "\0" in shard or shard.startswith("."):
            raise ModelError(index, tensor, f"{shard[:80]!r} points outside the checkpoint's folder")
    shards = sorted(set(weight_map.values()))
    if len(shards) > MAX_SHARDS:
        raise ModelError(index, "weight_map", f"{len(shards)} shards, at most {MAX_SHARDS} are allowed")
    for i, shard in enumerate(shards):
        if not os.path.isfile(os.path.join(folder, shard)):
            raise ModelError(os.path.join(folder, shard), "", f"missing: shard {i + 1} of the {len(shards)} in {INDEX}")
    tensors: dict[str, TensorEntry] = {}
    for shard in shards:
        for name, entry in read_safetensors(os.path.join(folder, shard)).items():
            if weight_map.get(name) != shard:
                place = f"in {weight_map[name]}" if name in weight_map else "nowhere"
                raise ModelError(entry.file, name, f"is in this file, but {INDEX} has it {place}")
            tensors[name] = entry
    for name, shard in weight_map.items():
        if name not in tensors:
            raise ModelError(os.path.join(folder, shard), name, f"missing, yet {INDEX} says that it is here")
    return tensors
