"""When generation ends: ranges, the arithmetic of the context, and defaults."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from antiphon.v1.types_pb2 import StopConditions
from google.protobuf.duration_pb2 import Duration

from antiphon_engine.api.errors import AntiphonError, ErrorReason
from antiphon_engine.api.messages import StopParams
from antiphon_server.times import NS_PER_S
from antiphon_server.validation_fields import Violations

MAX_STOP_STRINGS: Final = 16
MAX_STOP_STRING_CHARACTERS: Final = 256
MAX_STOP_TOKEN_IDS: Final = 64

_MAX_DURATION_S: Final = 315_576_000_000  # Ten thousand years, as protobuf has it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the context has for a request."""

    context_tokens: int
    prompt_tokens: int

    @property
    def left_tokens(self) -> int:
        """What remains for the output; may be negative."""
        return self.context_tokens - self.prompt_tokens


def check_stop(
    stop: StopConditions, *, vocabulary_size: int, path: str, violations: Violations
) -> None:
    """Adds what is wrong with the fields that are set."""
    asked = stop.max_output_tokens
    if stop.HasField("max_output_tokens"):
        if asked < 1:
            violations.add(f"{path}.max_output_tokens", f"must be at least 1, is {asked}")
        elif stop.min_output_tokens > asked:
            violations.add(
                f"{path}.min_output_tokens",
                f"must be at most max_output_tokens, {asked}, is {stop.min_output_tokens}",
            )
    violations.check_count(f"{path}.stop_strings", len(stop.stop_strings), MAX_STOP_STRINGS)
    for index, text in enumerate(stop.stop_strings[: MAX_STOP_STRINGS + 1]):
        if not 1 <= len(text) <= MAX_STOP_STRING_CHARACTERS:
            violations.add(
                f"{path}.stop_strings[{index}]",
                f"must have 1 to {MAX_STOP_STRING_CHARACTERS} characters, has {len(text)}",
            )
    violations.check_count(f"{path}.stop_token_ids", len(stop.stop_token_ids), MAX_STOP_TOKEN_IDS)
    for index, token_id in enumerate(stop.stop_token_ids[: MAX_STOP_TOKEN_IDS + 1]):
        violations.check_token_id(f"{path}.stop_token_ids[{index}]", token_id, vocabulary_size)
    if stop.HasField("time_limit"):
        check_positive_duration(stop.time_limit, path=f"{path}.time_limit", violations=violations)


def check_positive_duration(value: Duration, *, path: str, violations: Violations) -> None:
    """Adds a violation where a duration is out of protobuf's range, or not above zero."""
    valid = 0 <= value.seconds <= _MAX_DURATION_S and 0 <= value.nanos < NS_PER_S
    if not valid or (value.seconds, value.nanos) == (0, 0):
        violations.add(path, f"must be above zero, is {value.seconds} s and {value.nanos} ns")


def check_room(stop: StopConditions, room: Room) -> None:
    """Checks that prompt and output fit the context.

    Raises:
        AntiphonError: CONTEXT_LENGTH_EXCEEDED; tells the limit, the prompt and what was asked.
    """
    least = max(1, stop.min_output_tokens)
    asked = stop.max_output_tokens if stop.HasField("max_output_tokens") else least
    if asked <= room.left_tokens:
        return
    raise AntiphonError(
        ErrorReason.CONTEXT_LENGTH_EXCEEDED,
        f"the prompt has {room.prompt_tokens} tokens and {asked} output tokens were asked for, "
        f"but the context holds {room.context_tokens}; shorten the prompt or ask for fewer",
        metadata={
            "limit": str(room.context_tokens),
            "prompt": str(room.prompt_tokens),
            "asked": str(asked),
        },
    )


def resolve_stop(stop: StopConditions, *, room: Room, end_ids: Iterable[int]) -> StopParams:
    """Returns what the engine gets: unset fields take the contract's values.

    Args:
        stop: Checked, also against the room.
        room: What the context has for the request.
        end_ids: The model's.
    """
    is_asked = stop.HasField("max_output_tokens")
    return StopParams(
        max_output_tokens=stop.max_output_tokens if is_asked else room.left_tokens,
        min_output_tokens=stop.min_output_tokens,
        end_ids=() if stop.ignore_eos else tuple(sorted(end_ids)),
        stop_ids=tuple(sorted(set(stop.stop_token_ids))),
    )


def effective_stop(params: StopParams, asked: StopConditions) -> StopConditions:
    """Returns the contract's message with every value that is in force."""
    return StopConditions(
        max_output_tokens=params.max_output_tokens,
        min_output_tokens=params.min_output_tokens,
        stop_strings=asked.stop_strings,
        stop_token_ids=asked.stop_token_ids,
        include_stop_string=asked.include_stop_string,
        ignore_eos=asked.ignore_eos,
        time_limit=asked.time_limit if asked.HasField("time_limit") else None,
    )
