"""FreeToken against llama.cpp on the same GGUF files: alternating runs, paired ratios.

    python bench/compare/compare.py --peer DIR_OF_LLAMA_BINARIES --models DIR --pairs 15 [--formats bf16,Q8_0,Q4_0]

DIR holds moe-bf16.gguf (bench/compare/make_model.py); the quantised files are made beside it with the peer's
llama-quantize. Each pair runs the peer, then FreeToken; reported are the medians of both and the lower quartile of the
paired ratios. The tables of docs/performance.md come from here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from pathlib import Path

OURS = Path(__file__).with_name("ours.py")
MODES = ("decode", "batch8", "prefill")


def output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def peer(binaries: Path, model: Path, mode: str, threads: int) -> float:
    """Tokens/s of llama-bench (tg128, pp512) or llama-batched-bench (8 sequences, 16 + 64 tokens)."""
    if mode == "batch8":
        counts = ["-c", 2048, "-npp", 16, "-ntg", 64, "-npl", 8]
        command = [binaries / "llama-batched-bench", "-m", model, "-t", threads, *counts]
        text = output([str(part) for part in command])
        row = next(line for line in text.splitlines() if re.match(r"\|\s+16 \|", line))
        return float(row.split("|")[8])
    counts = ["-p", "512", "-n", "0"] if mode == "prefill" else ["-p", "0", "-n", "128"]
    command = [binaries / "llama-bench", "-m", model, "-t", threads, *counts, "-r", 1, "-o", "json"]
    return float(json.loads(output([str(part) for part in command]))[0]["avg_ts"])


def ours(model: Path, mode: str, threads: int) -> float:
    counts = ["--threads", str(threads), "--tokens", "64" if mode == "batch8" else "128"]
    text = output([sys.executable, str(OURS), str(model), "--mode", mode, *counts])
    return float(json.loads(text.splitlines()[-1])["tokens_per_s"])


def quantised(binaries: Path, directory: Path, name: str) -> Path:
    path = directory / f"moe-{name}.gguf"
    if not path.exists():
        command = [binaries / "llama-quantize", directory / "moe-bf16.gguf", path, name]
        subprocess.run(command, check=True, capture_output=True)
    return path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--formats", default="bf16,Q8_0,Q4_0")
    parser.add_argument("--modes", default=",".join(MODES))
    arguments = parser.parse_args()
    machine = platform.processor() or platform.machine()
    print(json.dumps({"machine": machine, "cores": os.cpu_count(), "pairs": arguments.pairs}))
    for name in arguments.formats.split(","):
        model = quantised(arguments.peer, arguments.models, name)
        for mode in arguments.modes.split(","):
            pairs = [
                (peer(arguments.peer, model, mode, arguments.threads), ours(model, mode, arguments.threads))
                for _ in range(arguments.pairs)
            ]
            ratios = sorted(mine / theirs for theirs, mine in pairs)
            print(
                json.dumps(
                    {
                        "format": name,
                        "mode": mode,
                        "peer_tokens_per_s": round(statistics.median(t for t, _ in pairs), 1),
                        "tokens_per_s": round(statistics.median(m for _, m in pairs), 1),
                        "ratio_lower_quartile": round(ratios[len(ratios) // 4], 2),
                        "ratio_median": round(statistics.median(ratios), 2),
                        "load_average": os.getloadavg()[0],
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
