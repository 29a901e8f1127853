"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from freetoken.chat.prompt import with_one_bos
from freetoken.engine.async_engine import RequestGroup
from freetoken.server import fields
from freetoken.server.body import parse, read_object
from freetoken.server.errors import bad_request
from freetoken.server.generation import Delta, Usage, deltas, submit, while_connected
from freetoken.server.legacy_logprobs import LegacyLogprobs, join
from freetoken.server.sampling import core_request, refuse_oversized, room_for
from freetoken.server.schema import CompletionFields
from freetoken.server.sse import data_frame
from freetoken.server.state import ServedModel, ServerState
from freetoken.server.stream import StreamResponse


@dataclass
class _Prompt:
    tokens: list[int]
    text: str  # as echo returns it
    logprobs: list[Any] = field(default_factory=list)  # once they came, with the first choice's first delta


class _Choice:
    """One answer to one prompt, delta by delta, in the form that both the stream and the whole answer are made of."""

    def __init__(self, values: CompletionFields, model: ServedModel, index: int, prompt: _Prompt) -> None:
        self._values = values
        self._index = index
        self._prompt = prompt
        self._logprobs = LegacyLogprobs(model) if values.logprobs is not None else None
        self._begun = False

    def piece(self, delta: Delta) -> dict[str, Any]:
        """This delta as a choice of a stream chunk."""
        begins, self._begun = not self._begun, True
        text, logprobs = delta.text, None
        self._prompt.logprobs = delta.prompt_logprobs or self._prompt.logprobs
        pieces: list[dict[str, list[Any]]] = []
        if begins and self._values.echo:
            text = self._prompt.text + text
            if self._logprobs:
                pieces.append(self._logprobs.prompt(self._prompt.logprobs, self._prompt.text))
        if self._logprobs:
            logprobs = join([*pieces, self._logprobs.completion(delta.logprobs)])
        choice = {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": delta.finish}
        if self._values.return_token_ids:
            choice["token_ids"] = delta.tokens
            if begins:
                choice["prompt_token_ids"] = self._prompt.tokens
        return choice

    @staticmethod
    def whole(pieces: list[dict[str, Any]]) -> dict[str, Any]:
        choice = {**pieces[0], "text": "".join(piece["text"] for piece in pieces)}
        choice["finish_reason"] = pieces[-1]["finish_reason"]
        if choice["logprobs"] is not None:
            choice["logprobs"] = join([piece["logprobs"] for piece in pieces])
        if "token_ids" in choice:
            choice["token_ids"] = [token for piece in pieces for token in piece["token_ids"]]
        return choice


class _Answer:
    def __init__(self, values: CompletionFields, model: ServedModel, prompts: list[_Prompt]) -> None:
        self._values = values
        of_choices = [prompt for prompt in prompts for _ in range(values.n)]  # in OpenAI's order
        self._choices = [_Choice(values, model, i, prompt) for i, prompt in enumerate(of_choices)]
        self._usage = Usage([len(prompt.tokens) for prompt in prompts], values.n)
        self._base = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }
        self._no_usage = {"usage": None} if values.include_usage else {}

    async def whole(self, group: RequestGroup) -> dict[str, Any]:
        pieces: list[list[dict[str, Any]]] = [[] for _ in self._choices]
        async for delta in deltas(group):
            self._usage.add(delta)
            pieces[delta.index].append(self._choices[delta.index].piece(delta))
        return {**self._base, "choices": [_Choice.whole(part) for part in pieces], "usage": self._usage.body()}

    def opening(self) -> bytes:
        return b""

    def of_delta(self, delta: Delta) -> bytes:
        self._usage.add(delta)
        piece = self._choices[delta.index].piece(delta)
        finish, piece["finish_reason"] = piece["finish_reason"], None
        logprobs = piece["logprobs"]
        frames = b""
        if piece["text"] or piece.get("token_ids") or (logprobs and logprobs["tokens"]):
            frames = data_frame({**self._base, "choices": [piece], **self._no_usage})
        if finish is not None:  # always a frame of its own, however the tokens came
            final = {"index": delta.index, "text": "", "logprobs": None, "finish_reason": finish}
            frames += data_frame({**self._base, "choices": [final], **self._no_usage})
        return frames

    def closing(self) -> bytes:
        if not self._values.include_usage:
            return b""
        return data_frame({**self._base, "choices": [], "usage": self._usage.body()})


def _encode(values: CompletionFields, model: ServedModel) -> list[_Prompt]:
    """A text prompt is raw: it may spell control tokens, as those who apply a template themselves need. Blocking."""
    prompts = []
    for prompt in values.prompt:
        if isinstance(prompt, str):
            refuse_oversized(len(prompt.encode()), model, "prompt")
            try:
                tokens = with_one_bos(model.tokenizer.encode(prompt, allow_special=True), model.tokenizer)
            except ValueError as error:
                raise bad_request(str(error), "prompt") from None
            # Now, and not after 127 others were encoded.
            room_for(tokens, None, model, "prompt", at_least_tokens=0 if values.max_tokens == 0 else 1)
            prompts.append(_Prompt(tokens, prompt))
            continue
        for token in prompt:
            if token >= len(model.token_bytes):
                raise bad_request(f"token id {token} is outside the vocabulary of {len(model.token_bytes)}", "prompt")
        prompts.append(_Prompt(prompt, model.tokenizer.decode(prompt) if values.echo else ""))
    return prompts


def _core_requests(values: CompletionFields, model: ServedModel, prompts: list[_Prompt]) -> list[dict[str, Any]]:
    wanted = values.wanted_tokens
    requests = []
    for prompt in prompts:
        max_tokens = room_for(prompt.tokens, wanted, model, "prompt", at_least_tokens=min(1, wanted))
        request = core_request(values, model, prompt.tokens, max_tokens)
        request["logprobs"] = -1 if values.logprobs is None else values.logprobs
        # The core takes max_tokens 0 for prompt logprobs only.
        request["prompt_logprobs"] = max_tokens == 0 or (values.echo and values.logprobs is not None)
        requests.append(request)
    return requests


async def completions(request: Request) -> Response:
    state: ServerState = request.app.state.server
    model = state.require_model()
    values = parse(fields.COMPLETIONS, await read_object(request, state.max_body_bytes), CompletionFields, model)
    prompts = await asyncio.to_thread(_encode, values, model)
    answer = _Answer(values, model, prompts)
    group = submit(model, _core_requests(values, model, prompts))
    if values.stream:
        return StreamResponse(group, answer, state.keep_alive_s)
    body = await while_connected(request, group, answer.whole(group))
    return Response(orjson.dumps(body), 200, media_type="application/json")
