"""What opening a model gives: everything the engine and the server need, with nothing loaded yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from freetoken.errors import ModelError
from freetoken.tokenizer import Tokenizer

MAX_TEMPLATE_BYTES = 1 << 20


@dataclass
class ModelFiles:
    """An opened model. `spec` and `weight_table` are in the JSON forms of the core."""

    name: str
    architecture: str
    spec: dict[str, Any]
    weight_table: dict[str, Any]
    tokenizer: Tokenizer
    chat_template: str | None = None
    special_tokens: dict[str, str] = field(default_factory=dict)  # bos_token, eos_token, ... as text
    eos_token_ids: list[int] = field(default_factory=list)  # sorted
    generation_defaults: dict[str, float] = field(default_factory=dict)  # those of SAMPLING_RANGES that were found
    ignored_tensors: dict[str, str] = field(default_factory=dict)  # name in the checkpoint -> why
    checkpoint_directory: str = ""  # an FTW directory; then there is no weight table


def token_ids(value: Any, vocab_size: int, path: str, key: str) -> set[int]:
    """The token ids in `value`, which may be None, an id or a list of ids; ModelError for anything else."""
    found = set()
    for item in value if isinstance(value, list) else [value]:
        if item is None:
            continue
        if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < vocab_size:
            raise ModelError(path, key, f"{str(item)[:40]} is not a token id of a vocabulary of {vocab_size}")
        found.add(item)
    return found


# What a checkpoint may preset of the API's fields, and in which range. Others, such as a file's max_new_tokens, are not
# taken: how long an answer may be is the client's to say.
SAMPLING_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 1e9), "top_k": (0, 1e9), "top_p": (0, 1), "min_p": (0, 1), "repetition_penalty": (0.01, 100),
}  # fmt: skip


def sampling_defaults(values: dict[str, Any], path: str, keys: Iterable[tuple[str, str]]) -> dict[str, float]:
    """The numbers among `values` under their names of the API; `keys` are (name of the API, name in the file)."""
    found: dict[str, float] = {}
    for name, key in keys:
        value = values.get(key)
        if value is None:
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        least, most = SAMPLING_RANGES[name]
        if not number or not least <= value <= most or (name == "top_k" and value != int(value)):
            raise ModelError(path, key, f"{str(value)[:40]} is not a sampling parameter")
        found[name] = value
    return found


def checked_template(template: Any, path: str, key: str) -> str:
    """A chat template of believable size."""
    if not isinstance(template, str):
        raise ModelError(path, key, f"a template is text, found {type(template).__name__}")
    if len(template) > MAX_TEMPLATE_BYTES:
        raise ModelError(
            path, key, f"a template of {len(template)} characters, at most {MAX_TEMPLATE_BYTES} are allowed"
        )
    return template
