"""Fetches checkpoints from a model hub."""

from pathlib import Path
from typing import Final, Protocol

from antiphon_engine.api.errors import StartupError
from antiphon_engine.checkpoint.progress import OnProgress
from antiphon_engine.checkpoint.shards import find_shards

_PATTERNS: Final = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.jinja",
)
"""What is read of a checkpoint; repositories hold much more."""


class Hub(Protocol):
    """Where checkpoints with an id come from."""

    def cached(self, repository: str) -> Path | None:
        """Returns the directory of a checkpoint that was fetched earlier, perhaps in part."""

    def fetch(self, repository: str) -> Path:
        """Fetches what is missing of a checkpoint and returns its directory.

        Raises:
            StartupError: it doesn't exist, isn't public, or the hub can't be reached.
        """


def fetch_checkpoint(hub: Hub, repository: str, *, progress: OnProgress) -> Path:
    """Returns a checkpoint's directory: from the cache where it is whole there, else from the hub.

    Raises:
        StartupError: as `Hub.fetch`.
    """
    cached = hub.cached(repository)
    if cached is not None and _is_whole(cached):
        return cached
    progress("fetch", 0, 0)
    return hub.fetch(repository)


class HuggingFaceHub:
    """The hub that huggingface_hub knows, with its cache, which other programs share.

    An interrupted download goes on where it stopped.
    """

    def __init__(self, *, cache_dir: Path | None = None, endpoint: str | None = None) -> None:
        self._cache_dir = cache_dir
        self._endpoint = endpoint

    def cached(self, repository: str) -> Path | None:
        """Returns the directory of a checkpoint that was fetched earlier, perhaps in part."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

        try:
            path = snapshot_download(
                repository,
                cache_dir=self._cache_dir,
                allow_patterns=list(_PATTERNS),
                local_files_only=True,
            )
        except (LocalEntryNotFoundError, HFValidationError, OSError):
            return None
        return Path(path)

    def fetch(self, repository: str) -> Path:
        """Fetches what is missing of a checkpoint and returns its directory."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )

        try:
            path = snapshot_download(
                repository,
                cache_dir=self._cache_dir,
                endpoint=self._endpoint,
                allow_patterns=list(_PATTERNS),
            )
        except GatedRepoError as error:
            raise StartupError(
                f"{repository} asks its users to register: do so, and set HF_TOKEN"
            ) from error
        except RepositoryNotFoundError as error:
            raise StartupError(f"the model hub has no {repository}, or it is private") from error
        except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError) as error:
            first_line = str(error).partition("\n")[0]
            raise StartupError(
                f"can't fetch {repository} from the model hub: {first_line}; where no hub can be "
                "reached, give a local directory"
            ) from error
        return Path(path)


def _is_whole(directory: Path) -> bool:
    required = ("config.json", "tokenizer.json", "tokenizer_config.json")
    if not all((directory / name).is_file() for name in required):
        return False
    try:
        find_shards(directory)
    except StartupError:
        return False
    return True
