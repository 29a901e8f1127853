"""A served application around the scripted engine, and one way to put a stream's frames together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import uvicorn

from fakes.byte_tokenizer import SPECIALS, ByteTokenizer
from fakes.scripted_engine import ScriptedEngine
from freetoken.chat.prompt import ChatPrompter
from freetoken.engine.async_engine import AsyncEngine
from freetoken.server.app import create_app
from freetoken.server.state import ServedModel, ServerState

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def script_ids(tokenizer: ByteTokenizer, script: list[Any]) -> list[int]:
    """Entries: an id, the text of a token (a control token's name gives that), or {"hex": bytes}."""
    ids = []
    for entry in script:
        if isinstance(entry, int):
            ids.append(entry)
        elif isinstance(entry, dict):
            ids.append(tokenizer.add(bytes.fromhex(entry["hex"])))
        else:
            special = tokenizer.token_id(entry)
            ids.append(tokenizer.add(entry.encode()) if special is None else special)
    return ids


def make_prompter(template: str, add_bos: bool = False) -> ChatPrompter:
    return ChatPrompter(template, ByteTokenizer(add_bos), SPECIALS, {"bos_token": "<|bos|>"})


class Served:
    """The parts, for tests that look inside.

    `script`: the same tokens for every choice, or a list of scripts by the choice's number, or a function of the
    request. `prompter`: one to share instead of starting a template worker.
    """

    def __init__(
        self,
        script: list[Any],
        template: str | None = CHATML,
        max_sequence_tokens: int = 1000,
        add_bos: bool = False,
        defaults: dict[str, Any] | None = None,
        api_key: str | None = None,
        max_requests: int = 64,
        keep_alive_s: float = 8.0,
        max_body_bytes: int = 1 << 20,
        step_s: float = 0.0,
        cors_origins: tuple[str, ...] = (),
        prompter: ChatPrompter | None = None,
        cached_tokens: int = 0,
        request_timeout_s: float = 0.0,
        hold: bool = False,
    ) -> None:
        self.tokenizer = ByteTokenizer(add_bos=add_bos)
        make = script
        if not callable(script):  # now: the vocabulary is fixed once the engine has it
            scripts = script if script and isinstance(script[0], list) else [script]
            ids = [script_ids(self.tokenizer, one) for one in scripts]
            make = lambda request: ids[request["choice"] % len(ids)]  # noqa: E731
        eos = [self.tokenizer.eos_token_id, self.tokenizer.token_id("<|im_end|>")]
        vocabulary = self.tokenizer.vocab_bytes()
        self.core = ScriptedEngine(vocabulary, eos, make, step_s, max_requests, cached_tokens)
        self.core.hold = hold
        self.engine = AsyncEngine(self.core)
        self._own_prompter = None
        if prompter is None and template is not None:
            prompter = self._own_prompter = make_prompter(template, add_bos)
        data, flags = self.tokenizer.vocab_bytes()
        self.model = ServedModel(
            "tiny", ("models/tiny.gguf",), self.tokenizer, data, flags, self.engine, max_sequence_tokens, prompter,
            generation_defaults=defaults or {}, created=1700000000,
            max_queued_requests=max_requests, request_timeout_s=request_timeout_s,
        )  # fmt: skip
        self.state = ServerState("tiny", "0.0.test", keep_alive_s, max_body_bytes, model=self.model)
        self.app = create_app(self.state, api_key, cors_origins)

    def close(self) -> None:
        self.engine.close()
        if self._own_prompter is not None:
            self._own_prompter.close()


@contextlib.asynccontextmanager
async def serving(*args: Any, **kwargs: Any) -> AsyncIterator[tuple[Served, httpx.AsyncClient]]:
    """(the parts, a client in the same process)."""
    served = Served(*args, **kwargs)
    served.engine.start()
    transport = httpx.ASGITransport(served.app, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield served, client
    finally:
        served.close()


def frames_of(body: str) -> list[Any]:
    """Data frames as JSON, "[DONE]" and comments as they are."""
    assert body.endswith("\n\n")
    out = []
    for frame in body.removesuffix("\n\n").split("\n\n"):
        data = frame.removeprefix("data: ")
        out.append(data if frame.startswith(":") or data == "[DONE]" else json.loads(data))
    return out


def whole_of(frames: list[Any]) -> dict[str, Any]:
    """What the frames of one stream say together, in the shape of the answer that was not streamed."""
    assert frames[-1] == "[DONE]" and frames.count("[DONE]") == 1
    chunks = [frame for frame in frames if isinstance(frame, dict)]
    whole: dict[str, Any] = {"id": chunks[0]["id"], "model": chunks[0]["model"], "choices": {}}
    begun, finished = set(), set()
    for chunk in chunks:
        assert chunk["id"] == whole["id"]
        for key in ("usage", "prompt_token_ids"):
            if chunk.get(key) is not None:
                assert key not in whole, f"{key} twice"
                whole[key] = chunk[key]
        for choice in chunk["choices"]:
            index = choice["index"]
            assert index not in finished, "a chunk after the final one"
            total = whole["choices"].setdefault(index, {"index": index, "text": "", "finish_reason": None})
            if index not in begun and "delta" in choice:
                assert choice["delta"] == {"role": "assistant", "content": ""}, "the first chunk of a choice"
            begun.add(index)
            total["text"] += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            if choice["finish_reason"]:
                total["finish_reason"] = choice["finish_reason"]
                finished.add(index)
            for key in ("token_ids", "prompt_token_ids"):
                if key in choice:
                    total[key] = total.get(key, []) + choice[key]
            if choice.get("logprobs"):
                pieces = total.setdefault("logprobs", {})
                for key, values in choice["logprobs"].items():
                    pieces[key] = None if values is None else pieces.get(key, []) + values
    assert finished == set(whole["choices"])
    whole["choices"] = [whole["choices"][i] for i in sorted(whole["choices"])]
    return whole


def normal_form(body: dict[str, Any]) -> dict[str, Any]:
    """An answer that was not streamed, in the form of whole_of."""
    choices = []
    for choice in body["choices"]:
        form = {"index": choice["index"], "finish_reason": choice["finish_reason"]}
        form["text"] = choice["message"]["content"] if "message" in choice else choice["text"]
        form |= {k: choice[k] for k in ("token_ids", "prompt_token_ids", "logprobs") if choice.get(k) is not None}
        choices.append(form)
    kept = {k: body[k] for k in ("model", "usage", "prompt_token_ids") if k in body}
    return {**kept, "choices": choices}


@contextlib.asynccontextmanager
async def listening(*args: Any, **kwargs: Any) -> AsyncIterator[tuple[Served, str]]:
    """(the parts, the base URL of a real server on loopback in this loop)."""
    served = Served(*args, **kwargs)
    served.engine.start()
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(served.app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server._serve([listener]))
    try:
        yield served, f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        served.close()
