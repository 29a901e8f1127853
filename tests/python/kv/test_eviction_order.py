"""Which pages go when there is no room: leaves, the least recently used one first, against a plain model.

Texts are whole pages of one token each, so that they part at the ends of pages only.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from freetoken import _testing

Path = tuple[int, ...]  # one symbol a page


class Model:
    """A set of nodes, each a path from the root, with the time of its last use."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.used: dict[Path, int] = {}
        self.evicted = 0

    def matched(self, text: Path) -> int:
        return next(n for n in range(len(text), -1, -1) if n == 0 or text[:n] in self.used)

    def use(self, text: Path, time: int) -> None:
        held = {text[:n] for n in range(1, self.matched(text) + 1)}
        for _ in range(len(text) - len(held)):
            if len(self.used.keys() | held) == self.pages:
                parents = {path[:-1] for path in self.used}
                leaf = min((p for p in self.used if p not in parents and p not in held), key=self.used.__getitem__)
                del self.used[leaf]
                self.evicted += 1
            held.add(text[: len(held) + 1])
        self.used |= dict.fromkeys(held, time)


TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)


@given(page_tokens=st.sampled_from([1, 2, 4, 7]), pages=st.integers(4, 12), texts=st.lists(TEXTS, max_size=40))
@settings(max_examples=300, deadline=None)
def test_the_least_recently_used_leaf_goes_first(page_tokens: int, pages: int, texts: list[Path]) -> None:
    cache, model = _testing.KvCache([0], [pages], page_tokens, True), Model(pages)
    for time, text in enumerate(texts):
        tokens = [symbol for symbol in text for _ in range(page_tokens)]
        sequence = _testing.SequenceKv()
        matched = cache.match([*tokens, 9], len(tokens), sequence)
        assert matched == model.matched(text) * page_tokens
        assert cache.append(sequence, matched, len(tokens))
        assert cache.take_copies() == []
        cache.commit(sequence, tokens, len(tokens))
        cache.release(sequence, tokens, len(tokens))
        model.use(text, time)
        for other in set(texts[: time + 1]):
            other_tokens = [symbol for symbol in other for _ in range(page_tokens)]
            found = cache.match_length([*other_tokens, 9], len(other_tokens))
            assert found == model.matched(other) * page_tokens, f"{other} after {texts[: time + 1]}"
        assert cache.stats()[3] == model.evicted
