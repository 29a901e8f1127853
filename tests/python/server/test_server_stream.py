"""StreamResponse on a client that leaves, one that does not read, and one that breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from freetoken.server.stream import StreamResponse


class Group:
    """Of one choice: each call of `say` is an event."""

    def __init__(self) -> None:
        self.listener: Any = None
        self.events: list[Any] = []
        self.finished = False
        self.cancelled = 0

    def listen(self, listener: Any) -> None:
        self.listener = listener

    def take(self) -> list[Any]:
        events, self.events = self.events, []
        return events

    def cancel(self) -> None:
        self.cancelled += 1

    def say(self, text: str, last: bool = False) -> None:
        event = type("Event", (), {"finish": "stop" if last else None, "text": text, "tokens": [1], "logprobs": [],
                                   "prompt_logprobs": [], "cached_tokens": 0, "completion_tokens": 1})()  # fmt: skip
        self.events.append((0, event))
        self.finished = last
        if self.listener is not None:
            self.listener()


class Answer:
    def opening(self) -> bytes:
        return b"<"

    def of_delta(self, delta: Any) -> bytes:
        return delta.text.encode()

    def closing(self) -> bytes:
        return b">"


class Client:
    """Keeps what it is sent; reads only while `reading` is set."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.reading = asyncio.Event()
        self.reading.set()
        self.gone = asyncio.Event()
        self.error: Exception | None = None

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and self.error is not None:
            raise self.error
        self.messages.append(message)
        await self.reading.wait()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages[1:]]


async def begin(keep_alive_s: float = 60) -> tuple[Group, Client, asyncio.Task[None]]:
    group, client = Group(), Client()
    response = StreamResponse(group, Answer(), keep_alive_s)  # type: ignore[arg-type]
    task = asyncio.ensure_future(response({"type": "http"}, client.receive, client.send))
    while group.listener is None:
        await asyncio.sleep(0)
    return group, client, task


def test_frames_are_sent_at_once_and_the_body_is_ended():
    async def test():
        group, client, task = await begin()
        for text in ("a", "b"):
            group.say(text)
            assert client.bodies[-1] == text.encode()  # without a turn of the loop
        group.say("c", last=True)
        await task
        assert client.bodies == [b"<", b"a", b"b", b"c>data: [DONE]\n\n", b""]
        assert client.messages[-1]["more_body"] is False and group.cancelled == 1 and group.listener is None

    asyncio.run(test())


def test_nothing_is_sent_to_one_that_left():
    async def test():
        group, client, task = await begin()
        group.say("a")
        client.gone.set()
        await task
        group.say("b")
        assert client.bodies == [b"<", b"a"] and group.cancelled == 1

    asyncio.run(test())


def test_what_comes_while_a_client_does_not_read_is_sent_together():
    async def test():
        group, client, task = await begin()
        client.reading.clear()
        for text in "abcd":
            group.say(text)
        assert client.bodies == [b"<", b"a"]
        client.reading.set()
        while len(client.bodies) < 3:
            await asyncio.sleep(0)
        assert client.bodies == [b"<", b"a", b"bcd"]
        client.reading.clear()
        group.say("e")
        group.say("f", last=True)
        client.reading.set()
        await task
        assert b"".join(client.bodies) == b"<abcdef>data: [DONE]\n\n"

    asyncio.run(test())


def test_leaving_while_a_write_waits():
    async def test():
        group, client, task = await begin()
        client.reading.clear()
        group.say("a")
        client.gone.set()
        await task
        assert client.bodies == [b"<", b"a"] and group.listener is None

    asyncio.run(test())


@pytest.mark.parametrize("error", [OSError("reset"), RuntimeError("broken")])
def test_a_write_that_fails_ends_the_answer(error):
    async def test():
        group, client, task = await begin()
        client.error = error
        group.say("a")
        if isinstance(error, OSError):
            await task
        else:
            with pytest.raises(RuntimeError, match="broken"):
                await task
        assert client.bodies == [b"<"] and group.cancelled == 1

    asyncio.run(test())


def test_silence_is_broken_by_comments():
    async def test():
        group, client, task = await begin(keep_alive_s=0.01)
        while len(client.bodies) < 4:
            await asyncio.sleep(0.005)
        assert set(client.bodies[1:]) == {b": keep-alive\n\n"}
        group.say("a", last=True)
        await task
        sent = len(client.messages)
        await asyncio.sleep(0.03)
        assert len(client.messages) == sent

    asyncio.run(test())
