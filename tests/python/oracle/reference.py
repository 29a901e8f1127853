"""Shared checks: our completions of the golden prompts against transformers' rows and tokens."""

from __future__ import annotations

import numpy as np

from oracle.golden import Golden
from support.engine import Completion, greedy_request
from support.margin import MarginRule

# transformers in fp32 is within 5e-5 of itself in fp64 on these models; 1e-3 leaves room for another order of
# summation and is far below what a wrong weight, expert or position does (over 0.1).
TOLERANCE = 1e-3


def requests(goldens: dict[int, Golden]) -> list[dict]:
    return [greedy_request(golden.prompt, len(golden.greedy)) for golden in goldens.values()]


def check(completions: list[Completion], goldens: dict[int, Golden]) -> float:
    """Full rows at every prompt position, the decode rows as far as the tokens agree, the tokens by the margin rule.

    Returns the largest logit error.
    """
    rule, worst = MarginRule(), 0.0
    for completion, (n, golden) in zip(completions, goldens.items(), strict=True):
        rows, count = completion.logits, len(golden.greedy)
        assert rows.shape == (n + count - 1, golden.logits.shape[1]), f"prompt of {n}: {rows.shape} rows x vocabulary"
        assert np.isfinite(rows).all()
        assert (completion.finish, completion.prompt_tokens, len(completion.tokens)) == ("length", n, count)
        error = float(np.abs(rows[:n] - golden.logits).max())
        assert error <= TOLERANCE, f"prompt of {n}: logits are {error:.2e} from transformers', {TOLERANCE} allowed"
        compared = rule.check(completion.tokens, golden.greedy, golden.margins, error, f"prompt of {n}")
        # Row n - 1 + i has seen exactly the first i greedy tokens, so it is comparable while those agree.
        decode = rows[n - 1 : n - 1 + min(compared + 1, count)]
        error = max(error, float(np.abs(decode - golden.greedy_logits[: len(decode)]).max()))
        assert error <= TOLERANCE, f"prompt of {n}: decode rows are {error:.2e} from transformers', {TOLERANCE} allowed"
        worst = max(worst, error)
    rule.require_share()
    return worst
