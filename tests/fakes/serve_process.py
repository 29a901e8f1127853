"""A whole server process around fakes: python -m fakes.serve_process '{"load_s": 1, ...}' prints as `ft serve` does.

Keys: port, api_key, load_s (how long loading takes), fail (an error's name: ModelError, ConfigError, ResourceError,
RuntimeError), plan_error, die_after_s, step_s, template (a text for --chat-template).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

from fakes.byte_tokenizer import ByteTokenizer
from fakes.scripted_engine import ResourceError, ScriptedEngine
from fakes.served import CHATML
from freetoken.cli.display import TerminalDisplay
from freetoken.errors import ConfigError, ModelError
from freetoken.server.options import ServeOptions
from freetoken.server.run import run_server


def serve(settings: dict[str, Any], display: Any) -> int:
    tokenizer = ByteTokenizer()

    def open_model(model: str, **_: Any) -> Any:
        failures = {
            "ModelError": ModelError("x.gguf", "blk.0", "has the wrong shape"),
            "ConfigError": ConfigError("no"),
        }
        if error := failures.get(settings.get("fail", "")):
            raise error
        return SimpleNamespace(
            name="tiny", spec={}, weight_table={}, checkpoint_directory="",
            tokenizer=tokenizer, chat_template=CHATML, eos_token_ids=[259],
            special_tokens={}, generation_defaults={"temperature": 0.5},
        )  # fmt: skip

    def load(options: dict[str, Any], progress: Any) -> ScriptedEngine:
        for step in range(10):
            progress("weights", step << 30, 10 << 30)
            time.sleep(settings.get("load_s", 0) / 10)
        if settings.get("fail") == "ResourceError":
            raise ResourceError("400 GiB are needed, 8 GiB are there")
        if settings.get("fail") == "RuntimeError":
            raise RuntimeError("broken")
        tokens = [ord(c) for c in "hello"] * 2000
        engine = ScriptedEngine(tokenizer.vocab_bytes(), [259], lambda request: tokens, settings.get("step_s", 0.0))
        if "die_after_s" in settings:
            threading.Timer(settings["die_after_s"], engine.kill, ["no more steps"]).start()
        return engine

    plan = {
        "rows": [("weights", 3 << 30, "T32", False), ("KV pages", 1 << 20, "64 tokens", False)],
        "total_bytes": (3 << 30) + (1 << 20), "available_bytes": 8 << 30,
        "device_total_bytes": 0, "device_available_bytes": 0,
        "kv_tokens": 64000, "max_sequence_tokens": 32000,
        "error": settings.get("plan_error"),
    }  # fmt: skip
    core = SimpleNamespace(
        Engine=SimpleNamespace(load=load), Vocab=lambda data, flags: (data, flags), plan=lambda options: plan
    )
    options = ServeOptions(
        "tiny.gguf",
        host=settings.get("host", "127.0.0.1"),
        port=settings.get("port", 0),
        api_key=settings.get("api_key"),
        chat_template=settings.get("template"),
    )
    return run_server(options, open_model, core, display, death_grace_s=1.0)


if __name__ == "__main__":
    sys.exit(serve(json.loads(sys.argv[1]), TerminalDisplay()))
