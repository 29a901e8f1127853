"""GGUF files of every served architecture and format against transformers on the weights the file decodes to."""

from __future__ import annotations

import pytest
import reference

from oracle import golden, make
from oracle.families import GGUF_BASES, GGUF_FORMATS
from support.engine import EXACT, complete, engine


@pytest.mark.parametrize("fmt", GGUF_FORMATS)
@pytest.mark.parametrize("base", GGUF_BASES)
def test_logits(base, fmt):
    made = make.gguf(base, fmt)
    goldens = golden.read(made.golden)
    with engine(made.model, threads=2, max_batch_tokens=64, **EXACT) as running:
        reference.check(complete(running, reference.requests(goldens)), goldens)
