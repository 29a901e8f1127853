"""AsyncEngine over the scripted engine: groups, order, wake-ups, cancellation, close."""

from __future__ import annotations

import asyncio

import pytest

from fakes.byte_tokenizer import ByteTokenizer
from fakes.scripted_engine import ScriptedEngine
from freetoken.engine.async_engine import AsyncEngine, EngineDead, QueueFull

REQUEST = {
    "prompt": [1], "max_tokens": 5, "n": 1, "min_tokens": 0, "timeout_us": 0, "logit_bias": [], "stop": [],
    "stop_token_ids": [], "ignore_eos": False, "emit_special_tokens": False, "logprobs": -1,
    "prompt_logprobs": False,
}  # fmt: skip


def run(test, script=lambda request: [97] * 50, step_s=0.0, max_requests=64):
    async def main():
        core = ScriptedEngine(ByteTokenizer().vocab_bytes(), [259], script, step_s, max_requests)
        engine = AsyncEngine(core)
        engine.start()
        try:
            await test(engine, core)
        finally:
            engine.close()

    asyncio.run(main())


async def texts_of(group):
    texts: dict[int, str] = {}
    while not group.finished:
        for index, event in await group.next():
            texts[index] = texts.get(index, "") + event.text
    return texts


def test_groups_get_their_own_events_in_order():
    async def test(engine, core):
        groups = [engine.group() for _ in range(8)]
        for number, group in enumerate(groups):
            for extra in range(3):
                group.submit({**REQUEST, "prompt": [number, extra]})
        results = await asyncio.gather(*(texts_of(group) for group in groups))
        for number, texts in enumerate(results):
            assert texts == {extra: bytes([97 + number, 65 + extra, 48, 49, 50]).decode() for extra in range(3)}
        assert engine.active == 0

    run(test, lambda request: [97 + request["prompt"][0], 65 + request["prompt"][1], 48, 49, 50])


def test_choices_are_numbered_over_the_group_and_end_one_by_one():
    async def test(engine, core):
        group = engine.group()
        assert [group.submit({**REQUEST, "n": n, "max_tokens": 9}) for n in (3, 1, 2)] == [0, 3, 4]
        texts = {}
        while not group.finished:
            assert engine.active > 0 or not texts
            for index, event in await group.next():
                texts[index] = texts.get(index, "") + event.text
        assert texts == {0: "a", 1: "bb", 2: "ccc", 3: "a", 4: "a", 5: "bb"}
        assert engine.active == 0

    run(test, lambda request: [97 + request["choice"]] * (1 + request["choice"]), step_s=0.001)


def test_cancel_of_several_choices():
    async def test(engine, core):
        core.hold = True
        group = engine.group()
        group.submit({**REQUEST, "n": 2})
        group.submit(REQUEST)
        group.cancel()
        ended = []
        while not group.finished:
            ended += [(index, event.finish) for index, event in await group.next()]
        assert sorted(ended) == [(0, "cancelled"), (1, "cancelled"), (2, "cancelled")] and core.cancelled == [1, 2]

    run(test)


def test_a_full_queue_says_when_to_come_again():
    async def test(engine, core):
        core.hold = True
        first = engine.group()
        first.submit({**REQUEST, "n": 2})
        with pytest.raises(QueueFull, match="2 of 2 places") as caught:
            engine.group().submit(REQUEST)
        assert caught.value.retry_after_s == 1  # nothing ended yet: no estimate
        core.hold = False
        await texts_of(first)
        await asyncio.sleep(1.2)
        core.hold = True
        first.submit({**REQUEST, "n": 2})
        with pytest.raises(QueueFull) as caught:
            engine.group().submit(REQUEST)
        assert caught.value.retry_after_s == 2  # one request ended in the last 1.2 s and a bit

    run(test, max_requests=2)


def test_one_wake_up_drains_every_request():
    async def test(engine, core):
        polls = []
        poll = core.poll

        def counting():
            events = poll()
            polls.append(len(events))
            return events

        core.poll = counting
        core.hold = True
        group = engine.group()
        for _ in range(20):
            group.submit(REQUEST)
        core.hold = False
        await texts_of(group)
        # 5 steps of 20 requests: events of one step arrive together, so wake-ups are few (some steps may merge).
        assert sum(polls) == 100 and len([n for n in polls if n]) <= 6

    run(test, step_s=0.01)


def test_cancel_ends_one_request():
    async def test(engine, core):
        core.hold = True
        first, second = engine.group(), engine.group()
        first.submit(REQUEST)
        second.submit(REQUEST)
        first.cancel()
        assert [event.finish for _, event in await first.next()] == ["cancelled"]
        core.hold = False
        assert await texts_of(second) == {0: "aaaaa"}
        first.cancel()  # again, after its end
        assert core.cancelled == [1]

    run(test)


def test_a_listener_hears_of_each_event_and_of_the_end():
    async def test(engine, core):
        core.hold = True
        group = engine.group()
        heard = []
        group.listen(lambda: heard.append([event.text for _, event in group.take()]))
        group.submit(REQUEST)
        await asyncio.sleep(0.01)
        assert heard == []
        core.hold = False
        while not group.finished:
            await asyncio.sleep(0.001)
        assert heard == [["a"]] * 5
        group.listen(None)
        with pytest.raises(EngineDead):
            lost = engine.group()
            core.hold = True
            lost.listen(lambda: heard.append("lost"))
            lost.submit(REQUEST)
            core.kill("gone")
            await asyncio.wait_for(engine.died.wait(), 5)
            lost.take()
        assert heard[5:] == ["lost"]

    run(test)


def test_stop_cancels_and_takes_no_more():
    async def test(engine, core):
        core.hold = True
        group = engine.group()
        group.submit(REQUEST)
        engine.stop()
        assert [event.finish for _, event in await group.next()] == ["cancelled"]
        with pytest.raises(EngineDead, match="shutting down"):
            engine.group().submit(REQUEST)

    run(test)


def test_close_ends_waiting_groups_and_refuses_new_ones():
    async def test(engine, core):
        core.hold = True
        group = engine.group()
        group.submit(REQUEST)
        waiting = asyncio.ensure_future(group.next())
        await asyncio.sleep(0)
        engine.close()
        assert [event.finish for _, event in await waiting] == ["cancelled"]
        with pytest.raises(EngineDead):
            engine.group().submit(REQUEST)

    run(test)


def test_death_is_noticed_without_an_event():
    async def test(engine, core):
        core.hold = True
        group = engine.group()
        group.submit(REQUEST)
        core._dead = "silent"  # no wake-up: the timer has to find it
        await asyncio.wait_for(engine.died.wait(), 5)
        with pytest.raises(EngineDead, match="silent"):
            await group.next()
        assert not group.finished  # it was cut short

    run(test)


def test_the_core_is_told_after_the_events_of_a_step_have_reached_their_listeners():
    async def test(engine, core):
        calls: list[str] = []
        poll = core.poll

        def polled():
            calls.append("poll")
            return poll()

        core.poll, core.delivered = polled, lambda: calls.append("delivered")
        group = engine.group()
        group.listen(lambda: calls.append("listener"))
        group.submit({**REQUEST, "max_tokens": 3})
        while len(group.take()) == 0 or not group.finished:
            await asyncio.sleep(0.001)
        assert calls.count("listener") == 3
        assert calls.count("poll") == calls.count("delivered")
        for at, call in enumerate(calls):
            assert call != "poll" or calls[at + 1] in ("listener", "delivered")
            assert call != "listener" or calls[at + 1] in ("listener", "delivered")

    run(test, step_s=0.002)
