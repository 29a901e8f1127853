"""A real server process on real weights: log-probabilities over HTTP against the oracle, and the memory of a load."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from oracle import golden, make
from oracle.cache import demo_models
from support.server import serve

# fp32 logits within 1e-3 of the oracle's (test_logits.py); a log-probability is a difference of two such numbers.
TOLERANCE = 2e-3


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral"])
def test_echo_logprobs(family):
    made = make.checkpoint(family)
    goldens = golden.read(made.golden)
    exact = ("--dtype", "float32", "--activations", "float32")
    with serve("--model", str(made.model), "--served-model-name", "m", *exact) as s:
        for length in (7, 65, 300):
            case = goldens[length]
            prompt = [int(token) for token in case.prompt]
            body = {"model": "m", "prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 3}
            answer = httpx.post(f"{s.url}/v1/completions", json=body, timeout=120)
            assert answer.status_code == 200, answer.text
            logprobs = answer.json()["choices"][0]["logprobs"]
            rows = case.logits.astype(np.float64)
            wanted = rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)
            assert logprobs["token_logprobs"][0] is None
            got = np.array(logprobs["token_logprobs"][1:])
            assert got.shape == (length - 1,)
            expected = wanted[np.arange(length - 1), prompt[1:]]
            assert np.abs(got - expected).max() < TOLERANCE
            assert answer.json()["usage"] == {
                "prompt_tokens": length,
                "completion_tokens": 0,
                "total_tokens": length,
                "prompt_tokens_details": {"cached_tokens": 0},
            }


def test_load_memory():
    """From start to ready: at most the weights + 10 % + 200 MB + the KV pool (which is touched only as it fills).

    The CPU backend's promise: a device may stage weights in host memory.
    """
    kv_tokens, kv_token_bytes = 4096, 30 * 3 * (64 + 64) * 2
    model = demo_models()["demo"]
    pool = ("--num-tokens", str(kv_tokens), "--max-seq-len-override", str(kv_tokens))
    with serve("--model", str(model), *pool, device="cpu") as s:
        weights_bytes = model.stat().st_size
        assert s.peak_rss_bytes() <= weights_bytes * 1.1 + 200e6 + kv_tokens * kv_token_bytes
