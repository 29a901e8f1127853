"""Random damage to small checkpoints: whatever the bytes, either the model opens or a ModelError says why not."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from checkpoint_files import write_gguf, write_hf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freetoken.checkpoint import open_model
from freetoken.checkpoint.gguf import open_gguf
from freetoken.checkpoint.safetensors import read_safetensors
from freetoken.errors import ModelError

FEW = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=80)
# Where the damage goes (as a share of the part that is a header), and the new byte.
FLIPS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6)


def damaged(content: bytes, flips: list[tuple[float, int]], start: int, end: int) -> bytes:
    result = bytearray(content)
    for place, value in flips:
        result[start + int(place * (end - start))] = value
    return bytes(result)


def opens_or_says_why(read, path: Path, limit_bytes: int) -> None:
    tracemalloc.start()
    try:
        read(str(path))
    except ModelError as error:
        assert error.file.startswith(str(path.parent)) and error.reason
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < limit_bytes


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory) -> tuple[Path, bytes, int]:
    """The file, its bytes and the length of its header."""
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    write_gguf(path, experts=4)
    return path, path.read_bytes(), min(entry.offset for entry in open_gguf(str(path)).tensors.values())


@MANY
@given(flips=FLIPS)
def test_gguf_tensor_table_and_counts(gguf_file, flips):
    path, content, header = gguf_file
    for start, end in ((0, 700), (header - 2000, header)):
        path.write_bytes(damaged(content, flips, start, end))
        opens_or_says_why(open_gguf, path, 16 << 20)


@FEW
@given(flips=FLIPS)
def test_gguf_model(gguf_file, flips):
    """Through the tokenizer and the weight table too."""
    path, content, header = gguf_file
    path.write_bytes(damaged(content, flips, 0, header))
    opens_or_says_why(open_model, path, 64 << 20)


@pytest.fixture(scope="module")
def hf_folder(tmp_path_factory) -> tuple[Path, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("hf") / "m"
    write_hf(folder, shards=2)
    return folder, {path.name: path.read_bytes() for path in folder.iterdir()}


@MANY
@given(flips=FLIPS)
def test_safetensors_header(hf_folder, flips):
    folder, contents = hf_folder
    name = "model-00001-of-00002.safetensors"
    content = contents[name]
    path = folder / "damaged.safetensors"
    path.write_bytes(damaged(content, flips, 0, 8 + int.from_bytes(content[:8], "little")))
    opens_or_says_why(read_safetensors, path, 16 << 20)


@FEW
@given(flips=FLIPS, which=st.integers(0, 100))
def test_json_files(hf_folder, flips, which):
    folder, contents = hf_folder
    names = sorted(name for name in contents if name.endswith(".json"))
    name = names[which % len(names)]
    (folder / name).write_bytes(damaged(contents[name], flips, 0, len(contents[name])))
    try:
        opens_or_says_why(open_model, folder, 64 << 20)
    finally:
        (folder / name).write_bytes(contents[name])
