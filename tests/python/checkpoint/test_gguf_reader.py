"""The GGUF reader against the gguf package, and against files that lie."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoint_files import write_gguf
from gguf.constants import GGML_QUANT_SIZES

from freetoken.checkpoint.ggml_types import BLOCKS, FORMATS, GGML_TYPES
from freetoken.checkpoint.gguf import open_gguf
from freetoken.checkpoint.gguf_header import read_header
from freetoken.errors import ModelError

Kind = gguf.GGUFValueType


def test_types_are_those_of_the_package():
    for number, ours in GGML_TYPES.items():
        theirs = gguf.GGMLQuantizationType(number)
        assert (ours.name, (ours.block_elements, ours.block_bytes)) == (theirs.name, GGML_QUANT_SIZES[theirs])
    assert BLOCKS["q6_k"] == (256, 210)
    assert set(BLOCKS) == set(FORMATS.values())


@pytest.fixture(scope="module")
def varied(tmp_path_factory) -> Path:
    """A file with every value type and every tensor type that the package can write."""
    path = tmp_path_factory.mktemp("gguf") / "varied.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values = {
        "u8": (200, Kind.UINT8),
        "i8": (-7, Kind.INT8),
        "u16": (60000, Kind.UINT16),
        "i16": (-300, Kind.INT16),
        "u32": (1 << 31, Kind.UINT32),
        "i32": (-1 << 31, Kind.INT32),
        "f32": (0.1, Kind.FLOAT32),
        "yes": (True, Kind.BOOL),
        "no": (False, Kind.BOOL),
        "text": ("naïve ▁ \n", Kind.STRING),
        "u64": (1 << 63, Kind.UINT64),
        "i64": (-1 << 63, Kind.INT64),
        "f64": (0.1, Kind.FLOAT64),
        "empty": ("", Kind.STRING),
    }
    for key, (value, kind) in values.items():
        writer.add_key_value(key, value, kind)
    arrays = {
        "bools": ([True, False, True], Kind.BOOL),
        "ints": ([-1, 2, 3], Kind.INT32),
        "floats": ([0.5, 0.1], Kind.FLOAT32),
        "longs": ([1 << 40], Kind.UINT64),
        "strings": (["a", "", "ü" * 100], Kind.STRING),
    }
    for key, (value, kind) in arrays.items():
        writer.add_key_value(key, value, Kind.ARRAY, sub_type=kind)
    rng = np.random.default_rng(1)
    for number, kind in GGML_TYPES.items():
        shape = (3, 2, 2 * kind.block_bytes)
        data = rng.integers(0, 256, shape, dtype=np.uint8)
        writer.add_tensor(f"t.{kind.name}", data, raw_dtype=gguf.GGMLQuantizationType(number))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_equals_the_package(varied):
    ours, theirs = open_gguf(str(varied)), gguf.GGUFReader(varied)
    expected = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == {key: field.contents() for key, field in expected.items()}
    for key, field in expected.items():
        assert [int(t) for t in field.types] == [t for t in ours.types[key] if t is not None]
    assert len(ours.tensors) == len(GGML_TYPES) == len(theirs.tensors)
    for tensor in theirs.tensors:
        entry = ours.tensors[tensor.name]
        assert entry.shape == tuple(int(n) for n in tensor.shape)[::-1]
        assert (entry.dtype, entry.offset, entry.bytes) == (tensor.tensor_type.name, tensor.data_offset, tensor.n_bytes)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_read_f32(tmp_path, dtype):
    kind = gguf.GGMLQuantizationType[dtype]
    values = np.linspace(-3, 3, 64, dtype=np.float32)
    stored = gguf.quants.quantize(values, kind)
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("x", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    np.testing.assert_array_equal(open_gguf(str(path)).read_f32("x"), gguf.quants.dequantize(stored, kind))


def test_large_vocabulary_is_fast(tmp_path):
    """150k tokens and 150k merges; the package takes 10 s and more for them."""
    path = tmp_path / "vocab.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list([f"token{i}" for i in range(150_000)])
    writer.add_token_merges([f"a{i} b{i}" for i in range(150_000)])
    writer.add_token_types([1] * 150_000)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    start = time.process_time()
    metadata = read_header(str(path)).metadata
    assert time.process_time() - start < 2.0  # measured: 0.2 s
    assert metadata["tokenizer.ggml.tokens"][-1] == "token149999"
    assert metadata["tokenizer.ggml.merges"][-1] == "a149999 b149999"


def split_model(folder: Path) -> list[Path]:
    """Two tensors a file, as the package's own splitting writes them."""
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=2)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full((4, 8), i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    paths = sorted(folder.glob("m-*.gguf"))
    assert [path.name for path in paths] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return paths


def test_split_files(tmp_path):
    paths = split_model(tmp_path)
    for path in paths:
        model = open_gguf(str(path))
        assert model.files == [str(p) for p in paths]
        assert model.metadata["general.architecture"] == "llama"
        for i in range(5):
            assert model.tensors[f"t{i}"].file == str(paths[i // 2])
            np.testing.assert_array_equal(model.read_f32(f"t{i}"), np.full((4, 8), i, np.float32))


def test_bad_splits(tmp_path):
    paths = split_model(tmp_path)
    contents = [path.read_bytes() for path in paths]

    def refused(match: str) -> None:
        with pytest.raises(ModelError, match=match):
            open_gguf(str(paths[0]))
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)

    paths[1].unlink()
    refused("file 2 of the 3 of this model does not exist")
    paths[2].write_bytes(contents[1])
    refused("m-00003.*split.no: says 1, the name makes it 2")
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(contents[0])
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(contents[1])
    with pytest.raises(ModelError, match=r"split.count: says 3, the name says 2"):
        open_gguf(str(tmp_path / "m-00001-of-00002.gguf"))
    (tmp_path / "renamed.gguf").write_bytes(contents[0])
    with pytest.raises(ModelError, match=r"split.count: says 3, the name says 1: keep the files' names"):
        open_gguf(str(tmp_path / "renamed.gguf"))
    paths[2].write_bytes(contents[2].replace(b"t4", b"t0"))
    refused("m-00003.*t0: tensor is also in m-00001")
    paths[0].write_bytes(contents[0].replace(struct.pack("<II", 5, 5), struct.pack("<II", 5, 6)))
    refused("split.tensors.count: says 6, the files hold 5")


# ---- files that lie: each is built by hand, with one thing wrong


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def head(keys: int = 0, tensors: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def key(name: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + payload


def tensor(name: str, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


U64 = struct.Struct("<Q").pack
HUGE = 1 << 62
PAD = b"\0" * 4096
NESTED = struct.pack("<IQ", 9, 1) * 5 + struct.pack("<IQ", 0, 0)
BAD = {
    "empty": (b"", "", "0 bytes, the shortest header is 24"),
    "magic": (b"GGML" + PAD, "", "it starts with b'GGML'"),
    "cut in the counts": (head()[:20], "", "20 bytes"),
    "version 1": (head(version=1) + PAD, "", "version 1: versions 2 and 3"),
    "big endian": (head(version=3 << 24) + PAD, "", "a big-endian file"),
    "huge key count": (head(keys=HUGE) + PAD, "", f"{HUGE} keys and 0 tensors cannot fit"),
    "huge tensor count": (head(tensors=HUGE) + PAD, "", "cannot fit"),
    "key count one too many": (head(keys=2) + key("a", 4, b"1234") + PAD[:12], "", "value at byte 53 needs 1 bytes"),
    "huge key length": (head(keys=1) + U64(HUGE) + PAD, "", f"a key of {HUGE} bytes, at most 1024"),
    "key is not text": (head(keys=1) + key(b"\xff\xfe", 4, b"1234"), "", "a key is not UTF-8"),
    "key twice": (head(keys=2) + 2 * key("a", 4, b"1234"), "a", "key appears twice"),
    "unknown value type": (head(keys=1) + key("a", 13, PAD), "a", "unknown value type 13"),
    "value cut": (
        head(keys=1) + key("abcdefgh", 10, b"1234"),
        "abcdefgh",
        "value at byte .* needs 8 bytes and runs past the file's",
    ),
    "huge string": (head(keys=1) + key("a", 8, U64(HUGE)), "a", f"string of {HUGE} bytes"),
    "string past the end": (
        head(keys=1) + key("a", 8, U64(5000) + PAD),
        "a",
        "needs 5000 bytes and runs past the file's",
    ),
    "string of 2^64 - 1": (head(keys=1) + key("a", 8, U64((1 << 64) - 1)), "a", "string of 18446744073709551615 bytes"),
    "unknown item type": (head(keys=1) + key("a", 9, struct.pack("<IQ", 99, 1) + PAD), "a", "unknown item type 99"),
    "huge array": (head(keys=1) + key("a", 9, struct.pack("<IQ", 5, HUGE) + PAD), "a", f"array of {HUGE} items"),
    "array past the end": (head(keys=1) + key("a", 9, struct.pack("<IQ", 5, 1025) + PAD), "a", "array of 1025 items"),
    "strings past the end": (
        head(keys=1) + key("a", 9, struct.pack("<IQ", 8, 2) + U64(0) + U64(9)),
        "a",
        "string 1 of 2 has 9 bytes",
    ),
    "strings cut": (
        head(keys=1) + key("a", 9, struct.pack("<IQ", 8, 2) + text("abcdefgh")),
        "a",
        "the file ends in string 1 of 2",
    ),
    "strings not text": (
        head(keys=1) + key("a", 9, struct.pack("<IQ", 8, 1) + text(b"\xff")),
        "a",
        "string 0 of 1 is not UTF-8",
    ),
    "arrays too deep": (head(keys=1) + key("a", 9, NESTED), "a", "nested deeper than 4"),
    "alignment 0": (
        head(keys=1) + key("general.alignment", 4, struct.pack("<I", 0)),
        "general.alignment",
        "alignment 0 is not",
    ),
    "alignment 48": (
        head(keys=1) + key("general.alignment", 4, struct.pack("<I", 48)),
        "general.alignment",
        "alignment 48 is not",
    ),
    "alignment text": (
        head(keys=1) + key("general.alignment", 8, text("32")),
        "general.alignment",
        "alignment '32' is not",
    ),
    "alignment 2^31": (
        head(keys=1) + key("general.alignment", 4, struct.pack("<I", 1 << 31)),
        "general.alignment",
        "power of two",
    ),
    "no name": (head(tensors=1) + tensor("", (8,)) + PAD, "(tensor without a name)", "a tensor needs a name"),
    "no dimension": (head(tensors=1) + tensor("t", ()) + PAD, "t", "0 dimensions, 1 to 4"),
    "five dimensions": (head(tensors=1) + tensor("t", (1, 1, 1, 1, 8)) + PAD, "t", "5 dimensions"),
    "2^32 - 1 dimensions": (head(tensors=1) + text("t") + b"\xff" * 4 + PAD, "t", "4294967295 dimensions"),
    "zero dimension": (head(tensors=1) + tensor("t", (8, 0)) + PAD, "t", r"shape \[0, 8\] holds nothing"),
    "huge shape": (head(tensors=1) + tensor("t", (HUGE, HUGE)) + PAD, "t", "runs past the file's"),
    "unknown tensor type": (head(tensors=1) + tensor("t", (8,), kind=31) + PAD, "t", "unknown tensor type number 31"),
    "half a block": (
        head(tensors=1) + tensor("t", (48,), kind=2) + PAD,
        "t",
        "rows of 48 do not divide into Q4_0 blocks of 32",
    ),
    "odd offset": (
        head(tensors=1) + tensor("t", (8,), offset=4) + PAD,
        "t",
        "offset 4 is not a multiple of the alignment 32",
    ),
    "offset past the end": (head(tensors=1) + tensor("t", (8,), offset=1 << 40) + PAD, "t", "runs past the file's"),
    "data cut": (
        head(tensors=1) + tensor("t", (1024, 2)) + PAD,
        "t",
        "takes 8192 bytes from byte 96 and runs past the file's 4161",
    ),
    "tensor twice": (head(tensors=2) + 2 * tensor("t", (8,)) + PAD, "t", "tensor appears twice"),
    "overlap": (
        head(tensors=2) + tensor("t", (16,)) + tensor("u", (8,), offset=32) + PAD,
        "u",
        "its bytes overlap those of t",
    ),
    "same place": (head(tensors=2) + tensor("t", (8,)) + tensor("u", (8,)) + PAD, "u", "its bytes overlap those of t"),
    "tensor table cut": (head(tensors=1) + tensor("t", (8,))[:-4], "t", "tensor offset at byte 49 needs 8 bytes"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file(name, tmp_path):
    content, where, reason = BAD[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(ModelError, match=reason) as error:
            open_gguf(str(path))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 1.0
    assert (error.value.file, error.value.tensor) == (str(path), where)


def test_good_file_by_hand(tmp_path):
    """The builders above make a file that is read when nothing is wrong with it."""
    path = tmp_path / "good.gguf"
    values = struct.pack("<8f", *range(8))
    body = (
        head(keys=1, tensors=2) + key("a", 4, struct.pack("<I", 7)) + tensor("t", (8,)) + tensor("u", (4, 2), offset=32)
    )
    path.write_bytes(body + b"\0" * (-len(body) % 32) + values + values)
    model = open_gguf(str(path))
    assert model.metadata == {"a": 7}
    np.testing.assert_array_equal(model.read_f32("u"), np.arange(8, dtype=np.float32).reshape(2, 4))


def test_every_truncation_is_refused(tmp_path):
    """A file cut at any byte of its header, and at many of its data, is an error and never a shorter model."""
    whole = tmp_path / "whole.gguf"
    write_gguf(whole, experts=4)
    content = whole.read_bytes()
    header = min(entry.offset for entry in open_gguf(str(whole)).tensors.values())
    path = tmp_path / "cut.gguf"
    for length in [*range(0, 600), *range(600, header, 397), *range(header, len(content), 20_011), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(ModelError) as error:
            open_gguf(str(path))
        assert error.value.file == str(path)
