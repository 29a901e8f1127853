"""Which architectures are known, which of them this version serves, and the parser of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from freetoken.config import llama, mistral, mixtral, qwen3_moe, qwen_dense
from freetoken.config.common import ParsedModel
from freetoken.config.reader import Reader
from freetoken.errors import ConfigError

SERVED: dict[str, Callable[[Reader], ParsedModel]] = {
    "LlamaForCausalLM": llama.parse,
    "MistralForCausalLM": mistral.parse,
    "MixtralForCausalLM": mixtral.parse,
    "Qwen2ForCausalLM": qwen_dense.qwen2,
    "Qwen3ForCausalLM": qwen_dense.qwen3,
    "Qwen3MoeForCausalLM": qwen3_moe.parse,
}

# Known, and coming: the message for them differs from that for a typing error or a model nobody has described.
_CAUSAL_LM = """
    Afmoe BailingHybrid BailingMoe BailingMoeV2 Deepseek DeepseekV2 DeepseekV3 DeepseekV32 DeepseekV4 Dots1
    Ernie4_5_Moe Exaone4 ExaoneMoe FlexOlmo Gemma2 Gemma3 Gemma4 Glm4 Glm4Moe Glm4MoeLite GlmMoeDsa GptOss
    GraniteMoe GraniteMoeHybrid GraniteMoeShared HunYuanMoEV1 HYV3 HYV4 Inkling KimiLinear Laguna Lfm2Moe Llama4
    LongcatFlash MiMoV2Flash MiniMax MiniMaxM2 MiniMaxM3VL Mistral4 NemotronH Olmo3 Olmoe OlmoHybrid
    Phimoe Qwen2Moe Qwen3Next Qwen3_5 Qwen3_5Moe Qwen4Exp SeedOss SmolLM3 Step3p7
"""
_CONDITIONAL_GENERATION = """
    Gemma3 Gemma4 Glm5Next Kimi_K25 KimiK25 Llama4 MiniMaxM3Sparse MistralLarge4 MuseGlimmer MuseSpark Qwen3_5
    Qwen3_5Moe Step3p7
"""
RECOGNISED = frozenset(
    [f"{name}ForCausalLM" for name in _CAUSAL_LM.split()]
    + [f"{name}ForConditionalGeneration" for name in _CONDITIONAL_GENERATION.split()]
)


def architecture_of(hf_config: Mapping[str, Any]) -> str:
    """The name in `architectures`, by which the family is chosen."""
    names = hf_config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise ConfigError("architectures: expected a list of one name; is this the config.json of a language model?")
    return names[0]


def parse_config(hf_config: Mapping[str, Any]) -> ParsedModel:
    """The ModelSpec and the tensor names of a Hugging Face configuration. Raises ConfigError naming the field at
    fault."""
    if not isinstance(hf_config, Mapping):
        raise ConfigError("configuration: expected an object; is this a config.json?")
    architecture = architecture_of(hf_config)
    parser = SERVED.get(architecture)
    if parser is None:
        served = f"this version serves {', '.join(sorted(SERVED))}"
        if architecture in RECOGNISED:
            raise ConfigError(f"architecture {architecture} is recognised but not served by this version; {served}")
        raise ConfigError(f"architecture {architecture[:80]!r} is unknown; {served}")
    config = Reader(hf_config)
    config.refuse(
        "quantization_config",
        (),
        "quantised safetensors are not served by this version; use the bf16 checkpoint or a GGUF",
    )
    return parser(config)
