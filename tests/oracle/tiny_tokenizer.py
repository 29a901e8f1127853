"""A deterministic byte-level BPE tokenizer of 1024 entries, trained on this repository's licence text."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 1024
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
BOS, IM_START, EOS, PAD = range(4)
PRE_TOKENIZER_IN_GGUF = "gpt-2"  # ByteLevel's own regular expression is GPT-2's
CORPUS = Path(__file__).resolve().parents[2] / "LICENSE"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS.read_text()], trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise AssertionError(f"the corpus gives {tokenizer.get_vocab_size()} entries, not {VOCAB_SIZE}")
    return tokenizer


def save(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes the files a hub checkpoint has."""
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 4096,
        "bos_token": None,
        "eos_token": SPECIAL_TOKENS[EOS],
        "pad_token": SPECIAL_TOKENS[PAD],
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def prompts(lengths: tuple[int, ...]) -> dict[int, list[int]]:
    """One prompt per length, each from another place of the corpus."""
    ids = train().encode(CORPUS.read_text(), add_special_tokens=False).ids
    starts = {n: 401 * i for i, n in enumerate(lengths)}
    result = {n: ids[start : start + n] for n, start in starts.items()}
    if any(len(tokens) != n for n, tokens in result.items()):
        raise AssertionError(f"the corpus has only {len(ids)} tokens")
    return result
