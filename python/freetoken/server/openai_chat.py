"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from freetoken.chat.messages import MessageError
from freetoken.chat.renderer import TemplateFault
from freetoken.engine.async_engine import RequestGroup
from freetoken.server import fields
from freetoken.server.body import parse, read_object
from freetoken.server.errors import ApiError, bad_request
from freetoken.server.generation import Delta, deltas, submit, usage, while_connected
from freetoken.server.sampling import core_request, refuse_oversized, room_for
from freetoken.server.schema import ChatFields
from freetoken.server.sse import DONE_FRAME, KEEP_ALIVE_FRAME, SseResponse, data_frame
from freetoken.server.state import ServedModel, ServerState


class _Answer:
    """One request's answer, in either form."""

    def __init__(self, values: ChatFields, model: ServedModel, prompt: list[int]) -> None:
        self._values = values
        self._prompt = prompt
        self._base = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model.name}

    async def whole(self, group: RequestGroup) -> dict[str, Any]:
        total = Delta(0)
        async for delta in deltas(group):
            assert delta is not None
            total.text += delta.text
            total.tokens += delta.tokens
            total.finish, total.completion_tokens = delta.finish, delta.completion_tokens
        message = {"role": "assistant", "content": total.text, "refusal": None}
        choice: dict[str, Any] = {"index": 0, "message": message, "logprobs": None, "finish_reason": total.finish}
        body = {**self._base, "object": "chat.completion", "choices": [choice]}
        body["usage"] = usage(len(self._prompt), total.completion_tokens)
        if self._values.return_token_ids:
            body["prompt_token_ids"] = self._prompt
            choice["token_ids"] = total.tokens
        return body

    async def frames(self, group: RequestGroup, keep_alive_s: float) -> AsyncIterator[bytes]:
        first: dict[str, Any] = {"prompt_token_ids": self._prompt} if self._values.return_token_ids else {}
        yield self._chunk({"role": "assistant", "content": ""}, None, [], first)
        completion_tokens = 0
        try:
            async for delta in deltas(group, keep_alive_s):
                if delta is None:
                    yield KEEP_ALIVE_FRAME
                    continue
                completion_tokens = delta.completion_tokens
                if delta.text or (delta.tokens and self._values.return_token_ids):
                    yield self._chunk({"content": delta.text}, None, delta.tokens)
                if delta.finish is not None:
                    yield self._chunk({}, delta.finish, [])
        except ApiError as error:
            yield data_frame(error.body())
        else:
            if self._values.include_usage:
                body = {**self._base, "object": "chat.completion.chunk", "choices": []}
                yield data_frame({**body, "usage": usage(len(self._prompt), completion_tokens)})
        yield DONE_FRAME

    def _chunk(
        self, delta: dict[str, Any], finish: str | None, tokens: list[int], extra: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        if self._values.return_token_ids:
            choice["token_ids"] = tokens
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
    wanted = values.max_completion_tokens if values.max_completion_tokens is not None else values.max_tokens
    if wanted is not None and wanted < 1:
        name = "max_tokens" if values.max_completion_tokens is None else "max_completion_tokens"
        raise bad_request(f"'{name}' must be at least 1, not {wanted}", name, "invalid_value")
    prompt = await _prompt_of(values, model)
    max_tokens = room_for(prompt, wanted, model, "messages")
    answer = _Answer(values, model, prompt)
    group = submit(model, [core_request(values, model, prompt, max_tokens)])
    if values.stream:
        return SseResponse(answer.frames(group, state.keep_alive_s), group.cancel)
    body = await while_connected(request, group, answer.whole(group))
    return Response(orjson.dumps(body), 200, media_type="application/json")
