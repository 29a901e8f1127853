"""The data of the gate: tests/data/specs/<name>.json (written by tests/oracle/make_specs.py) and its expected
ModelSpec."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from freetoken.config import Target

DIRECTORY = Path(__file__).resolve().parents[2] / "data" / "specs"
EXPECTED = DIRECTORY / "expected"


def names() -> list[str]:
    return sorted(path.stem for path in DIRECTORY.glob("*.json"))


def load(name: str) -> dict[str, Any]:
    """{config, config_v5?, weights: name -> (dtype, shape), rope}, with every {a..b} of a name written out."""
    data = json.loads((DIRECTORY / f"{name}.json").read_text())
    data["weights"] = {
        full: (dtype, tuple(shape)) for short, (dtype, shape) in data["weights"].items() for full in expand(short)
    }
    return data


def expected(name: str) -> dict[str, Any]:
    return json.loads((EXPECTED / f"{name}.json").read_text())


def expand(name: str) -> list[str]:
    found = re.search(r"\{(\d+)\.\.(\d+)\}", name)
    if found is None:
        return [name]
    return [
        full
        for n in range(int(found[1]), int(found[2]) + 1)
        for full in expand(f"{name[: found.start()]}{n}{name[found.end() :]}")
    ]


def taken(stored: np.ndarray, target: Target) -> np.ndarray:
    """What a loader makes of a target: a range of equal parts, turned back, its rows selected."""
    whole = stored.reshape(-1)
    size = whole.size // target.parts
    part = whole[target.part_index * size : (target.part_index + 1) * size]
    if target.rows is not None:
        columns = target.shape[1] if len(target.shape) > 1 else 1
        part = part.reshape(columns, -1).T if target.transpose else part.reshape(-1, columns)
        start, block, stride = target.rows
        part = np.concatenate([part[at : at + block] for at in range(start, len(part), stride)])
    elif target.transpose:
        part = part.reshape(target.shape[1], target.shape[0]).T
    return part.reshape(target.shape)
