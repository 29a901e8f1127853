"""Keeps special tokens in users' text ordinary text (a prompt injection otherwise), through any chat template.

A template's own special tokens must become special ids and the same characters inside a message must not, but after
rendering both are one string. So, before rendering, a marker character is put inside whatever in a user's string could
be or become part of a special token; the template then moves the text about as it likes (trim, split, join); after
rendering, special tokens are looked for while the markers still break the users' ones, and only then are the markers
removed, and the text that held them is encoded without special tokens.

Marked are all occurrences of a special token's first and last k characters, k = min(4, length - 1): this covers whole
tokens, and those of more than 6 characters that a template forms by joining two strings of a user. Markers stand beside
the token's own characters and never beside trimmed whitespace, so templates that trim see the same text. A special
token of one character is replaced by a marker of its own. Markers are Unicode noncharacters that are not in the input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

_NONCHARACTERS = [chr(c) for c in range(0xFDD0, 0xFDF0)]
_PART_CHARS = 4


class GuardError(ValueError):
    """The text uses up every character that could serve as a marker."""


class Encoder(Protocol):
    def encode(self, text: str, allow_special: bool) -> list[int]: ...


def _strings_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings_of(item)


def _alternatives(strings: Iterable[str]) -> str:
    return "|".join(re.escape(s) for s in sorted(set(strings), key=lambda s: (-len(s), s)))


class Markers:
    """The markers of one rendering: the one that breaks tokens, and the replacements of one-character tokens."""

    def __init__(self, breaker: str, replaced: dict[str, str]) -> None:
        self.breaker = breaker
        self.replaced = replaced
        self._restore = str.maketrans({breaker: "", **{marker: char for char, marker in replaced.items()}})
        self._any = re.compile("[" + breaker + "".join(replaced.values()) + "]")

    def found_in(self, text: str) -> bool:
        return self._any.search(text) is not None

    def remove(self, text: str) -> str:
        return text.translate(self._restore)


class SpecialGuard:
    """`specials`: the texts of the tokenizer's control tokens."""

    def __init__(self, specials: Iterable[str]) -> None:
        kept = sorted({s for s in specials if s})
        self._single = [s for s in kept if len(s) == 1]
        self._longer = longer = [s for s in kept if len(s) > 1]
        sizes = {s: min(_PART_CHARS, len(s) - 1) for s in longer}
        # Look-ahead, because occurrences may overlap.
        self._heads = re.compile(f"(?=({_alternatives(s[: sizes[s]] for s in longer)}))") if longer else None
        self._tails = re.compile(f"(?=({_alternatives(s[-sizes[s] :] for s in longer)}))") if longer else None
        self._special = re.compile(_alternatives(kept)) if kept else None

    def markers_for(self, *values: Any) -> Markers:
        used = set().union(*(set(s) for value in values for s in _strings_of(value)))
        free = [c for c in _NONCHARACTERS if c not in used]
        if len(free) < 1 + len(self._single):
            raise GuardError("the text contains too many Unicode noncharacters (U+FDD0..U+FDEF); remove them")
        return Markers(free[0], dict(zip(self._single, free[1:], strict=False)))

    def protect(self, value: Any, markers: Markers) -> Any:
        """`value` (strings, lists, dicts; anything else unchanged) with every string marked, keys too."""
        if isinstance(value, str):
            return self._protect_text(value, markers)
        if isinstance(value, list):
            return [self.protect(item, markers) for item in value]
        if isinstance(value, dict):
            return {self._protect_text(key, markers): self.protect(item, markers) for key, item in value.items()}
        return value

    def _protect_text(self, text: str, markers: Markers) -> str:
        cuts: set[int] = set()
        if self._heads and self._tails:
            for match in self._heads.finditer(text):
                cuts.add(match.start() + 1)
            for match in self._tails.finditer(text):
                cuts.add(match.start() + max(1, len(match.group(1)) - 1))
        pieces, position = [], 0
        for cut in sorted(cuts):
            pieces.append(text[position:cut])
            position = cut
        marked = markers.breaker.join([*pieces, text[position:]])
        return marked.translate(str.maketrans(markers.replaced)) if markers.replaced else marked

    def encode(self, rendered: str, markers: Markers, encoder: Encoder) -> list[int]:
        """Token ids of a rendered prompt: special ids only where the template wrote the special token."""
        if self._special is None or not markers.found_in(rendered):
            return encoder.encode(rendered, allow_special=True)
        ids: list[int] = []
        done = position = 0
        # Text between two special tokens is encoded on its own by any tokenizer, so it can be cut out there.
        for match in [*self._special.finditer(rendered), None]:
            start = match.start() if match else len(rendered)
            if markers.found_in(segment := rendered[position:start]):
                if done < position:
                    ids += encoder.encode(rendered[done:position], allow_special=True)
                ids += self._encode_plain(markers.remove(segment), position > 0, encoder)
                done = start
            position = match.end() if match else start
        if done < len(rendered):
            ids += encoder.encode(rendered[done:], allow_special=True)
        return ids

    def _encode_plain(self, text: str, inside: bool, encoder: Encoder) -> list[int]:
        """`text` without special tokens, as it would be encoded at the start or after a special token (`inside`)."""
        plain = encoder.encode(text, allow_special=False)
        if not inside or self._marks_every_segment(encoder):
            return plain
        # The tokenizer puts a space before the first segment only: encode after a line break, and take that off again.
        lead = encoder.encode("\n", allow_special=False)
        led = encoder.encode("\n" + text, allow_special=False)
        return led[len(lead) :] if led[: len(lead)] == lead else plain

    def _marks_every_segment(self, encoder: Encoder) -> bool:
        special = (self._single + self._longer)[0]
        first = encoder.encode("a", allow_special=False)
        return encoder.encode(special + "a", allow_special=True)[-len(first) :] == first
