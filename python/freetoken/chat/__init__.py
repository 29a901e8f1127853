"""Chat messages to prompt tokens: normalised messages, the template in a sandboxed worker, special tokens kept apart."""
