"""A model packed into an FTW directory has the logits of the model it was made of, to the bit, on each device."""

from __future__ import annotations

import numpy as np
import pytest

from freetoken.checkpoint import ftw, open_model
from oracle import make
from oracle.families import CHECKPOINTS, GGUF_BASES
from support.engine import DEVICES, complete, engine, greedy_request

REQUEST = greedy_request(list(range(5, 75)), 8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [*CHECKPOINTS, *(f"{base}.gguf" for base in GGUF_BASES)])
def test_packed_equals_source(name, device, tmp_path):
    base = name.removesuffix(".gguf")
    source = (make.checkpoint(name) if base == name else make.gguf(base, "q4_0")).model
    ftw.write(open_model(str(source)), str(tmp_path / "ftw"), shard_bytes=100_000)
    outcomes = []
    for path in (source, tmp_path / "ftw"):
        with engine(path, device=device, threads=2) as running:
            outcomes.append(complete(running, [REQUEST])[0])
    assert np.array_equal(outcomes[0].logits.view(np.uint32), outcomes[1].logits.view(np.uint32))
    assert outcomes[0].tokens == outcomes[1].tokens and len(outcomes[0].tokens) == 8
