"""JSON from checkpoints, bounded in bytes, in number of values and in depth before and while it is parsed."""

from __future__ import annotations

import json
import os
from typing import Any

from freetoken.checkpoint.regular_file import open_regular
from freetoken.errors import ModelError
from freetoken.nesting import MAX_DEPTH, is_shallow

MAX_FILE_BYTES = 32 << 20
MAX_VALUES = 4 << 20  # each costs about 100 bytes of Python objects


def parse_json(raw: bytes, path: str, part: str = "", *, unique_keys: bool = False) -> Any:
    """Parses `raw`; `path` and `part` name it in the ModelError that anything malformed raises."""
    values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if values > MAX_VALUES:
        raise ModelError(path, part, f"JSON of about {values} values, at most {MAX_VALUES} are allowed")
    try:
        value = json.loads(
            raw.decode("utf-8"),
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_dict if unique_keys else None,
        )
    except RecursionError:
        raise ModelError(path, part, f"JSON nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:  # decoding, syntax, integers too long for int(), and our own refusals
        raise ModelError(path, part, f"not valid JSON: {error}") from None
    if not is_shallow(value):
        raise ModelError(path, part, f"JSON nested deeper than {MAX_DEPTH}")
    return value


def read_json_object(path: str, max_bytes: int = MAX_FILE_BYTES) -> dict[str, Any]:
    """The JSON object in the file at `path`."""
    value = parse_json(read_bounded(path, max_bytes), path)
    if not isinstance(value, dict):
        raise ModelError(path, "", f"a JSON object expected, found {type(value).__name__}")
    return value


def read_bounded(path: str, max_bytes: int) -> bytes:
    """All bytes of a regular file that is at most `max_bytes` long."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                raise ModelError(path, "", f"{size} bytes, at most {max_bytes} are allowed")
            raw = file.read(max_bytes + 1)
    except OSError as error:
        raise ModelError(path, "", f"cannot be read: {error.strerror or error}") from error
    if len(raw) > max_bytes:
        raise ModelError(path, "", f"more than {max_bytes} bytes")
    return raw


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {key!r} appears twice")
            seen.add(key)
    return result
