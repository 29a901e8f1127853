"""Memory across the boundary: who keeps what, threads, forks, the GIL, the floating-point mode."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
import torch

from freetoken import _core, torch_ops

pytestmark = pytest.mark.oracle
MIB = 2**20


def test_results_outlive_everything_they_came_from():
    weight, x = torch.randn(64, 32), torch.randn(50, 32)
    expected = x @ weight.T
    linear = torch_ops.pack_linear(weight)
    weight.fill_(7)  # packing copied it
    out = linear(x)
    kept = out.clone()
    del weight, linear, x
    gc.collect()
    churn = [torch_ops.pack_linear(torch.randn(64, 32))(torch.randn(50, 32)) for _ in range(20)]
    assert torch.equal(out, kept) and len({t.data_ptr() for t in [out, *churn]}) == 21
    torch.testing.assert_close(out, expected)


def test_results_of_a_cache_outlive_it():
    kv = torch_ops.PagedKv(1, 1, 16, dtype=torch.float32)
    v = torch.randn(1, 1, 16)
    one, none = torch.tensor([1], dtype=torch.int32), torch.tensor([0], dtype=torch.int32)
    out = torch_ops.paged_attention(torch.randn(1, 1, 16), torch.randn(1, 1, 16), v, kv, none[None], none, one, 1.0)
    del kv
    gc.collect()
    assert torch.equal(out, v)  # the only position has all the weight


def test_a_result_is_not_copied():
    result = _core.PackedLinear(torch.eye(64), None, None).run(torch.randn(3, 64), "float32")
    first, second = torch.from_dlpack(result), np.from_dlpack(result)
    assert first.data_ptr() == second.ctypes.data and first.data_ptr() % 256 == 0
    del result
    gc.collect()
    assert torch.equal(first, torch.from_numpy(second.copy()))


def test_inputs_of_any_library():
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    core = _core.PackedLinear(np.eye(8, dtype=np.float32), None, None)
    np.testing.assert_array_equal(np.from_dlpack(core.run(x, "float32")), x)


def test_nothing_leaks():
    """Inputs are let go of, results freed, also those that nobody took and those of failed calls."""
    linear = torch_ops.pack_linear(torch.zeros(1024, 64))
    process = psutil.Process()

    def rounds(count: int) -> int:
        for _ in range(count):
            linear(torch.ones(256, 64))
            linear._core.run(torch.ones(256, 64), "auto").__dlpack__()
            with pytest.raises(torch_ops.ConfigError):
                linear(torch.ones(4096, 65))
        gc.collect()
        return process.memory_info().rss

    before = rounds(20)
    assert rounds(200) - before < 64 * MIB  # 600 MiB passed through


def test_the_gil_is_released():
    linear, x = torch_ops.pack_linear(torch.zeros(2048, 2048)), torch.zeros(2048, 2048)
    torch_ops.set_num_threads(1)
    done, ticks = threading.Event(), 0

    def work():
        linear(x, activations="float32")
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        time.sleep(0.001)
        ticks += 1
    thread.join()
    torch_ops.set_num_threads(0)
    assert ticks >= 5  # with the GIL held this loop would stand still


def test_calls_from_several_threads():
    linear = torch_ops.pack_linear(torch.randn(40, 64))
    experts = torch_ops.pack_experts(torch.randn(3, 8, 64), torch.randn(3, 8, 64), torch.randn(3, 64, 8))
    ids, weights = torch.tensor([[0, 2]], dtype=torch.int32), torch.rand(1, 2)
    inputs = [torch.randn(1, 64) for _ in range(40)]
    both = lambda x: (linear(x), experts.moe(x, ids, weights))  # noqa: E731
    alone = [both(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(both, inputs))
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_denormals_of_the_caller_stay():
    """Kernels flush them on their threads, one of which is the caller's."""
    small = torch.tensor([1e-40])
    linear = torch_ops.pack_linear(torch.ones(1, 1))
    kv = torch_ops.PagedKv(1, 1, 16)
    none, row = torch.tensor([0], dtype=torch.int32), torch.ones(1, 1, 16)
    linear(torch.ones(1, 1))
    torch_ops.paged_attention(row, row, row, kv, none[None], none, none + 1, 1.0)
    assert (small * 0.5).item() > 0


def test_a_forked_process():
    code = """
import os, torch
from freetoken import torch_ops
torch_ops.set_num_threads(2)
linear, x = torch_ops.pack_linear(torch.eye(64)), torch.randn(3, 64)
kv = torch_ops.PagedKv(1, 1, 16)
none, row = torch.tensor([0], dtype=torch.int32), torch.ones(1, 1, 16)
linear(x)
child = os.fork()
if child == 0:
    good = torch.equal(linear(x), x) and torch_ops.num_threads() == 2
    try:
        torch_ops.paged_attention(row, row, row, kv, none[None], none, none + 1, 1.0)
    except torch_ops.ConfigError as error:
        good = good and "carried over a fork" in str(error)
    else:
        good = False
    del kv
    os._exit(0 if good else 3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert torch.equal(linear(x), x)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
