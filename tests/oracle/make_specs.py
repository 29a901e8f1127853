"""make_specs.py CHECKPOINT_DIR... --out DIR: what the ModelSpec gate needs of a tiny checkpoint, without its weights.

Writes DIR/<name>.json = {config, config_v5 (where it differs), weights: name -> [dtype, shape], rope: the rotary tables
that transformers computes for it}. In a name, {a..b} stands for the numbers a to b. The rotary tables are the oracle of
python/freetoken/config/rope.py. Needs torch and transformers; the gate itself (tests/python/config/test_specs.py) needs
neither.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from safetensors import safe_open


def weights_of(directory: Path) -> dict[str, list[Any]]:
    out = {}
    for path in sorted(directory.glob("*.safetensors")):
        if path.name == "golden.safetensors":
            continue
        with safe_open(path, "numpy") as file:
            for name in file.keys():  # noqa: SIM118  (a handle, not a dict)
                part = file.get_slice(name)
                out[name] = [part.get_dtype(), part.get_shape()]
    if "olmo_hybrid" in directory.name:
        unfuse_convolutions(out)
    return out


def unfuse_convolutions(weights: dict[str, list[Any]]) -> None:
    """transformers 5.24 keeps olmo_hybrid's three convolutions as one and saves it in three equal parts, whatever the
    sizes of q, k and v are: such a file is not what is published. Each convolution has as many channels as its
    projection has rows."""
    for name, (dtype, shape) in list(weights.items()):
        if "_conv1d." in name:
            rows = weights[name.replace("_conv1d.", "_proj.")][1][0]
            weights[name] = [dtype, [rows, *shape[1:]]]


def compact(weights: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The same tensors with one entry for each run of layers and experts that have the same dtype and shape."""
    groups: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for name, kind in weights.items():
        numbers = tuple(int(n) for n in NUMBER.findall(name))
        groups.setdefault((NUMBER.sub("{}", name), json.dumps(kind)), set()).add(numbers)
    out = {}
    for (pattern, kind), indices in groups.items():
        for ranges in runs(indices):
            out[pattern.format(*ranges)] = json.loads(kind)
    return dict(sorted(out.items()))


NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def runs(indices: set[tuple[int, ...]]) -> list[tuple[str, ...]]:
    if () in indices:
        return [()]
    rest: dict[int, set[tuple[int, ...]]] = {}
    for first, *others in indices:
        rest.setdefault(first, set()).add(tuple(others))
    out, firsts, at = [], sorted(rest), 0
    while at < len(firsts):
        end = at
        while (
            end + 1 < len(firsts) and firsts[end + 1] == firsts[end] + 1 and rest[firsts[end + 1]] == rest[firsts[at]]
        ):
            end += 1
        label = str(firsts[at]) if end == at else f"{{{firsts[at]}..{firsts[end]}}}"
        out += [(label, *others) for others in runs(rest[firsts[at]])]
        at = end + 1
    return out


def with_infinities(value: Any) -> Any:
    """transformers writes an infinite number as {"__float__": "Infinity"}."""
    if isinstance(value, dict):
        return float(value["__float__"]) if "__float__" in value else {k: with_infinities(v) for k, v in value.items()}
    return [with_infinities(v) for v in value] if isinstance(value, list) else value


def rope_of(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The distinct inverse-frequency tables of the modules that transformers makes for this configuration."""
    import importlib

    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = dict(
        with_infinities(config), model_type={"kimi_k2": "deepseek_v3"}.get(config["model_type"], config["model_type"])
    )
    made = CONFIG_MAPPING[config["model_type"]].from_dict(config)
    architecture = config["architectures"][0]
    cls = getattr(transformers, architecture, None)
    if cls is None:
        module = importlib.import_module(type(made).__module__.replace("configuration_", "modeling_"))
        cls = getattr(module, architecture)
    model = cls(made)
    tables: list[dict[str, Any]] = []
    for name, module in model.named_modules():
        if "vision" in name or "visual" in name or "audio" in name:
            continue
        for buffer_name, buffer in module.named_buffers(recurse=False):
            if not buffer_name.endswith("inv_freq") or "original" in buffer_name:
                continue
            label = buffer_name[: -len("inv_freq")].rstrip("_")
            factor = getattr(module, f"{label}_attention_scaling" if label else "attention_scaling", 1.0)
            table = {
                "inv_freq": [float(f"{v:.9g}") for v in buffer.float().tolist()],
                "attention_factor": float(factor),
            }
            if table not in tables:
                tables.append(table)
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for directory in arguments.directories:
        data: dict[str, Any] = {"config": json.loads((directory / "config.json").read_text())}
        newer = directory / "config.v5.json"
        if newer.exists():
            data["config_v5"] = json.loads(newer.read_text())
        data["weights"] = compact(weights_of(directory))
        data["rope"] = rope_of(data.get("config_v5", data["config"]))
        path = arguments.out / f"{directory.name}.json"
        path.write_text(json.dumps(data, separators=(",", ":"), sort_keys=True) + "\n")
        print(f"{path.name}: {len(data['weights'])} kinds of weight, {len(data['rope'])} rotary tables", flush=True)


if __name__ == "__main__":
    main()
