"""Vocabulary export: what each token id adds to the text, as the core's Vocab wants it (freetoken/vocab.h)."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from freetoken.tokenizer.byte_chars import bytes_of_chars

SPECIAL = 1  # control token: adds no text unless the request asks for it
UNUSED = 2  # has no text and is never sampled

_NEVER_IN_UTF8 = frozenset([0xC0, 0xC1, *range(0xF5, 0x100)])
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenKind(enum.Enum):
    """How a token's text becomes bytes."""

    NORMAL = 0  # through the decoder
    ADDED = 1  # matched in the text as it is, before the model
    SPECIAL = 2  # the same, and not part of the text


@dataclass
class TokenDecoder:
    """The part of a `tokenizers` decoder that concerns one token; `strip_left` is what it takes off a whole text."""

    byte_level: bool = False
    byte_fallback: bool = False
    replacements: list[tuple[str, str]] = field(default_factory=list)
    strip_left: int = 0  # spaces

    def token_bytes(self, text: str, kind: TokenKind) -> bytes:
        """Bytes that the token adds in the middle of a text."""
        if kind is TokenKind.SPECIAL:
            return text.encode("utf-8")
        if self.byte_level:
            known = bytes_of_chars(text)
            # An added token is text already, also where all its characters are of the byte alphabet; but a single
            # character is the model's only token for that byte, unless the byte is never part of UTF-8.
            if kind is TokenKind.ADDED and not (len(text) == 1 and known and known[0] not in _NEVER_IN_UTF8):
                known = None
            return text.encode("utf-8") if known is None else known
        for old, new in self.replacements:
            text = text.replace(old, new)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(match[1], 16)])
        return text.encode("utf-8")


class UnknownDecoderError(ValueError):
    """A decoder whose effect on one token is not known."""


def read_decoder(state: bytes) -> TokenDecoder:
    """From the JSON state of a `tokenizers` decoder. Raises UnknownDecoderError by name."""
    result = TokenDecoder()
    for step in _steps(json.loads(state)):
        kind = step.get("type")
        if kind == "ByteLevel":
            result.byte_level = True
        elif kind == "ByteFallback":
            result.byte_fallback = True
        elif kind == "Fuse":
            pass  # joins the tokens, which bytes are anyway
        elif kind == "Replace" and "String" in step["pattern"]:
            result.replacements.append((step["pattern"]["String"], step["content"]))
        elif kind == "Strip" and step["content"] == " " and step["stop"] == 0:
            result.strip_left += step["start"]
        elif kind == "Metaspace":
            result.replacements.append((step["replacement"], " "))
            result.strip_left += step.get("prepend_scheme", "always") != "never"
        else:
            raise UnknownDecoderError(f"decoder {kind!r} is not read")
    return result


def _steps(decoder: dict[str, Any]) -> Iterable[dict[str, Any]]:
    return decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]


@dataclass
class VocabTable:
    """id -> bytes and flags; ids without a token (holes, padding rows of the embedding) are b"" and UNUSED."""

    bytes: list[bytes]
    flags: list[int]

    @classmethod
    def build(cls, tokens: Iterable[tuple[int, str, TokenKind]], decoder: TokenDecoder, size: int) -> VocabTable:
        """`tokens` are (id, text, kind); those with ids from `size` on have no row in the model and are left out."""
        table = cls([b""] * size, [UNUSED] * size)
        for token_id, text, kind in tokens:
            if token_id < size:
                table.bytes[token_id] = decoder.token_bytes(text, kind)
                table.flags[token_id] = SPECIAL if kind is TokenKind.SPECIAL else 0
        return table
