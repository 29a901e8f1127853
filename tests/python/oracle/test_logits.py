"""Tiny checkpoints of every family against transformers in fp32, alone and in ragged batches."""

from __future__ import annotations

import pytest
import reference

from oracle import golden, make
from oracle.families import CHECKPOINTS
from support.engine import EXACT, complete, engine


@pytest.fixture(scope="module", params=list(CHECKPOINTS))
def family(request):
    made = make.checkpoint(request.param)
    return made.model, golden.read(made.golden)


def test_alone(family, record_property):
    model, goldens = family
    with engine(model, threads=1, **EXACT) as running:
        completions = [complete(running, [request])[0] for request in reference.requests(goldens)]
    record_property("largest_logit_error", reference.check(completions, goldens))


@pytest.mark.parametrize("max_batch_tokens", [16, 64, 512])
def test_ragged_batch(family, max_batch_tokens):
    model, goldens = family
    with engine(model, threads=2, max_batch_tokens=max_batch_tokens, **EXACT) as running:
        completions = complete(running, reference.requests(goldens))
    reference.check(completions, goldens)
