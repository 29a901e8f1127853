"""How each pre-tokenizer cuts a text: known cuts, and another regular-expression engine on the same patterns."""

from __future__ import annotations

import naive
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freetoken.tokenizer.pre_tokenizers import PRE_TOKENIZERS, PROVEN_BY_GOLDEN

MIXED = (
    "I'M we'll  x1234 ٣٤٥½ naïve_word:\r\n\n  def f(a, b):\n\treturn a+b  # 你好，世界！ 한국어 ελληνικά "
    "e\u0301\u200d👩‍🚀…$5<=6  "
)


def cuts(name: str, text: str) -> list[str]:
    pre = PRE_TOKENIZERS[name].build()
    return [text[start:end] for _, (start, end) in pre.pre_tokenize_str(text)]


# What the models' own tokenizers do with numbers, capitals in contractions, line breaks and punctuation.
KNOWN = {
    "gpt-2": [("ab 1234", ["ab", " 1234"]), ("I'm I'M", ["I", "'m", " I", "'", "M"]), ("a\n\n b", ["a", "\n\n", " b"])],
    "smollm": [("ab 1234", ["ab", " ", "1", "2", "3", "4"]), ("a  b", ["a", " ", " b"])],
    "llama-bpe": [
        ("1234567", ["123", "456", "7"]),
        ("I'M", ["I", "'M"]),
        ("a.\n\nb", ["a", ".\n\n", "b"]),
        ("(word", ["(word"]),
    ],
    "qwen2": [
        ("1234", ["1", "2", "3", "4"]),
        ("I'M", ["I", "'M"]),
        (" 12", [" ", "1", "2"]),
        ("e\u0301x", ["e", "\u0301x"]),
    ],
    "qwen35": [("1234", ["1", "2", "3", "4"]), ("e\u0301x", ["e\u0301x"])],
    "falcon": [("12345", ["123", "45"]), ("a`b=", ["a", "`", "b", "="])],
    "default": [("12345", ["123", "45"]), (" 12", [" ", "12"]), ("a`b=", ["a", "`", "b", "="])],
    "deepseek-coder": [
        ("ab12", ["ab", "1", "2"]),
        ("a\r\nb", ["a", "\r", "\n", "b"]),
        ("x 你好y", ["x", " ", "你好", "y"]),
    ],
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_cuts(name):
    for text, expected in KNOWN[name]:
        assert cuts(name, text) == expected


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_another_engine(name):
    """Words are whole in both, also where a character has several bytes."""
    patterns = list(PRE_TOKENIZERS[name].patterns)
    assert cuts(name, MIXED) == naive.split(patterns, MIXED)


# Characters whose class does not change between Unicode versions: the two engines carry different ones.
STABLE = st.text(alphabet=MIXED + "'\"`~^|<>()[]{}\t\r\n 0129azAZßéñ中文字\u00a0\u3000", max_size=40)


@pytest.mark.parametrize(
    "name", sorted(set(PRE_TOKENIZERS) - {"llama3", "llama-v3", "deepseek-r1-qwen", "mpt", "refact", "starcoder"})
)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=STABLE)
def test_another_engine_on_random_text(name, text):
    assert cuts(name, text) == naive.split(list(PRE_TOKENIZERS[name].patterns), text)


def test_proven_names_exist():
    assert set(PROVEN_BY_GOLDEN) <= set(PRE_TOKENIZERS)
