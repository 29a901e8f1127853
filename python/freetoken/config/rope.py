"""Rotary frequencies: every scaling scheme of transformers' `rope_parameters` (or the older `rope_theta` +
`rope_scaling`) becomes one list of inverse frequencies and one factor on cos and sin, computed in fp32 as transformers
does.

The powers are rounded once from fp64; transformers takes them from a vectorised fp32 pow that may be 1 ulp away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from freetoken.config.reader import MAX_POSITIONS, MAX_ROPE_THETA, Reader
from freetoken.config.spec import Rope
from freetoken.errors import ConfigError

F32 = np.float32
MAX_FACTOR = 1e6


def rope_reader(config: Reader, layer_type: str | None = None) -> Reader:
    """The rope parameters of a configuration, old or new form, as one flat object. `layer_type` picks the entry of a
    configuration that nests them by layer type; a flat one is shared by all."""
    source = (
        config.child("rope_parameters", None) if config.has("rope_parameters") else config.child("rope_scaling", None)
    )
    values = dict(source.values)
    if layer_type is not None and isinstance(values.get(layer_type), dict):
        values = dict(values[layer_type])
        source = Reader(values, source.where(layer_type))
    if values.get("rope_type") is None:
        values["rope_type"] = values.get("type") or "default"
    for name in ("rope_theta", "partial_rotary_factor"):
        if values.get(name) is None and config.has(name):
            values[name] = config.values[name]
    original = "original_max_position_embeddings"  # the outer one wins, as in transformers
    values[original] = (
        config.values.get(original) or values.get(original) or config.values.get("max_position_embeddings")
    )
    return Reader(values, source.path)


def make_rope(
    parameters: Reader,
    head_dim: int,
    *,
    theta: float = 10000.0,
    partial: float = 1.0,
    interleaved: bool = False,
    offset: int = 0,
) -> Rope:
    """The table of one head size. `theta` and `partial` are the family's defaults."""
    base = parameters.number("rope_theta", 1.0, MAX_ROPE_THETA, default=theta)
    partial = parameters.number("partial_rotary_factor", 0.0, 1.0, default=partial)
    kind = parameters.text("rope_type", "default")
    if kind == "proportional":
        return Rope(_proportional(parameters, head_dim, base, partial), interleaved=interleaved, offset=offset)
    dim = int(head_dim * partial)
    if dim < 2 or dim % 2 != 0:
        raise ConfigError(
            f"{parameters.where('partial_rotary_factor')}: rotates {dim} of {head_dim} elements of a head"
        )
    if kind not in _KINDS:
        why = "its frequencies change with the length of the prompt" if kind == "longrope" else "unknown"
        raise ConfigError(
            f"{parameters.where('rope_type')}: '{kind[:64]}' is not supported ({why}); known are "
            + ", ".join(sorted([*_KINDS, "proportional"]))
        )
    inv_freq, factor = _KINDS[kind](parameters, dim, base)
    return Rope([float(f) for f in inv_freq], attention_factor=factor, interleaved=interleaved, offset=offset)


def apply_factors(rope: Rope, factors: Sequence[float]) -> Rope:
    """llama.cpp's `rope_freqs.weight`: each inverse frequency divided by its factor."""
    if len(factors) != len(rope.inv_freq):
        raise ConfigError(
            f"rope_freqs.weight: {len(factors)} factors, the rotation has {len(rope.inv_freq)} frequencies"
        )
    if not all(math.isfinite(f) and f > 0 for f in factors):
        raise ConfigError("rope_freqs.weight: a factor is not a positive number")
    rope.inv_freq = [float(F32(f) / F32(by)) for f, by in zip(rope.inv_freq, factors, strict=True)]
    return rope


def _powers(base: float, dim: int, over: int | None = None) -> np.ndarray:
    exponents = np.arange(0, dim, 2).astype(F32) / F32(over or dim)
    return np.power(float(base), exponents.astype(np.float64)).astype(F32)


def _factor(parameters: Reader) -> float:
    return parameters.number("factor", 1e-6, MAX_FACTOR)


def _default(parameters: Reader, dim: int, base: float) -> tuple[np.ndarray, float]:
    return F32(1.0) / _powers(base, dim), 1.0


