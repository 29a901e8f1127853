"""Writes matmul_nvfp4_vectors.h: NVFP4 by torch's own e4m3 and the published table of e2m1.

python tests/cuda/kernels/make_nvfp4_vectors.py > tests/cuda/kernels/matmul_nvfp4_vectors.h
"""

import torch

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
K, ROWS = 48, 3


def bits(values: torch.Tensor) -> list[int]:
    return [v & 0xFFFFFFFF for v in values.to(torch.float32).view(torch.int32).flatten().tolist()]


def array(kind: str, name: str, values: list[int], width: int) -> str:
    text = [f"0x{v:0{width}x}" + ("u" if width == 8 else "") for v in values]
    per_line = 9 if width == 8 else 18
    lines = [", ".join(text[i : i + per_line]) for i in range(0, len(text), per_line)]
    return f"constexpr {kind} {name}[{len(values)}] = {{\n    " + ",\n    ".join(lines) + "};\n"


def row_bytes(scale: torch.Tensor, block_scales: torch.Tensor, codes: torch.Tensor) -> list[int]:
    out = list(scale.view(torch.uint8).tolist())
    for b, block_scale in enumerate(block_scales.tolist()):
        block = codes[16 * b : 16 * b + 16].tolist()
        out += [block_scale] + [block[2 * i] | block[2 * i + 1] << 4 for i in range(8)]
    return out


def decoded_rows(g: torch.Generator) -> tuple[list[int], list[int]]:
    source, values = [], []
    for _ in range(ROWS):
        scale = torch.rand(1, generator=g) * 0.01
        block_scales = torch.randint(0, 256, (K // 16,), generator=g, dtype=torch.uint8)
        block_scales[(block_scales & 0x7F) == 0x7F] = 0x38
        codes = torch.randint(0, 16, (K,), generator=g)
        source += row_bytes(scale, block_scales, codes)
        factors = block_scales.view(torch.float8_e4m3fn).to(torch.float32).repeat_interleave(16)
        values += bits(E2M1[codes] * factors * scale)
    return source, values


def encoded_rows(g: torch.Generator) -> tuple[list[int], list[int], list[int]]:
    scale = torch.tensor([0.0123])
    x = torch.randn(ROWS, K, generator=g) * torch.tensor([[1.0], [0.01], [30.0]])
    x[0, 16:32] = 0.0
    source = []
    for row in x:
        blocks = row.view(-1, 16)
        wanted = (blocks.abs().amax(1) / 6.0 / scale).clamp(max=448.0)
        block_scales = wanted.to(torch.float8_e4m3fn)
        step = (block_scales.to(torch.float32) * scale).repeat_interleave(16)
        distance = (torch.where(step > 0, row.abs() / step, torch.zeros(())).unsqueeze(1) - E2M1[:8]).abs().double()
        distance[:, 1::2] += 1e-12  # a tie goes to the even code
        codes = distance.argmin(1) + 8 * torch.signbit(row).long()
        source += row_bytes(scale, block_scales.view(torch.uint8), codes)
    return bits(x), source, bits(scale)


g = torch.Generator().manual_seed(4)
print("// Made by make_nvfp4_vectors.py with torch " + torch.__version__.split("+")[0] + ".")
print("#pragma once\n#include <cstdint>\n\nnamespace freetoken::cuda::testing::nvfp4_vectors {\n")
print(f"constexpr int kK = {K}, kRows = {ROWS};\n")
e4m3 = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn)
print(array("uint32_t", "kE4m3", bits(e4m3), 8))
rows, values = decoded_rows(g)
print(array("uint8_t", "kDecodedSource", rows, 2))
print(array("uint32_t", "kDecoded", values, 8))
x, rows, scale = encoded_rows(g)
print(array("uint32_t", "kMatrixScale", scale, 8))
print(array("uint32_t", "kEncodedInput", x, 8))
print(array("uint8_t", "kEncoded", rows, 2))
print("}  // namespace freetoken::cuda::testing::nvfp4_vectors")
