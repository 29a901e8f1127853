"""The byte alphabet of byte-level BPE: each of the 256 bytes as one printable character.

Bytes that are printable in Latin-1 stand for themselves, the other 68 are U+0100 onwards in order (GPT-2's map).
"""

from __future__ import annotations

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [b for b in range(256) if b not in set(_PRINTABLE)]

BYTE_OF: dict[str, int] = {chr(b): b for b in _PRINTABLE} | {chr(0x100 + i): b for i, b in enumerate(_OTHERS)}


def bytes_of_chars(token: str) -> bytes | None:
    """The bytes that `token` stands for; None where a character is not of the alphabet."""
    try:
        return bytes([BYTE_OF[char] for char in token])
    except KeyError:
        return None
