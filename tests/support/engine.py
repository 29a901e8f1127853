"""Drives freetoken._core.Engine in a test: requests in, completions out."""

from __future__ import annotations

import random
import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from support import device as devices
from support.device import DEVICES

__all__ = ["DEVICES", "EXACT", "Completion", "add_event", "complete", "engine", "greedy_request", "load_options"]

EXACT = {"kv_dtype": "float32", "activations": "float32"}


@dataclass
class Completion:
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    rows: list[np.ndarray] = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    prompt_logprobs: list = field(default_factory=list)
    finish: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def logits(self) -> np.ndarray:
        """f32 [rows, vocab] in position order."""
        return np.concatenate(self.rows)


def load_options(model: Any, **options: Any) -> dict[str, Any]:
    """LoadOptions of an opened model (freetoken.checkpoint.ModelFiles)."""

    from freetoken import _core
    from freetoken.checkpoint import ftw

    return {
        **ftw.load_options(model, _core.Vocab(*model.tokenizer.vocab_bytes())),
        **options,
    }


@contextmanager
def engine(path: Path, device: str | None = None, **options: Any) -> Iterator[Any]:
    """A running engine on a checkpoint directory or GGUF file; shut down at the end.

    `device`: one of DEVICES; the one that FREETOKEN_TEST_DEVICE names where absent.
    """
    from freetoken import _core
    from freetoken.checkpoint import open_model

    options = {"device": "cpu", "device_library": devices.library(device), **options}
    running = _core.Engine.load(load_options(open_model(str(path)), **options), lambda phase, done, total: None)
    try:
        yield running
    finally:
        running.shutdown()


def complete(
    running: Any, requests: Sequence[dict], timeout_s: float = 240, jitter: random.Random | None = None
) -> list[Completion]:
    """Runs the requests together and returns their completions in the same order.

    With `jitter` they are submitted a few at a time while others already run.
    """
    results: dict[int, Completion] = {}
    ids: list[int] = []
    waiting = list(requests)
    deadline = time.monotonic() + timeout_s
    while waiting or any(results[i].finish is None for i in ids):
        take = len(waiting) if jitter is None else min(len(waiting), jitter.randint(0 if ids else 1, 2))
        for request in waiting[:take]:
            ids.append(running.submit(**request))
            results[ids[-1]] = Completion()
        waiting = waiting[take:]
        ready, _, _ = select.select([running.event_fd()], [], [], 0 if waiting else 1.0)
        for event in running.poll() if ready else []:
            add_event(results[event.request], event)
        if time.monotonic() > deadline:
            raise TimeoutError(f"not finished after {timeout_s} s; health: {running.health()}")
    return [results[i] for i in ids]


def add_event(completion: Completion, event: Any) -> None:
    """Adds an event to its completion; RuntimeError where it reports an error."""
    if event.finish == "error":
        raise RuntimeError(event.error)
    completion.tokens += event.tokens
    completion.text += event.text
    completion.logprobs += event.logprobs or []
    completion.prompt_logprobs += event.prompt_logprobs or []
    if event.logits is not None and len(event.logits):
        completion.rows.append(np.array(event.logits, dtype=np.float32))
    completion.finish = event.finish
    completion.prompt_tokens, completion.completion_tokens = event.prompt_tokens, event.completion_tokens


def greedy_request(prompt: list[int], tokens: int, **more: Any) -> dict[str, Any]:
    """Argmax decoding through EOS, with the logits of every position."""
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "ignore_eos": True, "logits": "all", **more}
