"""Checkpoints on disk: bounded readers of their headers, and the weight table that the core loads from.

files = open_model("demo" | "model.gguf" | "directory" | "owner/name")      # checks everything, loads nothing
"""

from freetoken.checkpoint.model_files import ModelFiles
from freetoken.checkpoint.opening import open_model

__all__ = ["ModelFiles", "open_model"]
