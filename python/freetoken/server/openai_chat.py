"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from freetoken.chat.messages import MessageError
from freetoken.chat.renderer import TemplateFault
from freetoken.engine.async_engine import RequestGroup
from freetoken.server import fields
from freetoken.server.body import parse, read_object
from freetoken.server.chat_logprobs import chat_logprobs
from freetoken.server.errors import bad_request
from freetoken.server.generation import Delta, Usage, deltas, submit, while_connected
from freetoken.server.sampling import core_request, refuse_oversized, room_for
from freetoken.server.schema import ChatFields
from freetoken.server.sse import data_frame
from freetoken.server.state import ServedModel, ServerState
from freetoken.server.stream import StreamResponse


class _Answer:
    """One request's answer of `n` choices, in either form."""

    def __init__(self, values: ChatFields, model: ServedModel, prompt: list[int]) -> None:
        self._values = values
        self._model = model
        self._prompt = prompt
        self._usage = Usage([len(prompt)], values.n)
        self._base = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model.name}

    def _logprobs(self, delta: Delta) -> dict[str, Any] | None:
        return chat_logprobs(self._model, delta.logprobs) if self._values.logprobs else None

    async def whole(self, group: RequestGroup) -> dict[str, Any]:
        totals = [Delta(index) for index in range(self._values.n)]
        async for delta in deltas(group):
            self._usage.add(delta)
            total = totals[delta.index]
            total.text += delta.text
            total.tokens += delta.tokens
            total.logprobs += delta.logprobs
            total.finish = delta.finish
        body = {**self._base, "object": "chat.completion", "choices": [self._choice(total) for total in totals]}
        body["usage"] = self._usage.body()
        if self._values.return_token_ids:
            body["prompt_token_ids"] = self._prompt
        return body

    def _choice(self, total: Delta) -> dict[str, Any]:
        message = {"role": "assistant", "content": total.text, "refusal": None}
        choice: dict[str, Any] = {"index": total.index, "message": message, "logprobs": self._logprobs(total)}
        choice["finish_reason"] = total.finish
        if self._values.return_token_ids:
            choice["token_ids"] = total.tokens
        return choice

    def opening(self) -> bytes:
        first: dict[str, Any] = {"prompt_token_ids": self._prompt} if self._values.return_token_ids else {}
        role = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(Delta(i), role, {} if i else first) for i in range(self._values.n))

    def of_delta(self, delta: Delta) -> bytes:
        self._usage.add(delta)
        frames = b""
        finish, delta.finish = delta.finish, None
        if delta.text or (delta.tokens and (self._values.return_token_ids or self._values.logprobs)):
            frames = self._chunk(delta, {"content": delta.text})
        if finish is not None:  # always a frame of its own, however the tokens came
            frames += self._chunk(Delta(delta.index, finish=finish), {})
        return frames

    def closing(self) -> bytes:
        if not self._values.include_usage:
            return b""
        body = {**self._base, "object": "chat.completion.chunk", "choices": []}
        return data_frame({**body, "usage": self._usage.body()})

    def _chunk(self, delta: Delta, message: dict[str, Any], extra: dict[str, Any] | None = None) -> bytes:
        logprobs = self._logprobs(delta) if delta.logprobs else None
        choice = {"index": delta.index, "delta": message, "logprobs": logprobs, "finish_reason": delta.finish}
        if self._values.return_token_ids:
            choice["token_ids"] = delta.tokens
        body = {**self._base, "object": "chat.completion.chunk", "choices": [choice], **(extra or {})}
        if self._values.include_usage:
            body["usage"] = None
        return data_frame(body)


async def _prompt_of(values: ChatFields, model: ServedModel) -> list[int]:
    if model.prompter is None:
        reason = model.no_chat_reason or "the model has no chat template"
        message = f"{reason}; give one with ft serve --chat-template FILE, or use /v1/completions"
        raise bad_request(message, "messages", "no_chat_template")
    variables = dict(values.chat_template_kwargs)
    if values.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", values.reasoning_effort)
    try:
        return await asyncio.to_thread(
            model.prompter.encode,
            values.messages,
            variables,
            values.add_generation_prompt,
            lambda size_bytes: refuse_oversized(size_bytes, model, "messages"),
        )
    except MessageError as error:
        raise bad_request(str(error), error.param) from None
    except ValueError as error:
        raise bad_request(str(error), "messages") from None
    except TemplateFault as fault:
        what = "refused the messages" if fault.kind == "rule" else "failed"
        raise bad_request(f"the model's chat template {what}: {fault}", "messages", "chat_template_error") from None


async def chat_completions(request: Request) -> Response:
    state: ServerState = request.app.state.server
    model = state.require_model()
    values = parse(fields.CHAT, await read_object(request, state.max_body_bytes), ChatFields, model)
    prompt = await _prompt_of(values, model)
    max_tokens = room_for(prompt, values.wanted_tokens, model, "messages")
    answer = _Answer(values, model, prompt)
    core = core_request(values, model, prompt, max_tokens)
    core["logprobs"] = values.top_logprobs if values.logprobs else -1
    group = submit(model, [core])
    if values.stream:
        return StreamResponse(group, answer, state.keep_alive_s)
    body = await while_connected(request, group, answer.whole(group))
    return Response(orjson.dumps(body), 200, media_type="application/json")
