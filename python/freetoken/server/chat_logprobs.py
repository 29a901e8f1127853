"""The logprobs object of a chat choice: {"content": [{token, bytes, logprob, top_logprobs}], "refusal": null}."""

from __future__ import annotations

from typing import Any

from freetoken.server.generation import json_logprob
from freetoken.server.legacy_logprobs import Entries, token_text
from freetoken.server.state import ServedModel


def chat_logprobs(model: ServedModel, entries: Entries) -> dict[str, Any]:
    """One item per token; those of a stream's chunks concatenate to the whole answer's."""

    def item(token: int, logprob: float) -> dict[str, Any]:
        data = list(model.token_bytes[token])
        return {"token": token_text(model, token), "bytes": data, "logprob": json_logprob(logprob)}

    content = [
        {**item(token, logprob), "top_logprobs": [item(other, value) for other, value in top]}
        for token, logprob, top in entries
    ]
    return {"content": content, "refusal": None}
