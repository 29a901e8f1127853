"""The command line: what it lists, refuses and hands on. Exit code 2 for every usage error."""

from __future__ import annotations

import io
import re

import pytest
from click.testing import CliRunner
from rich.console import Console

from freetoken.cli import main
from freetoken.cli import serve as serve_module
from freetoken.cli.absent import COMMANDS, SERVE_FLAGS
from freetoken.cli.display import TerminalDisplay
from freetoken.cli.serve import serve
from freetoken.cli.units import format_size, parse_size


@pytest.fixture
def ft(monkeypatch):
    monkeypatch.delenv("FREETOKEN_API_KEY", raising=False)
    monkeypatch.delenv("FREETOKEN_DEVICE_LIBRARY", raising=False)
    started = []
    monkeypatch.setattr(serve_module, "start", lambda options: started.append(options) or 0)

    def run(*arguments, **environment):
        result = CliRunner().invoke(main, list(arguments), env=environment)
        return result.exit_code, result.output, started[-1] if started else None

    return run


def test_version(ft):
    code, output, _ = ft("--version")
    assert code == 0 and re.fullmatch(r"freetoken \S+\n", output)


def test_help_lists_what_there_is_and_what_not(ft):
    code, output, _ = ft("--help")
    assert code == 0
    assert output.index("serve") < output.index("Not available in this version") < output.index("daemon")


@pytest.mark.parametrize("command", COMMANDS)
def test_absent_commands(ft, command):
    code, output, _ = ft(command, "--help", "x")
    assert code == 2 and f"`ft {command}`" in output and "not available in this version" in output


@pytest.mark.parametrize("flag", SERVE_FLAGS)
def test_absent_flags(ft, flag):
    code, output, options = ft("serve", "--model", "x", f"{flag}=1")
    assert code == 2 and flag in output and "not available in this version" in output and options is None


def test_no_flag_is_both_there_and_absent():
    present = {name for option in serve.params for name in option.opts}
    assert not present & set(SERVE_FLAGS)


def test_defaults(ft):
    code, _, options = ft("serve", "--model", "demo")
    assert code == 0
    assert (options.host, options.port, options.kv_dtype, options.activations) == (
        "127.0.0.1",
        1919,
        "bfloat16",
        "auto",
    )
    assert options.api_key is None and options.sampling_defaults == "model" and options.max_sequence_tokens == 0
    assert (options.max_itl_us, options.max_queued_requests, options.request_timeout_s) == (500_000, 1024, 0)
    assert options.prefix_cache and options.drafts and options.device_library == ""
    assert options.cors_origins == ("tauri://localhost", "http://tauri.localhost", "http://localhost:1420")


