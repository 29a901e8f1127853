"""Tokenizers from GGUF metadata against slow references, and metadata that does not fit together."""

from __future__ import annotations

import functools
import json
import tracemalloc

import naive
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freetoken.errors import ModelError
from freetoken.tokenizer import Tokenizer, tokenizer_from_gguf
from freetoken.tokenizer.pre_tokenizers import PRE_TOKENIZERS
from freetoken.tokenizer.vocab import SPECIAL, UNUSED
from oracle import tiny_tokenizer as tok

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED_TYPE, BYTE = range(1, 7)
KEY = "tokenizer.ggml."
TEXTS = st.text(max_size=60)
RANDOM = settings(max_examples=150, deadline=None, derandomize=True)


@functools.cache
def trained() -> dict:
    return json.loads(tok.train().to_str())["model"]


def bpe_metadata(pre: str = "smollm", **changes: object) -> dict:
    """The tiny vocabulary with a user-defined token and two unused ids at its end."""
    model = trained()
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), "<think>", "[PAD1]", "[PAD2]", "<|never|>"]
    types = [CONTROL if t in tok.SPECIAL_TOKENS else NORMAL for t in tokens]
    types[-4:] = [USER_DEFINED, UNUSED_TYPE, UNUSED_TYPE, CONTROL]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    values = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": merges, "bos_token_id": 0}
    return {KEY + k: v for k, v in (values | changes).items() if v is not None}


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return tokenizer_from_gguf(bpe_metadata(), "m.gguf")


MERGES = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in trained()["merges"]]


@settings(RANDOM, max_examples=60)
@given(text=TEXTS)
def test_byte_bpe_against_reference(bpe, text):
    expected = naive.byte_bpe(list(PRE_TOKENIZERS["smollm"].patterns), trained()["vocab"], MERGES, text)
    assert bpe.encode(text, allow_special=False) == expected
    assert bpe.decode(expected) == text


def test_byte_bpe_on_prose(bpe):
    text = tok.CORPUS.read_text()[:4000]
    expected = naive.byte_bpe(list(PRE_TOKENIZERS["smollm"].patterns), trained()["vocab"], MERGES, text)
    assert bpe.encode(text, allow_special=False) == expected
    assert max(expected) > 500  # merges were used


def test_whole_words_need_no_merges():
    """llama-bpe: a word that is a token is that token, also where no merges lead to it."""
    model = trained()
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), "zqj", "Ġzqj"]
    for pre, expected in (("llama-bpe", [1024, 1025]), ("qwen2", None)):
        merges = [" ".join(m) for m in MERGES]
        changes = {"tokens": tokens, "token_type": None, "merges": merges}
        ids = tokenizer_from_gguf(bpe_metadata(pre, **changes), "m").encode("zqj zqj", allow_special=False)
        assert (ids == expected) == (expected is not None)


def test_special_tokens_in_text(bpe):
    plain = bpe.encode("<|im_start|>a", allow_special=False)
    assert tok.IM_START not in plain and bpe.decode(plain) == "<|im_start|>a"
    special = bpe.encode("x<|im_start|>a<|im_end|>", allow_special=True)
    assert special == [*bpe.encode("x", False), tok.IM_START, *bpe.encode("a", False), tok.EOS]
    assert bpe.encode("<|im_start|>a", allow_special=False) == plain  # the switch does not stick


def test_user_defined_tokens_are_found_in_any_text(bpe):
    think = bpe.token_id("<think>")
    assert think == 1024
    for allow_special in (False, True):
        assert bpe.encode("a<think>b", allow_special) == [*bpe.encode("a", False), think, *bpe.encode("b", False)]


def test_vocab_export(bpe):
    data, flags = bpe.vocab_bytes()
    assert len(data) == len(flags) == bpe.vocab_size == 1028
    assert sorted(data[4:260]) == sorted(bytes([b]) for b in range(256))  # the alphabet is every byte once
    assert [i for i, f in enumerate(flags) if f & SPECIAL] == [0, 1, 2, 3, 1027]
    assert [i for i, f in enumerate(flags) if f & UNUSED] == [1025, 1026]
    assert (data[1], data[1024], data[1025]) == (b"<|im_start|>", b"<think>", b"")
    assert bpe.special_tokens() == [*tok.SPECIAL_TOKENS, "<|never|>"]
    assert bpe.token_id("[PAD1]") is None and bpe.token_text(1025) is None and bpe.token_text(5000) is None


