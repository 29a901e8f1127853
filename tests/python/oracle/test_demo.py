"""The demo: its MoE says what the dense model says, and that is what transformers says on the dequantised weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from oracle.cache import demo_models
from oracle.demo import GOLDEN, LEAST_MARGIN, NEW_TOKENS, PROMPTS
from support.engine import EXACT, Completion, complete, engine
from support.margin import MarginRule

MODELS = ("demo-dense", "demo")


@pytest.fixture(scope="module")
def goldens() -> list[dict]:
    return json.loads(GOLDEN.read_text())


@pytest.fixture(scope="module")
def models() -> dict[str, Path]:
    return demo_models()


def answers(model: Path, goldens: list[dict], logits: str, **options) -> list[Completion]:
    requests = [
        {
            "prompt": golden["prompt"],
            "max_tokens": NEW_TOKENS,
            "temperature": 0.0,
            "ignore_eos": True,
            "logprobs": 2,
            "logits": logits,
        }
        for golden in goldens
    ]
    with engine(model, threads=2, **options) as running:
        return complete(running, requests, timeout_s=500)


def margins(completion: Completion) -> list[float]:
    """Best minus second-best logit of each sampled token, from the log-probabilities of the two best."""
    return [float(top[0][1] - top[1][1]) for _, _, top in completion.logprobs]


def test_prompt_ids(goldens, models):
    """Tokenizer and chat template against tokenizers and jinja2 set up from the GGUF metadata by other code."""
    from freetoken.chat.prompt import ChatPrompter
    from freetoken.checkpoint import open_model

    model = open_model(str(models["demo-dense"]))
    pieces, flags = model.tokenizer.vocab_bytes()
    specials = [piece.decode() for piece, flag in zip(pieces, flags, strict=True) if flag & 1]
    prompter = ChatPrompter(model.chat_template, model.tokenizer, specials, model.special_tokens)
    try:
        chats = json.loads(PROMPTS.read_text())
        assert [prompter.encode(chat, {}) for chat in chats] == [golden["prompt"] for golden in goldens]
    finally:
        prompter.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", MODELS)
def test_exact_text(model, goldens, models):
    completions = answers(models[model], goldens, "none", **EXACT)
    assert len(goldens) == 20
    for completion, golden in zip(completions, goldens, strict=True):
        assert min(margins(completion)) > LEAST_MARGIN
        assert min(margins(completion)) == pytest.approx(golden["least_margin"], abs=LEAST_MARGIN)
        assert completion.tokens == golden["tokens"]
        assert completion.text == golden["text"]


@pytest.mark.timeout(600)
def test_moe_follows_dense_with_int8_activations(goldens, models):
    """The permuted experts sum in another order, so equality holds only where the margin decides it."""
    dense, moe = (answers(models[model], goldens, "sampled") for model in MODELS)
    shared, error = [], 0.0
    for ours, theirs in zip(moe, dense, strict=True):
        same = [a == b for a, b in zip(ours.tokens, theirs.tokens, strict=True)]
        # The row after the last common token still saw the same context.
        count = min(same.index(False) + 1 if False in same else len(same), len(same))
        error = max(error, float(np.abs(ours.logits[:count] - theirs.logits[:count]).max()))
        shared.append((ours.tokens, theirs.tokens, margins(theirs)))
    rule = MarginRule()
    for ours_tokens, their_tokens, their_margins in shared:
        rule.check(ours_tokens, their_tokens, their_margins, error, "MoE against dense")
    rule.require_share()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_goldens_are_transformers(goldens, models):
    """Makes the committed goldens again."""
    from oracle import demo

    smollm2 = demo.SmolLM2(models["demo-dense"])
    for messages, golden in zip(json.loads(PROMPTS.read_text()), goldens, strict=True):
        made = demo.answer(smollm2, messages)
        assert demo.unfit(made, smollm2.eos) is None
        assert made.pop("least_margin") == pytest.approx(golden["least_margin"], abs=5e-4)
        assert made == {key: value for key, value in golden.items() if key != "least_margin"}
