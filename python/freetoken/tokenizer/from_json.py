"""A tokenizer from a directory's tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import os
from typing import Any

import tokenizers
from tokenizers import AddedToken

from freetoken.errors import ModelError
from freetoken.tokenizer.tokenizer import Tokenizer
from freetoken.tokenizer.vocab import TokenKind, UnknownDecoderError, VocabTable, read_decoder

MAX_BYTES = 128 << 20  # the largest public tokenizer.json has 33 MB
MAX_TOKENS = 16 << 20
ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")


def special_token_texts(config: dict[str, Any], path: str) -> dict[str, str]:
    """bos_token, eos_token, ... of tokenizer_config.json or special_tokens_map.json, which write them in two ways."""
    found = {}
    for role in ROLES:
        value = config.get(role)
        text = value.get("content") if isinstance(value, dict) else value
        if text is None:
            continue
        if not isinstance(text, str):
            raise ModelError(path, role, f"text expected, found {type(text).__name__}")
        found[role] = text
    return found


def load_tokenizer(folder: str, config: dict[str, Any], vocab_size: int | None = None) -> Tokenizer:
    """The tokenizer of the checkpoint in `folder`; `config` is its tokenizer_config.json (or empty), `vocab_size` the
    rows of the model's embedding, by default up to the last id. Raises ModelError."""
    path = os.path.join(folder, "tokenizer.json")
    if not os.path.isfile(path):
        others = [
            n for n in ("tokenizer.model", "vocab.json", "tiktoken.model") if os.path.isfile(os.path.join(folder, n))
        ]
        way = f"; {others[0]} alone is not read: save the tokenizer as tokenizer.json" if others else ""
        raise ModelError(path, "", f"missing{way}")
    if os.path.getsize(path) > MAX_BYTES:
        raise ModelError(path, "", f"{os.path.getsize(path)} bytes, at most {MAX_BYTES} are allowed")
    try:
        backend = tokenizers.Tokenizer.from_file(path)
        backend.no_truncation()
        backend.no_padding()
    except BaseException as error:  # a panic of the package is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise ModelError(path, "", f"not a tokenizer: {str(error)[:300]}") from None
    texts = special_token_texts(config, os.path.join(folder, "tokenizer_config.json"))
    known = backend.get_added_tokens_decoder()
    # As in transformers: the tokens that the configuration names are special, whatever tokenizer.json says.
    for text in texts.values():
        token_id = backend.token_to_id(text)
        if token_id is not None and not (token_id in known and known[token_id].special):
            backend.add_special_tokens([AddedToken(text, special=True, normalized=False)])
    known = backend.get_added_tokens_decoder()
    if backend.decoder is None:
        raise ModelError(path, "decoder", "missing: how tokens become text is unknown")
    try:
        decoder = read_decoder(backend.decoder.__getstate__())
    except (UnknownDecoderError, KeyError, TypeError) as error:
        raise ModelError(path, "decoder", str(error)) from None

    def kind(token_id: int) -> TokenKind:
        added = known.get(token_id)
        return TokenKind.NORMAL if added is None else TokenKind.SPECIAL if added.special else TokenKind.ADDED

    ids = backend.get_vocab(with_added_tokens=True)
    if not ids:
        raise ModelError(path, "model.vocab", "empty")
    size = vocab_size or max(ids.values()) + 1
    if size > MAX_TOKENS:
        raise ModelError(path, "model.vocab", f"ids up to {size - 1}, at most {MAX_TOKENS} tokens are allowed")
    vocab = VocabTable.build(((i, text, kind(i)) for text, i in ids.items()), decoder, size)
    bos = backend.token_to_id(texts["bos_token"]) if "bos_token" in texts else None
    add_bos = config.get("add_bos_token")
    if not isinstance(add_bos, bool):  # then the post-processor decides
        add_bos = bos is not None and backend.encode("a", add_special_tokens=True).ids[:1] == [bos]
    return Tokenizer(backend, vocab, bos_token_id=bos, add_bos=add_bos, strip_left=decoder.strip_left)
