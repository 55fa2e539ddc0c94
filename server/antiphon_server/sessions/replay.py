"""The events of a turn that has ended, made again from what is kept of it."""

from collections.abc import Iterator, Sequence

from antiphon.v1.session_pb2 import Turn, TurnAccepted, TurnCompleted, TurnEvent
from antiphon.v1.types_pb2 import (
    OUTPUT_CHANNEL_CONTENT,
    Delta,
    GenerationStarted,
    Output,
    PromptPart,
)

_PIECE_CHARACTERS = 128 << 10
_PIECE_TOKENS = 1024


def replayed_events(turn: Turn, *, etag: str, prompt: Sequence[PromptPart]) -> list[TurnEvent]:
    """Returns a turn's events, numbered without gaps up to its last one.

    Args:
        turn: A turn that has ended.
        etag: The session's with this turn as its head, for the terminal event.
        prompt: The prompt's report, where it was asked for and can be made again.
    """
    events = [TurnEvent(accepted=TurnAccepted())]
    if turn.usage.prompt_tokens:
        started = GenerationStarted(
            prompt_tokens=turn.usage.prompt_tokens,
            cached_prompt_tokens=turn.usage.cached_prompt_tokens,
            seed=turn.config.sampling.seed,
        )
        events.append(TurnEvent(started=started))
        events += (TurnEvent(prompt_part=part) for part in prompt)
    last = max(turn.last_sequence, 2)
    events = events[: last - 1]
    # A turn whose output came at a few strokes has numbers for as few pieces.
    pieces = _pieces(turn.output, most=last - 1 - len(events))
    events += (TurnEvent(delta=delta) for delta in pieces)
    for sequence, event in enumerate(events, start=1):
        event.first_sequence = event.sequence = sequence
    events[-1].sequence = last - 1
    events.append(_terminal(turn, etag, last))
    return events


def _terminal(turn: Turn, etag: str, sequence: int) -> TurnEvent:
    event = TurnEvent(first_sequence=sequence, sequence=sequence)
    if turn.state == Turn.STATE_FAILED:
        event.failed.CopyFrom(turn.failure)
        return event
    event.completed.CopyFrom(
        TurnCompleted(
            finish_reason=turn.output.finish_reason,
            stop_match=turn.output.stop_match if turn.output.HasField("stop_match") else None,
            usage=turn.usage if turn.HasField("usage") else None,
            timings=turn.timings if turn.HasField("timings") else None,
            etag=etag,
            kept_sequence=sequence,
        )
    )
    return event


def _pieces(output: Output, *, most: int) -> Iterator[Delta]:
    """Yields an output cut so that each piece keeps far below a message's bound.

    Args:
        output: The output.
        most: The most pieces that there may be.
    """
    num_tokens = max(len(output.token_ids), len(output.logprobs))
    wanted = max(
        -(-len(output.text) // _PIECE_CHARACTERS),
        -(-num_tokens // _PIECE_TOKENS) if output.logprobs else -(-num_tokens // (128 << 10)),
    )
    num_pieces = min(wanted, most)
    for index in range(num_pieces):
        texts, tokens = (
            slice(length * index // num_pieces, length * (index + 1) // num_pieces)
            for length in (len(output.text), num_tokens)
        )
        yield Delta(
            channel=OUTPUT_CHANNEL_CONTENT,
            text=output.text[texts],
            token_ids=output.token_ids[tokens],
            logprobs=output.logprobs[tokens],
        )
