"""However the tokens of an answer are cut, its text is the same, streamed or not: all before the first stop."""

from __future__ import annotations

import asyncio
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.served import CHATML, frames_of, make_prompter, normal_form, serving, whole_of

PROMPTER = make_prompter(CHATML)  # its worker starts with the first example and ends with this process
TEXT = st.lists(st.sampled_from(["a", "b", "stop", "st", "é", "💡", " ", "\n", "data: ", "\n\n"]), max_size=12).map(
    "".join
)


@given(
    text=TEXT,
    cuts=st.sets(st.integers(1, 60)),
    stops=st.lists(st.sampled_from(["stop", "b\n", "💡", "ab"]), max_size=2),
)
@settings(max_examples=20, deadline=None)
def test_any_split_gives_the_same_answer(text, cuts, stops):
    data = text.encode()
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    script = [{"hex": data[a:b].hex()} for a, b in itertools.pairwise(edges) if a < b] + ["<|eos|>"]
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    expected = text[: min(found)] if found else text
    asyncio.run(check(script, stops, expected))


async def check(script, stops, expected):
    async with serving(script, prompter=PROMPTER) as (_, client):
        for path, part in (("/v1/completions", {"prompt": "p", "logprobs": 1, "echo": True, "max_tokens": 99}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": "p"}]})):  # fmt: skip
            body = {"model": "tiny", "stop": stops, "return_token_ids": True, **part}
            streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
            both = await asyncio.gather(client.post(path, json=body), client.post(path, json=streaming))
            whole = both[0].json()
            assert normal_form(whole)["choices"][0]["text"] == ("p" if "prompt" in part else "") + expected
            streamed = whole_of(frames_of(both[1].text))
            streamed.pop("id")
            assert streamed == normal_form(whole)
