"""Kernels keep to what both nvcc and the emulator know: cuda/kernels/device.h and plain CUDA."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The device layer itself. Everything else in cuda/ is under the rules.
LAYER = {"cuda/kernels/device.h", "cuda/kernels/device_ptx-inl.h"}
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
VECTORS = r"(?:u?int|float|u?char|u?short|double|u?longlong)[24]"
RULES = {
    "inline assembly": r"\basm\b|\b__asm__?\b",
    "a launch that the emulator does not see: FT_LAUNCH": r"<<<|\bcudaLaunchKernel\w*",
    "shared memory without FT_SHARED or FT_DYNAMIC_SHARED": r"\b__shared__\b",
    "a wide access without load16, store16 or their like": (
        rf"\*\s*\(?\s*(?:reinterpret_cast|static_cast)\s*<\s*(?:const\s+)?{VECTORS}\s*(?:const\s*)?\*"
        rf"|\*\s*\(\s*(?:const\s+)?{VECTORS}\s*(?:const\s*)?\*\s*\)"
    ),
    "a header that the emulator has not": (
        r'#\s*include\s*[<"](?:cub|thrust|cuda/std|cooperative_groups|cuda_bf16|cuda_fp16|cuda_fp8|mma\.h|nvtx|cublas|cute/|cutlass)'
    ),
    "a mask of lanes that CUDA does not promise": r"\b__activemask\b",
    "what depends on the compiler": r"\b__CUDA_ARCH__\b|\b__CUDACC__\b|\bFT_EMU_\w+|\bfreetoken::emu\b|\bemu::",
}  # fmt: skip


def sources() -> list[Path]:
    return sorted(p for p in (ROOT / "cuda").rglob("*") if p.suffix in {".h", ".cc", ".cu"})


def offences(text: str) -> list[str]:
    code = COMMENT.sub(lambda m: "\n" * m[0].count("\n"), text)
    found = []
    for what, pattern in RULES.items():
        for match in re.finditer(pattern, code):
            found.append(f"{code.count(chr(10), 0, match.start()) + 1}: {what}: {match[0]}")
    return found


def test_sources_of_the_backend():
    assert len(sources()) > 20, "the test looks in the wrong place"
    wrong = [
        f"{path.relative_to(ROOT)}:{offence}"
        for path in sources()
        if str(path.relative_to(ROOT)) not in LAYER
        for offence in offences(path.read_text())
    ]
    assert not wrong, "\n".join(wrong)


def test_the_layer_exists():
    assert {str(p.relative_to(ROOT)) for p in sources()} >= LAYER


@pytest.mark.parametrize(
    "line",
    [
        'asm volatile("mma");', "kernel<<<1, 32>>>();", "__shared__ float s[4];", "uint4 v = *(const uint4*)p;",
        "x = *reinterpret_cast<const float4*>(p);", "#include <cuda_bf16.h>", "#include <cub/cub.cuh>",
        "f(__activemask());", "#ifdef __CUDACC__", "emu::switches();",
    ],
)  # fmt: skip
def test_each_offence_is_noticed(line):
    assert len(offences(f"// fine\n{line}\n")) == 1


@pytest.mark.parametrize(
    "line", ["// asm of mma", "/* kernel<<<1>>> */", "uint4 v = load16(p);", "a * (b)", "float4* to = p;"]
)
def test_the_rest_is_left_alone(line):
    assert not offences(line)
