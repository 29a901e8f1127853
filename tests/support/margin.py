"""Comparing greedy tokens with an oracle whose logits differ by a small error."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_SHARE = 0.6


def comparable(margins: Sequence[float], error: float) -> int:
    """How many leading positions have a margin of at least twice the logit error: those must agree.

    After a position that may fall either way the texts may differ, so nothing behind it is comparable.
    """
    for i, margin in enumerate(margins):
        if margin < 2 * error:
            return i
    return len(margins)


class MarginRule:
    """Asserts equality where it is decided, and that enough positions were."""

    def __init__(self) -> None:
        self.compared = 0
        self.total = 0

    def check(
        self, ours: Sequence[int], theirs: Sequence[int], margins: Sequence[float], error: float, what: str
    ) -> int:
        """Returns how many positions were compared."""
        count = comparable(margins, error)
        assert list(ours[:count]) == list(theirs[:count]), (
            f"{what}: greedy tokens differ within the first {count} of {len(theirs)} (logit error {error:.2e})\n"
            f"ours   {list(ours[:count])}\noracle {list(theirs[:count])}"
        )
        self.compared += count
        self.total += len(theirs)
        return count

    def require_share(self) -> None:
        assert self.compared >= LEAST_SHARE * self.total, (
            f"only {self.compared} of {self.total} positions were comparable; at least {LEAST_SHARE:.0%} must be"
        )
