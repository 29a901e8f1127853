"""The sampler of one sequence under random settings, histories and operations, against sampling_reference."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest
from freetoken._testing import Sampler, SamplerState, draw_uniform
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sampling_reference import MARGIN, Settings, adjusted, draw, kept, philox_uniform

VOCAB = 320  # more than one block of the scan
SMALL = 24  # ids that histories use: they repeat
BIASES = st.sampled_from([-100.0, -300.0, -5.0, 4.0])
tokens = st.lists(st.integers(0, SMALL - 1), max_size=12)
QUICK = hypothesis_settings(max_examples=150, deadline=None)


@st.composite
def any_settings(draw_from) -> Settings:
    pick = lambda *values: draw_from(st.sampled_from(values))  # noqa: E731
    return Settings(
        temperature=pick(0.0, 0.5, 1.0, 1.0, 1.7, 30.0),
        top_k=pick(0, 0, 1, 3, 40, 100000),
        top_p=pick(1.0, 1.0, 0.97, 0.7, 0.1, 0.0),
        min_p=pick(0.0, 0.0, 0.02, 0.2, 1.0),
        presence_penalty=pick(0.0, 0.0, 1.5, -2.0),
        frequency_penalty=pick(0.0, 0.0, 0.7, -1.1),
        repetition_penalty=pick(1.0, 1.0, 1.3, 0.8),
        logit_bias=list(draw_from(st.dictionaries(st.integers(0, SMALL - 1), BIASES, max_size=4)).items()),
        seed=draw_from(st.integers(0, 2**64 - 1)),
        prompt=draw_from(tokens),
        min_tokens=pick(0, 0, 3, 20),
        end_tokens=draw_from(st.lists(st.integers(0, SMALL - 1), max_size=3)),
    )  # fmt: skip


def logits_after(history: list[int], model: int = 0) -> np.ndarray:
    """A row of a model that looks at the last three tokens; peaked at the ids that histories use."""
    random = np.random.default_rng([model, *history[-3:]])
    row = random.normal(0, 3, VOCAB).astype(np.float32)
    row[:SMALL] += 6
    return row


@st.composite
def usable_ids(draw_from) -> np.ndarray:
    usable = np.ones(VOCAB, bool)
    usable[draw_from(st.lists(st.integers(0, VOCAB - 1), max_size=30))] = False
    return usable


def state_of(s: Settings, **more) -> SamplerState:
    return SamplerState(VOCAB, **asdict(s), **more)


@pytest.mark.parametrize(("seed", "position", "index"), [(0, 0, 0), (2**64 - 1, 2**31, 7), (123456789012345, 17, 1)])
def test_the_uniform_number(seed, position, index):
    assert draw_uniform(seed, position, index) == philox_uniform(seed, position, index)


@QUICK
@given(s=any_settings(), usable=usable_ids(), sampled=tokens, ahead=tokens, model=st.integers(0, 1000))
def test_adjusted_rows(s, usable, sampled, ahead, model):
    logits = logits_after(s.prompt + sampled + ahead, model)
    got = state_of(s, sampled=sampled).adjusted_row(logits, usable.tolist(), ahead)
    # A bias, a scaling and two subtractions of numbers below 64, each rounded to 2e-6.
    np.testing.assert_allclose(got, adjusted(logits, usable, s, sampled + ahead), rtol=0, atol=1e-5)


def test_every_draw_is_the_reference_draw():
    """The token for the given uniform number, wherever it is clear; and most are."""
    counts = Counter()

    @QUICK
    @given(s=any_settings(), usable=usable_ids(), sampled=tokens, ahead=tokens, model=st.integers(0, 1000))
    def check(s, usable, sampled, ahead, model):
        logits = logits_after(s.prompt + sampled + ahead, model)
        state, sampler = state_of(s, sampled=sampled), Sampler(usable.tolist())
        x = adjusted(logits, usable, s, sampled + ahead)
        for position in range(8):
            token = sampler.sample(logits, state, ahead, position, 2)
            assert token >= 0 and x[token] > -np.inf, "a token that cannot be drawn"
            expected = draw(x, s, position, 2)
            counts[expected is not None] += 1
            if expected is not None:
                assert token == expected

    check()
    assert counts[True] > 5 * counts[False]


@QUICK
@given(s=any_settings(), pieces=st.lists(tokens, max_size=5), ahead=tokens, data=st.data())
def test_a_state_is_its_history(s, pieces, ahead, data):
    """Advanced in pieces, rebuilt from the history, or with the rest assumed: the same bits. Lists have no order."""
    history = [token for piece in pieces for token in piece]
    usable = [1] * VOCAB
    logits = logits_after(history + ahead)
    state = state_of(s)
    for piece in pieces:
        state.adjusted_row(logits, usable, ahead)  # leaves no trace
        state.advance(piece)
    assert state.sampled_tokens == len(history)
    got = state.adjusted_row(logits, usable, ahead).tobytes()
    cut = data.draw(st.integers(0, len(history)))
    bias, prompt = data.draw(st.permutations(s.logit_bias)), data.draw(st.permutations(s.prompt))
    rebuilt = state_of(replace(s, logit_bias=bias, prompt=prompt), sampled=history)
    assert rebuilt.adjusted_row(logits, usable, ahead).tobytes() == got
    partly = state_of(s, sampled=history[:cut])
    assert partly.adjusted_row(logits, usable, history[cut:] + ahead).tobytes() == got


@QUICK
@given(s=any_settings(), model=st.integers(0, 1000), data=st.data())
def test_drafts_change_no_token(s, model, data):
    """Rows of a draft are drawn with the drafts before them assumed; the first that differs is the token there."""
    sampler, length = Sampler([1] * VOCAB), 20

    def row(sampled: list[int]) -> np.ndarray:
        return logits_after(s.prompt + sampled, model)

    state, sequential = state_of(s), []
    while len(sequential) < length:
        token = sampler.sample(row(sequential), state, [], len(s.prompt) + len(sequential), 0)
        state.advance([token])
        sequential.append(token)

    state, got = state_of(s), []
    while len(got) < length:
        right = sequential[len(got) : len(got) + data.draw(st.integers(0, 5))]
        draft = right + data.draw(st.lists(st.integers(0, SMALL - 1), max_size=2))
        drawn = [
            sampler.sample(row(got + draft[:i]), state, draft[:i], len(s.prompt) + len(got) + i, 0)
            for i in range(len(draft) + 1)
        ]
        accepted = next((i for i, token in enumerate(draft) if drawn[i] != token), len(draft))
        state.advance(drawn[: accepted + 1])
        got += drawn[: accepted + 1]
    assert got[:length] == sequential


@QUICK
@given(
    banned=st.sets(st.integers(0, VOCAB - 1), min_size=1, max_size=VOCAB - 1),
    temperature=st.sampled_from([0.0, 1.0, 1e6, 3e38]),
)
def test_what_is_banned_never_comes(banned, temperature):
    logits = np.zeros(VOCAB, np.float32)
    logits[sorted(banned)] = 80
    state = SamplerState(VOCAB, temperature=temperature, logit_bias=[(token, -100.0) for token in banned])
    sampler = Sampler([1] * VOCAB)
    drawn = {sampler.sample(logits, state, [], position) for position in range(50)}
    assert not drawn & banned and -1 not in drawn


def test_frequencies_follow_the_penalised_distribution():
    """Chi-square over 60,000 draws: 3 standard deviations above its degrees of freedom, at a fixed seed."""
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.2}
    s = Settings(temperature=1.3, min_p=0.05, seed=11, **penalties)
    sampled = [0, 1, 1, 1, 5]
    logits = np.array([2.0, 3.0, 1.0, 0.0, -1.0, 2.5, -4.0, 1.5] + [-30.0] * (VOCAB - 8), np.float32)
    ids, p, _ = kept(adjusted(logits, np.ones(VOCAB, bool), s, sampled), s)
    state, sampler = state_of(s, sampled=sampled), Sampler([1] * VOCAB)
    draws = 60000
    seen = Counter(sampler.sample(logits, state, [], position) for position in range(draws))
    assert set(seen) == set(ids.tolist())
    chi = sum((seen[int(i)] - draws * q) ** 2 / (draws * q) for i, q in zip(ids, p, strict=True))
    freedom = len(ids) - 1
    assert chi < freedom + 3 * (2 * freedom) ** 0.5


def test_the_margin_is_wide_enough():
    """fp32 against float64 on rows as large as those above: the adjusted logits agree to less than the margin."""
    s = Settings(presence_penalty=1.5, frequency_penalty=0.7, repetition_penalty=1.3, logit_bias=[(3, 4.0)])
    sampled = list(range(SMALL)) * 3
    logits = logits_after([1])
    got = state_of(s, sampled=sampled).adjusted_row(logits, [1] * VOCAB)
    assert np.abs(got - adjusted(logits, np.ones(VOCAB, bool), s, sampled)).max() < MARGIN / 4
