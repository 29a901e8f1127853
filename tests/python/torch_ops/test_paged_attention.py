"""Paged attention over ragged sequences against softmax(q k^T) v in torch, fp64."""

from __future__ import annotations

import pytest
import torch

from freetoken import torch_ops

pytestmark = pytest.mark.oracle
PAGE = torch_ops.PagedKv.page_tokens
# Scores of 64 products with |q k| < 50 are off by 64 * 50 * 2^-24 = 2e-4 at the very most and 1e-6 in practice; that
# error is relative in the exponentials. Measured: 1.4e-6 with values of deviation 1.
ATOL = 1e-5


def expected(q, k, v, scale: float, window: int | None) -> torch.Tensor:
    """q: the last rows of a sequence with keys k and values v, [rows, heads, dim]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = torch.einsum("rhd,phd->hrp", q.double(), k) * scale
    row = torch.arange(k.shape[0] - q.shape[0], k.shape[0])[:, None]
    position = torch.arange(k.shape[0])[None]
    hidden = position > row
    if window is not None:
        hidden |= position <= row - window
    return torch.einsum("hrp,phd->rhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


class Sequences:
    """Sequences of given lengths with random q, k and v, their pages in a random order."""

    def __init__(self, lengths, q_heads, kv_heads, qk_dim, v_dim, seed=0):
        generator = torch.Generator().manual_seed(seed)
        make = lambda n, heads, dim: torch.randn(n, heads, dim, generator=generator)  # noqa: E731
        self.q = [make(n, q_heads, qk_dim) for n in lengths]
        self.k = [make(n, kv_heads, qk_dim) for n in lengths]
        self.v = [make(n, kv_heads, v_dim) for n in lengths]
        width = max(-(-n // PAGE) for n in lengths)
        self.pages = width * len(lengths)
        self.table = torch.randperm(self.pages, generator=generator).int().view(len(lengths), width)
        self.lengths, self.scale = lengths, qk_dim**-0.5

    def step(self, kv, begins, ends, **options) -> list[torch.Tensor]:
        """Rows [begin, end) of every sequence in one call; the outputs of each."""
        rows = lambda tensors: torch.cat([t[b:e] for t, b, e in zip(tensors, begins, ends, strict=True)])  # noqa: E731
        counts = [e - b for b, e in zip(begins, ends, strict=True)]
        out = torch_ops.paged_attention(
            rows(self.q), rows(self.k), rows(self.v), kv, self.table, torch.tensor(begins, dtype=torch.int32),
            torch.tensor(counts, dtype=torch.int32), self.scale, **options,
        )  # fmt: skip
        return list(out.split(counts))

    def check(self, out, begins, ends, window=None, rounded=lambda t: t) -> None:
        for s, (b, e) in enumerate(zip(begins, ends, strict=True)):
            if b == e:
                continue
            want = expected(self.q[s][b:e], rounded(self.k[s][:e]), rounded(self.v[s][:e]), self.scale, window)
            torch.testing.assert_close(out[s].double(), want, rtol=0, atol=ATOL)


@pytest.mark.parametrize("window", [None, 1, 40, 300])
@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "qk_dim", "v_dim"), [(8, 2, 64, 64), (3, 3, 24, 32), (18, 1, 16, 16), (4, 4, 128, 16)]
)
def test_ragged_prefill_then_decode(q_heads, kv_heads, qk_dim, v_dim, window):
    lengths = [3, 64, 66, 300, 600]
    sequences = Sequences(lengths, q_heads, kv_heads, qk_dim, v_dim)
    kv = torch_ops.PagedKv(sequences.pages, kv_heads, qk_dim, v_dim, dtype=torch.float32)
    prompts = [2, 63, 65, 0, 600]  # one has no row yet, one no row left
    begins = [0] * len(lengths)
    sequences.check(sequences.step(kv, begins, prompts, window=window), begins, prompts, window)
    ends = [3, 64, 66, 300, 600]
    sequences.check(sequences.step(kv, prompts, ends, window=window), prompts, ends, window)


def test_bfloat16_cache_is_the_default():
    sequences = Sequences([130, 20], 4, 2, 32, 32)
    kv = torch_ops.PagedKv(sequences.pages, 2, 32)
    out = sequences.step(kv, [0, 0], [130, 20])
    sequences.check(out, [0, 0], [130, 20], rounded=lambda t: t.bfloat16())


def test_chunks_and_threads_change_no_bit():
    sequences = Sequences([700, 70], 8, 2, 32, 32)
    results = []
    for threads, cuts in [(1, [(700, 70)]), (3, [(1, 0), (65, 69), (600, 69), (700, 70)])]:
        torch_ops.set_num_threads(threads)
        kv = torch_ops.PagedKv(sequences.pages, 2, 32)
        begins, parts = (0, 0), [[], []]
        for ends in cuts:
            for part, out in zip(parts, sequences.step(kv, begins, ends), strict=True):
                part.append(out)
            begins = ends
        results.append([torch.cat(p) for p in parts])
    torch_ops.set_num_threads(0)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_layers_are_apart():
    first, second = Sequences([90], 2, 1, 16, 16, seed=1), Sequences([90], 2, 1, 16, 16, seed=2)
    second.table = first.table
    kv = torch_ops.PagedKv(first.pages, 1, 16, layers=2, dtype=torch.float32)
    for begin, end in [(0, 80), (80, 90)]:
        for layer, sequence in enumerate([first, second]):
            sequence.check(sequence.step(kv, [begin], [end], layer=layer), [begin], [end])


def test_a_shared_prefix():
    """Two sequences read the pages of the first 64 positions that a third call wrote."""
    sequences = Sequences([100, 100], 4, 2, 16, 16)
    for tensors in (sequences.q, sequences.k, sequences.v):
        tensors[1][:PAGE] = tensors[0][:PAGE]
    sequences.table[1, 0] = sequences.table[0, 0]
    kv = torch_ops.PagedKv(sequences.pages, 2, 16, dtype=torch.float32)
    sequences.check(sequences.step(kv, [0, 0], [PAGE, 0]), [0, 0], [PAGE, 0])
    sequences.check(sequences.step(kv, [PAGE, PAGE], [100, 100]), [PAGE, PAGE], [100, 100])


def test_no_rows():
    sequences = Sequences([10], 4, 2, 16, 32)
    kv = torch_ops.PagedKv(1, 2, 16, 32)
    assert sequences.step(kv, [0], [0])[0].shape == (0, 4, 32)
