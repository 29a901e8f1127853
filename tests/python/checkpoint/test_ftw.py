"""FTW directories: written by the core, opened again, damaged in every place."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from checkpoint_files import HIDDEN, MIXTRAL, write_gguf, write_hf
from click.testing import CliRunner

from freetoken import _core
from freetoken.checkpoint import ftw, open_model
from freetoken.cli.checkpoint import checkpoint
from freetoken.errors import ModelError


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_hf(folder)
    return folder


@pytest.fixture(scope="module")
def packed(source, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "ftw"
    ftw.write(open_model(str(source)), str(out), shard_bytes=40_000)
    return out


@pytest.fixture
def copy(packed, tmp_path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "copy"))


def opening_error(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_model(str(folder))
    return str(caught.value)


def test_opens_as_what_it_was_made_of(source, packed):
    before, after = open_model(str(source)), open_model(str(packed))
    assert after.spec == before.spec
    assert after.eos_token_ids == before.eos_token_ids
    assert after.generation_defaults == before.generation_defaults
    assert after.chat_template == before.chat_template
    assert after.special_tokens == before.special_tokens
    assert after.tokenizer.vocab_bytes() == before.tokenizer.vocab_bytes()
    assert after.tokenizer.settings() == before.tokenizer.settings()
    text = "Tokens of a text, <|im_end|> among them: äöü 漢字 \U0001f600"
    for special in (False, True):
        assert after.tokenizer.encode(text, special) == before.tokenizer.encode(text, special)
    assert len(list(packed.glob("shard-*.ftw"))) > 1


def test_checksums_are_those_of_zlib(packed):
    manifest = json.loads((packed / "manifest.json").read_text())
    assert manifest["items"]
    for item in manifest["items"]:
        shard = (packed / manifest["shards"][item["shard"]]["name"]).read_bytes()
        assert item["offset"] % 4096 == 0
        assert zlib.crc32(shard[item["offset"] : item["offset"] + item["bytes"]]) == item["crc32"], item["name"]
    for file in [manifest["vocab"], *manifest["files"]]:
        data = (packed / file["name"]).read_bytes()
        assert (len(data), zlib.crc32(data)) == (file["bytes"], file["crc32"])


def test_vectors_lie_as_plain_floats(source, packed):
    """One tensor found by the documented manifest alone: the last norm, all ones plus a little, as f32."""
    from safetensors.numpy import load_file

    manifest = json.loads((packed / "manifest.json").read_text())
    item = next(i for i in manifest["items"] if i["name"] == "final_norm")
    shard = (packed / manifest["shards"][item["shard"]]["name"]).read_bytes()
    stored = np.frombuffer(shard, np.float32, item["bytes"] // 4, item["offset"])
    tensors = {}
    for path in source.glob("*.safetensors"):
        tensors |= load_file(path)
    assert np.array_equal(stored, tensors["model.norm.weight"].astype(np.float32))


def untiled_q8_0(data: bytes, n: int, k: int) -> np.ndarray:
    """GGUF's blocks [n, k / 32 * 34] of T32 tiles, by docs/ftw.md alone."""
    units = np.frombuffer(data, np.uint8).reshape(-(-n // 32), k // 32, 1088)
    d = units[:, :, :64].reshape(*units.shape[:2], 32, 2)
    codes = units[:, :, 64:].reshape(*units.shape[:2], 8, 32, 4).transpose(0, 1, 3, 2, 4)  # tile, unit, row, granule, j
    blocks = np.concatenate([d, codes.reshape(*units.shape[:2], 32, 32) - np.uint8(128)], axis=3)
    return blocks.transpose(0, 2, 1, 3).reshape(-1, k // 32 * 34)[:n]


def untiled_f32(data: bytes, k: int) -> np.ndarray:
    """[padded n, k] of T32 tiles, by docs/ftw.md alone."""
    return np.frombuffer(data, np.float32).reshape(-1, k, 32).transpose(0, 2, 1).reshape(-1, k)


def item_bytes(folder: Path, name: str) -> bytes:
    manifest = json.loads((folder / "manifest.json").read_text())
    item = next(i for i in manifest["items"] if i["name"] == name)
    shard = (folder / manifest["shards"][item["shard"]]["name"]).read_bytes()
    return shard[item["offset"] : item["offset"] + item["bytes"]]


def test_tiles_lie_as_documented(tmp_path):
    """A reader of its own for the shards of a GGUF: its Q8_0 embedding comes out byte for byte."""
    stored = write_gguf(tmp_path / "model.gguf")["token_embd.weight"]
    ftw.write(open_model(str(tmp_path / "model.gguf")), str(tmp_path / "ftw"))
    n = len(stored)
    assert np.array_equal(untiled_q8_0(item_bytes(tmp_path / "ftw", "embed"), n, HIDDEN), stored.reshape(n, -1))


def test_experts_lie_as_documented(tmp_path):
    """Gate and up interleaved by 16 rows, then down: these, and zeros up to a multiple of 4096, are the extent."""
    tensors = write_hf(tmp_path / "source", MIXTRAL)
    ftw.write(open_model(str(tmp_path / "source")), str(tmp_path / "ftw"))
    extent = item_bytes(tmp_path / "ftw", "layers.1.1.experts.2")
    gate, up, down = (
        tensors[f"model.layers.1.block_sparse_moe.experts.2.{part}.weight"] for part in ("w1", "w3", "w2")
    )
    first, second = gate.nbytes + up.nbytes, down.nbytes
    assert first % 64 == 0 and len(extent) == -(-(first + second) // 4096) * 4096
    pairs = untiled_f32(extent[:first], HIDDEN).reshape(-1, 2, 16, HIDDEN)
    assert np.array_equal(pairs[:, 0].reshape(-1, HIDDEN), gate)
    assert np.array_equal(pairs[:, 1].reshape(-1, HIDDEN), up)
    assert np.array_equal(untiled_f32(extent[first : first + second], gate.shape[0]), down)
    assert not any(extent[first + second :])


def test_flipped_bytes_of_weights_are_found(copy):
    shard = sorted(copy.glob("shard-*.ftw"))[-1]
    manifest = json.loads((copy / "manifest.json").read_text())
    index = len(manifest["shards"]) - 1
    item = next(i for i in manifest["items"] if i["shard"] == index)
    data = bytearray(shard.read_bytes())
    data[item["offset"] + item["bytes"] // 2] ^= 0x10
    shard.write_bytes(data)
    open_model(str(copy))  # weights are not read
    with pytest.raises(_core.ConfigError) as caught:
        _core.verify_checkpoint(str(copy))
    assert item["name"] in str(caught.value) and shard.name in str(caught.value)
    assert str(item["offset"]) in str(caught.value)


@pytest.mark.parametrize("name", ["vocab.bin", "tokenizer.json", "host.json"])
def test_flipped_bytes_of_side_files_are_found(copy, name):
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    assert name in opening_error(copy) and "checksum" in opening_error(copy)


@pytest.mark.parametrize("name", ["vocab.bin", "tokenizer.json", "host.json", "shard"])
def test_truncated_and_missing_files_are_found(copy, name):
    path = sorted(copy.glob(f"{name}*"))[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert path.name in opening_error(copy)
    path.unlink()
    assert path.name in opening_error(copy)


def test_manifests_that_are_cut_or_changed_are_errors(copy):
    """Each is a ModelError (or, for a change without effect, still the same model), never a crash or a hang."""
    text = (copy / "manifest.json").read_text()
    rng = random.Random(1)
    refused = 0
    for attempt in range(300):
        if attempt % 3 == 0:
            damaged = text[: rng.randrange(len(text))]
        else:
            at = rng.randrange(len(text) - 1)
            damaged = text[:at] + rng.choice('0123456789{}[]",:-e.xf') + text[at + 1 :]
        (copy / "manifest.json").write_text(damaged)
        try:
            opened = open_model(str(copy))
            _core.plan(ftw.load_options(opened, _core.Vocab(*opened.tokenizer.vocab_bytes())))
        except (ModelError, _core.FreeTokenError) as error:
            assert str(copy) in str(error) or "tensor" in str(error)
            refused += 1
    assert refused > 150


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda m: m.update(ftw=7), "version 7"),
        (lambda m: m.update(layout=9), "layout 9"),
        (lambda m: m.update(extra=1), "unknown field 'extra'"),
        (lambda m: m.pop("items"), "field items is missing"),
        (lambda m: m["items"][0].update(offset=-4096), "offset"),
        (lambda m: m["items"][0].update(offset=1 << 61), "offset"),
        (lambda m: m["items"][0].update(offset=7), "not a multiple of 4096"),
        (lambda m: m["items"][0].update(bytes=1 << 60), "ends behind"),
        (lambda m: m["items"][1].update(shard=m["items"][0]["shard"], offset=m["items"][0]["offset"]), "overlap"),
        (lambda m: m["items"][0].update(shard=99), "shard"),
        (lambda m: m["shards"][0].update(name="../x"), "plain name"),
        (lambda m: m["vocab"].update(bytes=1), "the manifest says 1"),
        (lambda m: m["weights"][0].update(n=1 << 40), "weights[0].n is 1099511627776; expected an integer"),
        (lambda m: m["weights"][0].update(format="q3_z"), "format"),
        (lambda m: m["eos_token_ids"].append(-1), "eos_token_ids"),
        (lambda m: m["model_spec"].update(hidden=-1), "hidden"),
    ],
)
def test_lying_manifests(copy, change, part):
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert part in opening_error(copy)


@pytest.mark.parametrize("field", ["ftw", "layout", "model_spec", "eos_token_ids", "unknown"])
def test_deep_nesting_is_an_error(copy, field):
    """What walks such a value recursively would run out of stack."""
    manifest = json.loads((copy / "manifest.json").read_text()) | {field: "DEEP"}
    text = json.dumps(manifest).replace('"DEEP"', "[" * 1_000_000 + "]" * 1_000_000)
    (copy / "manifest.json").write_text(text)
    assert "nested deeper than 64" in opening_error(copy)


@pytest.mark.parametrize("length", range(76, 82))
@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda m, text: m.update(ftw=text), "version"),
        (lambda m, text: m.update(layout=text), "layout"),
        (lambda m, text: m.update({text: 1}), "unknown field"),
        (lambda m, text: m["weights"][0].update(format=text), "format"),
    ],
)
def test_long_texts_are_cut_in_messages(copy, change, part, length):
    """Wherever the cut falls in a character, the message is text."""
    manifest = json.loads((copy / "manifest.json").read_text())
    change(manifest, "x" * length + "\n\u20ac" * 1000)
    (copy / "manifest.json").write_text(json.dumps(manifest, ensure_ascii=False), encoding="utf-8")
    message = opening_error(copy)
    assert part in message and len(message) < 1000 and "\n" not in message


