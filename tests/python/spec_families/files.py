"""The data of the gate: tests/data/specs/<name>.json (written by tests/oracle/make_specs.py) and its expected
ModelSpec."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

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
