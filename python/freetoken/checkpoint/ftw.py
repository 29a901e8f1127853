"""FTW directories (docs/ftw.md): a model that the core has packed, with the tokenizer and what the server needs.

The core reads and writes the container; here are the two files it keeps for the host: tokenizer.json, which the
`tokenizers` package reads as it is, and host.json.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import tokenizers

from freetoken.checkpoint.model_files import ModelFiles, checked_template, sampling_defaults, token_ids
from freetoken.errors import ModelError
from freetoken.tokenizer import Tokenizer
from freetoken.tokenizer.vocab import VocabTable

MANIFEST = "manifest.json"
TOKENIZER_FILE, HOST_FILE = "tokenizer.json", "host.json"
HOST_VERSION = 0
_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")


def is_ftw(folder: str) -> bool:
    """Whether `folder` is an FTW directory. A Hugging Face one has a config.json and no such manifest."""
    return os.path.isfile(os.path.join(folder, MANIFEST)) and not os.path.exists(os.path.join(folder, "config.json"))


def load_options(files: ModelFiles, vocab: Any) -> dict[str, Any]:
    """The fields of the core's LoadOptions that say which model it is; `vocab` is its Vocab."""
    source = (
        {"checkpoint_directory": files.checkpoint_directory}
        if files.checkpoint_directory
        else {"weight_table_json": json.dumps(files.weight_table)}
    )
    return {"model_spec_json": json.dumps(files.spec), "vocab": vocab, "eos_token_ids": files.eos_token_ids, **source}


def write(
    files: ModelFiles,
    directory: str,
    shard_bytes: int = 8 << 30,
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Packs the opened model into `directory`, which must not exist or be empty. Raises an error of the core."""
    from freetoken import _core

    host = {
        "version": HOST_VERSION,
        "name": files.name,
        "architecture": files.architecture,
        "chat_template": files.chat_template,
        "special_tokens": files.special_tokens,
        "generation_defaults": files.generation_defaults,
        "tokenizer": files.tokenizer.settings(),
    }
    contents = {
        TOKENIZER_FILE: files.tokenizer.to_json().encode(),
        HOST_FILE: json.dumps(host, ensure_ascii=False, indent=1).encode(),
    }
    options = load_options(files, _core.Vocab(*files.tokenizer.vocab_bytes())) | {"threads": threads}
    _core.write_checkpoint(options, os.path.abspath(directory), shard_bytes, contents, progress)


def open_ftw(folder: str) -> ModelFiles:
    """Opens an FTW directory; reads no weights. ModelError when it is damaged or not what this version reads."""
    from freetoken import _core

    folder = os.path.abspath(folder)
    try:
        found = _core.read_checkpoint(folder)
    except _core.FreeTokenError as error:
        raise ModelError(folder, "", str(error).removeprefix(f"{folder}/")) from None
    for name in (TOKENIZER_FILE, HOST_FILE):
        if name not in found["files"]:
            raise ModelError(folder, name, "missing: another program wrote this checkpoint; only it can serve it")
    path = os.path.join(folder, HOST_FILE)
    try:
        host = json.loads(found["files"][HOST_FILE])
        if host["version"] != HOST_VERSION:
            raise ModelError(path, "version", f"{str(host['version'])[:40]}: this version reads {HOST_VERSION}")
        vocab = VocabTable(found["vocab_bytes"], found["vocab_flags"])
        settings = host["tokenizer"]
        backend = tokenizers.Tokenizer.from_str(found["files"][TOKENIZER_FILE].decode())
        tokenizer = Tokenizer(
            backend,
            vocab,
            bos_token_id=next(iter(token_ids(settings["bos_token_id"], len(vocab.bytes), path, "bos_token_id")), None),
            add_bos=bool(settings["add_bos"]),
            strip_left=int(settings["strip_left"]),
        )
        template = host["chat_template"]
        defaults = host["generation_defaults"]
        return ModelFiles(
            name=str(host["name"]),
            architecture=str(host["architecture"]),
            spec=json.loads(found["model_spec_json"]),
            weight_table={},
            checkpoint_directory=folder,
            tokenizer=tokenizer,
            chat_template=None if template is None else checked_template(template, path, "chat_template"),
            special_tokens={role: str(text) for role, text in host["special_tokens"].items() if role in _ROLES},
            eos_token_ids=sorted(found["eos_token_ids"]),
            generation_defaults=sampling_defaults(defaults, path, [(name, name) for name in defaults]),
        )
    except ModelError:
        raise
    except Exception as error:  # whatever a file that was written by hand makes json, tokenizers or this code raise
        raise ModelError(path, "", f"not what `ft checkpoint` writes: {type(error).__name__}: {error}"[:300]) from None
