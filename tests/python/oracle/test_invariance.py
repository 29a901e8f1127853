"""A request's logits are the same bits whatever the batch, the chunks, the threads and the ISA level."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import reference

from oracle import golden, make
from support import isa
from support.engine import EXACT, Completion, complete, engine

NUMERICS = {"exact": EXACT, "default": {}}
# One dense and one MoE family; the others run the same code.
FAMILIES = ("llama", "mistral", "qwen2", "qwen3_windows_bias", "qwen3_moe", "mixtral")


def bits(completion: Completion) -> str:
    return hashlib.sha256(completion.logits.tobytes() + np.array(completion.tokens).tobytes()).hexdigest()


def alone(model: Path, requests: list[dict], **options) -> list[str]:
    """The reference: one request at a time, one thread, chunks as large as they come."""
    with engine(model, threads=1, **options) as running:
        return [bits(complete(running, [request])[0]) for request in requests]


@pytest.fixture(scope="module", params=[(f, n) for f in FAMILIES for n in NUMERICS], ids="-".join)
def case(request):
    family, numerics = request.param
    made = make.checkpoint(family)
    requests = reference.requests(golden.read(made.golden))
    return made.model, requests, NUMERICS[numerics], alone(made.model, requests, **NUMERICS[numerics])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("max_batch_tokens", [16, 64, 512])
def test_random_batches(case, threads, max_batch_tokens):
    model, requests, numerics, expected = case
    rng = random.Random(1000 * threads + max_batch_tokens)
    order = [i for i in range(len(requests)) for _ in range(2)]
    rng.shuffle(order)
    with engine(model, threads=threads, max_batch_tokens=max_batch_tokens, **numerics) as running:
        together = complete(running, [requests[i] for i in order], jitter=rng)
    wrong = [len(requests[i]["prompt"]) for i, c in zip(order, together, strict=True) if bits(c) != expected[i]]
    assert not wrong, f"prompts of {wrong} tokens: other bits than alone"


@pytest.mark.parametrize("max_batch_tokens", [1, 7, 33])
def test_odd_chunks(case, max_batch_tokens):
    model, requests, numerics, expected = case
    with engine(model, threads=2, max_batch_tokens=max_batch_tokens, max_running_requests=1, **numerics) as running:
        assert [bits(complete(running, [r])[0]) for r in requests[:3]] == expected[:3]


# The levels this CPU lacks are not collected; the header of the run names them.
@pytest.mark.parametrize("level", [level for level in isa.LEVELS if level not in isa.missing_levels()])
@pytest.mark.parametrize("family", FAMILIES)
def test_isa_level(family, level):
    """In a process of its own, because a process chooses its level once."""
    script = (
        "import json, sys, test_invariance as t\n"
        "from oracle import golden, make\n"
        f"made = make.checkpoint({family!r})\n"
        "requests = t.reference.requests(golden.read(made.golden))[:3]\n"
        "with t.engine(made.model, device='cpu', threads=2) as running:\n"
        "    found = [t.bits(c) for c in t.complete(running, requests)]\n"
        "    print(json.dumps([found, running.stats()['isa']]))\n"
    )
    env = os.environ | {"FREETOKEN_CPU_ISA": level, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    found, ran = json.loads(done.stdout.splitlines()[-1])
    assert ran == level
    made = make.checkpoint(family)
    assert found == alone(made.model, reference.requests(golden.read(made.golden))[:3])
