"""open_model: what a user may name, what comes of it, and how it fails."""

from __future__ import annotations

import json
import os
from pathlib import Path

import gguf
import pytest
from checkpoint_files import CONFIG, MIXTRAL, write_gguf, write_hf

from freetoken.checkpoint import hub, open_model
from freetoken.errors import ConfigError, ModelError
from oracle import tiny_tokenizer as tok

U32 = gguf.GGUFValueType.UINT32
F32 = gguf.GGUFValueType.FLOAT32


def edit(path: Path, **changes: object) -> None:
    """Changes keys of a JSON file; None removes one."""
    value = json.loads(path.read_text()) if path.exists() else {}
    value |= changes
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))


def test_directory(tmp_path):
    folder = tmp_path / "mymodel"
    write_hf(folder, MIXTRAL)
    defaults = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}
    ignored = {"do_sample": True, "max_new_tokens": 2048, "max_length": 20}
    edit(folder / "generation_config.json", eos_token_id=[1, 3], **defaults, **ignored)
    edit(folder / "tokenizer_config.json", bos_token={"content": "<|endoftext|>"})
    model = open_model(str(folder))
    assert (model.name, model.architecture) == ("mymodel", "MixtralForCausalLM")
    assert model.spec["vocab"] == model.tokenizer.vocab_size == tok.VOCAB_SIZE
    assert model.chat_template == tok.CHAT_TEMPLATE
    assert model.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    assert model.eos_token_ids == [1, 2, 3]  # generation_config, config, tokenizer
    assert model.generation_defaults == defaults
    assert model.tokenizer.bos_token_id == 0


@pytest.mark.parametrize(
    "key, value", [("temperature", -1), ("temperature", "hot"), ("top_k", 1.5), ("top_k", True), ("top_p", 7)]
)
def test_a_default_that_no_request_could_have_is_refused(tmp_path, key, value):
    write_hf(tmp_path)
    edit(tmp_path / "generation_config.json", **{key: value})
    with pytest.raises(ModelError, match=f"generation_config.json: {key}: {value} is not a sampling parameter"):
        open_model(str(tmp_path))


FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]


@pytest.mark.parametrize("name", [*FILES, "special_tokens_map.json", "chat_template.jinja"])
@pytest.mark.parametrize("kind", ["FIFO", "directory", "loop"])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, name, kind):
    write_hf(tmp_path)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(name)
        if name not in ("config.json", "model.safetensors", "tokenizer.json"):
            return  # a broken link in place of an optional file is the file's absence
    with pytest.raises(ModelError) as caught:
        open_model(str(tmp_path))
    assert caught.value.file.startswith(str(tmp_path))


@pytest.mark.parametrize("kind, says", [("FIFO", "it is a FIFO, not a file"), ("loop", "symbolic links")])
def test_a_gguf_that_is_no_file_is_named_for_what_it_is(tmp_path, kind, says):
    path = tmp_path / "model.gguf"
    os.mkfifo(path) if kind == "FIFO" else path.symlink_to("model.gguf")
    with pytest.raises(ModelError, match=says):
        open_model(str(path))


def test_an_override_without_effect_is_refused(tmp_path):
    """Values inside rope_parameters outrank those beside it, as in transformers."""
    write_hf(tmp_path, CONFIG | {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}})
    with pytest.raises(ConfigError, match=r'write \{"rope_parameters": \{"rope_theta": \.\.\.\}\}'):
        open_model(str(tmp_path), hf_overrides={"rope_theta": 1e6})
    before = open_model(str(tmp_path)).spec
    after = open_model(str(tmp_path), hf_overrides={"rope_parameters": {"rope_theta": 1e6}}).spec
    assert before != after


def test_each_source_of_end_tokens(tmp_path):
    write_hf(tmp_path, CONFIG | {"eos_token_id": 0})
    edit(tmp_path / "tokenizer_config.json", eos_token="<|pad|>")
    assert open_model(str(tmp_path)).eos_token_ids == [0, 3]
    edit(tmp_path / "config.json", eos_token_id=None)
    edit(tmp_path / "tokenizer_config.json", eos_token=None)
    edit(tmp_path / "special_tokens_map.json", eos_token="<|im_end|>")
    assert open_model(str(tmp_path)).eos_token_ids == [2]


