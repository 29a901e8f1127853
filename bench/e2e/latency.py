"""Latencies of a server under streams, as JSON lines; the tables of docs/performance.md come from here.

    python bench/e2e/latency.py --model demo [--threads N] [--streams 32] [--tokens 150] [--runs 3]

steady: `streams` streams at once: gaps between their tokens, and the time from a token's sampling to its arrival.
arrival: a long prompt comes while half as many streams run: their gaps meanwhile, and the prompt's speed against alone.
Before timing, a stream among others must have the tokens that it has alone. A gap is between two frames of a stream
while all streams run; a frame may carry several tokens where drafts were accepted.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from machine import fingerprint
from stream import Arrival, Stream

SETTLE_S = 20  # the server is ready before its KV pool is filled, which takes a core for that long

SERVE = Path(__file__).with_name("traced_serve.py")
PROMPT_TOKENS = 32
FIRST_ID = 1000  # prompts begin with an id of their own: nothing is shared, and the trace knows whose it is


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(math.ceil(share * len(values)), len(values)) - 1]


def in_ms(values: list[float]) -> dict[str, float]:
    named = {"p50": statistics.median(values), "p99": percentile(values, 0.99), "max": max(values)}
    return {name: round(value * 1e3, 2) for name, value in named.items()}


class Bench:
    def __init__(self, port: int, model: str, tokens: int) -> None:
        self._port = port
        self._model = model
        self._tokens = tokens
        self._next = FIRST_ID
        self._pick = random.Random(0)

    def stream(self, prompt_tokens: int, tokens: int, prompt: list[int] | None = None) -> Stream:
        if prompt is None:
            prompt = [self._next, *(self._pick.randrange(1000, 40_000) for _ in range(prompt_tokens - 1))]
            self._next += 1
        body = {"model": self._model, "prompt": prompt, "max_tokens": tokens, "seed": prompt[0], "ignore_eos": True}
        return Stream("127.0.0.1", self._port, body)

    async def verify(self) -> None:
        """The same tokens alone and among others."""
        alone = self.stream(PROMPT_TOKENS, 16)
        await alone.run()
        again = self.stream(0, 16, alone.body["prompt"])
        await asyncio.gather(again.run(), *(self.stream(PROMPT_TOKENS, 16).run() for _ in range(7)))
        one, other = ([t for a in s.arrivals() for t in a.tokens] for s in (alone, again))
        if one != other or len(one) != 16:
            raise RuntimeError(f"a stream has other tokens among others: {one} alone, {other}")

    async def steady(self, count: int) -> tuple[dict[str, Any], list[tuple[int, list[Arrival]]]]:
        streams = [self.stream(PROMPT_TOKENS, self._tokens) for _ in range(count)]
        await asyncio.gather(*(stream.run() for stream in streams))
        arrivals = [stream.arrivals() for stream in streams]
        gaps = gaps_between(arrivals, max(a[0].at for a in arrivals), min(a[-1].at for a in arrivals))
        frames = sum(map(len, arrivals))
        first = [a[0].at - stream.sent for a, stream in zip(arrivals, streams, strict=True)]
        result = {"streams": count, "gaps": len(gaps), "itl_ms": in_ms(gaps), "ttft_ms": in_ms(first)}
        result["itl_p99_over_median"] = round(percentile(gaps, 0.99) / statistics.median(gaps), 2)
        result["tokens_per_frame"] = round(count * self._tokens / frames, 2)
        return result, [(s.body["prompt"][0], a) for s, a in zip(streams, arrivals, strict=True)]

    async def lone(self, prompt_tokens: int) -> float:
        stream = self.stream(prompt_tokens, 1)
        await stream.run()
        return stream.arrivals()[0].at - stream.sent

    async def arrival(self, count: int, prompt_tokens: int) -> dict[str, Any]:
        alone_s = await self.lone(prompt_tokens)
        # Long enough to go on when the prompt is done, at a third of the speed it has alone and 10 ms a step.
        streams = [self.stream(PROMPT_TOKENS, max(self._tokens, int(alone_s * 3 / 0.01))) for _ in range(count)]
        running = [asyncio.ensure_future(stream.run()) for stream in streams]
        await asyncio.gather(*(stream.first_token.wait() for stream in streams))
        await asyncio.sleep(1.0)
        began = time.monotonic()
        under_load_s = await self.lone(prompt_tokens)
        ended = time.monotonic()
        await asyncio.sleep(0.5)
        for task in running:
            task.cancel()  # leaves: the server ends the request
        await asyncio.gather(*running, return_exceptions=True)
        arrivals = [stream.arrivals(whole=False) for stream in streams]
        gaps = gaps_between(arrivals, began, ended)
        before = gaps_between(arrivals, began - 1.0, began)
        return {
            "streams": count, "prompt_tokens": prompt_tokens, "gaps": len(gaps), "itl_ms": in_ms(gaps),
            "itl_before_ms": in_ms(before), "ttft_alone_ms": round(alone_s * 1e3, 1),
            "ttft_under_load_ms": round(under_load_s * 1e3, 1),
            "speed_of_alone": round(alone_s / under_load_s, 3),
        }  # fmt: skip


def gaps_between(arrivals: list[list[Arrival]], began: float, ended: float) -> list[float]:
    """Gaps that end after `began` and begin before `ended`."""
    return [b.at - a.at for line in arrivals for a, b in itertools.pairwise(line) if b.at > began and a.at < ended]


def delivery(trace: dict[str, Any], streams: list[tuple[int, list[Arrival]]]) -> dict[str, Any]:
    """From each token's sampling until its bytes are on the socket, and until a client on the same machine has them."""
    by_first = {request["first"]: request for request in trace["requests"]}
    delays = []
    for first, arrivals in streams:
        sampled = [at for count, at in by_first[first]["events"] for _ in range(count)]
        arrived = [arrival.at for arrival in arrivals for _ in arrival.tokens]
        delays += [there - then for then, there in zip(sampled, arrived, strict=True)]
    return {"tokens": len(delays), "client_ms": in_ms(delays), "frames": len(trace["socket_s"]),
            "socket_ms": in_ms(trace["socket_s"])}  # fmt: skip


