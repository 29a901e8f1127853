"""Random schedules change no bit of a request's logits, tokens and log-probabilities: batches, chunks, layer ranges,
threads, prefix hits, preemption and drafts, on the CPU backend and on the reference device.

A case is one request in one engine whose scheduling is random (chaos_seed) and whose KV pool is too small for all. The
reference is the request alone in an engine without prefix cache, drafts and chaos.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import numpy as np
import pytest

from oracle import make
from oracle.tiny_tokenizer import VOCAB_SIZE
from support.engine import DEVICES, complete, engine

FAMILIES = ("llama", "mistral", "qwen2", "qwen3_windows_bias", "qwen3_moe", "mixtral")
REQUESTS = 20


def make_requests(rng: random.Random) -> list[dict]:
    requests: list[dict] = []
    for i in range(REQUESTS):
        prompt = [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.choice((1, 5, 40, 63, 64, 65, 130, 220)))]
        if i % 2 and requests:  # shares a beginning that ends anywhere in a page
            before = rng.choice(requests)["prompt"]
            prompt = before[: rng.randint(1, len(before))] + prompt[: rng.randint(1, 40)]
        requests.append(
            {
                "prompt": prompt,
                "max_tokens": rng.randint(1, 24),
                "temperature": rng.choice((0.0, 0.7, 1.3)),
                "top_k": rng.choice((0, 0, 30)),
                "top_p": rng.choice((1.0, 0.9)),
                "min_p": rng.choice((0.0, 0.0, 0.05)),
                "repetition_penalty": rng.choice((1.0, 1.0, 1.2)),
                "frequency_penalty": rng.choice((0.0, 0.0, 0.4)),
                "seed": rng.getrandbits(40),
                "ignore_eos": True,
                "logits": rng.choice(("sampled", "sampled", "all")),
                "logprobs": rng.choice((-1, 2)),
                "logit_bias": [(9, 30.0)] if i % 5 == 4 else [],  # repeats itself, so that drafts are accepted
            }
        )
    return requests


def bits(completion) -> str:
    parts = [completion.logits.tobytes(), np.array(completion.tokens).tobytes(), repr(completion.logprobs).encode()]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def run_cases(model: Path, device: str, cases: int) -> dict[str, int]:
    rng = random.Random(cases)
    requests = make_requests(rng)
    with engine(model, threads=1, prefix_cache=False, drafts=False) as running:
        expected = [bits(complete(running, [request])[0]) for request in requests]
    counted = ("preemptions", "cached_prompt_tokens", "accepted_draft_tokens")
    seen = dict.fromkeys(("cases", "wrong", *counted), 0)
    seed = 0
    while seen["cases"] < cases:
        seed += 1
        options = {
            "threads": rng.choice((1, 2)),
            "max_batch_tokens": rng.choice((16, 33, 200)),
            "max_running_requests": rng.choice((1, 4, 20)),
            "kv_tokens": 64 * rng.choice((5, 8, 30)),
            "max_sequence_tokens": 320,
            "prefix_cache": rng.random() < 0.8,
            "drafts": rng.random() < 0.8,
            "chaos_seed": seed,
        }
        with engine(model, device=device, **options) as running:
            for _ in range(2):
                order = list(range(REQUESTS))
                rng.shuffle(order)
                together = complete(running, [requests[i] for i in order], jitter=rng)
                seen["wrong"] += sum(bits(c) != expected[i] for i, c in zip(order, together, strict=True))
                seen["cases"] += REQUESTS
            stats = running.stats()
        for name in counted:
            seen[name] += stats[name]
    return seen


@pytest.mark.parametrize("cases", [160, pytest.param(2000, marks=pytest.mark.long)])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAMILIES)
def test_random_schedules(family: str, device: str, cases: int) -> None:
    seen = run_cases(make.checkpoint(family).model, device, cases)
    assert seen["wrong"] == 0, seen
    assert all(seen[name] > 0 for name in seen if name != "wrong"), seen
