"""`ft serve`."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from freetoken.cli.absent import refuse_absent_flags
from freetoken.cli.units import NumberType, SecondsType, SizeType
from freetoken.server.options import ServeOptions

_DESKTOP_ORIGINS = "tauri://localhost,http://tauri.localhost,http://localhost:1420"
_MAX_TEMPLATE_BYTES = 1 << 20
_LOG = logging.getLogger("freetoken.serve")


class ServeCommand(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        refuse_absent_flags(args)
        return super().parse_args(ctx, args)


def _kv_dtype(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value == "float16":
        raise click.BadParameter("float16 is not available in this version; use bfloat16 or float32")
    if value not in ("auto", "bfloat16", "float32"):
        raise click.BadParameter(f"{value!r} is none of auto, bfloat16, float32")
    return "bfloat16" if value == "auto" else value


def _api_key(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        value = os.environ.get("FREETOKEN_API_KEY")  # click takes an empty variable for an absent one
    if value is not None and not value.strip():
        raise click.BadParameter("the key is empty; leave out --api-key and FREETOKEN_API_KEY to serve without one")
    return value


def _template(ctx: click.Context, param: click.Parameter, value: Path | None) -> str | None:
    if value is None:
        return None
    from freetoken.checkpoint.regular_file import open_regular  # late: --help need not load the package

    try:
        with open_regular(str(value)) as file:  # not a FIFO or /dev/zero
            data = file.read(_MAX_TEMPLATE_BYTES + 1)
        if len(data) > _MAX_TEMPLATE_BYTES:
            raise click.BadParameter(f"{value} is larger than {_MAX_TEMPLATE_BYTES} bytes")
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"cannot read {value}: {error}") from None
    if not text.strip():
        raise click.BadParameter(f"{value} is empty")
    return text


def _overrides(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise click.BadParameter('must be a JSON object, such as {"rope_theta": 1000000}')
    return parsed


def _origins(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    return tuple(origin.strip() for origin in value.split(",") if origin.strip())


@click.command(cls=ServeCommand, short_help="serve a model over HTTP", context_settings={"max_content_width": 110})
@click.option("--model", "--model-path", "model", required=True, metavar="MODEL",
              help="demo, demo-dense, a .gguf file, a directory, an FTW directory, a hub id (owner/name)")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", metavar="N", type=NumberType(0, 65535), default=1919, show_default=True, help="0: any free one")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True,
              help="auto: a GPU where one works (see ft doctor), otherwise the CPU")  # fmt: skip
@click.option("--gpu", "device_ordinal", metavar="N", type=NumberType(0, 255), default=0, show_default=True,
              help="which GPU, as numbered in CUDA_VISIBLE_DEVICES")  # fmt: skip
@click.option("--gpu-memory-limit", "device_memory_limit_bytes", type=SizeType(), default=None, metavar="SIZE",
              help="of the GPU's memory; default: what is free")  # fmt: skip
@click.option("--moe-cache-size", "--expert-slots", "expert_slots", metavar="N", type=NumberType(0, 1 << 24), default=0,
              help="experts in the GPU's memory at once, over all layers; default: all")  # fmt: skip
@click.option("--dtype", "kv_dtype", default="auto", show_default=True, metavar="[auto|bfloat16|float32]",
              callback=_kv_dtype, help="of the KV cache; auto = bfloat16")  # fmt: skip
@click.option("--activations", type=click.Choice(["auto", "float32"]), default="auto", show_default=True,
              help="inputs of matrix products: auto = as the weights' format is fastest, float32 = exact")  # fmt: skip
@click.option("--threads", metavar="N", type=NumberType(0, 4096), default=0, help="0: one per physical core")
@click.option("--max-running-requests", metavar="N", type=NumberType(1, 4096), default=32, show_default=True)
@click.option("--max-prefill-length", "--max-extend-length", "max_batch_tokens", type=NumberType(1, 1 << 20),
              metavar="N", default=512, show_default=True, help="rows of a step: decodes, prompts")  # fmt: skip
@click.option("--max-itl-ms", metavar="N", type=NumberType(0, 3_600_000), default=500, show_default=True,
              help="running answers wait no longer for a token while prompts come in; 0: no limit")  # fmt: skip
@click.option("--max-queued-requests", metavar="N", type=NumberType(1, 1 << 20), default=1024, show_default=True,
              help="more are answered with 429")  # fmt: skip
@click.option("--request-timeout", "request_timeout_s", metavar="SECONDS", type=SecondsType(), default=0,
              help="the longest a request may take; default: no limit")  # fmt: skip
@click.option("--cache-type", type=click.Choice(["radix", "none", "naive"]), default="radix", show_default=True,
              metavar="[radix|none]", help="whether prompts that begin alike share their KV pages")  # fmt: skip
@click.option("--draft", type=click.Choice(["ngram", "none"]), default="ngram", show_default=True,
              help="guess tokens from repetitions where that gains time; answers are the same")  # fmt: skip
@click.option("--max-seq-len-override", "max_sequence_tokens", type=NumberType(2, 1 << 30), default=None,
              metavar="TOKENS", help="prompt and answer together; default: what the model has")  # fmt: skip
@click.option("--num-tokens", "kv_tokens", type=NumberType(1, 1 << 40), default=None, metavar="TOKENS",
              help="capacity of the KV cache, over all requests")  # fmt: skip
@click.option("--memory-limit", "memory_limit_bytes", type=SizeType(), default=None, metavar="SIZE",
              help="such as 12GiB; default: what the machine and its cgroup have")  # fmt: skip
@click.option("--served-model-name", default=None, metavar="NAME", help="default: the model's own")
@click.option("--api-key", default=None, callback=_api_key, metavar="KEY",
              help="asked of every request but /health; or $FREETOKEN_API_KEY")  # fmt: skip
@click.option("--cors-origins", default=_DESKTOP_ORIGINS, callback=_origins, metavar="LIST",
              help="origins of web pages that may call; '' = none, '*' = any; default: the desktop app's")  # fmt: skip
@click.option("--chat-template", type=click.Path(path_type=Path), default=None, callback=_template, metavar="FILE",
              help="a jinja template in place of the model's")  # fmt: skip
@click.option("--sampling-defaults", type=click.Choice(["model", "none"]), default="model", show_default=True,
              help="whether the model's generation_config fills absent sampling fields")  # fmt: skip
@click.option("--hf-overrides", callback=_overrides, default=None, metavar="JSON", help="laid over config.json")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def serve(**arguments: Any) -> None:
    """Serve a model over HTTP: OpenAI's chat/completions, completions and models.

    \b
    ft serve --model demo
    curl 127.0.0.1:1919/v1/chat/completions -H 'content-type: application/json' \\
      -d '{"model": "demo", "messages": [{"role": "user", "content": "Hello"}]}'

    Ctrl-C ends it. For those who develop devices: FREETOKEN_CUDA_LIB names another CUDA backend than the installed one,
    FREETOKEN_DEVICE_LIBRARY a shared object that computes in place of both.
    """
    for name in ("max_sequence_tokens", "kv_tokens", "memory_limit_bytes", "device_memory_limit_bytes"):
        arguments[name] = arguments[name] or 0
    arguments["max_itl_us"] = arguments.pop("max_itl_ms") * 1000
    arguments["prefix_cache"] = arguments.pop("cache_type") == "radix"
    arguments["drafts"] = arguments.pop("draft") == "ngram"
    arguments["device_library"] = os.environ.get("FREETOKEN_DEVICE_LIBRARY", "")  # for tests and for other devices
    options = ServeOptions(**arguments)
    logging.basicConfig(level=options.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    if options.log_level == "info":
        logging.getLogger("uvicorn").setLevel(logging.WARNING)  # what it tells of starting and stopping, we tell
    sys.exit(start(options))


def choose_device(options: ServeOptions, core: Any, display: Any) -> ServeOptions | None:
    """The options without --device auto where there is no GPU; None where --device cuda cannot be had.

    Says why a GPU is not used: before a model is fetched.
    """
    if options.device_library or options.device == "cpu":
        return options
    report = core.probe_cuda(ordinal=options.device_ordinal)
    if not report["problem"]:
        return options
    if options.device == "cuda":
        display.error(f"--device cuda: {report['message']}")
        return None
    if report["problem"] == "missing" and not report["asked_for"] and not options.expert_slots:
        _LOG.info("device cpu: %s", report["message"])  # most installations; nothing was asked of a GPU
    else:
        display.warning(f"device cpu: {report['message']}")
    return replace(options, device="cpu", expert_slots=0)


def start(options: ServeOptions) -> int:
    """Imports what serving needs and serves; the exit code."""
    from freetoken.cli.display import TerminalDisplay
    from freetoken.server.loader import compiled_core
    from freetoken.server.run import run_server

    display = TerminalDisplay()
    try:
        core = compiled_core()
    except RuntimeError as error:
        display.error(str(error))
        return 1
    chosen = choose_device(options, core, display)
    if chosen is None:
        return 2
    from freetoken.checkpoint import open_model

    return run_server(chosen, open_model, core, display)
