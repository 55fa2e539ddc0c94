"""Reads outputs' texts as tokens come in parts."""

from collections.abc import Sequence

from antiphon_server.text.output_text import OutputText, Piece


def read_output(output: OutputText, ids: Sequence[int], cuts: Sequence[int] = (1,)) -> list[Piece]:
    """Pushes the ids in parts of the sizes given, over and over; finishes if nothing stops it."""
    pieces: list[Piece] = []
    position, turn = 0, 0
    while position < len(ids):
        size = cuts[turn % len(cuts)]
        pieces += output.push(ids[position : position + size])
        position, turn = position + size, turn + 1
        if pieces[-1].stop:
            return pieces
    return [*pieces, *output.finish()]
