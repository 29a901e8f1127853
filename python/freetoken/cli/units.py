"""Argument types: sizes (12GiB, 800MiB, 12G = GiB, 1048576) and whole numbers with a range."""

from __future__ import annotations

import re

import click

_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def parse_size(text: str) -> int:
    """Bytes. ValueError when it is no size or no whole number of bytes."""
    match = re.fullmatch(r"\s*(\d{1,15})(?:\.(\d{1,6}))?\s*([kmgt]?)(?:i?b)?\s*", text.lower())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write it as 12GiB or 800MiB")
    whole, fraction, unit = match.groups()
    amount = float(f"{whole}.{fraction}") if fraction else int(whole)
    return int(amount * (1 << _SHIFTS[unit]))


def format_size(size_bytes: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(size_bytes) >= 1 << shift:
            return f"{size_bytes / (1 << shift):.1f} {unit}"
    return f"{size_bytes} B"


class SizeType(click.ParamType):
    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class NumberType(click.ParamType):
    """A whole number from `least` to `most`; click's own prints the range in --help, here the error does."""

    name = "number"

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if not self._least <= number <= self._most:
            self.fail(f"{number} is not between {self._least} and {self._most}", param, ctx)
        return number


class SecondsType(click.ParamType):
    """Seconds, 0 or more, fractions too."""

    name = "seconds"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        if not 0 <= seconds <= 1e9:
            self.fail(f"{value} is not between 0 and 1e9 seconds", param, ctx)
        return seconds
