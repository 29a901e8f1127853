"""How deep parsed JSON is nested: bounded where it comes in, so that whatever walks it later may recurse."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 64  # of what we take; Python's own stack ends near 1000, and configurations and schemas stay below 20


def is_shallow(value: Any) -> bool:
    """Whether lists and dicts lie at most MAX_DEPTH deep in each other."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            child for v in level if isinstance(v, (dict, list)) for child in (v.values() if isinstance(v, dict) else v)
        ]
        if not level:
            return True
    return False
