"""A tokenizer that can be checked by hand: one id per byte, a few control tokens, and chosen extra tokens."""

from __future__ import annotations

import re

SPECIALS = ["<|bos|>", "<|im_start|>", "<|im_end|>", "<|eos|>"]
SPECIAL, UNUSED = 1, 2


class ByteTokenizer:
    """ids 0..255 are bytes, 256.. the control tokens, then `extra` (bytes of whole tokens; never made by encode)."""

    def __init__(self, add_bos: bool = False, extra: list[bytes] = ()) -> None:  # type: ignore[assignment]
        self.add_bos = add_bos
        self._bytes = [bytes([b]) for b in range(256)] + [s.encode() for s in SPECIALS]
        self._flags = [0] * 256 + [SPECIAL] * len(SPECIALS)
        for token in extra:
            self.add(token)
        self._special = re.compile("(" + "|".join(re.escape(s) for s in SPECIALS) + ")")

    def add(self, token: bytes) -> int:
        if token not in self._bytes:
            self._bytes.append(token)
            self._flags.append(0)
        return self._bytes.index(token)

    @property
    def bos_token_id(self) -> int:
        return self.token_id("<|bos|>")

    @property
    def eos_token_id(self) -> int:
        return self.token_id("<|eos|>")

    def token_id(self, text: str) -> int | None:
        return 256 + SPECIALS.index(text) if text in SPECIALS else None

    def encode(self, text: str, allow_special: bool) -> list[int]:
        if not allow_special:
            return list(text.encode())
        ids: list[int] = []
        for piece in self._special.split(text):
            ids += [self.token_id(piece)] if piece in SPECIALS else list(piece.encode())
        return ids

    def decode(self, ids: list[int], skip_special: bool = False) -> str:
        kept = (i for i in ids if not (skip_special and self._flags[i] & SPECIAL))
        return b"".join(self._bytes[i] for i in kept).decode(errors="replace")

    def special_tokens(self) -> list[str]:
        return list(SPECIALS)

    def vocab_bytes(self) -> tuple[list[bytes], list[int]]:
        return list(self._bytes), list(self._flags)
