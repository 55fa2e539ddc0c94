"""Reads what a checkpoint directory says about its tokenizer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from antiphon_engine.api.errors import StartupError

NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
"""The special tokens that have a name; templates see them as variables of these names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredToken:
    """An added token as `tokenizer_config.json` declares it."""

    token_id: int
    content: str
    special: bool
    normalized: bool
    lstrip: bool
    rstrip: bool
    single_word: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """The tokenizer's definition and its settings.

    Attributes:
        definition: The text of `tokenizer.json`.
        named_tokens: The text of each special token that has a name, by name.
        extra_special_tokens: Texts of further special tokens.
        declared_tokens: Added tokens that the settings declare, by rising id.
        add_bos: Whether a text gets the begin token in front; None: as the definition says.
        add_eos: The same for the end token behind.
    """

    definition: str
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    extra_special_tokens: tuple[str, ...] = ()
    declared_tokens: tuple[DeclaredToken, ...] = ()
    add_bos: bool | None = None
    add_eos: bool | None = None


def read_tokenizer_files(directory: Path) -> TokenizerFiles:
    """Reads `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json`.

    Raises:
        StartupError: `tokenizer.json` is absent, or a file can't be read.
    """
    definition = read_text(directory / "tokenizer.json")
    if definition is None:
        raise StartupError(
            f"{directory} has no tokenizer.json: name the directory of a Hugging Face checkpoint "
            "with a fast tokenizer"
        )
    settings = read_json_object(directory / "tokenizer_config.json")
    settings_map = read_json_object(directory / "special_tokens_map.json")
    named: dict[str, str] = {}
    for name in NAMED_TOKENS:
        content = _token_content(settings.get(name)) or _token_content(settings_map.get(name))
        if content:
            named[name] = content
    explicit = "add_bos_token" in settings or "add_eos_token" in settings
    return TokenizerFiles(
        definition=definition,
        named_tokens=named,
        extra_special_tokens=_extra_special_tokens(settings) or _extra_special_tokens(settings_map),
        declared_tokens=_declared_tokens(settings, directory),
        add_bos=bool(settings.get("add_bos_token")) if explicit else None,
        add_eos=bool(settings.get("add_eos_token")) if explicit else None,
    )


def read_text(path: Path) -> str | None:
    """The file's text; None where there is no such file.

    Raises:
        StartupError: It is there and can't be read as UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"{path} can't be read: {error}") from error


def read_json_object(path: Path) -> dict[str, object]:
    """The file's JSON object; empty where there is no such file.

    Raises:
        StartupError: It is there and isn't a JSON object.
    """
    text = read_text(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise StartupError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise StartupError(f"{path} holds no JSON object")
    return value


def _token_content(value: object) -> str | None:
    """A token is written as its text, or as an object with its text and flags."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _extra_special_tokens(settings: Mapping[str, object]) -> tuple[str, ...]:
    tokens: list[str] = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        values = settings.get(key)
        listed = list(values.values()) if isinstance(values, dict) else values
        if isinstance(listed, list):
            tokens += [content for value in listed if (content := _token_content(value))]
    return tuple(dict.fromkeys(tokens))


def _declared_tokens(settings: Mapping[str, object], directory: Path) -> tuple[DeclaredToken, ...]:
    entries = settings.get("added_tokens_decoder")
    if not isinstance(entries, dict):
        return ()
    tokens: list[DeclaredToken] = []
    for key, value in entries.items():
        content = _token_content(value)
        if content is None or not isinstance(value, dict) or not str(key).isdecimal():
            raise StartupError(
                f"{directory / 'tokenizer_config.json'}: added_tokens_decoder[{key!r}] is no token"
            )
        tokens.append(
            DeclaredToken(
                token_id=int(key),
                content=content,
                special=bool(value.get("special", False)),
                normalized=bool(value.get("normalized", True)),
                lstrip=bool(value.get("lstrip", False)),
                rstrip=bool(value.get("rstrip", False)),
                single_word=bool(value.get("single_word", False)),
            )
        )
    return tuple(sorted(tokens, key=lambda token: token.token_id))