def wait_ready(process: subprocess.Popen[str], url: str, timeout_s: float = 300) -> dict[str, Any]:
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise TimeoutError("the server was not ready")


def report(name: str, result: dict[str, Any]) -> None:
    print(json.dumps({"measure": name, **result}), flush=True)


async def measure(bench: Bench, arguments: argparse.Namespace) -> list[tuple[int, list[Arrival]]]:
    await bench.verify()
    streams: list[tuple[int, list[Arrival]]] = []
    for _ in range(arguments.runs):
        result, more = await bench.steady(arguments.streams)
        report("steady", result)
        streams += more
    for _ in range(arguments.runs):
        report("arrival", await bench.arrival(max(arguments.streams // 2, 1), arguments.prompt_tokens))
    return streams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--threads", default="0")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--port", type=int, default=19191)
    parser.add_argument("serve", nargs="*", help="further arguments of ft serve, after --")
    arguments = parser.parse_args()
    machine = fingerprint()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        options = ["--model", arguments.model, "--served-model-name", "m", "--port", str(arguments.port)]
        command = [sys.executable, str(SERVE), str(trace), "serve", *options, "--threads", arguments.threads]
        server = subprocess.Popen([*command, *arguments.serve], stdout=subprocess.DEVNULL, text=True)
        try:
            health = wait_ready(server, f"http://127.0.0.1:{arguments.port}")
            time.sleep(SETTLE_S)
            report("machine", {**machine, "model": arguments.model, **health["engine"], "version": health["version"]})
            streams = asyncio.run(measure(Bench(arguments.port, "m", arguments.tokens), arguments))
        finally:
            server.terminate()
            server.wait(timeout=60)
        report("delivery", delivery(json.loads(trace.read_text()), streams))


if __name__ == "__main__":
    main()
