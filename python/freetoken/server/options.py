"""What `ft serve` was asked for, in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ServeOptions:
    """0 and None mean: as the engine or the model has it."""

    model: str
    host: str = "127.0.0.1"
    port: int = 1919
    kv_dtype: str = "bfloat16"  # or float32
    activations: str = "auto"  # or float32
    threads: int = 0
    max_running_requests: int = 32
    max_batch_tokens: int = 512  # rows of one step
    max_sequence_tokens: int = 0
    kv_tokens: int = 0
    memory_limit_bytes: int = 0
    served_model_name: str | None = None
    api_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    chat_template: str | None = None  # the template's text
    sampling_defaults: str = "model"  # or none
    hf_overrides: dict[str, Any] = field(default_factory=dict)
    log_level: str = "info"
    max_queued_requests: int = 1024  # choices that wait; more are answered with 429
    max_itl_us: int = 500_000  # 0 = prompts may hold up running answers
    prefix_cache: bool = True
    drafts: bool = True
    request_timeout_s: float = 0.0  # 0 = none
    device: str = "auto"  # or cpu, cuda
    device_ordinal: int = 0  # which GPU
    device_memory_limit_bytes: int = 0  # of the GPU
    expert_slots: int = 0  # experts in the GPU's memory at once
    device_library: str = ""  # a device of another library, in place of `device`

    @property
    def display_name(self) -> str:
        return self.served_model_name or self.model.rstrip("/").rsplit("/", 1)[-1]
