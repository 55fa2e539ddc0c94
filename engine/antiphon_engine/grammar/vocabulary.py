"""What each id of a model's vocabulary stands for, as grammars need it: bytes of text.

Grammars are enforced on bytes, so that they don't depend on how a tokenizer spells its tokens.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.token_bytes import read_token_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens of a model."""

    tokens: tuple[bytes, ...]
    """Text by id, as many as the output matrix has rows; b"" where the tokenizer has no token."""
    control_ids: frozenset[int]
    """Ids that don't show as text: no grammar's text is written with them."""

    @property
    def size(self) -> int:
        """How many ids there are."""
        return len(self.tokens)


def read_vocabulary(checkpoint: Path, *, size: int) -> Vocabulary:
    """Reads a checkpoint's tokenizer.

    Args:
        checkpoint: Its directory.
        size: Of the model's vocabulary, which may be padded beyond the tokenizer's, or be smaller.

    Raises:
        StartupError: There is no tokenizer, or of a kind that is not known.
    """
    definition = _read_object(checkpoint / "tokenizer.json")
    if definition is None:
        raise StartupError(f"{checkpoint} has no tokenizer.json: no grammar can be enforced")
    settings = _read_object(checkpoint / "tokenizer_config.json") or {}
    settings_map = _read_object(checkpoint / "special_tokens_map.json") or {}
    ids = _read_ids(definition)
    control_texts = _named_texts(settings) | _named_texts(settings_map)
    declared = settings.get("added_tokens_decoder")
    added = [token for token in _list(definition, "added_tokens") if isinstance(token, dict)]
    if isinstance(declared, dict):
        added += [{"id": int(key), **token} for key, token in declared.items()]
    for token in added:
        ids[str(token["content"])] = int(token["id"])
        if token.get("special"):
            control_texts.add(str(token["content"]))
    table = read_token_bytes(definition, ids).by_id
    tokens = (*table[:size], *(b"" for _ in range(size - len(table))))
    controls = (ids[text] for text in control_texts if text in ids)
    return Vocabulary(
        tokens=tokens,
        control_ids=frozenset(token_id for token_id in controls if token_id < size),
    )


def _read_object(path: Path) -> dict[str, object] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StartupError(f"{path} can't be read: {error}") from error
    return value if isinstance(value, dict) else None


def _read_ids(definition: Mapping[str, object]) -> dict[str, int]:
    """Returns the ids of the tokens that the tokenizer's model has."""
    model = definition.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        return {str(text): int(token_id) for text, token_id in vocabulary.items()}
    if isinstance(vocabulary, list):
        return {str(entry[0]): token_id for token_id, entry in enumerate(vocabulary)}
    raise StartupError("tokenizer.json has no vocabulary: no grammar can be enforced")


def _named_texts(settings: Mapping[str, object]) -> set[str]:
    """Returns the texts of the special tokens that a tokenizer's settings name."""
    values = [value for key, value in settings.items() if key.endswith("_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = settings.get(key)
        values += list(more.values()) if isinstance(more, dict) else _list(settings, key)
    texts = [value.get("content") if isinstance(value, dict) else value for value in values]
    return {text for text in texts if isinstance(text, str)}


def _list(values: Mapping[str, object], key: str) -> list[object]:
    value = values.get(key)
    return value if isinstance(value, list) else []
