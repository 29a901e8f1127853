"""write_expected.py NAME...: writes tests/data/specs/expected/NAME.json from the parsers, for review by hand against
the architecture's published description. One line per layer; without its newlines the file is the canonical JSON
form."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from python.spec_families import files, parse


def lines(spec: dict[str, Any]) -> str:
    def dump(value: Any) -> str:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    parts = []
    for key in sorted(spec):
        value = spec[key]
        text = "[\n" + ",\n".join(dump(layer) for layer in value) + "]" if key == "layers" else dump(value)
        parts.append(f"{dump(key)}:{text}")
    return "{" + ",\n".join(parts) + "}\n"


def main() -> None:
    files.EXPECTED.mkdir(exist_ok=True)
    for name in sys.argv[1:] or files.names():
        (files.EXPECTED / f"{name}.json").write_text(lines(parse(files.load(name)["config"]).spec))


if __name__ == "__main__":
    main()
