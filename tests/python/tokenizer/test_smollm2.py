"""SmolLM2's real vocabulary from its GGUF, against transformers and against the slow reference."""

from __future__ import annotations

import pytest
from naive import byte_bpe
from tokenizers import pre_tokenizers

from freetoken.checkpoint.gguf import open_gguf
from freetoken.tokenizer import Tokenizer, tokenizer_from_gguf
from oracle import tiny_tokenizer as tok
from oracle.cache import demo_models

pytestmark = pytest.mark.oracle
# SmolLM2's tokenizer: single digits, then GPT-2's words.
PATTERNS = [r"\p{N}", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"]
TEXTS = [
    "",
    " ",
    "   leading and trailing   ",
    "\n\n\n \n\t\t x",
    "I'm sure we'll see they've I'D 'S",
    "3.14159, 2024-11-30, 1,000,000 and ٣٤٥ and ½ and Ⅻ",
    "def f(x):\n    return {'a': [x ** 2 for _ in range(10)]}\n",
    "naïve café Ελληνικά русский العربية עברית हिन्दी ไทย",
    "你好，世界！ こんにちは 한국어",
    "👩‍🚀🏳️‍🌈 e\u0301 \u200b\ufeff \u00a0 \u3000",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>",
    "http://example.org/a?b=c&d=%20#e __init__ -> != <= >= ::",
    "\x00\x01\x7f\x80\uffff",
    tok.CORPUS.read_text()[:3000],
]


@pytest.fixture(scope="module")
def metadata() -> dict:
    return open_gguf(str(demo_models()["demo-dense"])).metadata


@pytest.fixture(scope="module")
def ours(metadata) -> Tokenizer:
    return tokenizer_from_gguf(metadata, "demo-dense")


def test_against_the_slow_reference(metadata, ours):
    vocab = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    for text in TEXTS:
        ids = ours.encode(text, allow_special=False)
        assert ids == byte_bpe(PATTERNS, vocab, merges, text)
        assert ours.decode(ids) == text


def test_against_transformers(ours):
    from transformers import AutoTokenizer

    path = demo_models()["demo-dense"]
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # Its GGUF loader leaves out the first half of SmolLM2's pre-tokenizer, which its tokenizer.json has.
    backend = theirs.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    for text in TEXTS:
        ids = ours.encode(text, allow_special=True)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == theirs.decode(ids)
    assert len(ours.special_tokens()) == 17 and set(theirs.all_special_tokens) <= set(ours.special_tokens())
    assert (ours.bos_token_id, ours.add_bos, ours.vocab_size) == (1, False, 49152)
