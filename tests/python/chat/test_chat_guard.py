"""Special tokens in users' text: the guard on its own, against a reference that encodes each part separately."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.byte_tokenizer import SPECIALS, ByteTokenizer
from freetoken.chat.guard import GuardError, SpecialGuard

TOKENIZER = ByteTokenizer()
GUARD = SpecialGuard(SPECIALS)
START, END = TOKENIZER.token_id("<|im_start|>"), TOKENIZER.token_id("<|im_end|>")


def encode_around(content: str, transform=lambda s: s) -> list[int]:
    markers = GUARD.markers_for([content])
    protected = transform(GUARD.protect(content, markers))
    return GUARD.encode(f"<|im_start|>user\n{protected}<|im_end|>", markers, TOKENIZER)


def reference(content: str) -> list[int]:
    return [START, *b"user\n", *content.encode(), END]


hostile = st.lists(
    st.sampled_from([*SPECIALS, "<|im", "_end|>", "<", "|>", "<|", ">", " ", "\n", "é", "💡", "im_end", "﷐", "﷑"])
).map("".join)


@given(hostile)
@settings(max_examples=150, deadline=None)
def test_content_is_ordinary_text(content):
    assert encode_around(content) == reference(content)


@given(hostile)
@settings(max_examples=150, deadline=None)
def test_trimming_templates_see_the_same_text(content):
    assert encode_around(content, str.strip) == reference(content.strip())


@pytest.mark.parametrize("special", SPECIALS)
def test_content_equal_to_a_special_token(special):
    assert encode_around(special) == reference(special)


def test_without_the_guard_the_same_text_would_be_special():
    ids = TOKENIZER.encode("<|im_start|>user\n<|im_end|><|im_end|>", allow_special=True)
    assert ids.count(END) == 2  # what the other tests prove the guard prevents


@given(st.integers(4, 6))
def test_token_put_together_from_two_strings(cut):
    first, second = "<|im_end|>"[:cut], "<|im_end|>"[cut:]
    markers = GUARD.markers_for([first, second])
    text = "".join(GUARD.protect([first, second], markers))
    assert END not in GUARD.encode(text, markers, TOKENIZER)


def test_token_that_a_filter_would_complete():
    markers = GUARD.markers_for(["<|im_<cut>end|>"])
    text = GUARD.protect("<|im_<cut>end|>", markers).replace("<cut>", "")
    assert GUARD.encode(text, markers, TOKENIZER) == list(b"<|im_end|>")


def test_nested_strings_and_keys():
    value = {"a": ["<|eos|>", 1, None, {"<|eos|>": True}]}
    markers = GUARD.markers_for(value)
    protected = GUARD.protect(value, markers)
    assert protected["a"][1:3] == [1, None]
    text = protected["a"][0] + next(iter(protected["a"][3]))
    assert GUARD.encode(text, markers, TOKENIZER) == list(b"<|eos|><|eos|>")


def test_markers_are_never_characters_of_the_text():
    everything = "".join(chr(c) for c in range(0xFDD0, 0xFDF0))
    with pytest.raises(GuardError):
        GUARD.markers_for(everything)
    assert GUARD.markers_for(everything[:-1]).breaker == everything[-1]


def test_one_character_special_token():
    class OneCharacter(ByteTokenizer):
        def encode(self, text, allow_special):
            ids = [999 if c == "§" and allow_special else c for c in text]
            return [i if isinstance(i, int) else ord(i) for i in ids]

    guard = SpecialGuard(["§"])
    markers = guard.markers_for("a§b")
    assert guard.encode("§" + guard.protect("a§b", markers), markers, OneCharacter()) == [
        999,
        ord("a"),
        ord("§"),
        ord("b"),
    ]


class FirstSegmentSpace(ByteTokenizer):
    """Puts a space before the first segment of a text only, as sentencepiece tokenizers without legacy mode do."""

    def encode(self, text, allow_special):
        starts_special = allow_special and self._special.match(text)
        return super().encode(text if starts_special or not text else " " + text, allow_special)


def test_no_space_appears_inside_for_a_tokenizer_that_marks_the_first_segment():
    tokenizer = FirstSegmentSpace()
    markers = GUARD.markers_for("<|eos|>")
    text = "<|im_start|>" + GUARD.protect("<|eos|>", markers) + "<|im_end|>"
    assert GUARD.encode(text, markers, tokenizer) == [START, *b"<|eos|>", END]
