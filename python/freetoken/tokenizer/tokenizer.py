"""Tokenizer: text to ids through the `tokenizers` package, ids to bytes through the exported vocabulary."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import tokenizers

from freetoken.tokenizer.vocab import SPECIAL, UNUSED, VocabTable


class Tokenizer:
    """One model's tokenizer. Thread-safe.

    `decode` goes through the same table as the core's streaming output, so both give the same text.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        vocab: VocabTable,
        *,
        bos_token_id: int | None = None,
        add_bos: bool = False,
        strip_left: int = 0,
    ) -> None:
        """`strip_left`: how many spaces the tokenizer puts before a text, which `decode` takes off again."""
        self.bos_token_id = bos_token_id
        self.add_bos = add_bos and bos_token_id is not None
        self._backend = backend
        self._vocab = vocab
        self._strip_left = strip_left
        self._lock = threading.Lock()  # the backend has one switch for special tokens, a second copy costs 100 MB

    @property
    def vocab_size(self) -> int:
        """Number of ids of the model, holes included."""
        return len(self._vocab.bytes)

    def encode(self, text: str, allow_special: bool) -> list[int]:
        """Token ids of `text`, without BOS. Special tokens written in `text` become their ids only if `allow_special`;
        added tokens that are not special (such as <think>) always do. Raises ValueError for text that is not Unicode
        and for a token that the model has no row for."""
        text.encode("utf-8")  # lone surrogates are an error of the caller: say so here
        with self._lock:
            self._backend.encode_special_tokens = not allow_special
            ids = self._backend.encode(text, add_special_tokens=False).ids
        if ids and max(ids) >= self.vocab_size:
            raise ValueError(f"token {max(ids)} has no row in the model, which has {self.vocab_size}")
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """Text of a whole sequence of ids; what is not UTF-8 becomes U+FFFD. ValueError for an id out of range."""
        data = b"".join(self._pieces(ids, skip_special))
        for _ in range(self._strip_left):
            data = data.removeprefix(b" ")
        return data.decode("utf-8", errors="replace")

    def _pieces(self, ids: Sequence[int], skip_special: bool) -> Iterable[bytes]:
        table, flags = self._vocab.bytes, self._vocab.flags
        for token_id in ids:
            if not 0 <= token_id < len(table):
                raise ValueError(f"token {token_id} does not exist, ids go up to {len(table) - 1}")
            if not (skip_special and flags[token_id] & SPECIAL):
                yield table[token_id]

    def to_json(self) -> str:
        """The backend in the form of tokenizer.json."""
        return self._backend.to_str()

    def settings(self) -> dict[str, int | bool | None]:
        """What else the constructor takes."""
        return {"bos_token_id": self.bos_token_id, "add_bos": self.add_bos, "strip_left": self._strip_left}

    def vocab_bytes(self) -> tuple[list[bytes], list[int]]:
        """(bytes, flags) by id for the core: what each id adds in the middle of a text; flags 1 special, 2 unused."""
        return self._vocab.bytes, self._vocab.flags

    def token_id(self, token: str) -> int | None:
        """Id of the token with exactly this text in the vocabulary."""
        token_id = self._backend.token_to_id(token)
        return token_id if token_id is not None and token_id < self.vocab_size else None

    def token_text(self, token_id: int) -> str | None:
        """Text of a token in the vocabulary (not what it adds to a text), None for a hole."""
        if not 0 <= token_id < self.vocab_size or self._vocab.flags[token_id] & UNUSED:
            return None
        return self._backend.id_to_token(token_id)

    def special_tokens(self) -> list[str]:
        """Texts of the control tokens, by id."""
        pairs = zip(self._vocab.bytes, self._vocab.flags, strict=True)
        return [data.decode("utf-8") for data, flag in pairs if flag & SPECIAL]
