"""Fetches a checkpoint from the Hugging Face hub into huggingface_hub's own cache."""

from __future__ import annotations

import re

from freetoken.checkpoint.shards import PICKLES
from freetoken.errors import ModelError

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}")
_COMPANIONS = (".json", ".jinja")


def is_hub_id(text: str) -> bool:
    """True for `owner/name`."""
    return _ID.fullmatch(text) is not None and ".." not in text


def wanted_files(repo_id: str, files: list[str]) -> list[str]:
    """The files of a repository that are needed: top-level safetensors, JSON, templates. Never code, never pickle."""
    top = sorted(name for name in files if "/" not in name)
    weights = [name for name in top if name.endswith(".safetensors")]
    if "model.safetensors" in weights:
        weights = ["model.safetensors"]
    elif "model.safetensors.index.json" in top:  # beside the shards there may be the same weights in another layout
        weights = [name for name in weights if not name.startswith("consolidated")]
    if weights:
        return weights + [name for name in top if name.endswith(_COMPANIONS)]
    ggufs = [name for name in files if name.endswith(".gguf")]
    if ggufs:
        raise ModelError(repo_id, "", f"holds GGUF files: download one, such as {ggufs[0]}, and give its path")
    pickles = [name for name in files if name.endswith(PICKLES)]
    if pickles:
        raise ModelError(
            repo_id,
            pickles[0],
            "a pickle checkpoint: loading one can run code, so it is refused; use a repository with .safetensors",
        )
    raise ModelError(repo_id, "", "the repository holds no .safetensors")


def fetch(repo_id: str, revision: str | None = None) -> str:
    """Folder of the downloaded checkpoint. Without a network a copy in the cache serves, else ModelError."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        files = HfApi().list_repo_files(repo_id, revision=revision)
    except GatedRepoError:
        raise ModelError(
            repo_id, "", "needs you to accept its terms on the hub and to log in: `hf auth login`"
        ) from None
    except RevisionNotFoundError:
        raise ModelError(repo_id, "", f"the repository has no revision {revision!r}") from None
    except RepositoryNotFoundError:
        raise ModelError(repo_id, "", "the hub has no such repository, or it is private: `hf auth login`") from None
    except Exception as error:  # whatever the HTTP library in use raises without a network
        try:
            return snapshot_download(repo_id, revision=revision, local_files_only=True)
        except Exception:
            raise ModelError(repo_id, "", _no_network(repo_id, error)) from None
    wanted = wanted_files(repo_id, files)
    try:
        return snapshot_download(repo_id, revision=revision, allow_patterns=wanted)
    except Exception as error:
        raise ModelError(repo_id, "", _no_network(repo_id, error)) from None


def _no_network(repo_id: str, error: Exception) -> str:
    reason = f"{type(error).__name__}: {str(error).strip()[:200]}"
    command = f"hf download {repo_id} --include '*.safetensors' '*.json' '*.jinja' --local-dir FOLDER"
    return (
        f"not in the cache, and the hub cannot be reached ({reason}); where there is a network run `{command}`, "
        "then give FOLDER as the model"
    )
