"""Makes and caches the checkpoints with their goldens. `python -m oracle.make`, run in tests/, makes all."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from oracle import families
from oracle.cache import cached

GGUF_PROMPT_LENGTHS = (23, 65)
GGUF_GREEDY_TOKENS = 16


@dataclass
class Made:
    model: Path  # the directory or file a user would name
    golden: Path  # for golden.read


def checkpoint(name: str) -> Made:
    """A directory of safetensors: a key of families.CHECKPOINTS."""

    def build(directory: Path) -> None:
        from oracle import golden, tiny_model

        (directory / "model").mkdir()
        tiny_model.save(name, directory / "model")
        golden.write(tiny_model.load(directory / "model"), directory / "golden.safetensors")

    made = cached(f"checkpoint-{name}", build)
    return Made(made / "model", made / "golden.safetensors")


def gguf(base: str, fmt: str) -> Made:
    """A GGUF file: a key of families.GGUF_BASES in one of families.GGUF_FORMATS."""

    def build(directory: Path) -> None:
        from oracle import gguf_files, golden

        model = gguf_files.write(base, fmt, directory / f"{base}-{fmt}.gguf")
        golden.write(model, directory / "golden.safetensors", GGUF_PROMPT_LENGTHS, GGUF_GREEDY_TOKENS)

    made = cached(f"gguf-{base}-{fmt}", build)
    return Made(made / f"{base}-{fmt}.gguf", made / "golden.safetensors")


def main() -> None:
    from oracle import golden

    jobs = [(name, lambda name=name: checkpoint(name)) for name in families.CHECKPOINTS]
    for base in families.GGUF_BASES:
        jobs += [(f"{base}-{fmt}", lambda b=base, f=fmt: gguf(b, f)) for fmt in families.GGUF_FORMATS]
    for name, job in jobs:
        began = time.monotonic()
        made = job()
        seconds = time.monotonic() - began
        goldens = golden.read(made.golden).values()
        spread = max(float(g.logits.std()) for g in goldens)
        margin = min(float(g.margins.min()) for g in goldens)
        distinct = min(len(set(g.greedy)) for g in goldens)
        print(
            f"{name:24s} logit deviation {spread:5.2f}  least margin {margin:.5f}  "
            f"distinct tokens {distinct:2d}  {seconds:.1f} s"
        )


if __name__ == "__main__":
    main()
