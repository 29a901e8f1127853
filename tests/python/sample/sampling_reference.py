"""A sampler in float64 with dictionaries and full sorts: the oracle of cpp/sample, written from its documentation."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

MARGIN = 2e-5  # in probability and in logits: fp32 adjusts logits of up to 50 to about 4e-6


@dataclass
class Settings:
    """Keyword arguments of freetoken._testing.SamplerState."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: list[tuple[int, float]] = field(default_factory=list)
    seed: int = 0
    prompt: list[int] = field(default_factory=list)
    min_tokens: int = 0
    end_tokens: list[int] = field(default_factory=list)


def philox_uniform(seed: int, position: int, sample_index: int) -> float:
    """The number that draws: Philox4x32-10, from the published description."""
    low32 = 0xFFFFFFFF
    counter, key = [position, sample_index, 0, 0], [seed & low32, seed >> 32]
    for _ in range(10):
        first, second = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            (second >> 32) ^ counter[1] ^ key[0], second & low32, (first >> 32) ^ counter[3] ^ key[1], first & low32,
        ]  # fmt: skip
        key = [(key[0] + 0x9E3779B9) & low32, (key[1] + 0xBB67AE85) & low32]
    return ((counter[0] >> 9) + 0.5) / 2**23


def adjusted(logits: np.ndarray, usable: np.ndarray, s: Settings, sampled: list[int]) -> np.ndarray:
    """Logits after bias, penalties and bans; what cannot be drawn is at -inf."""
    x = logits.astype(np.float64)
    banned = {token for token, bias in s.logit_bias if bias <= -100}
    for token, bias in s.logit_bias:
        x[token] += bias
    for token in {*s.prompt, *sampled}:
        x[token] = x[token] / s.repetition_penalty if x[token] > 0 else x[token] * s.repetition_penalty
    for token in set(sampled):
        x[token] -= s.frequency_penalty * sampled.count(token) + s.presence_penalty
    if len(sampled) < s.min_tokens:
        banned |= set(s.end_tokens)
    x[list(banned)] = -np.inf
    x[~usable] = -np.inf
    return x


def kept(x: np.ndarray, s: Settings) -> tuple[np.ndarray, np.ndarray, bool]:
    """Ids that the filters leave, most likely first; their probabilities; whether every cut is clear in fp32 too."""
    order = np.argsort(-x, kind="stable")
    order = order[x[order] > -np.inf]
    clear = True
    if s.temperature == 0 or s.top_p == 0 or s.top_k == 1:
        # A smaller difference than the margin may be none in fp32, where the lowest id then wins.
        clear = len(order) < 2 or x[order[0]] - x[order[1]] > MARGIN
        return order[:1], np.ones(1), clear
    if 0 < s.top_k < len(order):
        clear = x[order[s.top_k - 1]] - x[order[s.top_k]] > MARGIN
        order = order[: s.top_k]
    p = np.exp((x[order] - x[order[0]]) / s.temperature)
    p /= p.sum()
    if s.top_p < 1:
        cumulative = np.cumsum(p)
        clear = clear and np.abs(cumulative - s.top_p).min() > MARGIN
        count = min(int(np.searchsorted(cumulative, s.top_p)) + 1, len(p))
        if count < len(p):
            clear = clear and x[order[count - 1]] - x[order[count]] > MARGIN
        order, p = order[:count], p[:count]
    if s.min_p > 0:
        ratio = p / p[0]
        clear = clear and (len(p) == 1 or np.abs(ratio[1:] - s.min_p).min() > MARGIN)
        order, p = order[ratio >= s.min_p], p[ratio >= s.min_p]
    return order, p / p.sum(), clear


def draw(x: np.ndarray, s: Settings, position: int, sample_index: int) -> int | None:
    """The token; -1 where none can be drawn, None where fp32 may draw another."""
    if not (x > -np.inf).any():
        return -1
    ids, p, clear = kept(x, s)
    if not clear:
        return None
    by_id = np.argsort(ids)
    ids, borders = ids[by_id], np.cumsum(p[by_id])
    u = philox_uniform(s.seed, position, sample_index)
    if len(ids) > 1 and np.abs(borders[:-1] - u).min() < MARGIN / min(s.temperature, 1):
        return None
    return int(ids[min(int(np.searchsorted(borders, u, side="right")), len(ids) - 1)])