def _linear(parameters: Reader, dim: int, base: float) -> tuple[np.ndarray, float]:
    return F32(1.0) / _powers(base, dim) / F32(_factor(parameters)), 1.0


def _dynamic(parameters: Reader, dim: int, base: float) -> tuple[np.ndarray, float]:
    alpha = parameters.number("alpha", 0.0, 1e9, default=None)
    if _factor(parameters) != 1.0:
        raise ConfigError(
            f"{parameters.where('factor')}: dynamic rope scaling by {parameters.values['factor']} is not supported: "
            "its frequencies change with the length of the prompt"
        )
    if alpha and dim > 2:  # HunYuan: a fixed base, as if the context were alpha times longer
        base = base * alpha ** (dim / (dim - 2))
    return F32(1.0) / _powers(base, dim), 1.0


def _llama3(parameters: Reader, dim: int, base: float) -> tuple[np.ndarray, float]:
    factor = _factor(parameters)
    low = parameters.number("low_freq_factor", 1e-6, MAX_FACTOR)
    high = parameters.number("high_freq_factor", 1e-6, MAX_FACTOR)
    if high <= low:
        raise ConfigError(f"{parameters.where('high_freq_factor')}: {high} is not above low_freq_factor {low}")
    old = parameters.integer("original_max_position_embeddings", 1, MAX_POSITIONS)
    inv_freq = F32(1.0) / _powers(base, dim)
    wavelength = F32(2 * math.pi) / inv_freq
    scaled = np.where(wavelength > F32(old / low), inv_freq / F32(factor), inv_freq)
    smooth = (F32(old) / wavelength - F32(low)) / F32(high - low)
    mixed = (F32(1) - smooth) * scaled / F32(factor) + smooth * scaled
    medium = ~(wavelength < F32(old / high)) & ~(wavelength > F32(old / low))
    return np.where(medium, mixed, scaled), 1.0


def yarn_magnitude(scale: float, mscale: float = 1.0) -> float:
    """YaRN's 0.1 m ln(s) + 1."""
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0


def _yarn(parameters: Reader, dim: int, base: float) -> tuple[np.ndarray, float]:
    factor = _factor(parameters)
    old = parameters.integer("original_max_position_embeddings", 1, MAX_POSITIONS)
    fast = parameters.number("beta_fast", 1e-6, MAX_FACTOR, default=None) or 32.0
    slow = parameters.number("beta_slow", 1e-6, MAX_FACTOR, default=None) or 1.0
    attention_factor = parameters.number("attention_factor", 0.0, MAX_FACTOR, default=None)
    mscale = parameters.number("mscale", 0.0, MAX_FACTOR, default=None)
    mscale_all = parameters.number("mscale_all_dim", 0.0, MAX_FACTOR, default=None)
    if attention_factor is None:
        attention_factor = yarn_magnitude(factor)
        if mscale and mscale_all:
            attention_factor = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all)
    if base <= 1.0:
        raise ConfigError(f"{parameters.where('rope_theta')}: {base} is not above 1, as YaRN needs")

    def correction(rotations: float) -> float:
        return dim * math.log(old / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = correction(fast), correction(slow)
    if parameters.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low if high != low else 0.001
    powers = _powers(base, dim)
    ramp = np.clip((np.arange(dim // 2, dtype=F32) - F32(low)) / F32(span), 0, 1).astype(F32)
    keep = F32(1) - ramp
    inv_freq = F32(1) / (F32(factor) * powers) * (F32(1) - keep) + F32(1) / powers * keep
    return inv_freq, attention_factor


def _proportional(parameters: Reader, head_dim: int, base: float, partial: float) -> list[float]:
    """Frequencies over the whole head; the part that does not rotate has frequency 0."""
    angles = int(partial * head_dim // 2)
    factor = parameters.number("factor", 1e-6, MAX_FACTOR, default=1.0)
    rotated = F32(1.0) / _powers(base, 2 * angles, head_dim) / F32(factor)
    return [float(f) for f in rotated] + [0.0] * (head_dim // 2 - angles)


_KINDS = {"default": _default, "linear": _linear, "dynamic": _dynamic, "llama3": _llama3, "yarn": _yarn}
