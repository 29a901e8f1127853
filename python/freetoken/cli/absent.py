"""Commands and flags that this version does not have yet: refused by name, not as typing errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence

COMMANDS = {
    "shell": "chat in the terminal",
    "ctl": "control a running server",
    "launch": "start a coding agent on a server",
    "bench": "measure bandwidths",
    "daemon": "supervise a server",
}

_GPU = "this version has no such setting of the GPU; there are --device, --gpu and --gpu-memory-limit"
_TIERS = "this version keeps all experts in memory; of those in the GPU there is --moe-cache-size"
_MEDIA = "this version is text only"
_API = "this version has no tool calls and no reasoning parser"

SERVE_FLAGS: dict[str, str] = {
    **dict.fromkeys(
        (
            "--memory-ratio", "--disable-pynccl", "--cuda-graph-max-bs", "--graph", "--attn",
            "--tensor-parallel-size", "--tp-size", "--attention-backend", "--quant-backend", "--nvfp4-backend",
            "--embed-weights",
        ),
        _GPU,
    ),
    **dict.fromkeys(
        (
            "--moe-strategy", "--moe-backend", "--moe-cache-rate", "--moe-cache-mem",
            "--kv-reserve-tokens", "--moe-cache-scope", "--moe-cache-split", "--moe-cache-policy", "--moe-cpu-threads",
            "--moe-cpu-layers", "--moe-hybrid-max-fetch", "--moe-locked-fetch", "--moe-locked-max-fetch",
            "--disable-moe-prefill-overlap", "--moe-collect-stats", "--moe-prefill-hit-d2d", "--expert-load",
            "--ple-backend", "--moe-cache-auto",
        ),
        _TIERS,
    ),
    **dict.fromkeys(
        (
            "--text-model-only", "--mm-disable", "--mmproj", "--image-min-tokens", "--image-max-tokens",
            "--mm-processor-kwargs",
            "--mm-embed-cache-device", "--mm-encoder-weights", "--allowed-media-domains", "--allowed-local-media-path",
        ),
        _MEDIA,
    ),
    **dict.fromkeys(
        ("--tool-call-parser", "--reasoning-parser", "--enable-special-token-ckpt", "--anthropic-inline-system"), _API
    ),
    **dict.fromkeys(("--num-pages", "--page-size"), "give the capacity by --num-tokens"),
    "--swa-decoder-replay": "no model that needs it is served yet",
    "--enable-cache-report": "usage always says how many tokens of the prompt were cached",
    "--max-output-tokens": "an answer may take the rest of the context; requests set max_tokens",
    "--dummy-weight": "name a model; `demo` needs no download by hand",
    "--model-source": "models come from the disk or the Hugging Face hub",
    **dict.fromkeys(("--num-tokenizer", "--tokenizer-count"), "tokenizing runs inside the server"),
    "--decode-log-interval": "there is no decode log",
    "--shell-mode": "there is no `ft shell` yet",
}  # fmt: skip


def refuse_absent_flags(arguments: Sequence[str]) -> None:
    """Ends the process with exit code 2 at the first flag of SERVE_FLAGS."""
    for argument in arguments:
        if argument == "--":
            return
        flag = argument.split("=", 1)[0]
        if flag in SERVE_FLAGS:
            print(f"ft serve: {flag} is not available in this version: {SERVE_FLAGS[flag]}", file=sys.stderr)
            sys.exit(2)


def refuse_command(name: str) -> None:
    have = "there are `ft serve`, `ft checkpoint`, `ft doctor` and `ft selftest`"
    print(f"ft: `ft {name}` ({COMMANDS[name]}) is not available in this version; {have}", file=sys.stderr)
    sys.exit(2)
