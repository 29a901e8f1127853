"""Chat messages to prompt tokens: normalised messages, a sandboxed template, special tokens kept apart."""
