"""What each token id stands for, under the decoder that the tokenizer's definition names."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from antiphon_engine.api.errors import StartupError

METASPACE = "\u2581"  # "▁", which stands for a blank in sentencepiece vocabularies


class ByteRule(enum.Enum):
    """How bytes that make no character are shown."""

    BY_CHARACTER = enum.auto()
    """One U+FFFD for each broken character."""
    BY_RUN = enum.auto()
    """One U+FFFD for each byte of a run of byte tokens that is not valid UTF-8 as a whole."""


class LeadingBlank(enum.Enum):
    """What happens to a blank that begins a text."""

    KEPT = enum.auto()
    STRIPPED = enum.auto()
    """The dummy blank that encoding put in front is taken off."""
    FIRST_TOKEN_BARED = enum.auto()
    """Every blank sign of the first token is taken off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How token ids become text.

    Attributes:
        bytes_by_id: Each token's bytes; b"" for ids without a token.
        byte_ids: Ids whose token stands for a single byte, under `BY_RUN`.
    """

    bytes_by_id: Sequence[bytes]
    byte_ids: frozenset[int]
    byte_rule: ByteRule
    leading_blank: LeadingBlank


def read_decoding(definition: Mapping[str, object], tokens: Mapping[str, int]) -> Decoding:
    """Reads the decoder of a tokenizer's definition.

    Args:
        definition: The parsed `tokenizer.json`.
        tokens: Every token's id, added tokens included.

    Raises:
        StartupError: The decoder is of a kind that this server doesn't know.
    """
    steps = _decoder_steps(definition.get("decoder"))
    kinds = [str(step.get("type")) for step in steps]
    num_ids = max(tokens.values(), default=-1) + 1
    table = [b""] * num_ids
    if "ByteLevel" in kinds and set(kinds) <= {"ByteLevel", "Fuse"}:
        byte_of = _byte_level_alphabet()
        for token, token_id in tokens.items():
            table[token_id] = _byte_level_bytes(token, byte_of)
        return Decoding(
            bytes_by_id=table,
            byte_ids=frozenset(),
            byte_rule=ByteRule.BY_CHARACTER,
            leading_blank=LeadingBlank.KEPT,
        )
    byte_ids: set[int] = set()
    for token, token_id in tokens.items():
        byte = _fallback_byte(token) if "ByteFallback" in kinds else None
        if byte is None:
            table[token_id] = token.replace(METASPACE, " ").encode()
        else:
            table[token_id] = bytes([byte])
            byte_ids.add(token_id)
    return Decoding(
        bytes_by_id=table,
        byte_ids=frozenset(byte_ids),
        byte_rule=ByteRule.BY_RUN,
        leading_blank=_leading_blank(steps),
    )


def _decoder_steps(decoder: object) -> list[Mapping[str, object]]:
    if not isinstance(decoder, dict):
        raise StartupError(
            "tokenizer.json names no decoder: byte-level and sentencepiece decoders are served"
        )
    if decoder.get("type") != "Sequence":
        return [decoder]
    nested = decoder.get("decoders")
    steps: list[Mapping[str, object]] = []
    for step in nested if isinstance(nested, list) else []:
        steps += _decoder_steps(step)
    return steps


def _leading_blank(steps: Sequence[Mapping[str, object]]) -> LeadingBlank:
    """Checks that the steps are a sentencepiece decoder's; says what it does in front."""
    blank = LeadingBlank.KEPT
    reads_metaspace = False
    for step in steps:
        match step:
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}:
                reads_metaspace = True
            case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0}:
                blank = LeadingBlank.STRIPPED if start else blank
            case {"type": "Metaspace", "replacement": "\u2581"}:
                reads_metaspace = True
                if step.get("prepend_scheme", "always") != "never":
                    blank = LeadingBlank.FIRST_TOKEN_BARED
            case _:
                raise StartupError(
                    f"tokenizer.json asks for the decoder step {step.get('type')}, which is not "
                    "served: byte-level and sentencepiece decoders are"
                )
    if not reads_metaspace:
        raise StartupError(
            "tokenizer.json names a decoder that is neither byte-level nor sentencepiece: "
            f"{[step.get('type') for step in steps]}"
        )
    return blank


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
