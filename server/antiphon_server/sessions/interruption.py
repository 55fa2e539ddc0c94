"""What stays of a turn's output: what was delivered of an interrupted one, and no call in part."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from antiphon.v1.session_pb2 import TurnCompleted
from antiphon.v1.types_pb2 import FINISH_REASON_CANCELLED, Output

from antiphon_server.sessions.event_log import EventLog
from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.sessions.turn import LiveTurn
from antiphon_server.sessions.turn_generation import Outcome
from antiphon_server.text.output_channels import Channel
from antiphon_server.text.output_text import Piece
from antiphon_server.text.token_cuts import call_cuts, said_by, told_cuts


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an output is cut."""

    sequence: int
    num_tokens: int
    said: Sequence[Piece]
    """What the tokens up to there say."""


async def settle_output(
    turn: LiveTurn, outcome: Outcome, surroundings: Surroundings
) -> Outcome | None:
    """Returns what a turn keeps of its output; None: nothing of it was delivered.

    1. Of a turn that another one interrupted stays what its caller had got of it.
    2. The history holds no call that has not ended, nor any call of a turn that was stopped.
    3. Calls that were told are told of the turn for good, whatever its history holds.
    4. Text and token ids that are kept agree exactly: where the last event that may be kept ends
       inside a token, the cut is at the end of an event before it.
    """
    assert outcome.output is not None
    log, interrupted_at = turn.log, turn.interrupted_at
    most = log.last_sequence
    is_interrupted = interrupted_at is not None and not _all_delivered(log, interrupted_at, outcome)
    if is_interrupted and interrupted_at is not None:
        most = interrupted_at
    is_stopped = is_interrupted or outcome.output.finish_reason == FINISH_REASON_CANCELLED
    num_calls_kept = 0 if is_stopped else len(outcome.output.tool_calls)
    most = min(most, log.last_before_call(num_calls_kept))
    if most == log.last_sequence and not outcome.ends_inside_call and not is_interrupted:
        return outcome
    # Nothing is added to the log any more.
    if num_calls_kept:
        place = await surroundings.offload.run(_place_behind_calls, most, outcome, num_calls_kept)
    else:
        place = await surroundings.offload.run(_find_place, log, most, outcome)
    if is_interrupted:
        keeps_any = place.num_tokens or outcome.output.tool_calls
        return _cut_short(outcome, place) if keeps_any else None
    return _up_to(outcome, place)


def _all_delivered(log: EventLog, sequence: int, outcome: Outcome) -> bool:
    """Whether the turn had ended by itself, and its caller had got all of it."""
    assert outcome.output is not None
    by_itself = outcome.output.finish_reason != FINISH_REASON_CANCELLED
    return by_itself and log.characters_at(sequence) == log.characters_at(log.last_sequence)


def _find_place(log: EventLog, most: int, outcome: Outcome) -> _Place:
    """Returns the last place, up to a number, where an event ends with a token. CPU work."""
    token_ids, new_text = outcome.tokens.output_ids, outcome.new_text
    assert new_text is not None
    cuts = told_cuts(new_text(), token_ids)
    told = log.text_through(most)
    for number, count in reversed(list(enumerate(log.characters_through(most)))):
        num_tokens = cuts.get(count)
        if num_tokens is None:
            continue
        said = said_by(new_text, token_ids[:num_tokens])
        if "".join(piece.text for piece in said) == told[:count]:
            return _Place(number, num_tokens, said)
        # The tokens read otherwise by what follows them, which goes for few at a time.
        del cuts[count]
    return _Place(0, 0, ())


def _place_behind_calls(sequence: int, outcome: Outcome, num_calls: int) -> _Place:
    """Returns the place where so many calls have come whole, with what ends the last. CPU work."""
    token_ids, new_text = outcome.tokens.output_ids, outcome.new_text
    assert new_text is not None
    num_tokens = call_cuts(new_text(), token_ids)[num_calls - 1]
    return _Place(sequence, num_tokens, said_by(new_text, token_ids[:num_tokens]))


def _cut_short(outcome: Outcome, place: _Place) -> Outcome:
    """Returns what an interrupted turn keeps: all of it up to a place."""
    kept = _up_to(outcome, place)
    assert kept.output is not None
    output = Output()
    output.CopyFrom(kept.output)
    output.text = _text_of(place.said, Channel.CONTENT)
    output.reasoning = _text_of(place.said, Channel.REASONING)
    output.ClearField("stop_match")
    output.finish_reason = FINISH_REASON_CANCELLED
    completed = TurnCompleted()
    completed.CopyFrom(kept.completed)
    completed.ClearField("stop_match")
    completed.finish_reason = FINISH_REASON_CANCELLED
    return replace(kept, completed=completed, output=output, num_output_tokens=place.num_tokens)


def _up_to(outcome: Outcome, place: _Place) -> Outcome:
    """Returns a turn whose history ends at a place; what it says of itself is as it was."""
    assert outcome.output is not None
    output = Output()
    output.CopyFrom(outcome.output)
    del output.token_ids[place.num_tokens :]
    del output.logprobs[place.num_tokens :]
    completed = TurnCompleted()
    completed.CopyFrom(outcome.completed)
    completed.kept_sequence = place.sequence
    kept_ids = array("i", outcome.tokens.output_ids[: place.num_tokens])
    return replace(
        outcome,
        completed=completed,
        output=output,
        tokens=replace(outcome.tokens, output_ids=kept_ids),
    )


def _text_of(pieces: Sequence[Piece], channel: Channel) -> str:
    return "".join(piece.text for piece in pieces if piece.channel is channel)
