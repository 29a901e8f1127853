"""Parsers of the families that are described but not served yet: they prove that the ModelSpec can express them, and
become python/freetoken/config/<family>.py when their operations exist. `parse` takes any configuration, served families
included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from freetoken.config import SERVED, ParsedModel, architecture_of
from freetoken.config.reader import Reader

from . import (
    deepseek,
    deepseek_v4,
    dense,
    dsa,
    gemma,
    granite,
    inkling,
    kda,
    lfm2_moe,
    llama4,
    mamba,
    minimax,
    muse,
    qwen_gdn,
    sigmoid_moe,
    softmax_moe,
    step3p7,
)

FAMILIES: dict[str, Callable[[Reader], ParsedModel]] = {
    "AfmoeForCausalLM": sigmoid_moe.afmoe,
    "BailingHybridForCausalLM": kda.bailing_hybrid,
    "DeepseekV2ForCausalLM": deepseek.deepseek_v2,
    "DeepseekV3ForCausalLM": deepseek.deepseek_v3,
    "DeepseekV32ForCausalLM": dsa.deepseek_v32,
    "DeepseekV4ForCausalLM": deepseek_v4.deepseek_v4,
    "Dots1ForCausalLM": sigmoid_moe.dots1,
    "Ernie4_5_MoeForCausalLM": softmax_moe.ernie4_5_moe,
    "ExaoneMoeForCausalLM": sigmoid_moe.exaone_moe,
    "FlexOlmoForCausalLM": softmax_moe.flex_olmo,
    "Gemma2ForCausalLM": gemma.gemma2,
    "Gemma3ForCausalLM": gemma.gemma3_text,
    "Gemma3ForConditionalGeneration": gemma.gemma3,
    "Gemma4ForCausalLM": gemma.gemma4_text,
    "Gemma4ForConditionalGeneration": gemma.gemma4,
    "Glm4ForCausalLM": dense.glm4,
    "Glm4MoeForCausalLM": sigmoid_moe.glm4_moe,
    "Glm4MoeLiteForCausalLM": deepseek.glm4_moe_lite,
    "Glm5NextForConditionalGeneration": kda.glm5_next,
    "GlmMoeDsaForCausalLM": dsa.glm_moe_dsa,
    "GptOssForCausalLM": softmax_moe.gpt_oss,
    "GraniteMoeForCausalLM": granite.granitemoe,
    "GraniteMoeHybridForCausalLM": granite.granitemoehybrid,
    "GraniteMoeSharedForCausalLM": granite.granitemoeshared,
    "HunYuanMoEV1ForCausalLM": softmax_moe.hunyuan_v1_moe,
    "HYV3ForCausalLM": sigmoid_moe.hy_v3,
    "HYV4ForCausalLM": dsa.hy_v4,
    "InklingForCausalLM": inkling.inkling,
    "Kimi_K25ForConditionalGeneration": deepseek.kimi_k25,
    "KimiLinearForCausalLM": kda.kimi_linear,
    "LagunaForCausalLM": sigmoid_moe.laguna,
    "Lfm2MoeForCausalLM": lfm2_moe.lfm2_moe,
    "Llama4ForCausalLM": llama4.llama4,
    "Llama4ForConditionalGeneration": llama4.llama4,
    "LongcatFlashForCausalLM": deepseek.longcat_flash,
    "MiMoV2FlashForCausalLM": sigmoid_moe.mimo_v2_flash,
    "MiniMaxForCausalLM": minimax.minimax,
    "MiniMaxM2ForCausalLM": sigmoid_moe.minimax_m2,
    "MiniMaxM3SparseForConditionalGeneration": minimax.minimax_m3,
    "MiniMaxM3VLForCausalLM": minimax.minimax_m3_text,
    "Mistral4ForCausalLM": deepseek.mistral4,
    "MistralLarge4ForConditionalGeneration": dsa.mistral_large4,
    "MuseGlimmerForConditionalGeneration": muse.muse_glimmer,
    "MuseSparkForConditionalGeneration": muse.muse_spark,
    "NemotronHForCausalLM": mamba.nemotron_h,
    "Olmo3ForCausalLM": dense.olmo3,
    "OlmoeForCausalLM": softmax_moe.olmoe,
    "OlmoHybridForCausalLM": kda.olmo_hybrid,
    "PhimoeForCausalLM": softmax_moe.phimoe,
    "Qwen2MoeForCausalLM": softmax_moe.qwen2_moe,
    "Qwen3NextForCausalLM": qwen_gdn.qwen3_next,
    "Qwen3_5ForCausalLM": qwen_gdn.qwen3_5_text,
    "Qwen3_5ForConditionalGeneration": qwen_gdn.qwen3_5,
    "Qwen3_5MoeForCausalLM": qwen_gdn.qwen3_5_moe_text,
    "Qwen3_5MoeForConditionalGeneration": qwen_gdn.qwen3_5_moe,
    "Qwen4ExpForCausalLM": qwen_gdn.qwen4_exp,
    "SeedOssForCausalLM": dense.seed_oss,
    "SmolLM3ForCausalLM": dense.smollm3,
    "Step3p7ForConditionalGeneration": step3p7.step3p7,
}


def parse(config: Mapping[str, Any]) -> ParsedModel:
    architecture = architecture_of(config)
    return {**FAMILIES, **SERVED}[architecture](Reader(config))