def test_a_missing_item_is_named(copy):
    manifest = json.loads((copy / "manifest.json").read_text())
    gone = manifest["items"].pop(3)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    opened = open_model(str(copy))
    with pytest.raises(_core.ConfigError, match=gone["name"].replace(".", r"\.")):
        _core.plan(ftw.load_options(opened, _core.Vocab(*opened.tokenizer.vocab_bytes())))


def test_command_line(source, tmp_path):
    run = CliRunner().invoke
    out = tmp_path / "out"
    assert run(checkpoint, ["--model", str(source)]).exit_code == 2
    made = run(checkpoint, ["--model", str(source), "--out", str(out), "--shard-gib", "0.00003"])
    assert made.exit_code == 0, made.output
    assert "serve it with" in made.output
    again = run(checkpoint, ["--model", str(source), "--out", str(out)])
    assert again.exit_code == 2
    info = json.loads(run(checkpoint, ["--model", str(out), "--info", "--json"]).output)
    assert info["ftw"] == 0 and info["shards"] == len(list(out.glob("shard-*")))
    assert "checksums are right" in run(checkpoint, ["--model", str(out), "--verify"]).output
    (out / "vocab.bin").unlink()
    broken = run(checkpoint, ["--model", str(out), "--verify"])
    assert broken.exit_code == 2