def test_added_tokens_of_one_character():
    """One that stands for a byte of UTF-8 is that byte; the others are text (deepseek-coder adds all of them so)."""
    model = trained()
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    types = [USER_DEFINED if t in ("é", "õ") else NORMAL for t in tokens]
    tokenizer = tokenizer_from_gguf(bpe_metadata("qwen2", tokens=tokens, token_type=types), "m")
    data, _ = tokenizer.vocab_bytes()
    assert (data[tokenizer.token_id("é")], data[tokenizer.token_id("õ")]) == (b"\xe9", "õ".encode())
    assert tokenizer.decode(tokenizer.encode("退 õ", allow_special=False)) == "退 õ"


def test_vocab_of_a_larger_and_a_smaller_model():
    padded = tokenizer_from_gguf(bpe_metadata(), "m", vocab_size=1100)
    data, flags = padded.vocab_bytes()
    assert len(data) == 1100 and data[1028:] == [b""] * 72 and flags[1028:] == [UNUSED] * 72
    small = tokenizer_from_gguf(bpe_metadata(), "m", vocab_size=1020)
    assert len(small.vocab_bytes()[0]) == 1020 and small.token_id("<think>") is None
    with pytest.raises(ValueError, match="token 1024 has no row in the model, which has 1020"):
        small.encode("<think>", allow_special=False)


@RANDOM
@given(ids=st.lists(st.integers(0, 1027), max_size=30))
def test_random_ids_decode_as_the_package_does(bpe, ids):
    """Any ids, so mostly bytes that are not UTF-8; unused ids have no text here, the package shows their names."""
    ids = [i for i in ids if i not in (1025, 1026)]
    assert bpe.decode(ids) == bpe._backend.decode(ids, skip_special_tokens=False)
    assert bpe.decode(ids, skip_special=True) == bpe._backend.decode(ids, skip_special_tokens=True)


def test_ids_out_of_range(bpe):
    for bad in (-1, 1028, 1 << 40):
        with pytest.raises(ValueError, match=f"token {bad} does not exist"):
            bpe.decode([bad])


def test_lone_surrogate(bpe):
    with pytest.raises(ValueError, match="surrogates not allowed"):
        bpe.encode("a\ud800", allow_special=False)


@pytest.mark.parametrize(
    ("pre", "stated", "expected"),
    [("smollm", None, False), ("llama-bpe", None, True), ("llama-bpe", False, False), ("qwen2", True, True)],
)
def test_add_bos(pre, stated, expected):
    tokenizer = tokenizer_from_gguf(bpe_metadata(pre, add_bos_token=stated), "m")
    assert (tokenizer.add_bos, tokenizer.bos_token_id) == (expected, 0)
    assert tokenizer.encode("a", allow_special=True)[0] != 0  # BOS is the caller's to add
    assert not tokenizer_from_gguf(bpe_metadata(pre, add_bos_token=stated, bos_token_id=None), "m").add_bos


# ---- SentencePiece

WORDS = [
    "▁",
    "▁▁",
    "▁▁▁▁",
    "a",
    "b",
    "c",
    "d",
    "e",
    "é",
    "ab",
    "bc",
    "abc",
    "cd",
    "bcd",
    "abcd",
    "▁a",
    "▁ab",
    "▁b",
    "de",
    "▁abc",
    "ea",
    "▁e",
]


