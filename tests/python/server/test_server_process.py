"""A server as a process: bound before it loads, its exit codes, its signals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from fakes.byte_tokenizer import ByteTokenizer
from fakes.serve_process import serve
from freetoken.server.loader import load_model
from freetoken.server.options import ServeOptions

TESTS = Path(__file__).resolve().parents[2]
HI = [{"role": "user", "content": "hi"}]


@contextlib.contextmanager
def process(**settings):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *(path for path in sys.path if path)])}
    command = [sys.executable, "-m", "fakes.serve_process", json.dumps(settings)]
    running = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def base_url(running) -> str:
    line = running.stdout.readline()
    return re.search(r"listening on (http://\S+),", line).group(1)


def wait_ready(url):
    until = time.monotonic() + 20
    while httpx.get(f"{url}/health").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_answers_while_loading_then_serves_then_stops_on_sigterm():
    with process(load_s=1.5, api_key="sesame", step_s=0.01) as running:
        url = base_url(running)
        seen = []
        while (health := httpx.get(f"{url}/health")).status_code == 503:
            seen.append(health.json())
            if len(seen) == 1:
                refused = httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer sesame"})
                assert refused.status_code == 503 and refused.headers["retry-after"]
                assert refused.json()["error"]["code"] == "model_loading"
            time.sleep(0.05)
        assert {entry["status"] for entry in seen} == {"loading"}
        amounts = [entry["progress"]["done_bytes"] for entry in seen]
        assert amounts == sorted(amounts) and amounts[-1] > amounts[0]
        assert seen[-1]["phase"] == "weights" and seen[-1]["progress"]["total_bytes"] == 10 << 30
        assert health.json()["status"] == "ok" and health.json()["model"] == "tiny"

        body = {"model": "tiny", "messages": HI, "stream": True}
        headers = {"authorization": "Bearer sesame"}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers, timeout=10) as answer:
            lines = answer.iter_lines()
            next(lines)
            running.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert "shutting down" in json.loads(rest[-2].removeprefix("data: "))["error"]["message"]
        output, errors = running.communicate(timeout=10)
        assert running.returncode == 0, errors
        assert "memory plan" in output and re.search(r"total\s+3.0 GiB\s+of 8.0 GiB available", output)
        assert "ready: tiny" in output and "stopping, 1 running answer is cut short" in output
        settings = "device cpu; scripted, 1 threads; 32 requests at once, 1024 waiting; at most 500 ms between tokens"
        assert f"{settings}; prefix cache; n-gram drafts" in output


def test_interrupt_while_loading():
    with process(load_s=60) as running:
        base_url(running)
        running.send_signal(signal.SIGINT)
        output, errors = running.communicate(timeout=10)
        assert running.returncode == 0, errors
        assert "stopping\n" in output


class Messages:
    """A display that keeps errors and warnings."""

    def __init__(self):
        self.errors = []
        self.warnings = []

    def error(self, message):
        self.errors.append(message)

    def warning(self, message):
        self.warnings.append(message)

    def __getattr__(self, name):
        return lambda *arguments: None


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        ({"fail": "ModelError"}, 2, "x.gguf: blk.0: has the wrong shape"),
        ({"fail": "ConfigError"}, 2, "no"),
        ({"fail": "ResourceError"}, 2, "400 GiB are needed"),
        ({"plan_error": "5 GiB are missing"}, 2, "5 GiB are missing"),
        ({"template": "{% if"}, 2, "--chat-template does not compile"),
        ({"fail": "RuntimeError"}, 1, "broken"),
    ],
)
def test_exit_codes_of_failed_loads(settings, code, message):
    display = Messages()
    assert serve(settings, display) == code
    assert len(display.errors) == 1 and message in display.errors[0]


def test_port_taken():
    display = Messages()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert serve({"port": taken.getsockname()[1]}, display) == 1
    assert "cannot listen on 127.0.0.1" in display.errors[0] and "--port" in display.errors[0]


def test_what_the_core_is_given():
    given = {}

    class Seen(Exception):
        pass

    class Core:
        class Engine:
            @staticmethod
            def load(options, progress):
                given.update(options)
                raise Seen

        Vocab = staticmethod(lambda data, flags: None)
        plan = staticmethod(lambda options: {"max_sequence_tokens": 9, "kv_tokens": 9})

    files = SimpleNamespace(
        name="tiny", spec={}, weight_table={}, checkpoint_directory="",
        tokenizer=ByteTokenizer(), chat_template=None, eos_token_ids=[259],
        special_tokens={}, generation_defaults={},
    )  # fmt: skip
    options = ServeOptions(
        "m", max_queued_requests=7, max_itl_us=9000, prefix_cache=False, drafts=False, device_library="/x/libref.so"
    )
    with pytest.raises(Seen):
        load_model(options, lambda *_, **__: files, Core, *[lambda *_: None] * 3)
    assert given["max_queued_requests"] == 7 and given["max_itl_us"] == 9000
    assert (given["prefix_cache"], given["drafts"], given["device_library"]) == (False, False, "/x/libref.so")


@pytest.mark.parametrize(("host", "key", "warned"), [("0.0.0.0", None, 1), ("0.0.0.0", "k", 0), ("127.0.0.1", None, 0)])
def test_open_doors_are_pointed_out(host, key, warned):
    display = Messages()
    serve({"fail": "ModelError", "host": host, "api_key": key}, display)
    assert len(display.warnings) == warned


def test_death_of_the_engine_shows_in_health_and_ends_the_process():
    with process(die_after_s=0.5) as running:
        url = base_url(running)
        wait_ready(url)
        until = time.monotonic() + 10
        while (health := httpx.get(f"{url}/health")).status_code == 200 and time.monotonic() < until:
            time.sleep(0.05)
        assert health.status_code == 500 and "no more steps" in health.json()["message"]
        _, errors = running.communicate(timeout=20)
        assert running.returncode == 1
        assert "the engine died: no more steps" in errors
