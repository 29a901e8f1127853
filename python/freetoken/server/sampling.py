"""Request fields -> the fields of the core's Request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from freetoken.server.errors import bad_request, context_length_exceeded
from freetoken.server.schema import GenerationFields
from freetoken.server.state import ServedModel

_INT32_MAX = 2**31 - 1


def room_for(
    prompt: list[int], wanted_tokens: int | None, model: ServedModel, param: str, at_least_tokens: int = 1
) -> int:
    """How many tokens may be generated: `wanted_tokens` (None: all there is room for), cut to the context.

    ApiError 400 when the prompt is empty or leaves no room for `at_least_tokens`.
    """
    if not prompt:
        raise bad_request("the prompt has no tokens", param)
    maximum = model.max_sequence_tokens - at_least_tokens
    if len(prompt) > maximum:
        raise context_length_exceeded(len(prompt), maximum, param)
    room = model.max_sequence_tokens - len(prompt)
    return room if wanted_tokens is None else min(wanted_tokens, room)


def refuse_oversized(size_bytes: int, model: ServedModel, param: str) -> None:
    """ApiError 400 for a text that cannot fit even in tokens that are all as long as the longest.

    Before the tokenizer sees it: that does about 0.5 MB a second, one text at a time.
    """
    least_tokens = -(-size_bytes // model.longest_token_bytes)
    if least_tokens > model.max_sequence_tokens:
        raise context_length_exceeded(least_tokens, model.max_sequence_tokens - 1, param)


def core_request(fields: GenerationFields, model: ServedModel, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    """The request for one prompt. Absent sampling fields come from the model's generation defaults, then: temperature
    1, the others off."""
    _refuse_unknown(fields.stop_token_ids, "stop_token_ids", model)
    _refuse_unknown(fields.logit_bias, "logit_bias", model)

    def pick(name: str, given: float | None, otherwise: float) -> float:
        value = model.generation_defaults.get(name) if given is None else given
        return otherwise if value is None else value

    repetition = fields.repeat_penalty if fields.repetition_penalty is None else fields.repetition_penalty
    timeouts_s = [s for s in (fields.timeout, model.request_timeout_s) if s]
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "min_tokens": min(fields.min_tokens, max_tokens),
        "n": fields.n,
        "priority": fields.priority,
        "timeout_us": max(round(min(timeouts_s) * 1e6), 1) if timeouts_s else 0,
        "temperature": float(pick("temperature", fields.temperature, 1.0)),
        "top_k": min(max(int(pick("top_k", fields.top_k, 0)), 0), _INT32_MAX),
        "top_p": float(pick("top_p", fields.top_p, 1.0)),
        "min_p": float(pick("min_p", fields.min_p, 0.0)),
        "presence_penalty": fields.presence_penalty,
        "frequency_penalty": fields.frequency_penalty,
        "repetition_penalty": float(pick("repetition_penalty", repetition, 1.0)),
        "logit_bias": sorted(fields.logit_bias.items()),
        "seed": None if fields.seed is None else fields.seed & (2**64 - 1),
        "stop": fields.stop or [],
        "stop_token_ids": fields.stop_token_ids,
        "ignore_eos": fields.ignore_eos,
        "emit_special_tokens": False,
        "logprobs": -1,
        "prompt_logprobs": False,
        "logits": "none",
    }


def _refuse_unknown(tokens: Iterable[int], name: str, model: ServedModel) -> None:
    for token in tokens:
        if token >= len(model.token_bytes):
            message = f"'{name}': token id {token} is outside the vocabulary of {len(model.token_bytes)}"
            raise bad_request(message, name, "invalid_value")
