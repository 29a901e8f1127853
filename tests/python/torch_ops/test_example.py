"""The example of docs/torch.md runs and gives what torch gives."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.oracle
PAGE = Path(__file__).resolve().parents[3] / "docs" / "torch.md"


def test_the_example_of_the_page():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict = {}
    torch.manual_seed(0)
    with torch.no_grad():
        exec(compile(code, str(PAGE), "exec"), names)
        # bf16 weights see x rounded to bf16; the bias is added in fp32.
        layer, x = names["layer"], names["x"]
        expected = x.bfloat16().float() @ layer.weight.float().T + layer.bias.float()
        torch.testing.assert_close(names["y"], expected, rtol=1e-5, atol=1e-5)
        gate, up, down = names["gate"], names["up"], names["down"]
        for r in range(4):
            mixed = sum(
                w * (down[e] @ (torch.nn.functional.silu(gate[e] @ x[r]) * (up[e] @ x[r])))
                for e, w in zip(names["ids"][r].tolist(), names["weights"][r], strict=True)
            )
            torch.testing.assert_close(names["z"][r], mixed, rtol=1e-4, atol=1e-4)
    assert names["out"].shape == (2, 8, 64) and names["out"].isfinite().all()
    assert names["have"].tolist() == [71, 4]
