"""Text to token ids and back: `load_tokenizer` for tokenizer.json, `tokenizer_from_gguf` for GGUF metadata."""

from freetoken.tokenizer.from_gguf import tokenizer_from_gguf
from freetoken.tokenizer.from_json import load_tokenizer
from freetoken.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer", "load_tokenizer", "tokenizer_from_gguf"]
