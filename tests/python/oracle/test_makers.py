"""The makers against a reader that is not ours: transformers' own GGUF loader."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers

from oracle import golden, make
from oracle.families import GGUF_BASES


@pytest.mark.parametrize("base", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("fmt", ["q8_0", "q6_k"])
def test_gguf_as_transformers_reads_it(base, fmt, tmp_path):
    """Names, row order and metadata; the config is ours, because that loader ignores rope_freqs and expert sizes."""
    made = make.gguf(base, fmt)
    (tmp_path / "config.json").write_text(json.dumps(GGUF_BASES[base]))
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        made.model.parent, gguf_file=made.model.name, config=config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for expected in golden.read(made.golden).values():
        np.testing.assert_allclose(golden.logits(model, expected.prompt).numpy(), expected.logits, rtol=0, atol=1e-4)
