"""Model configurations -> ModelSpec + tensor names. One file per family; what a network is never depends on its name
after this.

    parsed = parse_config(json.load(open("config.json")))           # Hugging Face, old and new forms
    parsed = parse_gguf(metadata, {name: shape}, rope_freqs_values)  # GGUF; shapes row-major

    parsed.spec                          dict, the ModelSpec in canonical JSON form (cpp/spec/model_spec.h)
    parsed.names.lookup(name, shape)     list[Target] | Ignored(reason) | None (the model has no such tensor);
                                         ConfigError when the shape is not what the configuration gives
    parsed.names.required()              {checkpoint tensor: shape} that must be there
    parsed.names.missing(present_names)  canonical tensors nothing gives, with the names they could come under
    parsed.names.tensors                 {canonical name: shape} of all weights of the spec
    parsed.names.is_integer(name)        True for index tables (I32, I64)

A Target says which canonical tensor, its shape ([n] or [n, k]), and where it lies: range `part_index` of `parts` equal
contiguous byte ranges of the checkpoint tensor (experts stacked in 3-D, gate and up fused), rows stored as rotary pairs
(`rotary_heads`). `transpose` and `rows` (a strided selection) are used only by families that this version does not
serve.

Every number is untrusted: an absurd, missing or wrong-typed value is one ConfigError naming the field.
"""

from freetoken.config.common import ParsedModel
from freetoken.config.gguf import parse_gguf
from freetoken.config.names import Ignored, NameMap, Rows, Target
from freetoken.config.registry import RECOGNISED, SERVED, architecture_of, parse_config

__all__ = [
    "RECOGNISED",
    "SERVED",
    "Ignored",
    "NameMap",
    "ParsedModel",
    "Rows",
    "Target",
    "architecture_of",
    "parse_config",
    "parse_gguf",
]
