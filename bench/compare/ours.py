"""Measures FreeToken on one model file; prints one JSON line.

    python bench/compare/ours.py MODEL --mode decode|batch8|prefill [--threads 2] [--tokens 128]

decode: tokens/s of one sequence after a one-token prompt. batch8: tokens/s of 8 sequences together after 16-token
prompts. prefill: tokens/s of one prompt of 512. The same work llama-bench (tg128, pp512) and llama-batched-bench do.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import time
from typing import Any


def load(path: str, threads: int) -> Any:
    from freetoken import _core
    from freetoken.checkpoint import open_model

    model = open_model(path)
    return _core.Engine.load(
        {
            "model_spec_json": json.dumps(model.spec),
            "weight_table_json": json.dumps(model.weight_table),
            "vocab": _core.Vocab(*model.tokenizer.vocab_bytes()),
            "eos_token_ids": model.eos_token_ids,
            "threads": threads,
            "max_running_requests": 8,
            "kv_tokens": 16384,
            "max_sequence_tokens": 4096,
        },
        None,
    )


def events(engine: Any) -> list[Any]:
    select.select([engine.event_fd()], [], [], 60.0)
    return engine.poll()


def run(engine: Any, prompts: list[list[int]], tokens: int) -> tuple[float, float]:
    """Seconds to the first token of all, and from then to the last."""
    began = time.perf_counter()
    waiting = {engine.submit(prompt=p, max_tokens=tokens, temperature=0.0, ignore_eos=True) for p in prompts}
    first: set[int] = set()
    first_s = 0.0
    while waiting:
        for event in events(engine):
            if event.finish == "error":
                raise RuntimeError(event.error)
            if event.tokens and event.request not in first:
                first.add(event.request)
                first_s = time.perf_counter() - began
            if event.finish:
                waiting.discard(event.request)
    return first_s, time.perf_counter() - began - first_s


def measure(engine: Any, mode: str, tokens: int, vocab: int) -> float:
    pick = random.Random(0)
    if mode == "prefill":
        first, _ = run(engine, [[pick.randrange(3, vocab) for _ in range(512)]], 1)
        return 512 / first
    count, length = (8, 16) if mode == "batch8" else (1, 1)
    prompts = [[pick.randrange(3, vocab) for _ in range(length)] for _ in range(count)]
    _, rest = run(engine, prompts, tokens)
    return count * (tokens - 1) / rest


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--mode", choices=("decode", "batch8", "prefill"), default="decode")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=1)
    arguments = parser.parse_args()
    engine = load(arguments.model, arguments.threads)
    stats = engine.stats()
    measure(engine, arguments.mode, 8, stats["vocab"])
    for _ in range(arguments.runs):
        speed = measure(engine, arguments.mode, arguments.tokens, stats["vocab"])
        print(json.dumps({"mode": arguments.mode, "tokens_per_s": round(speed, 2), "isa": stats["isa"]}), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
