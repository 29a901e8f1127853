"""Runs cases/*.json against the application in process; see cases/README.md for their form."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fakes.served import CHATML, frames_of, make_prompter, normal_form, script_ids, serving, whole_of

TEMPLATES = {
    "chatml": CHATML,
    "none": None,
    "bare": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "strict": "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system message must come first') }}{% endif %}{% endfor %}" + CHATML,
    "faulty": "{{ messages[0].content / 2 }}",
    "refusing": "{{ raise_exception('only even turns') }}",
    "bos": "{{ bos_token }}" + CHATML,
}


def load_cases() -> list[Any]:
    cases = []
    for path in sorted(Path(__file__).with_name("cases").glob("*.json")):
        for name, case in json.loads(path.read_text()).items():
            cases.append(pytest.param(case, id=f"{path.stem}-{name}"))
    return cases


def check(actual: Any, expected: Any, where: str = "body") -> None:
    """`expected` is a part of `actual`: objects may have more keys, lists may not be longer; {"~": RE} searches."""
    actual = list(actual) if isinstance(actual, tuple) else actual
    if isinstance(expected, dict) and set(expected) == {"~"}:
        assert isinstance(actual, str) and re.search(expected["~"], actual), (
            f"{where}: {actual!r} has no {expected['~']!r}"
        )
    elif isinstance(expected, dict):
        assert isinstance(actual, dict), f"{where}: {actual!r}"
        for key, value in expected.items():
            assert key in actual, f"{where}: no {key!r} in {actual!r}"
            check(actual[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert isinstance(actual, list) and len(actual) == len(expected), f"{where}: {actual!r} is not {expected!r}"
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            check(one, other, f"{where}[{i}]")
    else:
        assert actual == expected and type(actual) is type(expected), f"{where}: {actual!r} is not {expected!r}"


def check_error_shape(body: Any) -> None:
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"] and body["error"]["type"]


@pytest.fixture(scope="module")
def prompters():
    """One per template and add_bos: each has a worker process."""
    made: dict[Any, Any] = {}

    def get(template: str, add_bos: bool) -> Any:
        if TEMPLATES[template] is None:
            return None
        if (template, add_bos) not in made:
            made[template, add_bos] = make_prompter(TEMPLATES[template], add_bos)
        return made[template, add_bos]

    yield get
    for prompter in made.values():
        prompter.close()


@pytest.mark.parametrize("case", load_cases())
def test_case(case, prompters):
    asyncio.run(run(case, prompters))


async def run(case: dict[str, Any], prompters: Any) -> None:
    options = dict(case.get("server", {}))
    template = options.pop("template", "chatml" if "chat" in case["path"] else "none")
    options["prompter"] = prompters(template, options.get("add_bos", False))
    options["template"] = None
    async with serving(case.get("script", []), **options) as (served, client):
        body = case.get("body")
        content = case["raw"].encode() if "raw" in case else None if body is None else json.dumps(body).encode()
        method = case.get("method", "GET" if content is None else "POST")
        answer = await client.request(method, case["path"], content=content, headers=case.get("headers", {}))
        assert answer.status_code == case["status"], answer.text
        assert answer.headers["x-request-id"]
        for name, value in case.get("answer_headers", {}).items():
            check(answer.headers.get(name), value, name)
        if "submitted" in case:
            check(served.core.submitted, case["submitted"], "submitted")
        if "prompt" in case:
            assert served.core.submitted[0]["prompt"] == script_ids(served.tokenizer, case["prompt"])
        if "prompt_text" in case:
            assert served.tokenizer.decode(served.core.submitted[0]["prompt"]) == case["prompt_text"]
        if "control_tokens" in case:
            wanted = script_ids(served.tokenizer, case["control_tokens"])
            assert [token for token in served.core.submitted[0]["prompt"] if token > 255] == wanted
        if answer.headers["content-type"].startswith("text/event-stream"):
            frames = frames_of(answer.text)
            comments = [frame for frame in frames if isinstance(frame, str) and frame.startswith(":")]
            assert len(comments) >= case.get("comments", 0)
            frames = [frame for frame in frames if frame not in comments]
            if "last_frames" in case:
                check(frames[-len(case["last_frames"]) :], case["last_frames"], "last frames")
            if "frames" in case:
                check(frames, case["frames"], "frames")
            if "whole" in case:
                check(whole_of(frames), case["whole"], "whole")
            return
        if answer.status_code >= 400 and case["path"] != "/health":
            check_error_shape(answer.json())
        check(answer.json(), case.get("answer", {}))
        if answer.status_code == 200 and method == "POST":
            await same_when_streamed(client, case, body, answer.json())


async def same_when_streamed(client: Any, case: dict[str, Any], body: dict[str, Any], whole: dict[str, Any]) -> None:
    streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
    answer = await client.post(case["path"], json=streaming, headers=case.get("headers", {}))
    streamed = whole_of(frames_of(answer.text))
    streamed.pop("id")
    assert streamed == normal_form(whole)
