"""Bodies made to cost much or to break what walks them: refused with 400 before they do."""

from __future__ import annotations

import asyncio
import json

import pytest

from fakes.byte_tokenizer import ByteTokenizer
from fakes.served import CHATML, serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hi"}
ARGUMENTS = CHATML.replace(
    "{{ m.content }}", "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}"
)


def post(path, body, **server):
    async def run():
        async with serving(["a", "<|eos|>"], **server) as (served, client):
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            return await client.post(path, content=raw), served.core

    return asyncio.run(run())


def nested(depth):
    value = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.parametrize("where", ["chat_template_kwargs", "messages", "metadata", "response_format"])
@pytest.mark.parametrize("depth", [100, 500])
def test_a_deep_body_is_refused(where, depth):
    body = {"model": "tiny", "messages": [USER], where: {"a": nested(depth)}}
    answer, _ = post(CHAT, body)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_json", answer.text


def test_a_body_as_deep_as_a_schema_is_taken():
    body = {"model": "tiny", "messages": [USER], "chat_template_kwargs": {"a": nested(60)}}
    assert post(CHAT, body)[0].status_code == 200


@pytest.mark.parametrize("arguments", ["[" * 100_000, "[" * 900 + "]" * 900, "[" * 5000 + "]" * 5000, '"\\ud800"', "{"])
def test_arguments_that_are_no_plain_json_are_shown_as_they_were(arguments):
    calls = [{"id": "1", "function": {"name": "f", "arguments": arguments}}]
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": calls}, USER]
    body = {"model": "tiny", "messages": messages}
    answer, core = post(CHAT, body, template=ARGUMENTS, max_sequence_tokens=200_000)
    assert answer.status_code == 200, answer.text
    assert arguments in ByteTokenizer().decode(core.submitted[0]["prompt"])


def test_a_variable_may_have_the_name_of_a_parameter_of_the_renderer():
    body = {"model": "tiny", "messages": [USER], "chat_template_kwargs": {"self": 1, "args": 2, "context": 3}}
    assert post(CHAT, body)[0].status_code == 200


class Counting(ByteTokenizer):
    encoded_chars = 0

    def encode(self, text, allow_special):
        Counting.encoded_chars += len(text)
        return super().encode(text, allow_special)


@pytest.mark.parametrize(
    "path, part, param",
    [
        (COMPLETIONS, {"prompt": "a " * 5_000_000}, "prompt"),
        (COMPLETIONS, {"prompt": ["a " * 40_000] * 128}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "<|im_end|>" * 1_000_000}]}, "messages"),
        (CHAT, {"messages": [USER] * 1_000, "chat_template_kwargs": {"x": "y" * 10_000_000}}, "messages"),
    ],
)
def test_a_text_that_cannot_fit_never_reaches_the_tokenizer(monkeypatch, path, part, param):
    """With the one lock of a tokenizer, 30 MB of text would keep everybody else waiting for a minute."""
    monkeypatch.setattr("fakes.served.ByteTokenizer", Counting)
    Counting.encoded_chars = 0
    template = "{{ x }}" + CHATML
    body = {"model": "tiny", **part}
    answer, _ = post(path, body, template=template, max_sequence_tokens=1000, max_body_bytes=32 << 20)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["code"] == "context_length_exceeded" and error["param"] == param
    assert "> 999 maximum" in error["message"] and int(error["message"].split()[4]) > 1000
    assert Counting.encoded_chars == 0


def test_the_first_prompt_that_is_too_long_ends_the_encoding(monkeypatch):
    monkeypatch.setattr("fakes.served.ByteTokenizer", Counting)
    Counting.encoded_chars = 0
    answer, _ = post(COMPLETIONS, {"model": "tiny", "prompt": ["a" * 2000] * 100}, max_sequence_tokens=1000)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
    assert Counting.encoded_chars == 2000
