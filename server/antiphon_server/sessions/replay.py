"""The events of a turn that has ended, made again from what is kept of it."""

from collections.abc import Iterator, Sequence

from antiphon.v1.session_pb2 import Turn, TurnAccepted, TurnCompleted, TurnEvent
from antiphon.v1.types_pb2 import (
    OUTPUT_CHANNEL_CONTENT,
    OUTPUT_CHANNEL_REASONING,
    OUTPUT_CHANNEL_TOOL_CALL,
    Delta,
    GenerationStarted,
    Output,
    PromptPart,
    ToolCall,
)

_PIECE_CHARACTERS = 128 << 10
_PIECE_TOKENS = 1024
_PIECE_BARE_TOKENS = 128 << 10
"""Where there is nothing to say of a token but its id."""


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
    num_calls = len(turn.output.tool_calls)
    pieces = _pieces(turn.output, most=last - 1 - num_calls - len(events))
    events += _with_calls(pieces, turn.output.tool_calls)
    # The last piece, or what comes before all, stands for all the numbers that are left.
    num_left = last - 1 - len(events)
    widened = max(i for i, event in enumerate(events) if not event.HasField("tool_call"))
    sequence = 0
    for index, event in enumerate(events):
        event.first_sequence = sequence + 1
        sequence += 1 + (num_left if index == widened else 0)
        event.sequence = sequence
    return [*events, _terminal(turn, etag, last)]


def _with_calls(pieces: Sequence[Delta], calls: Sequence[ToolCall]) -> Iterator[TurnEvent]:
    """Yields an output's pieces, and each call behind its own."""
    waiting = list(calls)
    for index, piece in enumerate(pieces):
        yield TurnEvent(delta=piece)
        is_last = index + 1 == len(pieces) or pieces[index + 1].call_id != piece.call_id
        if piece.call_id and is_last:
            yield TurnEvent(tool_call=waiting.pop(0))
    for call in waiting:
        yield TurnEvent(tool_call=call)


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


def _pieces(output: Output, *, most: int) -> list[Delta]:
    """Returns an output cut so that each piece keeps far below a message's bound.

    Tokens are spread over all pieces: which of them said what is not known any more.

    Args:
        output: The output.
        most: The most pieces that there may be.
    """
    num_tokens = max(len(output.token_ids), len(output.logprobs))
    by_tokens = -(-num_tokens // (_PIECE_TOKENS if output.logprobs else _PIECE_BARE_TOKENS))
    parts = _parts(output)
    sizes = [max(1, -(-len(part.text) // _PIECE_CHARACTERS)) for part in parts]
    if parts and sum(sizes) < by_tokens:
        sizes[-1] += by_tokens - sum(sizes)
    while sum(sizes) > most and max(sizes) > 1:
        sizes[sizes.index(max(sizes))] -= 1
    if not parts and num_tokens:
        parts, sizes = [Delta(channel=OUTPUT_CHANNEL_CONTENT)], [min(by_tokens, most)]
    pieces = [piece for part, size in zip(parts, sizes, strict=True) for piece in _cut(part, size)]
    pieces = pieces[: max(0, most)]
    for index, piece in enumerate(pieces):
        share = slice(num_tokens * index // len(pieces), num_tokens * (index + 1) // len(pieces))
        piece.token_ids.extend(output.token_ids[share])
        piece.logprobs.extend(output.logprobs[share])
    return pieces


def _parts(output: Output) -> list[Delta]:
    """Returns an output's parts that have text, in the order in which they come."""
    parts = [
        Delta(channel=OUTPUT_CHANNEL_REASONING, text=output.reasoning),
        Delta(channel=OUTPUT_CHANNEL_CONTENT, text=output.text),
    ]
    parts += (
        Delta(
            channel=OUTPUT_CHANNEL_TOOL_CALL,
            text=call.arguments_json,
            call_id=call.call_id,
            tool_name=call.tool_name,
        )
        for call in output.tool_calls
    )
    return [part for part in parts if part.text]


def _cut(part: Delta, num_pieces: int) -> Iterator[Delta]:
    """Yields a part in pieces of about one length."""
    size = len(part.text)
    for index in range(num_pieces):
        yield Delta(
            channel=part.channel,
            text=part.text[size * index // num_pieces : size * (index + 1) // num_pieces],
            call_id=part.call_id,
            tool_name="" if index else part.tool_name,
        )
