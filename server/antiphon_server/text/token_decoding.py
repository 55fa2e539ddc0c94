"""What each token id stands for, under the decoder that the tokenizer's definition names."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphon_engine.api.errors import StartupError
from antiphon_engine.api.token_bytes import decoder_steps, read_token_bytes


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
        whole_texts: Texts of tokens that are whole characters, as far as they were asked for.
        byte_ids: Ids whose token stands for a single byte, under `BY_RUN`.
    """

    bytes_by_id: Sequence[bytes]
    byte_ids: frozenset[int]
    byte_rule: ByteRule
    leading_blank: LeadingBlank
    whole_texts: dict[int, str] = field(default_factory=dict)

    def whole_text(self, token_id: int) -> str:
        """Returns a token's text, if that depends on no other token; empty: it does.

        From any thread: what two of them find is the same.
        """
        if token_id in self.byte_ids or not 0 <= token_id < len(self.bytes_by_id):
            return ""
        try:
            text = self.bytes_by_id[token_id].decode()
        except UnicodeDecodeError:
            return ""
        self.whole_texts[token_id] = text
        return text


def read_decoding(definition: Mapping[str, object], tokens: Mapping[str, int]) -> Decoding:
    """Reads the decoder of a tokenizer's definition.

    Args:
        definition: The parsed `tokenizer.json`.
        tokens: Every token's id, added tokens included.

    Raises:
        StartupError: The decoder is of a kind that this server doesn't know.
    """
    steps = decoder_steps(definition)
    token_bytes = read_token_bytes(definition, tokens)
    if token_bytes.is_byte_level:
        return Decoding(
            bytes_by_id=token_bytes.by_id,
            byte_ids=frozenset(),
            byte_rule=ByteRule.BY_CHARACTER,
            leading_blank=LeadingBlank.KEPT,
        )
    return Decoding(
        bytes_by_id=token_bytes.by_id,
        byte_ids=token_bytes.single_ids,
        byte_rule=ByteRule.BY_RUN,
        leading_blank=_leading_blank(steps),
    )


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
