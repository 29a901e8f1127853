"""Tokenizers from tokenizer.json: the vocabulary export against the package's decoding, and files that are not read."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from freetoken.errors import ModelError
from freetoken.tokenizer import Tokenizer, load_tokenizer
from freetoken.tokenizer.vocab import SPECIAL, UNUSED
from oracle import tiny_tokenizer as tok

RANDOM = settings(max_examples=150, deadline=None, derandomize=True)
BYTES = [f"<0x{b:02X}>" for b in range(256)]
CHARS = ["▁", *"abcdeé", "▁a", "ab", "▁ab", "bc"]
SPM_MERGES = [("▁", "a"), ("a", "b"), ("▁", "ab"), ("b", "c")]


def byte_level() -> Backend:
    backend = tok.train()
    backend.add_tokens([AddedToken("<think>", special=False, normalized=False), "éà"])
    return backend


def sentencepiece(style: str) -> Backend:
    """As the Llama converters of transformers write it: `prepend` (old) or `metaspace` (new)."""
    vocab = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>", *BYTES, *CHARS])}
    backend = Backend(models.BPE(vocab=vocab, merges=SPM_MERGES, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    if style == "prepend":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        first = decoders.Replace("▁", " ")
        backend.decoder = decoders.Sequence(
            [first, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
        first = decoders.Replace("▁", " ")
        backend.decoder = decoders.Sequence(
            [first, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def unigram() -> Backend:
    pieces = [("<unk>", 0.0), *((c, -float(i)) for i, c in enumerate(CHARS))]
    backend = Backend(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    backend.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    backend.add_special_tokens(["<unk>"])
    return backend


MAKERS = {
    "byte level": byte_level,
    "prepend": lambda: sentencepiece("prepend"),
    "metaspace": lambda: sentencepiece("metaspace"),
    "unigram": unigram,
}
BACKENDS = {name: make() for name, make in MAKERS.items()}


def save(backend: Backend, folder: Path) -> str:
    backend.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> dict[str, Tokenizer]:
    return {n: load_tokenizer(save(b, tmp_path_factory.mktemp("tokenizer")), {}) for n, b in BACKENDS.items()}


@pytest.mark.parametrize("name", MAKERS)
@RANDOM
@given(
    text=st.text(alphabet=st.one_of(st.sampled_from("abcde é▁<think>\n"), st.characters(codec="utf-8")), max_size=40)
)
def test_encodes_and_decodes_as_the_package_does(loaded, name, text):
    backend, ours = BACKENDS[name], loaded[name]
    ids = backend.encode(text, add_special_tokens=False).ids
    backend.encode_special_tokens = True
    try:
        assert ours.encode(text, allow_special=False) == backend.encode(text, add_special_tokens=False).ids
    finally:
        backend.encode_special_tokens = False
    assert ours.encode(text, allow_special=True) == ids
    expected = text if name == "byte level" else backend.decode(ids, skip_special_tokens=False)
    assert ours.decode(ids) == expected


@pytest.mark.parametrize("name", ["byte level", "metaspace"])
@RANDOM
@given(st.data())
def test_random_bytes_through_the_table(loaded, name, data):
    """Byte tokens in any order: joined bytes, invalid ones replaced as Python replaces them."""
    ours = loaded[name]
    table, _ = ours.vocab_bytes()
    places = {b: i for i, b in enumerate(table) if len(b) == 1 and i >= 3}
    raw = data.draw(st.binary(max_size=24))
    ids = [places[raw[i : i + 1]] for i in range(len(raw))]
    text = raw.decode("utf-8", "replace")
    assert ours.decode(ids) == (text.removeprefix(" ") if name == "metaspace" else text)


def test_byte_level_table(loaded):
    data, flags = loaded["byte level"].vocab_bytes()
    assert len(data) == 1026
    assert sorted(data[4:260]) == sorted(bytes([b]) for b in range(256))
    assert data[1024] == b"<think>" and flags[1024] == 0  # added, not special: part of the text
    assert data[1025] == "éà".encode()  # an added token is text, though é and à are characters of the byte alphabet
    assert [i for i, f in enumerate(flags) if f & SPECIAL] == [0, 1, 2, 3]


def test_sentencepiece_table(loaded):
    data, flags = loaded["prepend"].vocab_bytes()
    assert data[3:259] == [bytes([b]) for b in range(256)]
    assert data[loaded["prepend"].token_id("▁ab")] == b" ab"
    assert [i for i, f in enumerate(flags) if f & SPECIAL] == [0, 1, 2]


def test_added_tokens(loaded):
    ours = loaded["byte level"]
    for allow_special in (False, True):
        assert 1024 in ours.encode("a<think>b", allow_special)
    assert tok.EOS not in ours.encode("<|im_end|>", allow_special=False)
    assert ours.encode("<|im_end|>", allow_special=True) == [tok.EOS]


def test_holes_and_padding(tmp_path):
    vocab = {"a": 0, "b": 3}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.ByteLevel()
    folder = save(backend, tmp_path)
    assert load_tokenizer(folder, {}).vocab_bytes() == ([b"a", b"", b"", b"b"], [0, UNUSED, UNUSED, 0])
    padded = load_tokenizer(folder, {}, vocab_size=6)
    assert padded.vocab_bytes() == ([b"a", b"", b"", b"b", b"", b""], [0, UNUSED, UNUSED, 0, UNUSED, UNUSED])
    small = load_tokenizer(folder, {}, vocab_size=2)
    with pytest.raises(ValueError, match="token 3 has no row"):
        small.encode("b", allow_special=False)


def test_tokens_the_configuration_names_are_special(tmp_path):
    folder = save(byte_level(), tmp_path)
    named = load_tokenizer(folder, {"eos_token": {"content": "<think>"}, "pad_token": "not there"})
    assert named.vocab_bytes()[1][1024] == SPECIAL
    assert 1024 not in named.encode("<think>", allow_special=False)


BOS = [("<s>", 1)]


@pytest.mark.parametrize(
    ("processor", "config", "expected"),
    [
        (None, {"bos_token": "<s>"}, False),
        (processors.TemplateProcessing(single="<s> $A", special_tokens=BOS), {"bos_token": "<s>"}, True),
        (
            processors.TemplateProcessing(single="<s> $A", special_tokens=BOS),
            {"bos_token": "<s>", "add_bos_token": False},
            False,
        ),
        (None, {"bos_token": "<s>", "add_bos_token": True}, True),
        (None, {"add_bos_token": True}, False),
        (None, {"bos_token": None, "add_bos_token": True}, False),
    ],
)
def test_add_bos(tmp_path, processor, config, expected):
    backend = sentencepiece("prepend")
    if processor:
        backend.post_processor = processor
    ours = load_tokenizer(save(backend, tmp_path), config)
    assert ours.add_bos is expected
    assert ours.bos_token_id == (1 if config.get("bos_token") else None)
    assert 1 not in ours.encode("a", allow_special=True)  # BOS is the caller's to add


def test_truncation_and_padding_of_the_file_are_off(tmp_path):
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    assert len(load_tokenizer(save(backend, tmp_path), {}).encode("x" * 20, allow_special=False)) == 20


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.CTC(), decoders.Strip(" ", 0, 1)])
def test_decoders_that_are_not_read(tmp_path, decoder):
    backend = Backend(models.BPE(vocab={"a": 0}, merges=[]))
    if decoder is not None:
        backend.decoder = decoder
    folder = save(backend, tmp_path)
    with pytest.raises(ModelError, match=r"missing: how tokens become text|decoder '.*' is not read") as error:
        load_tokenizer(folder, {})
    assert error.value.tensor == "decoder"


@pytest.mark.parametrize(
    "edit", [{"vocab": {}}, {"vocab": {"a": 4_000_000_000}}, {"vocab": {"a": -1}}, {"type": "Magic"}]
)
def test_bad_models(tmp_path, edit):
    backend = Backend(models.BPE(vocab={"a": 0}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    value = json.loads((tmp_path / "tokenizer.json").read_text())
    value["model"] |= edit
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    with pytest.raises(ModelError):
        load_tokenizer(str(tmp_path), {})


def test_threads(loaded):
    """Calls with and without special tokens at once do not mix."""
    ours = loaded["byte level"]
    text = "<|im_start|>" * 50
    wrong = []

    def run(allow_special: bool) -> None:
        for _ in range(100):
            if (tok.IM_START in ours.encode(text, allow_special)) != allow_special:
                wrong.append(allow_special)

    threads = [threading.Thread(target=run, args=(i % 2 == 0,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
