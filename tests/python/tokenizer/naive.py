"""Tokenizers written the slow and obvious way, with another regular-expression engine: the reference of these tests."""

from __future__ import annotations

from itertools import pairwise

import regex

_BYTE_CHARS = [chr(b) if chr(b).isprintable() and b not in (0x20, 0xA0, 0xAD) else "" for b in range(256)]
for _rank, _byte in enumerate([b for b in range(256) if not _BYTE_CHARS[b]]):
    _BYTE_CHARS[_byte] = chr(0x100 + _rank)


def split(patterns: list[str], text: str) -> list[str]:
    """The pieces of `text` when every match of each pattern, and what lies between, becomes a piece."""
    pieces = [text] if text else []
    for pattern in patterns:
        result = []
        for piece in pieces:
            position = 0
            for match in regex.finditer(pattern, piece):
                if match.end() > match.start():
                    result += [piece[position : match.start()], match.group()]
                    position = match.end()
            result.append(piece[position:])
        pieces = [piece for piece in result if piece]
    return pieces


def byte_chars(piece: str) -> str:
    return "".join(_BYTE_CHARS[b] for b in piece.encode())


def byte_bpe(patterns: list[str], vocab: dict[str, int], merges: list[tuple[str, str]], text: str) -> list[int]:
    """Repeats the merge of lowest rank, the left-most first, until none applies."""
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    ids = []
    for piece in split(patterns, text):
        parts = list(byte_chars(piece))
        while True:
            candidates = [(ranks[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in ranks]
            if not candidates:
                break
            _, i = min(candidates)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        ids += [vocab[part] for part in parts]
    return ids


def sentencepiece(scores: dict[str, float], ids: dict[str, int], text: str) -> list[int]:
    """Repeats the merge into the piece of highest score, the left-most first; what is left over becomes bytes."""
    parts = list(text)
    while True:
        candidates = [(-scores[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in scores]
        if not candidates:
            break
        _, i = min(candidates)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    result = []
    for part in parts:
        result += [ids[part]] if part in scores else [ids[f"<0x{b:02X}>"] for b in part.encode()]
    return result