def spm_metadata(**changes: object) -> dict:
    """Single characters have the lowest scores; longer pieces have mixed ones, so that merges compete."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *WORDS, "<extra>", "<hole>"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(WORDS), USER_DEFINED, UNUSED_TYPE]
    scores = (
        [0.0] * 259
        + [-100.0 if len(w) == 1 else -float(i * 7 % 11) - i / 100 for i, w in enumerate(WORDS)]
        + [0.0, 0.0]
    )
    values = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores, "bos_token_id": 1}
    return {KEY + k: v for k, v in (values | changes).items() if v is not None}


@pytest.fixture(scope="module")
def spm() -> Tokenizer:
    return tokenizer_from_gguf(spm_metadata(), "m.gguf")


SPM_IDS = {t: i for i, t in enumerate(spm_metadata()[KEY + "tokens"])}
SPM_SCORES = {w: spm_metadata()[KEY + "scores"][SPM_IDS[w]] for w in WORDS}


@settings(RANDOM, max_examples=400)
@given(text=st.text(alphabet="abcde  é\nü你🙂", max_size=30))
def test_sentencepiece_against_reference(spm, text):
    marked = "▁" + text.replace(" ", "▁") if text else ""
    expected = naive.sentencepiece(SPM_SCORES, SPM_IDS, marked)
    assert spm.encode(text, allow_special=False) == expected
    assert spm.decode(expected) == text


def test_sentencepiece_prefix(spm):
    assert spm.encode("ab", False) == [SPM_IDS["▁ab"]]
    assert spm.encode("</s>ab", True) == [2, SPM_IDS["▁ab"]]  # after a special token too
    without = tokenizer_from_gguf(spm_metadata(add_space_prefix=False), "m")
    assert without.encode("ab", False) == [SPM_IDS["ab"]]
    assert without.decode([SPM_IDS["▁ab"]]) == " ab"


def test_sentencepiece_vocab(spm):
    data, flags = spm.vocab_bytes()
    assert data[3:259] == [bytes([b]) for b in range(256)]
    assert data[SPM_IDS["▁ab"]] == b" ab"  # in the middle of a text the space counts
    assert spm.decode([SPM_IDS["▁ab"], SPM_IDS["▁ab"]]) == "ab ab"
    assert [i for i, f in enumerate(flags) if f & SPECIAL] == [0, 1, 2]
    assert flags[-1] == UNUSED and flags[-2] == 0
    assert spm.add_bos and spm.bos_token_id == 1
    assert spm.encode("a<extra>", False)[-1] == SPM_IDS["<extra>"]


@RANDOM
@given(text=st.text(max_size=40))
def test_sentencepiece_decodes_as_the_package_does(spm, text):
    ids = spm.encode(text, allow_special=False)
    assert spm.decode(ids) == spm._backend.decode(ids, skip_special_tokens=False)


# ---- metadata that does not fit

GOOD = bpe_metadata()
LONG = "x" * 300


@pytest.mark.parametrize(
    ("metadata", "key", "reason"),
    [
        ({}, "model", "missing: the file has no tokenizer"),
        ({KEY + "model": 5}, "model", "str expected, found int"),
        (bpe_metadata(model="bert"), "model", "tokenizer model 'bert' is not read"),
        (bpe_metadata(model="t5"), "model", "tokenizer model 't5' is not read"),
        (bpe_metadata(pre="tekken"), "pre", "pre-tokenizer 'tekken' is not known; known are command-r, "),
        (bpe_metadata(pre=None), "pre", "missing, so how text is split"),
        (bpe_metadata(pre=7), "pre", "str expected, found int"),
        (bpe_metadata(tokens=None), "tokens", "missing"),
        (bpe_metadata(tokens=[]), "tokens", "0 tokens"),
        (bpe_metadata(tokens=[1, 2]), "tokens", "items of type str expected, found int"),
        (bpe_metadata(tokens="abc"), "tokens", "list expected, found str"),
        (bpe_metadata(token_type=[1]), "token_type", "1 items for 1028 tokens"),
        (bpe_metadata(token_type=[9] * 1028), "token_type", "unknown type 9"),
        (bpe_metadata(token_type=None), "merges", "missing"),
        (bpe_metadata(merges=None), "merges", "missing"),
        (bpe_metadata(merges=["ab"]), "merges", "merge 0 is 'ab': two tokens"),
        (bpe_metadata(merges=["a ▁nothere"]), "merges", "nothere"),
        (bpe_metadata(merges=["Ġt ÿ"]), "merges", "out of vocabulary"),
        (bpe_metadata(bos_token_id=5000), "bos_token_id", "5000 of 1028 tokens"),
        (bpe_metadata(bos_token_id=True), "bos_token_id", "int expected, found bool"),
        (bpe_metadata(add_bos_token=1), "add_bos_token", "bool expected, found int"),
        (spm_metadata(scores=None), "scores", "missing"),
        (spm_metadata(scores=[0.0]), "scores", "1 items for 283 tokens"),
        (spm_metadata(tokens=["a"] * 283), "tokens", "token 'a' is there twice: 0 and 1"),
        (spm_metadata(tokens=[f"{i}" for i in range(283)]), "tokens", "no token <0x00>"),
        (
            spm_metadata(tokens=[*spm_metadata()[KEY + "tokens"][:270], *(LONG + str(i) for i in range(13))]),
            "tokens",
            "256 in a token",
        ),
    ],
)
def test_bad_metadata(metadata, key, reason):
    if key == "merges" and "missing" in reason:
        metadata = {k: v for k, v in metadata.items() if k != KEY + "merges"}
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=reason) as error:
            tokenizer_from_gguf(metadata, "m.gguf")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert (error.value.file, error.value.tensor) == ("m.gguf", KEY + key)
