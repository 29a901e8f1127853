"""However the tokens of an answer are cut, its text is the same, streamed or not: all before the first stop."""

from __future__ import annotations

import asyncio
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.served import CHATML, frames_of, make_prompter, normal_form, serving, whole_of

PROMPTER = make_prompter(CHATML)  # its worker starts with the first example and ends with this process
PATHS = {
    "/v1/completions": {"prompt": "p", "logprobs": 1, "echo": True, "max_tokens": 99},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "p"}], "logprobs": True, "top_logprobs": 2},
}
TEXT = st.lists(st.sampled_from(["a", "b", "stop", "st", "é", "💡", " ", "\n", "data: ", "\n\n"]), max_size=12).map(
    "".join
)
CUTS = st.sets(st.integers(1, 60))
STOPS = st.lists(st.sampled_from(["stop", "b\n", "💡", "ab"]), max_size=2)


def tokens_of(text: str, cuts: set[int]) -> list[bytes]:
    data = text.encode()
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


def before_stop(text: str, stops: list[str]) -> str:
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return text[: min(found)] if found else text


def script_of(tokens: list[bytes]) -> list:
    return [{"hex": token.hex()} for token in tokens] + ["<|eos|>"]


@given(texts=st.lists(st.tuples(TEXT, CUTS), min_size=1, max_size=3), stops=STOPS)
@settings(max_examples=20, deadline=None)
def test_any_split_gives_the_same_answer(texts, stops):
    """Each choice of a request has a text and a split of its own."""
    scripts = [script_of(tokens_of(text, cuts)) for text, cuts in texts]
    asyncio.run(check(scripts, {"stop": stops, "n": len(texts)}, [before_stop(text, stops) for text, _ in texts]))


@given(text=TEXT, cuts=CUTS, stops=STOPS, limit=st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_a_limit_cuts_both_alike(text, cuts, stops, limit):
    """At the limit all that is withheld comes out: of the first `limit` tokens, with a replacement for a part of a
    character at the end."""
    tokens = tokens_of(text, cuts)
    shown = b"".join(tokens[:limit]).decode(errors="replace")
    body = {"stop": stops, "max_tokens": limit, "n": 2}
    asyncio.run(check([script_of(tokens)], body, [before_stop(shown, stops)] * 2))


async def check(scripts, fields, expected):
    async with serving(scripts, prompter=PROMPTER) as (_, client):
        for path, part in PATHS.items():
            body = {"model": "tiny", "return_token_ids": True, **part, **fields}
            streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
            both = await asyncio.gather(client.post(path, json=body), client.post(path, json=streaming))
            whole = normal_form(both[0].json())
            echo = "p" if "prompt" in part else ""
            assert [choice["text"] for choice in whole["choices"]] == [echo + text for text in expected]
            streamed = whole_of(frames_of(both[1].text))
            streamed.pop("id")
            assert streamed == whole


@given(text=TEXT, cuts=CUTS, stops=STOPS, after=st.integers(0, 6))
@settings(max_examples=20, deadline=None)
def test_what_came_before_a_cancel_is_the_start_of_the_answer(text, cuts, stops, after):
    tokens = tokens_of(text, cuts)
    scripts = [script_of(tokens), script_of([text.encode()] if text else [])]
    asyncio.run(cancelled(scripts, stops, before_stop(text, stops), min(after, len(tokens))))


async def cancelled(scripts, stops, expected, after):
    for path, part in PATHS.items():
        async with serving(scripts, prompter=PROMPTER, step_s=0.001) as (served, client):
            body = {"model": "tiny", **part, "stop": stops, "n": 2, "stream": True}
            answer = asyncio.ensure_future(client.post(path, json=body))
            while not served.core.submitted or any(r.choice == 0 and r.made < after for r in served.core._running):
                await asyncio.sleep(0)
            served.engine.stop()
            frames = frames_of((await answer).text)
            texts, ended = ["", ""], set()
            for frame in frames[:-1]:
                for choice in frame.get("choices", []):
                    texts[choice["index"]] += (
                        choice["delta"].get("content", "") if "delta" in choice else choice["text"]
                    )
                    ended |= {choice["index"]} if choice["finish_reason"] else set()
            whole = ("p" if "prompt" in part else "") + expected
            for index, shown in enumerate(texts):
                assert whole.startswith(shown) and (index not in ended or shown == whole)
            assert frames[-1] == "[DONE]"
            if len(ended) < 2:
                assert "shutting down" in frames[-2]["error"]["message"]
