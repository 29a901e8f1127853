"""From options to a model that serves: open the files, plan the memory, load the weights. Runs in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from freetoken.chat.prompt import ChatPrompter
from freetoken.chat.renderer import TemplateFault
from freetoken.checkpoint import ftw
from freetoken.engine.async_engine import AsyncEngine
from freetoken.errors import ConfigError
from freetoken.server.options import ServeOptions
from freetoken.server.state import ServedModel

Report = Callable[[str, int, int], None]  # phase, done bytes, total bytes


class Core(Protocol):
    """The compiled module, or a fake of it."""

    Engine: Any

    def Vocab(self, bytes: list[bytes], flags: list[int]) -> Any: ...
    def plan(self, options: dict[str, Any]) -> dict[str, Any]: ...


def compiled_core() -> Core:
    try:
        from freetoken import _core
    except ImportError as error:
        raise RuntimeError(
            f"the compiled core is missing or broken ({error}); install again with: pip install ."
        ) from error
    return _core


def core_options(options: ServeOptions, files: Any, core: Core) -> dict[str, Any]:
    """The fields of LoadOptions by name."""
    return {
        **ftw.load_options(files, core.Vocab(*files.tokenizer.vocab_bytes())),
        "threads": options.threads,
        "kv_dtype": options.kv_dtype,
        "activations": options.activations,
        "max_running_requests": options.max_running_requests,
        "max_queued_requests": options.max_queued_requests,
        "max_batch_tokens": options.max_batch_tokens,
        "max_itl_us": options.max_itl_us,
        "prefix_cache": options.prefix_cache,
        "drafts": options.drafts,
        "device": options.device,
        "device_ordinal": options.device_ordinal,
        "device_memory_limit_bytes": options.device_memory_limit_bytes,
        "expert_slots": options.expert_slots,
        "device_library": options.device_library,
        "max_sequence_tokens": options.max_sequence_tokens,
        "kv_tokens": options.kv_tokens,
        "memory_limit_bytes": options.memory_limit_bytes,
    }


def _prompter(options: ServeOptions, files: Any, warn: Callable[[str], None]) -> tuple[ChatPrompter | None, str]:
    """The prompter, or None and why there is none. A user's template must compile; a model's own need not."""
    template = options.chat_template or files.chat_template
    if not template:
        return None, "the model has no chat template"
    prompter = ChatPrompter(template, files.tokenizer, files.tokenizer.special_tokens(), files.special_tokens)
    try:
        prompter.check()
    except TemplateFault as fault:
        prompter.close()
        if options.chat_template:
            raise ConfigError(f"--chat-template does not compile: {fault}") from None
        reason = f"the model's chat template does not compile: {fault}"
        warn(reason)
        return None, reason
    return prompter, ""


def _settings(options: ServeOptions, stats: dict[str, Any]) -> str:
    """What was chosen for the engine, as one line."""
    parts = [f"device {stats['device']}", f"{stats['isa']}, {stats['threads']} threads"]
    parts.append(f"{options.max_running_requests} requests at once, {options.max_queued_requests} waiting")
    gap = f"at most {options.max_itl_us // 1000} ms" if options.max_itl_us else "any time"
    parts.append(f"{gap} between tokens")
    parts.append("prefix cache" if options.prefix_cache else "no prefix cache")
    parts.append("n-gram drafts" if options.drafts else "no drafts")
    if options.request_timeout_s:
        parts.append(f"timeout {options.request_timeout_s:g} s")
    return "; ".join(parts)


def load_model(
    options: ServeOptions,
    open_model: Callable[..., Any],
    core: Core,
    report: Report,
    show_plan: Callable[[dict[str, Any]], None],
    warn: Callable[[str], None],
) -> ServedModel:
    """ModelError, ConfigError or an error of the core when the model cannot be served."""
    report("opening", 0, 0)
    files = open_model(options.model, hf_overrides=options.hf_overrides or None, progress=report)
    prompter, no_chat_reason = _prompter(options, files, warn)
    try:
        fields = core_options(options, files, core)
        plan = core.plan(fields)
        show_plan(plan)
        if plan.get("error"):
            raise ConfigError(plan["error"])
        core_engine = core.Engine.load(fields, report)
    except BaseException:
        if prompter is not None:
            prompter.close()
        raise
    stats = core_engine.stats()
    token_bytes, token_flags = files.tokenizer.vocab_bytes()
    name = options.served_model_name or files.name
    return ServedModel(
        name=name,
        aliases=(options.model,) if options.served_model_name is None else (),
        tokenizer=files.tokenizer,
        token_bytes=token_bytes,
        token_flags=token_flags,
        engine=AsyncEngine(core_engine),
        # What does not fit the KV cache alone can never be finished.
        max_sequence_tokens=min(plan["max_sequence_tokens"], plan["kv_tokens"]),
        prompter=prompter,
        no_chat_reason=no_chat_reason,
        generation_defaults=dict(files.generation_defaults) if options.sampling_defaults == "model" else {},
        max_queued_requests=options.max_queued_requests,
        request_timeout_s=options.request_timeout_s,
        device=stats["device"],
        settings=_settings(options, stats),
        batch_invariant=stats["batch_invariant"],
    )
