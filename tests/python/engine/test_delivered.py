"""A reader that says when it has delivered may hold the next step back, but neither stop it nor change a token."""

from __future__ import annotations

import pytest

from oracle import make
from support.engine import EXACT, complete, engine

OPTIONS = {**EXACT, "kv_tokens": 256, "max_sequence_tokens": 64}


@pytest.mark.oracle
@pytest.mark.parametrize("threads", [1, 0])  # 0: all cores, where the engine waits
def test_a_reader_that_falls_silent_costs_no_token(threads):
    request = {"prompt": [5, 9, 2, 7], "max_tokens": 40, "temperature": 0.0, "ignore_eos": True}
    with engine(make.checkpoint("llama").model, **OPTIONS, threads=threads) as running:
        (expected,) = complete(running, [request])
        running.delivered()  # with nothing delivered yet; and never again
        (got,) = complete(running, [request])
        assert (got.tokens, got.finish) == (expected.tokens, "length")
        assert len(got.tokens) == 40