def test_everything_given(ft, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    code, output, options = ft(
        "serve", "--model-path", "d", "--host", "::1", "--port", "0", "--dtype", "float32", "--activations", "float32",
        "--threads", "2", "--max-running-requests", "3", "--max-extend-length", "64", "--max-seq-len-override", "100",
        "--num-tokens", "4096", "--memory-limit", "1.5GiB", "--served-model-name", "m", "--cors-origins", "",
        "--chat-template", str(template), "--sampling-defaults", "none", "--hf-overrides", '{"rope_theta": 5}',
        "--cache-type", "none", "--draft", "none", "--max-itl-ms", "40", "--max-queued-requests", "7",
        "--request-timeout", "1.5", FREETOKEN_API_KEY="from the environment", FREETOKEN_DEVICE_LIBRARY="/x/libref.so",
    )  # fmt: skip
    assert code == 0, output
    assert (options.model, options.host, options.port, options.kv_dtype) == ("d", "::1", 0, "float32")
    assert (options.threads, options.max_running_requests, options.max_batch_tokens) == (2, 3, 64)
    assert (options.max_sequence_tokens, options.kv_tokens, options.memory_limit_bytes) == (100, 4096, 3 << 29)
    assert (options.display_name, options.cors_origins, options.chat_template) == ("m", (), "{{ messages }}")
    assert (options.prefix_cache, options.drafts, options.max_itl_us) == (False, False, 40_000)
    assert (options.max_queued_requests, options.request_timeout_s) == (7, 1.5)
    assert options.device_library == "/x/libref.so"
    assert options.hf_overrides == {"rope_theta": 5} and options.api_key == "from the environment"


def test_the_name_that_freetoken_has_for_no_cache(ft):
    assert not ft("serve", "--model", "x", "--cache-type", "naive")[2].prefix_cache


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--model"),
        (["--model", "x", "--dtype", "float16"], "float16 is not available"),
        (["--model", "x", "--dtype", "int8"], "'int8'"),
        (["--model", "x", "--port", "65536"], "not between 0 and 65535"),
        (["--model", "x", "--threads", "two"], "not a whole number"),
        (["--model", "x", "--api-key", ""], "the key is empty"),
        (["--model", "x", "--memory-limit", "much"], "is not a size"),
        (["--model", "x", "--hf-overrides", "[]"], "JSON object"),
        (["--model", "x", "--hf-overrides", "{"], "not JSON"),
        (["--model", "x", "--chat-template", "/nowhere/t.jinja"], "cannot read"),
        (["--model", "x", "--chat-template", "/dev/zero"], "a device, not a file"),
        (["--model", "x", "--hf-overrides", "[" * 50_000], "not JSON"),
        (["--model", "x", "--unknown"], "No such option"),
        (["--model", "x", "--cache-type", "tree"], "'tree' is not one of"),
        (["--model", "x", "--draft", "eagle"], "'eagle' is not one of"),
        (["--model", "x", "--max-itl-ms", "-1"], "-1 is not between 0 and 3600000"),
        (["--model", "x", "--max-queued-requests", "0"], "0 is not between 1 and"),
        (["--model", "x", "--request-timeout", "soon"], "'soon' is not a number of seconds"),
        (["--model", "x", "--request-timeout", "nan"], "nan is not between 0 and"),
        (["--model", "x", "--request-timeout", "-1"], "-1 is not between 0 and"),
    ],
)
def test_usage_errors(ft, arguments, message):
    code, output, options = ft("serve", *arguments)
    assert code == 2 and message in output and options is None


def test_empty_key_in_the_environment(ft):
    code, output, _ = ft("serve", "--model", "x", FREETOKEN_API_KEY="")
    assert code == 2 and "the key is empty" in output


@pytest.mark.parametrize(("name", "near"), [("serv", "serve"), ("chekpoint", "checkpoint"), ("zzz", "")])
def test_unknown_command(ft, name, near):
    code, output, _ = ft(name, "--model", "x")
    assert code == 2 and f"No such command '{name}'." in output
    assert ("Did you mean" in output) == bool(near) and near in output


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("12GiB", 12 << 30), ("800 MiB", 800 << 20), ("2g", 2 << 30), ("1.5kb", 1536), ("7", 7)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "1e9", "1.2.3", "9" * 40])
def test_bad_sizes(text):
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


def test_formatted_sizes():
    assert [format_size(n) for n in (5, 1536, 3 << 20, 5 << 29)] == ["5 B", "1.5 KiB", "3.0 MiB", "2.5 GiB"]


def test_progress_is_lines_without_a_terminal_and_only_when_slow(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("freetoken.cli.display.time.monotonic", lambda: now[0])
    out = io.StringIO()
    display = TerminalDisplay(Console(file=out, force_terminal=False))
    for step in range(11):
        now[0] += 0.09
        display.progress("quick", step, 10)
    assert out.getvalue() == ""
    for step in range(11):
        display.progress("weights", step << 30, 10 << 30)
        now[0] += 2.0
    assert out.getvalue().splitlines() == [
        "weights: 3.0 GiB of 10.0 GiB (30 %)", "weights: 6.0 GiB of 10.0 GiB (60 %)",
        "weights: 9.0 GiB of 10.0 GiB (90 %)",
        "weights: 10.0 GiB of 10.0 GiB (100 %)",
    ]  # fmt: skip
