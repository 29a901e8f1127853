"""Whatever JSON comes, the answer is 200, 400 or 404 in the API's shape: never a 500, never a hang."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.served import CHATML, make_prompter, serving
from freetoken.server.fields import FIELDS

KEYS = st.sampled_from(
    ["role", "content", "type", "text", "tool_calls", "function", "name", "arguments", "id", "include_usage"]
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(-10, 10), st.text(max_size=5),
    st.sampled_from(["user", "assistant", "system", "tool", "tiny", "text", "image_url", "<|im_end|>", "\x00", "﷐"]),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "assistant", "system", "tool", "developer"]) | VALUES,
            "content": st.text() | VALUES,
        },
        optional={"tool_calls": VALUES, "name": VALUES},
    ),
    max_size=3,
)
NAMES = sorted({field.name for field in FIELDS if field.treatment == "honoured"} - {"model", "messages", "prompt"})
EXTRAS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2)


@pytest.fixture(scope="module")
def prompter():
    made = make_prompter(CHATML)
    yield made
    made.close()


@given(messages=MESSAGES | VALUES, prompt=st.text() | st.lists(st.integers(0, 300)) | VALUES, extras=EXTRAS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_json_is_answered(prompter, messages, prompt, extras):
    async def run():
        async with serving(["a", "<|eos|>"], prompter=prompter) as (_, client):
            for path, part in (
                ("/v1/chat/completions", {"messages": messages}),
                ("/v1/completions", {"prompt": prompt}),
            ):
                content = json.dumps({"model": "tiny", **extras, **part}).encode()
                answer = await client.post(path, content=content)
                assert answer.status_code in (200, 400, 404), answer.text
                if answer.status_code != 200:
                    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    asyncio.run(run())
