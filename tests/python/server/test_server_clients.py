"""The openai client, which checks every answer against its own models, and clients that go away."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest

from fakes.served import frames_of, listening, serving, whole_of

HI = [{"role": "user", "content": "hi"}]
SCRIPT = ["Hel", "lo", {"hex": "f09f"}, {"hex": "9880"}, "<|im_end|>"]


def client_for(url: str, strict: bool = True) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sesame", max_retries=0, _strict_response_validation=strict)


async def wait_until(condition, seconds=5.0):
    async with asyncio.timeout(seconds) if hasattr(asyncio, "timeout") else _no_limit():
        while not condition():
            await asyncio.sleep(0.005)


class _no_limit:
    async def __aenter__(self): ...
    async def __aexit__(self, *_): ...


def test_openai_chat():
    async def run():
        async with listening(SCRIPT, api_key="sesame") as (_, url), client_for(url) as client:
            whole = await client.chat.completions.create(model="tiny", messages=HI)
            assert whole.choices[0].message.content == "Hello😀"
            assert whole.choices[0].finish_reason == "stop"
            assert whole.usage.completion_tokens == 5
            more = {"n": 2, "logprobs": True, "top_logprobs": 3, "presence_penalty": 0.5, "logit_bias": {"1": -100}}
            extra = {"min_p": 0.1, "min_tokens": 1, "priority": 2, "timeout": 60, "repetition_penalty": 1.1}
            two = await client.chat.completions.create(model="tiny", messages=HI, **more, extra_body=extra)
            assert [choice.message.content for choice in two.choices] == ["Hello😀"] * 2
            assert [len(item.top_logprobs) for item in two.choices[1].logprobs.content] == [3] * 5
            assert two.usage.completion_tokens == 10 and two.usage.prompt_tokens_details.cached_tokens == 0
            options = {"include_usage": True}
            stream = await client.chat.completions.create(
                model="tiny", messages=HI, stream=True, stream_options=options
            )
            chunks = [chunk async for chunk in stream]
            assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello😀"
            assert chunks[-1].usage == whole.usage and chunks[-1].choices == []
            stream = await client.chat.completions.create(model="tiny", messages=HI, stream=True, **more)
            texts, tokens = ["", ""], [0, 0]
            async for chunk in stream:
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
                    tokens[choice.index] += len(choice.logprobs.content) if choice.logprobs else 0
            assert texts == ["Hello😀"] * 2 and tokens == [5, 5]
            async with client.chat.completions.stream(model="tiny", messages=HI) as helper:
                assert (await helper.get_final_completion()).choices[0].message.content == "Hello😀"

    asyncio.run(run())


def test_openai_completions_and_models():
    async def run():
        async with listening(SCRIPT, api_key="sesame") as (_, url), client_for(url) as client:
            whole = await client.completions.create(model="tiny", prompt="x", logprobs=2)
            assert whole.choices[0].text == "Hello😀"
            assert len(whole.choices[0].logprobs.tokens) == len(whole.choices[0].logprobs.text_offset) == 5
            assert [model.id async for model in client.models.list()] == ["tiny"]
            two = await client.completions.create(model="tiny", prompt="x", n=2, best_of=2, logit_bias={"97": -100})
            assert [choice.text for choice in two.choices] == ["Hello😀"] * 2
            assert two.usage.prompt_tokens_details.cached_tokens == 0
            assert (await client.models.retrieve("tiny")).created == 1700000000
            # Their models want a finish_reason in each chunk and a logprob for the first token; no server has them.
            async with client_for(url, strict=False) as lenient:
                echo = await lenient.completions.create(model="tiny", prompt="x", logprobs=2, echo=True)
                assert echo.choices[0].text == "xHello😀" and echo.choices[0].logprobs.token_logprobs[0] is None
                stream = await lenient.completions.create(model="tiny", prompt="x", stream=True)
                assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello😀"

    asyncio.run(run())


def test_openai_errors():
    async def run():
        async with (
            listening(SCRIPT, api_key="sesame", max_sequence_tokens=10) as (served, url),
            client_for(url) as client,
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="tiny", messages=HI)
            assert caught.value.code == "context_length_exceeded"
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="other", messages=HI)
            served.core.hold = True
            with pytest.raises(openai.APIStatusError) as caught:
                await client.with_options(max_retries=2).completions.create(
                    model="tiny", prompt="x", extra_body={"timeout": 0.05}
                )
            assert caught.value.status_code == 408 and caught.value.code == "timeout"
            assert len(served.core.submitted) == 1  # it was not tried again
            with pytest.raises(openai.AuthenticationError):
                await client.with_options(api_key="wrong").models.list()

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("started", [False, True], ids=["queued", "decoding"])
def test_a_client_that_goes_away_ends_its_request_only(stream, started):
    async def run():
        # 900 steps take 9 s: however slow the machine, the client leaves long before the end.
        async with listening(lambda request: [97] * 900, step_s=0.01) as (served, url):
            served.core.hold = not started
            async with httpx.AsyncClient(base_url=url) as client:
                body = {"model": "tiny", "prompt": "stay", "max_tokens": 30}
                stays = asyncio.ensure_future(client.post("/v1/completions", json=body, timeout=20))
                await wait_until(lambda: len(served.core.submitted) == 1)
                request = client.build_request(
                    "POST", "/v1/completions", json={**body, "max_tokens": 900, "stream": stream}
                )
                leaves = asyncio.ensure_future(client.send(request, stream=stream))
                await wait_until(lambda: len(served.core.submitted) == 2)
                assert served.core.cancelled == []
                if stream:
                    await (await leaves).aclose()
                else:
                    leaves.cancel()
                await wait_until(lambda: served.core.cancelled)
                assert served.core.cancelled == [2]
                served.core.hold = False
                answer = (await stays).json()
                assert answer["choices"][0]["text"] == "a" * 30
                assert answer["choices"][0]["finish_reason"] == "length"

    asyncio.run(run())


def test_silence_is_filled_with_comments_after_headers_at_once():
    async def run():
        async with (
            listening(["a", "<|eos|>"], keep_alive_s=0.02) as (served, url),
            httpx.AsyncClient(base_url=url) as client,
        ):
            served.core.hold = True
            body = {"model": "tiny", "messages": HI, "stream": True}
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                assert answer.status_code == 200  # the engine has done nothing yet
                text = ""
                async for part in answer.aiter_text():
                    text += part
                    if text.count(": keep-alive\n\n") == 3:
                        served.core.hold = False
            frames = [frame for frame in frames_of(text) if frame != ": keep-alive"]
            assert whole_of(frames)["choices"][0]["text"] == "a"

    asyncio.run(run())


def test_queue_limit():
    async def run():
        async with serving(["a", "<|eos|>"], max_requests=2) as (served, client):
            served.core.hold = True
            body = {"model": "tiny", "prompt": "x"}
            waiting = [asyncio.ensure_future(client.post("/v1/completions", json=body)) for _ in range(2)]
            await wait_until(lambda: served.engine.active == 2)
            refused = await client.post("/v1/completions", json=body)
            assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["type"] == "rate_limit_error"
            both = await client.post("/v1/completions", json={**body, "prompt": ["x", "y"]})
            assert both.status_code == 429
            for more in ({"prompt": ["x", "y", "z"]}, {"prompt": ["x", "y"], "n": 2}, {"n": 3}):
                never = await client.post("/v1/completions", json={**body, **more})
                assert never.status_code == 400
                assert "only 2 can wait at once" in never.json()["error"]["message"]
            served.core.hold = False
            assert [(await answer).status_code for answer in waiting] == [200, 200]
            await wait_until(lambda: served.engine.active == 0)
            assert (await client.post("/v1/completions", json=body)).status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_engine_death_in_the_middle(path):
    async def run():
        async with serving(lambda request: [97] * 900, step_s=0.002) as (served, client):
            body = {"model": "tiny", **({"prompt": "x"} if path == "/v1/completions" else {"messages": HI})}
            streamed = asyncio.ensure_future(client.post(path, json={**body, "stream": True, "max_tokens": 900}))
            whole = asyncio.ensure_future(client.post(path, json={**body, "max_tokens": 900}))
            await wait_until(lambda: len(served.core.submitted) == 2)
            await asyncio.sleep(0.02)
            served.core.kill("out of luck")
            frames = frames_of((await streamed).text)
            assert frames[-1] == "[DONE]" and "out of luck" in frames[-2]["error"]["message"]
            answer = await whole
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "engine_dead"
            health = await client.get("/health")
            assert health.status_code == 500 and "out of luck" in health.json()["message"]
            late = await client.post(path, json=body)
            assert late.status_code == 500 and json.loads(late.text)["error"]["type"] == "server_error"

    asyncio.run(run())
