"""Errors of the Python side. Each one says what is wrong, the number, and the way out."""

from __future__ import annotations


class FreeTokenPyError(Exception):
    """Base of the errors that Python code of FreeToken raises."""


class ConfigError(FreeTokenPyError):
    """A model configuration or an option is wrong, or known but not done by this version."""


class ModelError(FreeTokenPyError):
    """A checkpoint cannot be loaded: the file, the tensor or key in it (empty when it is the file itself), and why."""

    def __init__(self, file: str, tensor: str, reason: str) -> None:
        self.file = file
        self.tensor = tensor
        self.reason = reason
        super().__init__(": ".join(part for part in (file, tensor, reason) if part))
