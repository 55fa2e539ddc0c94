"""What stays of a turn that another one interrupted: what its caller had got of it."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from antiphon.v1.session_pb2 import TurnCompleted
from antiphon.v1.types_pb2 import FINISH_REASON_CANCELLED, Output

from antiphon_server.served_model import ServedModel
from antiphon_server.sessions.event_log import EventLog
from antiphon_server.sessions.surroundings import Surroundings
from antiphon_server.sessions.turn import LiveTurn
from antiphon_server.sessions.turn_generation import Outcome
from antiphon_server.text.detokenizer import Detokenizer
from antiphon_server.text.token_cuts import clean_cuts


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an output is cut."""

    sequence: int
    num_characters: int
    num_tokens: int


async def cut_to_delivered(
    turn: LiveTurn, outcome: Outcome, model: ServedModel, surroundings: Surroundings
) -> Outcome | None:
    """Returns what an interrupted turn keeps; None: nothing was delivered.

    Text and token ids that are kept agree exactly: where the last delivered event ends inside a
    token, the cut is at the end of an event before it.
    """
    assert turn.interrupted_at is not None
    assert outcome.output is not None
    if _all_delivered(turn.log, turn.interrupted_at, outcome):
        return outcome
    detokenizer = partial(
        model.tokenizer.detokenizer,
        hide_special_tokens=not turn.message.config.output.special_tokens,
        prompt_tail=outcome.prompt_tail,
    )
    # Nothing is added to the log any more.
    place = await surroundings.offload.run(
        _find_place, turn.log, turn.interrupted_at, outcome, detokenizer
    )
    return _cut(outcome, place) if place.num_tokens else None


def _all_delivered(log: EventLog, sequence: int, outcome: Outcome) -> bool:
    """Whether the turn had ended by itself, and its caller had got all of it."""
    assert outcome.output is not None
    by_itself = outcome.output.finish_reason != FINISH_REASON_CANCELLED
    return by_itself and log.characters_at(sequence) == len(outcome.output.text)


def _find_place(
    log: EventLog, sequence: int, outcome: Outcome, new_detokenizer: Callable[[], Detokenizer]
) -> _Place:
    """Returns the last place, up to a number, where an event ends with a token. CPU work."""
    assert outcome.output is not None
    text, token_ids = outcome.output.text, outcome.tokens.output_ids
    cuts = dict(clean_cuts(new_detokenizer(), token_ids))
    for number, count in reversed(list(enumerate(log.characters_through(sequence)))):
        num_tokens = cuts.get(count)
        if num_tokens is None:
            continue
        if _decode(new_detokenizer(), token_ids[:num_tokens]) == text[:count]:
            return _Place(number, count, num_tokens)
        # The tokens read otherwise by what follows them, which goes for few at a time.
        del cuts[count]
    return _Place(0, 0, 0)


def _decode(detokenizer: Detokenizer, token_ids: Sequence[int]) -> str:
    return detokenizer.push(token_ids) + detokenizer.finish()


def _cut(outcome: Outcome, place: _Place) -> Outcome:
    assert outcome.output is not None
    kept_ids = array("i", outcome.tokens.output_ids[: place.num_tokens])
    output = Output()
    output.CopyFrom(outcome.output)
    output.text = output.text[: place.num_characters]
    del output.token_ids[place.num_tokens :]
    del output.logprobs[place.num_tokens :]
    output.ClearField("stop_match")
    output.finish_reason = FINISH_REASON_CANCELLED
    completed = TurnCompleted()
    completed.CopyFrom(outcome.completed)
    completed.ClearField("stop_match")
    completed.finish_reason = FINISH_REASON_CANCELLED
    completed.kept_sequence = place.sequence
    return replace(
        outcome,
        completed=completed,
        output=output,
        tokens=replace(outcome.tokens, output_ids=kept_ids),
        num_output_tokens=place.num_tokens,
    )
