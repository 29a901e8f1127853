"""The safetensors reader against the safetensors package, and against files that lie."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import hf_tensors, write_hf
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from freetoken.checkpoint.safetensors import DTYPE_BITS, read_safetensors
from freetoken.checkpoint.shards import read_directory
from freetoken.checkpoint.tensor_entry import TensorEntry
from freetoken.errors import ModelError


def raw(entry: TensorEntry) -> bytes:
    with open(entry.file, "rb") as file:
        file.seek(entry.offset)
        return file.read(entry.bytes)


def test_equals_the_package(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors = {
        "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
        "f16": np.arange(4, dtype=np.float16),
        "i64": np.arange(3),
        "u8": np.arange(5, dtype=np.uint8),
        "bool": np.array([True, False]),
        "scalar": np.array(7.0, dtype=np.float64),
        "empty": np.zeros((0, 4), np.float32),
    }
    save_file(tensors, path, metadata={"format": "np"})
    ours, theirs = read_safetensors(str(path)), load_file(path)
    assert ours.keys() == theirs.keys()
    for name, entry in ours.items():
        assert entry.shape == theirs[name].shape
        assert raw(entry) == theirs[name].tobytes()
    with safe_open(path, "np") as reader:
        assert {n: e.dtype for n, e in ours.items()} == {n: reader.get_slice(n).get_dtype() for n in theirs}


def file_bytes(header: str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    body = header.encode() if isinstance(header, str) else header
    return (len(body) if length is None else length).to_bytes(8, "little") + body + data


def one(**changes: object) -> str:
    """The header of one f32 tensor [2, 2], with changes."""
    return json.dumps({"t": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | changes})


def two(second: list[int]) -> str:
    return json.dumps(
        {
            "t": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
            "u": {"dtype": "F32", "shape": [2], "data_offsets": second},
        }
    )


DATA = bytes(16)
HUGE = 1 << 62
BAD = {
    "empty": (b"", "", "0 bytes: too short"),
    "length cut": (b"1234567", "", "7 bytes: too short"),
    "header longer than the file": (
        file_bytes(one(), DATA, length=200),
        "",
        "header of 200 bytes runs past the file's",
    ),
    "header of 2^64 - 1": (file_bytes(one(), DATA, length=(1 << 64) - 1), "", "header of 18446744073709551615 bytes"),
    "not UTF-8": (file_bytes(b'{"\xff": 1}'), "header", "not valid JSON"),
    "broken JSON": (file_bytes(one()[:-1], DATA), "header", "not valid JSON"),
    "NaN": (file_bytes('{"t": NaN}'), "header", "NaN is not a JSON number"),
    "a list": (file_bytes("[]"), "header", "a JSON object expected, found list"),
    "deep": (file_bytes("[" * 100_000), "header", "nested deeper"),
    "deep and closed": (file_bytes('{"t":' + "[" * 500 + "]" * 500 + "}"), "header", "nested deeper than 64"),
    "many values": (file_bytes("[" + "[]," * (5 << 20) + "[]]"), "header", "values, at most"),
    "integer of 9999 digits": (
        file_bytes(one(shape=[2, 2]).replace("[2, 2]", "[" + "9" * 9999 + "]"), DATA),
        None,
        "not valid JSON|sizes",
    ),
    "tensor twice": (file_bytes(one()[:-1] + "," + one()[1:], DATA), "header", "key 't' appears twice"),
    "no name": (file_bytes(one().replace('"t"', '""'), DATA), "", "a tensor's name has 1 to 1024 bytes"),
    "not an object": (file_bytes('{"t": 5}'), "t", "dtype, shape and data_offsets expected"),
    "no shape": (
        file_bytes('{"t": {"dtype": "F32", "data_offsets": [0, 0]}}'),
        "t",
        "dtype, shape and data_offsets expected",
    ),
    "unknown dtype": (file_bytes(one(dtype="F33"), DATA), "t", "unknown dtype 'F33'"),
    "dtype is a list": (file_bytes(one(dtype=["F32"]), DATA), "t", "unknown dtype"),
    "negative size": (file_bytes(one(shape=[-2, -2]), DATA), "t", "shape must be a list"),
    "fraction": (file_bytes(one(shape=[2.0, 2]), DATA), "t", "shape must be a list"),
    "true as size": (file_bytes(one(shape=[True, 4]), DATA), "t", "shape must be a list"),
    "17 dimensions": (file_bytes(one(shape=[1] * 17), DATA), "t", "at most 16 sizes"),
    "huge shape": (file_bytes(one(shape=[HUGE, HUGE]), DATA), "t", "data_offsets span 16"),
    "shape is larger": (file_bytes(one(shape=[2, 3]), DATA), "t", r"F32 \[2, 3\] takes 24 bytes, data_offsets span 16"),
    "wrong dtype": (file_bytes(one(dtype="F16"), DATA), "t", r"F16 \[2, 2\] takes 8 bytes, data_offsets span 16"),
    "three offsets": (file_bytes(one(data_offsets=[0, 8, 16]), DATA), "t", "two byte offsets"),
    "negative offset": (file_bytes(one(data_offsets=[-16, 0]), DATA), "t", "two byte offsets"),
    "backwards": (file_bytes(one(data_offsets=[16, 0]), DATA), "t", "the wrong way round"),
    "past the end": (file_bytes(one(data_offsets=[16, 32]), DATA), "t", "truncated or wrong"),
    "huge offset": (file_bytes(one(data_offsets=[HUGE, HUGE + 16]), DATA), "t", "truncated or wrong"),
    "data cut": (file_bytes(one(), DATA[:-1]), "t", "truncated or wrong"),
    "overlap": (file_bytes(two([8, 16]), DATA), "u", "its bytes overlap those of t"),
    "hole": (file_bytes(two([20, 28]), bytes(28)), "u", "4 bytes between it and t belong to no tensor"),
    "data at the end": (file_bytes(one(), DATA + b"x"), "", "1 bytes after t belong to no tensor"),
}
STRICTER = ("tensor twice", "no name")  # than the reference, which takes the last one, and any name


@pytest.mark.parametrize("name", BAD)
def test_bad_file(name, tmp_path):
    content, where, reason = BAD[name]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(ModelError, match=reason) as error:
            read_safetensors(str(path))
        # The header itself is in memory twice, as bytes and as text.
        assert tracemalloc.get_traced_memory()[1] < (4 << 20) + 2 * len(content)
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 1.0
    assert error.value.file == str(path)
    assert where is None or error.value.tensor == where
    if name not in STRICTER:
        with pytest.raises(SafetensorError):  # the reference refuses it too
            load_file(path)


def test_good_file_by_hand(tmp_path):
    path = tmp_path / "good.safetensors"
    path.write_bytes(file_bytes(one(), DATA))
    assert read_safetensors(str(path))["t"] == TensorEntry("t", "F32", (2, 2), str(path), 8 + len(one()), 16)


@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS))
def test_dtype_sizes(tmp_path, dtype):
    """Each dtype's size is the reference's: it accepts the file with that many bytes and refuses one byte more."""
    size = DTYPE_BITS[dtype]  # bytes of 8 elements
    for extra in (0, 1):
        path = tmp_path / f"{extra}.safetensors"
        header = json.dumps({"t": {"dtype": dtype, "shape": [8], "data_offsets": [0, size + extra]}})
        path.write_bytes(file_bytes(header, bytes(size + extra)))
        if extra:
            with pytest.raises(ModelError):
                read_safetensors(str(path))
            with pytest.raises(SafetensorError), safe_open(path, "np"):
                pass
        else:
            read_safetensors(str(path))
            with safe_open(path, "np") as reader:
                assert list(reader.keys()) == ["t"]


# ---- directories


def test_sharded(tmp_path):
    tensors = write_hf(tmp_path, shards=3)
    entries = read_directory(str(tmp_path))
    assert entries.keys() == tensors.keys()
    assert len({entry.file for entry in entries.values()}) == 3
    for name, entry in entries.items():
        assert raw(entry) == tensors[name].tobytes()


INDEX = "model.safetensors.index.json"
NAME = "model.norm.weight"
SHARDS = [f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)]


def change_map(folder: Path, **changes: object) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= changes
    index["weight_map"] = {k: v for k, v in index["weight_map"].items() if v is not None}
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/x.safetensors", "a/b.safetensors", "..\\x.safetensors", ".x.safetensors"]
)
def test_index_pointing_outside(tmp_path, shard):
    write_hf(tmp_path, shards=3)
    change_map(tmp_path, **{NAME: shard})
    with pytest.raises(ModelError, match="points outside the checkpoint's folder") as error:
        read_directory(str(tmp_path))
    assert (error.value.file, error.value.tensor) == (str(tmp_path / INDEX), NAME)


@pytest.mark.parametrize("shard", ["model.bin", 5, ["a"], ""])
def test_index_with_another_kind_of_file(tmp_path, shard):
    write_hf(tmp_path, shards=3)
    change_map(tmp_path, **{NAME: shard})
    with pytest.raises(ModelError, match=r"is not the name of a \.safetensors file"):
        read_directory(str(tmp_path))


def test_index_against_shards(tmp_path):
    write_hf(tmp_path, shards=3)
    good = (tmp_path / INDEX).read_text()
    place = json.loads(good)["weight_map"][NAME]
    other = next(shard for shard in SHARDS if shard != place)

    def refused(match: str, file: str, tensor: str) -> None:
        with pytest.raises(ModelError, match=match) as error:
            read_directory(str(tmp_path))
        assert (error.value.file, error.value.tensor) == (str(tmp_path / file), tensor)
        (tmp_path / INDEX).write_text(good)

    change_map(tmp_path, **{NAME: other})
    refused(f"is in this file, but {INDEX} has it in {other}", place, NAME)
    change_map(tmp_path, **{NAME: None})
    refused(f"is in this file, but {INDEX} has it nowhere", place, NAME)
    change_map(tmp_path, another=place)
    refused("missing, yet .* says that it is here", place, "another")
    (tmp_path / INDEX).write_text('{"weight_map": []}')
    refused("an object of tensor name", INDEX, "weight_map")
    (tmp_path / SHARDS[1]).unlink()
    refused("missing: shard 2 of the 3", SHARDS[1], "")


def test_directories_without_weights_that_are_read(tmp_path):
    def refused(match: str) -> None:
        with pytest.raises(ModelError, match=match):
            read_directory(str(tmp_path))

    refused("no weights: model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    refused("pytorch_model.bin: a pickle checkpoint: loading one can run code, so it is refused")
    save_file({"a": np.zeros(1)}, tmp_path / SHARDS[0])
    refused(f"{INDEX}: missing, yet there are shards such as {SHARDS[0]}")
    (tmp_path / SHARDS[0]).rename(tmp_path / "weights.safetensors")
    assert list(read_directory(str(tmp_path))) == ["a"]
    save_file({"a": np.zeros(1)}, tmp_path / "more.safetensors")
    refused("2 other .safetensors files")


def test_large_header_is_fast(tmp_path):
    """30k tensors: half of what the largest public checkpoints have."""
    path = tmp_path / "many.safetensors"
    records = {
        f"model.layers.{i}.weight": {"dtype": "BF16", "shape": [1, 1], "data_offsets": [2 * i, 2 * i + 2]}
        for i in range(30_000)
    }
    path.write_bytes(file_bytes(json.dumps(records), bytes(60_000)))
    start = time.process_time()
    assert len(read_safetensors(str(path))) == 30_000
    assert time.process_time() - start < 3.0  # measured: 0.2 s


def test_every_truncation_is_refused(tmp_path):
    whole = tmp_path / "whole.safetensors"
    save_file({name: value for name, value in list(hf_tensors({"vocab_size": 16}).items())[:6]}, whole)
    content = whole.read_bytes()
    path = tmp_path / "cut.safetensors"
    for length in [*range(0, 700, 3), *range(700, len(content), 4001), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(ModelError) as error:
            read_safetensors(str(path))
        assert error.value.file == str(path)
