"""Reads untrusted configuration values: every absurd, missing or wrong-typed one is one ConfigError naming the
field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from freetoken.errors import ConfigError

REQUIRED: Any = object()

MAX_HIDDEN = 1_000_000
MAX_VOCAB = 16 << 20
MAX_POSITIONS = 1 << 30
MAX_LAYERS = 4096
MAX_HEADS = 65536
MAX_EXPERTS = 65536
MAX_ROPE_THETA = 1e12


class Reader:
    """Typed, bounded access to one JSON object. A null counts as absent, as it does in Hugging Face configurations."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(f"{path or 'configuration'}: expected an object, found {_kind(values)}")
        self.values = values
        self.path = path

    def where(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def raw(self, name: str, default: Any = REQUIRED) -> Any:
        if self.has(name):
            return self.values[name]
        if default is REQUIRED:
            raise ConfigError(f"{self.where(name)}: missing")
        return default

    def integer(self, name: str, low: int, high: int, default: Any = REQUIRED, aliases: Sequence[str] = ()) -> int:
        """`aliases`: other names of the same field, used where `name` is absent."""
        name = next((key for key in (name, *aliases) if self.has(key)), name)
        value = self.raw(name, default)
        if value is default:
            return value
        return self._integer(self.where(name), value, low, high)

    def number(self, name: str, low: float, high: float, default: Any = REQUIRED) -> float:
        value = self.raw(name, default)
        if value is default:
            return value
        return self._number(self.where(name), value, low, high)

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        value = self.raw(name, default)
        if value is not default and not isinstance(value, bool):
            raise ConfigError(f"{self.where(name)}: expected true or false, found {_kind(value)}")
        return value

    def text(self, name: str, default: Any = REQUIRED) -> str:
        value = self.raw(name, default)
        if value is not default and not isinstance(value, str):
            raise ConfigError(f"{self.where(name)}: expected a string, found {_kind(value)}")
        return value

    def choice(self, name: str, known: Mapping[str, Any], default: Any = REQUIRED) -> Any:
        """The value that `known` gives for the name in the configuration (`default` is such a name)."""
        value = self.text(name, default)
        if value not in known:
            raise ConfigError(f"{self.where(name)}: '{value[:64]}' is not one of {', '.join(sorted(known))}")
        return known[value]

    def integers(self, name: str, low: int, high: int, count: int | None = None, default: Any = REQUIRED) -> list[int]:
        values = self._list(name, count, default)
        if values is default:
            return values
        return [self._integer(f"{self.where(name)}[{i}]", v, low, high) for i, v in enumerate(values)]

    def numbers(
        self, name: str, low: float, high: float, count: int | None = None, default: Any = REQUIRED
    ) -> list[float]:
        values = self._list(name, count, default)
        if values is default:
            return values
        return [self._number(f"{self.where(name)}[{i}]", v, low, high) for i, v in enumerate(values)]

    def choices(self, name: str, known: Sequence[str], count: int, default: Any = REQUIRED) -> list[str]:
        values = self._list(name, count, default)
        if values is default:
            return values
        for i, value in enumerate(values):
            if value not in known:
                raise ConfigError(f"{self.where(name)}[{i}]: {value!r:.64} is not one of {', '.join(known)}")
        return values

    def child(self, name: str, default: Any = REQUIRED) -> Reader:
        """The reader of a nested object; of an empty one where the object is absent and `default` is given."""
        value = self.raw(name, default)
        return Reader({} if value is default else value, self.where(name))

    def refuse(self, name: str, neutral: Sequence[Any], why: str) -> None:
        """Fields that would change the result and are not done: anything but a neutral value (or null) is an error."""
        value = self.values.get(name)
        if value is not None and value not in neutral:
            raise ConfigError(f"{self.where(name)}: {value!r:.80} is not supported: {why}")

    def _list(self, name: str, count: int | None, default: Any) -> Any:
        value = self.raw(name, default)
        if value is default:
            return value
        if not isinstance(value, list):
            raise ConfigError(f"{self.where(name)}: expected a list, found {_kind(value)}")
        if count is not None and len(value) != count:
            raise ConfigError(f"{self.where(name)}: {len(value)} elements, expected {count}")
        if len(value) > MAX_HIDDEN:
            raise ConfigError(f"{self.where(name)}: {len(value)} elements, at most {MAX_HIDDEN} are read")
        return value

    @staticmethod
    def _integer(where: str, value: Any, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{where}: expected an integer, found {_kind(value)}")
        if not low <= value <= high:
            raise ConfigError(f"{where}: {_short(value)} is outside {low} to {high}")
        return value

    @staticmethod
    def _number(where: str, value: Any, low: float, high: float) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"{where}: expected a number, found {_kind(value)}")
        if not (low <= value <= high) or math.isnan(value):
            raise ConfigError(f"{where}: {_short(value)} is outside {low:g} to {high:g}")
        return float(value)


def _kind(value: Any) -> str:
    if isinstance(value, float):
        return f"{value!r}"
    names = {bool: "true or false", int: "an integer", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def _short(value: Any) -> str:
    if (
        isinstance(value, int) and value.bit_length() > 128
    ):  # str() of a huge integer is slow and refused past 4300 digits
        return f"an integer of {value.bit_length()} bits"
    return repr(value)
