"""A tokenizer from GGUF metadata: byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from freetoken.errors import ModelError
from freetoken.tokenizer.pre_tokenizers import PRE_TOKENIZERS
from freetoken.tokenizer.tokenizer import Tokenizer
from freetoken.tokenizer.vocab import TokenDecoder, TokenKind, VocabTable

# tokenizer.ggml.token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_KINDS = {
    _NORMAL: TokenKind.NORMAL,
    _UNKNOWN: TokenKind.SPECIAL,
    _CONTROL: TokenKind.SPECIAL,
    _USER_DEFINED: TokenKind.ADDED,
    _BYTE: TokenKind.NORMAL,
}
_SPACE = "\u2581"  # SentencePiece writes a space as this character
MAX_TOKENS = 4 << 20
# Of SentencePiece pieces, whose splits are tried one by one; a vocabulary of 64k pieces has 0.4 million characters.
MAX_PIECE_LENGTH = 256
MAX_PIECE_CHARS = 8 << 20


def tokenizer_from_gguf(metadata: Mapping[str, Any], path: str, vocab_size: int | None = None) -> Tokenizer:
    """The tokenizer that the metadata of the file at `path` describes.

    `vocab_size`: rows of the model's embedding, by default the number of tokens. Raises ModelError, naming the key, for
    what is missing, does not fit together, or is a kind of tokenizer that is not read.
    """
    return _Builder(metadata, path).build(vocab_size)


class _Builder:
    def __init__(self, metadata: Mapping[str, Any], path: str) -> None:
        self.metadata = metadata
        self.path = path

    def fail(self, key: str, reason: str) -> ModelError:
        return ModelError(self.path, f"tokenizer.ggml.{key}", reason)

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.metadata.get(f"tokenizer.ggml.{key}", default)
        if value is not default and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise self.fail(key, f"{kind.__name__} expected, found {type(value).__name__}")
        return value

    def array(self, key: str, kind: type, length: int | None = None) -> list[Any]:
        values = self.get(key, list)
        if values is None:
            raise self.fail(key, "missing")
        if values and not isinstance(values[0], kind):  # all items of a GGUF array have one type
            raise self.fail(key, f"items of type {kind.__name__} expected, found {type(values[0]).__name__}")
        if length is not None and len(values) != length:
            raise self.fail(key, f"{len(values)} items for {length} tokens")
        return values

    def build(self, vocab_size: int | None) -> Tokenizer:
        model = self.get("model", str)
        if model is None:
            raise self.fail("model", "missing: the file has no tokenizer")
        if model not in ("gpt2", "llama"):
            raise self.fail("model", f"tokenizer model {model!r} is not read; 'gpt2' and 'llama' are")
        tokens = self.array("tokens", str)
        if not 0 < len(tokens) <= MAX_TOKENS:
            raise self.fail("tokens", f"{len(tokens)} tokens, 1 to {MAX_TOKENS} are possible")
        types = [_NORMAL] * len(tokens)
        if "tokenizer.ggml.token_type" in self.metadata:
            types = self.array("token_type", int, len(tokens))
        if bad := set(types) - {*_KINDS, _UNUSED}:
            raise self.fail("token_type", f"unknown type {min(bad)}")
        ids: dict[str, int] = {}
        for i, text in enumerate(tokens):
            if types[i] != _UNUSED and ids.setdefault(text, i) != i:
                raise self.fail("tokens", f"token {text[:80]!r} is there twice: {ids[text]} and {i}")
        try:
            backend, decoder, add_bos = (self.byte_bpe if model == "gpt2" else self.sentencepiece)(tokens, types, ids)
            backend.add_special_tokens(self.added(tokens, types, TokenKind.SPECIAL))
            backend.add_tokens(self.added(tokens, types, TokenKind.ADDED))
        except ModelError:
            raise
        except Exception as error:  # the package raises plain Exception, with the reason as text
            raise self.fail("merges" if model == "gpt2" else "tokens", str(error)[:300]) from None
        bos = self.get("bos_token_id", int)
        if bos is not None and not 0 <= bos < len(tokens):
            raise self.fail("bos_token_id", f"{bos} of {len(tokens)} tokens")
        entries = ((i, tokens[i], _KINDS[types[i]]) for i in ids.values())
        vocab = VocabTable.build(entries, decoder, vocab_size or len(tokens))
        add_bos = self.get("add_bos_token", bool, add_bos)
        return Tokenizer(backend, vocab, bos_token_id=bos, add_bos=add_bos, strip_left=decoder.strip_left)

    @staticmethod
    def added(tokens: list[str], types: list[int], kind: TokenKind) -> list[AddedToken]:
        """Tokens that are found in the text before the model sees it."""
        special = kind is TokenKind.SPECIAL
        return [
            AddedToken(text, special=special, normalized=False)
            for text, t in zip(tokens, types, strict=True)
            if text and _KINDS.get(t) is kind
        ]

    def byte_bpe(
        self, tokens: list[str], types: list[int], ids: dict[str, int]
    ) -> tuple[tokenizers.Tokenizer, TokenDecoder, bool]:
        name = self.get("pre", str)
        if name is None:
            raise self.fail("pre", "missing, so how text is split into words is unknown: convert the model again")
        if name not in PRE_TOKENIZERS:
            raise self.fail("pre", f"pre-tokenizer {name[:80]!r} is not known; known are {', '.join(PRE_TOKENIZERS)}")
        pre = PRE_TOKENIZERS[name]
        merges = []
        for i, merge in enumerate(self.array("merges", str)):
            left, _, right = merge.partition(" ")
            if not left or not right:
                raise self.fail("merges", f"merge {i} is {merge[:80]!r}: two tokens with a space between them expected")
            merges.append((left, right))
        backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=pre.whole_words))
        backend.pre_tokenizer = pre.build()
        backend.decoder = decoders.ByteLevel()
        return backend, TokenDecoder(byte_level=True), pre.add_bos

    def sentencepiece(
        self, tokens: list[str], types: list[int], ids: dict[str, int]
    ) -> tuple[tokenizers.Tokenizer, TokenDecoder, bool]:
        scores = self.array("scores", float, len(tokens))
        lacking = [b for b in range(256) if f"<0x{b:02X}>" not in ids]
        if lacking:
            raise self.fail(
                "tokens", f"no token <0x{lacking[0]:02X}>: text that is not in the vocabulary could not be written"
            )
        normal = [(scores[i], text) for text, i in ids.items() if types[i] == _NORMAL]
        characters = sum(len(text) for _, text in normal)
        if characters > MAX_PIECE_CHARS or max((len(text) for _, text in normal), default=0) > MAX_PIECE_LENGTH:
            raise self.fail(
                "tokens",
                f"{characters} characters: at most {MAX_PIECE_CHARS} in all, {MAX_PIECE_LENGTH} in a token",
            )
        # SentencePiece always merges the neighbours that form the piece of the highest score, the left-most first: the
        # same as merge rules in the order of the scores of what they form.
        ranked = []
        for score, text in normal:
            for cut in range(1, len(text)):
                left, right = ids.get(text[:cut]), ids.get(text[cut:])
                if left is not None and right is not None:
                    ranked.append((-score, ids[text], left, right))
        ranked.sort()
        merges = [(tokens[left], tokens[right]) for _, _, left, right in ranked]
        unknown = next((text for text, i in ids.items() if types[i] == _UNKNOWN), None)
        backend = tokenizers.Tokenizer(
            models.BPE(vocab=ids, merges=merges, byte_fallback=True, fuse_unk=True, unk_token=unknown)
        )
        prefix = self.get("add_space_prefix", bool, True)
        steps = [normalizers.Prepend(_SPACE)] if prefix else []
        backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
        decoder = TokenDecoder(byte_fallback=True, replacements=[(_SPACE, " ")], strip_left=int(prefix))
        strip = [decoders.Strip(" ", 1, 0)] if prefix else []
        backend.decoder = decoders.Sequence(
            [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
        return backend, decoder, True