def test_templates(tmp_path):
    write_hf(tmp_path)
    edit(
        tmp_path / "tokenizer_config.json",
        chat_template=[{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}],
    )
    assert open_model(str(tmp_path)).chat_template == "d"
    (tmp_path / "chat_template.jinja").write_text("from the file ▁")
    assert open_model(str(tmp_path)).chat_template == "from the file ▁"
    (tmp_path / "chat_template.jinja").unlink()
    edit(tmp_path / "tokenizer_config.json", chat_template=None)
    assert open_model(str(tmp_path)).chat_template is None
    edit(tmp_path / "chat_template.json", chat_template="of a processor")
    assert open_model(str(tmp_path)).chat_template == "of a processor"


def test_overrides(tmp_path):
    write_hf(tmp_path)
    model = open_model(str(tmp_path), hf_overrides={"max_position_embeddings": 77, "eos_token_id": 1})
    assert model.spec["max_positions"] == 77
    assert model.eos_token_ids == [1, 2]
    write_gguf(tmp_path / "m.gguf")
    with pytest.raises(ConfigError, match="do not apply"):
        open_model(str(tmp_path / "m.gguf"), hf_overrides={"vocab_size": 4})


def test_gguf(tmp_path):
    sampling = {"general.sampling.temp": (0.5, F32), "general.sampling.top_k": (40, gguf.GGUFValueType.INT32)}
    sampling |= {"general.sampling.penalty_repeat": (1.25, F32)}
    eom = {"tokenizer.ggml.eom_token_id": (1, U32)}
    write_gguf(tmp_path / "tiny.Q4_1.gguf", experts=4, keys=sampling | eom)
    model = open_model(str(tmp_path / "tiny.Q4_1.gguf"))
    assert (model.name, model.architecture) == ("tiny.Q4_1", "llama")
    assert model.chat_template == "{{ messages }}"
    assert model.eos_token_ids == [1, 2, 3]  # end of message, of text, of turn
    assert model.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert model.generation_defaults == {"temperature": 0.5, "top_k": 40, "repetition_penalty": 1.25}
    assert model.tokenizer.encode("the licence", allow_special=False) == tok.train().encode("the licence").ids
    assert open_model(str(tmp_path)).name == "tiny.Q4_1"  # the only model of the directory
    write_gguf(tmp_path / "other.gguf")
    with pytest.raises(ModelError, match="holds 2 GGUF models"):
        open_model(str(tmp_path))


