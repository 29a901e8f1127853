"""n-gram drafts and their gain under random operations, against plain models."""

from __future__ import annotations

from freetoken._testing import DraftGain, NgramDraft
from hypothesis import given, settings
from hypothesis import strategies as st

QUICK = settings(max_examples=300, deadline=None)


def backward_search(history: list[int], count: int, window: int) -> list[int]:
    size = len(history)
    for n in (4, 3, 2):
        if size <= n:
            continue
        for begin in range(size - n - 1, max(0, size - window) - 1, -1):
            if history[begin : begin + n] == history[size - n :]:
                together = list(history)
                for i in range(count):
                    together.append(together[begin + n + i])
                return together[size:]
    return []


@QUICK
@given(
    pieces=st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=20),
    window=st.sampled_from([5, 6, 17, 60, 1 << 16]),
    count=st.integers(0, 12),
)
def test_drafts_are_those_of_a_backward_search(pieces, window, count):
    draft, history = NgramDraft(window), []
    for piece in pieces:
        draft.advance(piece)
        history += piece
        assert draft.propose(count) == backward_search(history, count, window)


@QUICK
@given(steps=st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16)), max_size=60), per_row=st.floats(0.01, 2))
def test_gain_of_any_history(steps, per_row):
    """Against the plain formulas: averages as lists, the best length by trying all."""
    gain, seen = DraftGain(), [[] for _ in range(16)]
    cost = [1 + per_row * k for k in range(1, 17)]
    for drafted, accepted in steps:
        accepted = min(accepted, drafted)
        gain.record(drafted, accepted)
        for place in range(min(drafted, accepted + 1)):
            seen[place].append(place < accepted)
        rate, alive, expected = 0.5, 1.0, [1.0]
        for place, results in enumerate(seen):
            weights = [0.9**i for i in reversed(range(len(results)))]
            rate = (2 * rate + sum(w * r for w, r in zip(weights, results, strict=True))) / (2 + sum(weights))
            assert abs(gain.acceptance(place) - rate) < 1e-9
            alive *= rate
            expected.append(expected[-1] + alive)
        gains = [expected[k] / cost[k - 1] for k in range(1, 17)]
        chosen = gain.choose(16, cost)
        if abs(max(gains) - 1) > 1e-9:
            assert gain.paying == (max(gains) > 1)
        if chosen:
            assert max(gains) - gains[chosen - 1] < 1e-9
        else:
            assert max(gains) < 1 + 1e-9
