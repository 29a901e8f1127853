"""NameMap: what every tensor of a checkpoint becomes, under the canonical names of the ModelSpec.

A family adds one rule per checkpoint tensor; the expected shapes follow from the ModelSpec (tensors.py), so a rule that
does not fit the spec is an error of the family, and a tensor that does not fit the rule is an error of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from freetoken.errors import ConfigError

Shape = tuple[int, ...]


class Rows(NamedTuple):
    """A selection of rows that is not one contiguous range: `block` rows from `start` on, again after every `stride`
    rows."""

    start: int
    block: int
    stride: int


class Target(NamedTuple):
    """One canonical tensor (or a row range of it) and where it lies in the checkpoint tensor.

    The checkpoint tensor is `parts` equal contiguous ranges, and this target is range `part_index`. It has `shape` ([n]
    or [n, k]) unless `transpose` (the range is stored as [k, n]) or `rows` (only these rows of the range, counted after
    transposing back). `rotary_heads`: rows are stored as rotary pairs of that many heads and go into halves order
    (llama.cpp's q and k).
    """

    canonical: str
    shape: Shape
    part_index: int = 0
    parts: int = 1
    rotary_heads: int = 0
    transpose: bool = False
    rows: Rows | None = None


@dataclass(frozen=True)
class Ignored:
    """A tensor that is not used, and why."""

    reason: str


class _Entry(NamedTuple):  # a tuple: there is one per expert and matrix, tens of thousands in a large model
    shapes: list[Shape]
    targets: list[Target]
    integer: bool


@dataclass
class NameMap:
    """Checkpoint tensor name -> canonical tensors. Made by the family parsers, read by the loaders."""

    tensors: Mapping[str, Shape]  # canonical name -> shape: what the ModelSpec requires
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _ignored: list[tuple[re.Pattern[str], str]] = field(default_factory=list)

    # ---- for loaders
    def lookup(self, name: str, shape: Sequence[int]) -> list[Target] | Ignored | None:
        """What the tensor `name` is: its targets, Ignored with the reason, or None when the model has no such tensor.
        Raises ConfigError when `shape` (row-major, GGUF dimensions reversed) is not the one the configuration gives."""
        entry = self._entries.get(name)
        if entry is not None:
            if tuple(shape) not in entry.shapes:
                expected = " or ".join(str(list(s)) for s in entry.shapes)
                raise ConfigError(f"shape {list(shape)}, the configuration gives {expected}")
            return entry.targets
        for pattern, reason in self._ignored:
            if pattern.fullmatch(name):
                return Ignored(reason)
        return None

    def required(self) -> dict[str, Shape]:
        """The checkpoint tensors that must be there. Where a tensor may come under several names, the first one
        known."""
        found: dict[str, Shape] = {}
        covered: set[tuple[str, Rows | int]] = set()
        for name, entry in self._entries.items():
            keys = [(t.canonical, t.rows or 0) for t in entry.targets]
            if any(key not in covered for key in keys):
                covered.update(keys)
                found[name] = entry.shapes[0]
        return found

    def missing(self, present: Iterable[str]) -> list[str]:
        """Canonical tensors that none of the checkpoint tensors `present` gives, each as 'canonical (name, or other
        name)'."""
        have = {t.canonical for name in present if name in self._entries for t in self._entries[name].targets}
        lacking = [name for name in self.tensors if name not in have]
        if not lacking:
            return []
        sources: dict[str, list[str]] = {}
        for name, entry in self._entries.items():
            for target in entry.targets:
                sources.setdefault(target.canonical, []).append(name)
        return [f"{name} ({', or '.join(sources.get(name, ['no known source']))})" for name in lacking]

    def is_integer(self, name: str) -> bool:
        """True for tables of indices (I32 or I64); all other tensors hold weights in a floating or quantised format."""
        return name in self._entries and self._entries[name].integer

    # ---- for families
    def add(
        self,
        name: str,
        canonical: str,
        *,
        rotary_heads: int = 0,
        transpose: bool = False,
        integer: bool = False,
        shapes: Sequence[Shape] = (),
    ) -> None:
        """One checkpoint tensor that is one canonical tensor. `shapes`: other shapes with the same elements."""
        shape = self._shape(canonical)
        stored = tuple(reversed(shape)) if transpose else shape
        target = Target(canonical, shape, rotary_heads=rotary_heads, transpose=transpose)
        self._entries[name] = _Entry([stored, *shapes], [target], integer)

    def add_stacked(
        self, name: str, canonicals: Sequence[str], *, transpose: bool = False, leading: Shape | None = None
    ) -> None:
        """A tensor that is equal parts one after the other: experts stacked in 3-D, or gate and up fused. `leading` is
        the stored shape before the last dimension(s), by default [parts, n, k] flattened as [parts, *shape]."""
        shapes = {self._shape(c) for c in canonicals}
        if len(shapes) != 1:
            raise ConfigError(f"{name}: the parts of a stacked tensor differ in shape")
        shape = shapes.pop()
        stored = tuple(reversed(shape)) if transpose else shape
        full = (len(canonicals), *stored) if leading is None else leading
        targets = [Target(c, shape, i, len(canonicals), transpose=transpose) for i, c in enumerate(canonicals)]
        self._entries[name] = _Entry([full], targets, False)

    def add_copies(self, name: str, canonicals: Sequence[str]) -> None:
        """One checkpoint tensor that several canonical tensors are copies of."""
        targets = [Target(c, self._shape(c)) for c in canonicals]
        self._entries[name] = _Entry([targets[0].shape], targets, False)

    def add_rows(
        self, name: str, pieces: Sequence[tuple[str, Rows]], stored: Shape, *, parts: int = 1, transpose: bool = False
    ) -> None:
        """A tensor whose rows belong to several canonical tensors: `pieces` of each of the `parts` ranges, in order."""
        per_part = len(pieces) // parts
        targets = [
            Target(c, self._shape(c), i // per_part, parts, transpose=transpose, rows=rows)
            for i, (c, rows) in enumerate(pieces)
        ]
        self._entries[name] = _Entry([stored], targets, False)

    def ignore(self, pattern: str, reason: str) -> None:
        """Tensors whose whole name matches the regular expression are not used, for `reason`."""
        self._ignored.append((re.compile(pattern), reason))

    def has(self, canonical: str) -> bool:
        return canonical in self.tensors

    def _shape(self, canonical: str) -> Shape:
        if canonical not in self.tensors:
            raise ConfigError(f"{canonical}: the model spec has no such tensor")
        return self.tensors[canonical]
