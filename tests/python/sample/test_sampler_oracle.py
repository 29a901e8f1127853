"""Filters and penalties whose meaning transformers defines, against its logits processors in float64."""

from __future__ import annotations

import numpy as np
import pytest
from freetoken._testing import Sampler, SamplerState

pytestmark = pytest.mark.oracle
VOCAB = 500
DRAWS = 3000


@pytest.fixture(scope="module")
def processors():
    from transformers.generation import logits_process

    return logits_process


def rows(count: int) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    return [random.normal(0, 2.5, VOCAB).astype(np.float32) for _ in range(count)]


def through(logits: np.ndarray, history: list[int], *steps) -> np.ndarray:
    import torch

    scores = torch.tensor(logits, dtype=torch.float64)[None]
    for step in steps:
        scores = step(torch.tensor([history], dtype=torch.long), scores)
    return scores[0].numpy()


@pytest.mark.parametrize("penalty", [0.5, 1.1, 3.0])
def test_repetition_penalty(processors, penalty):
    prompt, sampled = [1, 2, 3, 3], [3, 70, 499]
    for logits in rows(10):
        state = SamplerState(VOCAB, repetition_penalty=penalty, prompt=prompt, sampled=sampled)
        expected = through(logits, prompt + sampled, processors.RepetitionPenaltyLogitsProcessor(penalty))
        # One fp32 division or product of numbers below 40.
        np.testing.assert_allclose(state.adjusted_row(logits, [1] * VOCAB), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("count", [0, 2, 3, 4])
def test_min_tokens(processors, count):
    sampled, minimum, end = list(range(count)), 3, [7, 400]
    for logits in rows(3):
        state = SamplerState(VOCAB, min_tokens=minimum, end_tokens=end, sampled=sampled)
        expected = through(logits, [9, *sampled], processors.MinNewTokensLengthLogitsProcessor(1, minimum, end))
        np.testing.assert_array_equal(state.adjusted_row(logits, [1] * VOCAB), expected)


FILTERS = [
    {"temperature": 0.7},
    {"temperature": 1.5, "top_k": 20},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.3, "min_p": 0.1},
    {"temperature": 2.0, "top_k": 60, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 2.0, "top_k": 100, "top_p": 0.95, "min_p": 0.03},
]


@pytest.mark.parametrize("filters", FILTERS, ids=lambda f: "-".join(f"{k}{v}" for k, v in f.items()))
def test_filters_keep_the_same_tokens(processors, filters):
    """In the order temperature, top-k, top-p, min-p, as transformers chains its warpers."""
    steps = [processors.TemperatureLogitsWarper(filters["temperature"])]
    if "top_k" in filters:
        steps.append(processors.TopKLogitsWarper(filters["top_k"]))
    if "top_p" in filters:
        steps.append(processors.TopPLogitsWarper(filters["top_p"]))
    if "min_p" in filters:
        steps.append(processors.MinPLogitsWarper(filters["min_p"]))
    for seed, logits in enumerate(rows(4)):
        scores = through(logits, [0], *steps)
        p = np.exp(scores - scores.max())
        p /= p.sum()
        state, sampler = SamplerState(VOCAB, seed=seed, **filters), Sampler([1] * VOCAB)
        seen = np.zeros(VOCAB)
        for position in range(DRAWS):
            seen[sampler.sample(logits, state, [], position)] += 1
        assert not seen[p == 0].any(), "a token that transformers filters"
        # Within five standard deviations and one draw, at fixed seeds; a token of p = 0.01 is missed with e^-30.
        assert (np.abs(seen - DRAWS * p) <= 5 * np.sqrt(DRAWS * p * (1 - p)) + 1).all()
        assert seen[p > 0.01].all(), "a token that transformers keeps"


def test_the_order_of_filters_is_that_of_transformers():
    """A change of its order would make the comparison above one of another order."""
    from transformers import GenerationConfig, GenerationMixin

    config = GenerationConfig(do_sample=True, temperature=0.5, top_k=5, top_p=0.5, min_p=0.1, repetition_penalty=1.2)
    found = _processors(GenerationMixin, config)
    warpers = ["TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper"]
    order = ["RepetitionPenaltyLogitsProcessor", *warpers]
    assert [name for name in found if name in order] == order


def _processors(mixin, config) -> list[str]:
    class Host(mixin):
        class config:
            is_encoder_decoder = False

    host = Host.__new__(Host)
    config._eos_token_tensor = None
    return [type(p).__name__ for p in mixin._get_logits_processor(host, config, input_ids_seq_length=3)]
