"""KvCache against a plain model, over random operations.

The model is a device that remembers, for every (group, page, offset), which tokens led to what was written there. A
page list is right when every position that can still be attended to holds exactly the sequence's own tokens up to it.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from freetoken import _testing

PAGE = 4
TRUNCATE = 16  # kMaxTruncateTokens
NO_PAGE = -1
GROUPS = {"full": [0], "full_window": [0, 6], "window": [5], "windows": [3, 17], "mixed": [0, 3, 11]}


class Sequence:
    def __init__(self, tokens: list[int]) -> None:
        self.kv = _testing.SequenceKv()
        self.tokens = tokens
        self.computed = 0
        self.start = 0  # where it was matched or restored


class KvMachine(RuleBasedStateMachine):
    windows: list[int]

    @initialize(
        pages=st.integers(6, 26), page_tokens=st.sampled_from([PAGE, PAGE, 1, 3, 8]),
        prefix_cache=st.sampled_from([True, True, True, False]),
    )  # fmt: skip
    def start(self, pages: int, page_tokens: int, prefix_cache: bool) -> None:
        self.page_tokens = page_tokens
        self.pages = [pages] * len(self.windows)
        self.cache = _testing.KvCache(self.windows, self.pages, self.page_tokens, prefix_cache)
        self.prefix_cache = prefix_cache
        self.device: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self.sequences: list[Sequence] = []
        self.snapshots: list[tuple[list[int], object]] = []
        self.stored: list[tuple[int, ...]] = []  # what was released, as long as nothing is lost
        self.exact = prefix_cache and self.windows == [0]

    # ---- the device

    def apply_copies(self) -> None:
        for group, source, target in self.cache.take_copies():
            for offset in range(self.page_tokens):
                self.device[group, target, offset] = self.device.get((group, source, offset), ("garbage",))

    def write(self, s: Sequence, first: int, end: int, tokens: list[int]) -> None:
        for group in range(len(self.windows)):
            for position in range(first, end):
                page = s.kv.pages[group][position // self.page_tokens]
                assert page != NO_PAGE
                for other in self.sequences:
                    if other is not s and other.kv.pages:
                        assert page not in other.kv.pages[group], "a page that another sequence holds is written"
                for _, snapshot in self.snapshots:
                    assert page not in snapshot.pages[group], "a page of a snapshot is written"
                self.device[group, page, position % self.page_tokens] = tuple(tokens[: position + 1])

    def check_readable(self, pages: list[list[int]], tokens: list[int], computed: int, slack: int = 0) -> None:
        for group, window in enumerate(self.windows):
            first = max(0, computed - slack - window + 1) if window else 0
            for position in range(first, computed):
                page = pages[group][position // self.page_tokens]
                assert page != NO_PAGE, f"group {group}: position {position} of {computed} has no page"
                found = self.device.get((group, page, position % self.page_tokens))
                assert found == tuple(tokens[: position + 1]), f"group {group}: position {position} is another's"

    def pick(self, index: int) -> Sequence:
        return self.sequences[index % len(self.sequences)]

    # ---- operations

    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        known = [s.tokens for s in self.sequences] + [list(t) for t in self.stored]
        tokens: list[int] = []
        if known and data.draw(st.booleans()):
            base = data.draw(st.sampled_from(known))
            tokens = base[: data.draw(st.integers(0, len(base)))]
        tokens = tokens + data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=14))
        s = Sequence(tokens)
        limit = len(tokens) - 1
        before = self.cache.match_length(tokens, limit)
        room = self.cache.available_tokens() >= self.page_tokens
        matched = self.cache.match(tokens, limit, s.kv)
        self.apply_copies()
        assert (
            matched in (before, before // self.page_tokens * self.page_tokens)
            or len(self.windows) > 1
            or self.windows[0]
        )
        assert matched <= before
        if self.exact and self.cache.stats()[3] == 0 and room and matched == before:
            live = [tuple(o.tokens[: o.computed // self.page_tokens * self.page_tokens]) for o in self.sequences]
            longest = max((common(tokens[:limit], t) for t in [*self.stored, *live]), default=0)
            assert before == longest, "not the longest prefix that is there"
        self.check_readable(s.kv.pages, tokens, matched)
        s.computed = s.start = matched
        self.sequences.append(s)

    @precondition(lambda self: self.sequences)
    @rule(index=st.integers(0, 99), more=st.lists(st.integers(0, 1), min_size=0, max_size=9), reject=st.integers(0, 9))
    def step(self, index: int, more: list[int], reject: int) -> None:
        """The rest of the prompt, or some tokens; the last `reject` are drafts that do not come true."""
        s = self.pick(index)
        if s.computed == len(s.tokens):
            s.tokens += more
        end = len(s.tokens)
        if end == s.computed:
            return
        if not self.cache.append(s.kv, s.computed, end):
            assert self.cache.take_copies() == [], "a failed append changes nothing"
            return
        self.apply_copies()
        self.write(s, s.computed, end, s.tokens)
        kept = max(s.computed, end - reject) if reject else end
        if kept < end:
            self.cache.truncate(s.kv, kept)
            s.tokens = s.tokens[:kept] or s.tokens[:1]
        s.computed = kept
        self.cache.commit(s.kv, s.tokens, s.computed)

    @precondition(lambda self: self.sequences)
    @rule(index=st.integers(0, 99), keep=st.booleans())
    def release(self, index: int, keep: bool) -> None:
        s = self.pick(index)
        self.sequences.remove(s)
        self.cache.release(s.kv, s.tokens, s.computed if keep else 0)
        self.stored.append(tuple(s.tokens[: s.computed if keep else s.computed // self.page_tokens * self.page_tokens]))

    @precondition(lambda self: self.sequences and len(self.snapshots) < 3)
    @rule(index=st.integers(0, 99), back=st.integers(0, 3))
    def snapshot(self, index: int, back: int) -> None:
        s = self.pick(index)
        at = s.computed - back
        if at > 0 and at >= s.start:
            self.snapshots.append((s.tokens[:at], self.cache.snapshot(s.kv, at)))

    @precondition(lambda self: self.snapshots)
    @rule(index=st.integers(0, 99), tail=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def restore(self, index: int, tail: list[int]) -> None:
        tokens, snapshot = self.snapshots[index % len(self.snapshots)]
        s = Sequence(tokens + tail)
        if self.cache.restore(snapshot, s.kv):
            s.computed = s.start = len(tokens)
            self.check_readable(s.kv.pages, s.tokens, s.computed)
            self.sequences.append(s)

    @precondition(lambda self: self.snapshots)
    @rule(index=st.integers(0, 99))
    def drop_snapshot(self, index: int) -> None:
        self.cache.drop(self.snapshots.pop(index % len(self.snapshots))[1])

    @precondition(lambda self: self.sequences)
    @rule(index=st.integers(0, 99))
    def spill(self, index: int) -> None:
        """What is listed is all that is needed: every position that can be attended, once, and its bytes are right."""
        s = self.pick(index)
        listed = {}
        for group, page_index, page, tokens in self.cache.spill(s.kv, s.computed):
            assert page == s.kv.pages[group][page_index] != NO_PAGE
            for offset in range(tokens):
                listed[group, page_index * self.page_tokens + offset] = self.device[group, page, offset]
        for group, window in enumerate(self.windows):
            for position in range(max(0, s.computed - window + 1) if window else 0, s.computed):
                assert listed[group, position] == tuple(s.tokens[: position + 1])

    @rule()
    def clear(self) -> None:
        self.cache.clear_cache()
        self.exact = False
        total, free, cached, _ = self.cache.stats()
        if not self.sequences and not self.snapshots:
            assert free == total and not any(cached)

    def teardown(self) -> None:
        """Nothing is lost: when all have let go every page is free or cached, and when the cache is cleared, free."""
        if not hasattr(self, "cache"):
            return
        for s in self.sequences:
            self.cache.release(s.kv, s.tokens, s.computed)
        for _, snapshot in self.snapshots:
            self.cache.drop(snapshot)
        assert self.cache.check([], []) == ""
        total, free, cached, _ = self.cache.stats()
        assert [f + c for f, c in zip(free, cached, strict=True)] == total
        self.cache.clear_cache()
        assert self.cache.stats()[1] == total

    # ---- what holds always

    @invariant()
    def counts(self) -> None:
        if not hasattr(self, "cache"):
            return
        sequences, snapshots = [s.kv for s in self.sequences], [snapshot for _, snapshot in self.snapshots]
        assert self.cache.check(sequences, snapshots) == ""
        total, free, cached, _ = self.cache.stats()
        for group in range(len(self.windows)):
            held = {p for kv in sequences for p in (kv.pages[group] if kv.pages else []) if p != NO_PAGE}
            held |= {p for _, snapshot in self.snapshots for p in snapshot.pages[group] if p != NO_PAGE}
            assert len(held) + free[group] + cached[group] == total[group]
            if not self.prefix_cache:
                assert cached[group] == 0

    @invariant()
    def contents(self) -> None:
        for s in getattr(self, "sequences", []):
            if s.kv.pages:
                self.check_readable(s.kv.pages, s.tokens, s.computed)
        for tokens, snapshot in getattr(self, "snapshots", []):
            self.check_readable(snapshot.pages, tokens, len(tokens))


def common(a: list[int], b: tuple[int, ...]) -> int:
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


@pytest.mark.parametrize("examples", [150, pytest.param(2000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("groups", GROUPS)
def test_random_operations(groups: str, examples: int) -> None:
    machine = type("Machine", (KvMachine,), {"windows": GROUPS[groups]})
    checked = settings(
        max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )
    machine.TestCase.settings = checked
    case = machine.TestCase()
    case.runTest()


def test_a_page_shared_by_a_snapshot_is_published_once() -> None:
    """A restored sequence ends in the middle of the page that the original goes on to fill."""
    cache = _testing.KvCache([0], [6], PAGE, True)
    tokens = [0] * 14
    original, restored = _testing.SequenceKv(), _testing.SequenceKv()
    assert cache.match(tokens, 13, original) == 0
    assert cache.append(original, 0, 14)
    cache.commit(original, tokens, 14)
    snapshot = cache.snapshot(original, 13)
    assert cache.restore(snapshot, restored)
    cache.release(restored, tokens, 13)
    cache.release(original, tokens, 14)
    assert cache.check([], [snapshot]) == ""
    cache.drop(snapshot)
    assert cache.check([], []) == ""
    assert cache.match_length([*tokens, 1], 14) == 14


def test_the_least_recently_used_goes_first() -> None:
    cache = _testing.KvCache([0], [6], PAGE, True)
    for first in range(6):
        s = _testing.SequenceKv()
        tokens = [first] * PAGE
        assert cache.match(tokens, PAGE - 1, s) == 0
        assert cache.append(s, 0, PAGE)
        cache.release(s, tokens, PAGE)
    touched = _testing.SequenceKv()
    assert cache.match([0] * PAGE + [9], PAGE, touched) == PAGE
    cache.release(touched, [0] * PAGE, 0)
    s = _testing.SequenceKv()
    assert cache.match([9, 9], 1, s) == 0
    assert cache.append(s, 0, 2 * PAGE)
    left = [first for first in range(6) if cache.match_length([first] * PAGE + [7], PAGE) == PAGE]
    assert left == [0, 3, 4, 5]


def test_thousands_of_children_are_searched_not_scanned() -> None:
    """The same start, then another token each: a lookup among 20,000 costs about what one among 200 does (a scan costs
    a hundred times as much). Processor time, which a busy machine does not lengthen."""

    def seconds(children: int) -> float:
        cache = _testing.KvCache([0], [children + 2], PAGE, True)
        for child in range(children):
            s = _testing.SequenceKv()
            tokens = [1, 2, 3, 10 + child]
            cache.append(s, 0, PAGE)
            cache.release(s, tokens, PAGE)
        best = 1e9
        for _ in range(5):
            began = time.thread_time()
            for probe in range(500):
                assert cache.match_length([1, 2, 3, 10 + probe % children, 5], 4) == 4
                assert cache.match_length([1, 2, 3, 5, 5], 4) == 3
            best = min(best, time.thread_time() - began)
        return best

    assert seconds(20_000) < 8 * seconds(200)
