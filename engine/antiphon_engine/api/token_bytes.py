"""The bytes that each token id stands for, under the decoder that a tokenizer's definition names.

Both sides read them: the front end for text, the engine and who checks constraints for grammars.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from antiphon_engine.api.errors import StartupError

METASPACE = "\u2581"  # "▁", which stands for a blank in sentencepiece vocabularies


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """What tokens stand for, by id."""

    by_id: list[bytes]
    """b"" for ids without a token."""
    single_ids: frozenset[int]
    """Ids of tokens such as `<0x0A>`, which spell a single byte."""
    is_byte_level: bool
    """Whether tokens are spelled in the 256 printable characters of byte-level vocabularies."""


def read_token_bytes(definition: Mapping[str, object], tokens: Mapping[str, int]) -> TokenBytes:
    """Reads the vocabulary of a tokenizer.

    Args:
        definition: The parsed `tokenizer.json`.
        tokens: Every token's id, added tokens included.

    Raises:
        StartupError: It names no decoder.
    """
    kinds = [str(step.get("type")) for step in decoder_steps(definition)]
    table = [b""] * (max(tokens.values(), default=-1) + 1)
    if "ByteLevel" in kinds and set(kinds) <= {"ByteLevel", "Fuse"}:
        byte_of = _byte_level_alphabet()
        for token, token_id in tokens.items():
            table[token_id] = _byte_level_bytes(token, byte_of)
        return TokenBytes(by_id=table, single_ids=frozenset(), is_byte_level=True)
    single_ids: set[int] = set()
    for token, token_id in tokens.items():
        byte = _fallback_byte(token) if "ByteFallback" in kinds else None
        if byte is None:
            table[token_id] = token.replace(METASPACE, " ").encode()
        else:
            table[token_id] = bytes([byte])
            single_ids.add(token_id)
    return TokenBytes(by_id=table, single_ids=frozenset(single_ids), is_byte_level=False)


def decoder_steps(definition: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    """Returns the steps of the decoder that a definition names, in order.

    Raises:
        StartupError: It names none.
    """
    return _flat_steps(definition.get("decoder"))


def _flat_steps(decoder: object) -> list[Mapping[str, object]]:
    if not isinstance(decoder, dict):
        raise StartupError(
            "tokenizer.json names no decoder: byte-level and sentencepiece decoders are served"
        )
    if decoder.get("type") != "Sequence":
        return [decoder]
    nested = decoder.get("decoders")
    steps: list[Mapping[str, object]] = []
    for step in nested if isinstance(nested, list) else []:
        steps += _flat_steps(step)
    return steps


def _byte_level_alphabet() -> dict[str, int]:
    """The byte behind each of the 256 printable characters that byte-level vocabularies use."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet


def _byte_level_bytes(token: str, byte_of: Mapping[str, int]) -> bytes:
    """A token with a character outside the alphabet is an added one: its text stands as it is."""
    try:
        return bytes([byte_of[character] for character in token])
    except KeyError:
        return token.encode()


def _fallback_byte(token: str) -> int | None:
    """The byte that a token such as `<0x0A>` stands for."""
    if len(token) != 6 or not token.startswith("<0x") or token[5] != ">":
        return None
    try:
        return int(token[3:5], 16)
    except ValueError:
        return None
