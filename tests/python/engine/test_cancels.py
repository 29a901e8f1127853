"""Cancels in every phase: what stays keeps its bits, and no page, place or thread is lost."""

from __future__ import annotations

import os
import random
import select
import time

import pytest

from oracle import make
from support.engine import EXACT, Completion, add_event, complete, engine

OPTIONS = {
    **EXACT, "threads": 2, "max_running_requests": 6, "max_batch_tokens": 48, "kv_tokens": 1024,
    "max_sequence_tokens": 512, "max_queued_requests": 4096,
}  # fmt: skip
KINDS = 20
TIMEOUT_S = 400


def kinds(rng: random.Random) -> list[dict]:
    """Requests that share beginnings, of a few tokens and of several pages, greedy and drawn."""
    base = [rng.randrange(200) for _ in range(180)]
    out = []
    for i in range(KINDS):
        prompt = base[: rng.choice([1, 5, 63, 64, 65, 128, 150])] + [
            rng.randrange(200) for _ in range(rng.randrange(40))
        ]
        fields = {"prompt": prompt, "max_tokens": rng.randint(1, 24), "temperature": float(i % 2), "seed": i,
                  "ignore_eos": True, "logprobs": 2 if i % 3 == 0 else -1, "prompt_logprobs": i % 5 == 0}  # fmt: skip
        out.append(fields)
    return out


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("requests", "cancels", "chaos_seed"),
    [(200, 50, 0), (200, 50, 3), pytest.param(2000, 500, 0, marks=pytest.mark.long)],
)
def test_random_cancels_among_many(requests, cancels, chaos_seed):
    rng = random.Random(requests + chaos_seed)
    model = make.checkpoint("llama").model
    some = kinds(rng)
    with engine(model, **OPTIONS, prefix_cache=False, drafts=False) as alone:
        expected = [complete(alone, [fields])[0] for fields in some]
    with engine(model, **OPTIONS, chaos_seed=chaos_seed) as running:
        complete(running, some[:1])
        threads = len(os.listdir("/proc/self/task"))
        doomed = set(rng.sample(range(requests), cancels))
        order = [rng.randrange(KINDS) for _ in range(requests)]
        results: dict[int, Completion] = {}
        unfinished: set[int] = set()
        ids: list[int] = []
        due: list[tuple[int, int]] = []  # (polls from now, id)
        deadline = time.monotonic() + TIMEOUT_S
        while len(ids) < requests or unfinished:
            for _ in range(min(rng.randrange(8), requests - len(ids))):
                request_id = running.submit(**some[order[len(ids)]])
                if len(ids) in doomed:
                    due.append((rng.choice([0, 0, 1, 2, 5, 10, 20, 40]), request_id))
                ids.append(request_id)
                results[request_id] = Completion()
                unfinished.add(request_id)
            for wait, request_id in due:
                if wait == 0:
                    running.cancel(request_id)
            due = [(wait - 1, request_id) for wait, request_id in due if wait > 0]
            ready, _, _ = select.select([running.event_fd()], [], [], 0.2)
            for event in running.poll() if ready else []:
                add_event(results[event.request], event)
                if event.finish is not None:
                    unfinished.discard(event.request)
            assert time.monotonic() < deadline, running.stats()
        cancelled = 0
        for at, request_id in enumerate(ids):
            got, want = results[request_id], expected[order[at]]
            if at in doomed and got.finish == "cancelled":
                cancelled += 1
                assert got.tokens == want.tokens[: len(got.tokens)]
                continue
            assert got.finish == want.finish, at
            assert (got.tokens, got.text) == (want.tokens, want.text), at
            assert repr((got.logprobs, got.prompt_logprobs)) == repr((want.logprobs, want.prompt_logprobs)), at
        assert cancelled > cancels // 3
        stats = running.stats()
        assert stats["running"] == stats["waiting"] == 0
        assert stats["kv_pages_used"] == stats["kv_pages_cached"]
        assert len(os.listdir("/proc/self/task")) <= threads  # less: the one that fills the KV pool has ended
        # Every place still works, all at once.
        for got, want in zip(complete(running, some), expected, strict=True):
            assert got.tokens == want.tokens