def test_nothing_is_left_of_what_fails(source, tmp_path):
    files = open_model(str(source))
    out = tmp_path / "out"
    files.eos_token_ids = [1 << 20]
    with pytest.raises(_core.ConfigError, match="EOS token"):
        ftw.write(files, str(out))
    assert not out.exists()
    files.eos_token_ids = []
    files.weight_table["tensors"][2]["offset"] += 1 << 40
    with pytest.raises(_core.ConfigError):
        ftw.write(files, str(out))
    assert not out.exists()
    with pytest.raises(_core.ConfigError, match="No such file"):
        ftw.write(open_model(str(source)), str(tmp_path / "no" / "such" / "place"))


def test_a_killed_writer_leaves_no_checkpoint(source, tmp_path):
    """Whenever it is killed: what is there is whole and right, or is not taken for a checkpoint."""
    script = (
        "import sys, time; from freetoken.checkpoint import ftw, open_model\n"
        "files = open_model(sys.argv[1]); print('ready', flush=True)\n"
        "ftw.write(files, sys.argv[2], 40_000)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    whole = 0
    for attempt in range(8):
        out = tmp_path / f"out{attempt}"
        command = [sys.executable, "-c", script, str(source), str(out)]
        writer = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        time.sleep(0.002 * attempt)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        if ftw.is_ftw(str(out)):
            _core.verify_checkpoint(str(out))
            whole += 1
        elif out.exists():
            assert "no" in opening_error(out) or "config.json" in opening_error(out)
    assert whole < 8
