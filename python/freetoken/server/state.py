"""What the endpoints share: the served model once it is there, and how far loading is until then."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from freetoken.chat.prompt import ChatPrompter
from freetoken.engine.async_engine import AsyncEngine
from freetoken.server.errors import ApiError

SPECIAL_FLAG = 1  # of a vocabulary entry: a control token


@dataclass
class ServedModel:
    name: str
    aliases: tuple[str, ...]  # other names that requests may use: the --model argument
    tokenizer: Any  # freetoken.tokenizer.Tokenizer, or a fake of it
    token_bytes: list[bytes]  # id -> the bytes it adds to the text
    token_flags: list[int]
    engine: AsyncEngine
    max_sequence_tokens: int
    prompter: ChatPrompter | None  # None: the model has no chat template
    no_chat_reason: str = ""
    generation_defaults: dict[str, Any] = field(default_factory=dict)
    max_queued_requests: int = 1024  # choices that may wait at once
    request_timeout_s: float = 0.0  # the longest any request may take; 0 = no limit
    device: str = "cpu"
    settings: str = ""  # one line for people
    batch_invariant: bool | None = True  # answers do not depend on what else runs; None: the device does not say
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.longest_token_bytes = max(map(len, self.token_bytes), default=1) or 1


@dataclass
class Progress:
    phase: str = "starting"
    done_bytes: int = 0
    total_bytes: int = 0


@dataclass
class ServerState:
    """`model` is None while loading; `failure` ends everything."""

    display_name: str
    version: str
    keep_alive_s: float = 8.0
    max_body_bytes: int = 32 << 20
    progress: Progress = field(default_factory=Progress)
    model: ServedModel | None = None
    failure: str | None = None
    stopping: bool = False
    started: float = field(default_factory=time.monotonic)

    def require_model(self) -> ServedModel:
        """The served model, or ApiError 503/500."""
        if self.failure is None and self.model is not None and self.model.engine.death is not None:
            self.failure = f"the engine died: {self.model.engine.death}"
        if self.failure is not None:
            raise ApiError(500, self.failure, code="engine_dead")
        if self.stopping:
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        if self.model is None:
            message = f"the model is loading ({self.progress.phase}); GET /health shows how far it is"
            raise ApiError(503, message, code="model_loading", headers={"retry-after": "2"})
        return self.model
