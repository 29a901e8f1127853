"""The logprobs object of /v1/completions: tokens, token_logprobs, top_logprobs, text_offset."""

from __future__ import annotations

import codecs
from typing import Any

from freetoken.server.generation import json_logprob
from freetoken.server.state import SPECIAL_FLAG, ServedModel

Entries = list[tuple[int, float, list[tuple[int, float]]]]


def token_text(model: ServedModel, token: int) -> str:
    """The token's own text; bytes that are no whole characters as bytes:\\xf0\\x9f, the form that clients know."""
    data = model.token_bytes[token]
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class LegacyLogprobs:
    """Makes the object piece by piece; pieces of a stream concatenate to the whole.

    An offset is where in the returned text the token's characters begin; a token that completes a character begun by
    the one before has the offset of that character's end.
    """

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._position = 0

    def prompt(self, entries: Entries, text: str) -> dict[str, list[Any]]:
        """Of an echoed prompt. Control tokens take up room only where `text` spells them (not an added BOS)."""
        offsets = []
        for token, _, _ in entries:
            offsets.append(self._position)
            data = self._model.token_bytes[token]
            piece = data.decode(errors="replace") if self._is_special(token) else self._decoder.decode(data)
            rest = text[self._position :]
            if rest.startswith(piece) or not self._is_special(token):
                # A tokenizer that puts a space before the first word makes its text one longer than the prompt.
                self._position += len(piece if rest.startswith(piece) else piece.lstrip())
        self._decoder.reset()
        self._position = len(text)
        return self._piece(entries, [min(offset, len(text)) for offset in offsets])

    def completion(self, entries: Entries) -> dict[str, list[Any]]:
        offsets = []
        for token, _, _ in entries:
            offsets.append(self._position)
            if not self._is_special(token):
                self._position += len(self._decoder.decode(self._model.token_bytes[token]))
        return self._piece(entries, offsets)

    def skip(self, text: str) -> None:
        """An echoed prompt without entries."""
        self._position += len(text)

    def _is_special(self, token: int) -> bool:
        return bool(self._model.token_flags[token] & SPECIAL_FLAG)

    def _piece(self, entries: Entries, offsets: list[int]) -> dict[str, list[Any]]:
        return {
            "tokens": [token_text(self._model, token) for token, _, _ in entries],
            "token_logprobs": [json_logprob(logprob) for _, logprob, _ in entries],
            "top_logprobs": [self._top(*entry) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, token: int, logprob: float, top: list[tuple[int, float]]) -> dict[str, float | None] | None:
        if json_logprob(logprob) is None:
            return None
        table: dict[str, float | None] = {}
        for other, value in [*top, (token, logprob)]:
            table.setdefault(token_text(self._model, other), json_logprob(value))
        return table


def join(pieces: list[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [item for piece in pieces for item in piece[name]] for name in names}