@pytest.mark.parametrize(
    ("file", "changes", "reason"),
    [
        ("config.json", {"architectures": ["NoSuchForCausalLM"]}, "NoSuchForCausalLM.*unknown"),
        ("config.json", {"architectures": ["DeepseekV3ForCausalLM"]}, "recognised but not served"),
        ("config.json", {"architectures": 5}, "architectures"),
        ("config.json", {"hidden_size": 1 << 60}, "hidden_size"),
        ("config.json", {"hidden_size": -64}, "hidden_size"),
        ("config.json", {"hidden_size": "64"}, "hidden_size"),
        ("config.json", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ("config.json", {"num_hidden_layers": 3}, "missing: the model needs layers.2"),
        ("config.json", {"vocab_size": 1 << 40}, "vocab_size"),
        ("config.json", {"vocab_size": 1000}, r"shape \[1024, 64\], the configuration gives \[1000, 64\]"),
        ("config.json", {"eos_token_id": 1024}, "eos_token_id: 1024 is not a token id of a vocabulary of 1024"),
        ("config.json", {"eos_token_id": -1}, "eos_token_id: -1 is not a token id"),
        ("config.json", {"eos_token_id": "2"}, "eos_token_id: 2 is not a token id"),
        ("config.json", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ("generation_config.json", {"eos_token_id": [[2]]}, "eos_token_id: .* is not a token id"),
        ("generation_config.json", {"temperature": "hot"}, "temperature: hot is not a sampling parameter"),
        ("generation_config.json", {"top_k": -5}, "top_k: -5 is not a sampling parameter"),
        ("tokenizer_config.json", {"chat_template": 5}, "chat_template: a template is text"),
        ("tokenizer_config.json", {"chat_template": "x" * 1048577}, "a template of 1048577 characters"),
        ("tokenizer_config.json", {"bos_token": 5}, "bos_token: text expected"),
    ],
)
def test_bad_values_in_json(tmp_path, file, changes, reason):
    write_hf(tmp_path)
    edit(tmp_path / file, **changes)
    with pytest.raises(ModelError, match=reason) as error:
        open_model(str(tmp_path))
    assert error.value.file.startswith(str(tmp_path))


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"a":' * 200_000,
        b"[" * 1_000_000,
        b'{"a": ' + b"9" * 9999 + b"}",
        b'{"a": NaN}',
    ],
    ids=["empty", "open", "list", "null", "not UTF-8", "deep objects", "deep lists", "long number", "NaN"],
)
def test_broken_json(tmp_path, file, content):
    write_hf(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ModelError) as error:
        open_model(str(tmp_path))
    assert error.value.file == str(tmp_path / file)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_file(tmp_path, file):
    write_hf(tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(ModelError) as error:
        open_model(str(tmp_path))
    assert error.value.file in (str(tmp_path / file), str(tmp_path))


def test_sentencepiece_file_alone(tmp_path):
    write_hf(tmp_path)
    (tmp_path / "tokenizer.json").rename(tmp_path / "tokenizer.model")
    with pytest.raises(ModelError, match=r"tokenizer.model alone is not read: save the tokenizer as tokenizer.json"):
        open_model(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no-such-model", "no such file or directory, and not a hub id"),
        ("no/such/model", "no such file or directory, and not a hub id"),
        ("../x", "no such file or directory, and not a hub id"),
        ("nosuch.gguf", "no such file"),
        ("", "no such file or directory, and not a hub id"),
    ],
)
def test_names_of_nothing(name, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=reason):
        open_model(name)


def test_another_kind_of_file(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"a file, but not a \.gguf"):
        open_model(str(tmp_path / "model.bin"))


# ---- the hub


def test_hub_without_network(monkeypatch):
    """Offline and nothing in the cache: what to run elsewhere, and what to do with the result."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        ModelError, match=r"`hf download nobody/nothing .* --local-dir FOLDER`, then give FOLDER as the model"
    ):
        open_model("nobody/nothing")


class FakeHub:
    """Stands for the two calls of huggingface_hub: a listing, and a download that copies the files asked for."""

    def __init__(self, folder: Path, files: list[str]) -> None:
        self.folder, self.files, self.asked = folder, files, []

    def list_repo_files(self, repo_id: str, revision: str | None = None) -> list[str]:
        return self.files

    def snapshot_download(self, repo_id: str, *, revision: str | None = None, allow_patterns: list[str]) -> str:
        self.asked.append((repo_id, revision, allow_patterns))
        return str(self.folder)


def test_hub_download(tmp_path, monkeypatch):
    import huggingface_hub

    write_hf(tmp_path)
    files = [
        "README.md",
        "config.json",
        "model.safetensors",
        "modeling_x.py",
        "original/model.safetensors",
        "pytorch_model.bin",
    ]
    fake = FakeHub(tmp_path, [*files, "tokenizer.json", "tokenizer_config.json", "tokenizer.model"])
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    model = open_model("owner/name", revision="main")
    assert model.name == "owner/name"
    wanted = ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"]
    assert fake.asked == [("owner/name", "main", wanted)]


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (
            ["consolidated.safetensors", "model-1.safetensors", "model.safetensors.index.json"],
            ["model-1.safetensors", "model.safetensors.index.json"],
        ),
        (
            ["model.safetensors", "adapter.safetensors", "chat_template.jinja"],
            ["model.safetensors", "chat_template.jinja"],
        ),
    ],
)
def test_hub_selection(files, wanted):
    assert hub.wanted_files("owner/name", files) == wanted


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (["config.json", "pytorch_model.bin"], "pytorch_model.bin: a pickle checkpoint"),
        (["a.Q4_0.gguf", "b.gguf"], "holds GGUF files: download one, such as a.Q4_0.gguf"),
        (["README.md"], r"holds no \.safetensors"),
    ],
)
def test_hub_repositories_that_are_not_read(files, reason):
    with pytest.raises(ModelError, match=reason):
        hub.wanted_files("owner/name", files)
