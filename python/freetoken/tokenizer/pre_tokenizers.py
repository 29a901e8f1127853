"""Pre-tokenizers that GGUF files name in tokenizer.ggml.pre, for byte-level BPE.

Each is the chain of patterns that the model's own tokenizer splits with. Those of PROVEN_BY_GOLDEN have been compared
with llama.cpp's golden tokenisations of the models' real vocabularies: 46 or 50 texts each, every id equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_SPACES = r"|\s+(?!\S)|\s+"
_GPT2 = _CONTRACTIONS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+" + _SPACES
_LINES = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+" + _SPACES
_WORD = f"(?i:{_CONTRACTIONS})" + r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKED_WORD = f"(?i:{_CONTRACTIONS})" + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
_THREE_DIGITS = "[0-9][0-9][0-9]"


@dataclass(frozen=True)
class PreTokenizer:
    """Patterns applied in turn, each isolating its matches; `whole_words`: a word that is a token needs no merges."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False  # where the file does not say

    def build(self) -> pre_tokenizers.PreTokenizer:
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2_ONLY = PreTokenizer((_GPT2,))
_DIGITS_GPT2 = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3 = PreTokenizer((_WORD + r"|\p{N}{1,3}" + _LINES,), whole_words=True, add_bos=True)
_QWEN2 = PreTokenizer((_WORD + r"|\p{N}" + _LINES,))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "command-r": _DIGITS_GPT2,
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
    ),
    "deepseek-r1-qwen": _QWEN2,
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", _THREE_DIGITS)),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, _THREE_DIGITS)),
    "gpt-2": _GPT2_ONLY,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "mpt": _GPT2_ONLY,
    "qwen2": _QWEN2,
    "qwen35": PreTokenizer((_MARKED_WORD + r"|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+" + _SPACES,)),
    "refact": _DIGITS_GPT2,
    "smollm": _DIGITS_GPT2,
    "starcoder": _DIGITS_GPT2,
}
PROVEN_BY_GOLDEN = (
    "command-r", "deepseek-coder", "falcon", "gpt-2", "llama-bpe", "mpt", "qwen2", "qwen35", "refact", "starcoder"
)  # fmt: skip
